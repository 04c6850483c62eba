# SPDX-License-Identifier: Apache-2.0
"""Diagnostics of every step: equal to the pure functions and to slow Python, on both layouts; state; glossary."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from episodes import Episode, lay_out, make_episodes
from slow_metrics import aem_drift, likelihood_by_class, windows_by_token, windows_by_turn

from verl_entropy.config.settings import ConfigError
from verl_entropy.diagnostics import glossary, live, predictors
from verl_entropy.diagnostics.settings import read_live
from verl_entropy.methods import registry

P = live.PREFIX


@dataclass
class Context:
    """The fields of the advantage context that are read."""

    turns: Any
    mask_RT: torch.Tensor
    entropy_RT: torch.Tensor | None
    old_log_probs_RT: torch.Tensor | None
    advantages_RT: torch.Tensor | None
    fields: dict = field(default_factory=dict)
    step: int = 1
    entropy: float | None = 0.5


def context(episodes: list[Episode], layout: str = "step-wise", **more) -> Context:
    batch = lay_out(episodes, layout, **more)
    turns = batch.turns()
    junk = torch.where(batch.mask, 0.0, math.nan)
    # Values that depend on the token only, not on the place of its row: equal in both layouts.
    log_prob = -0.3 - 0.7 * batch.entropy + junk
    advantage = (batch.entropy * 7).sin() + junk
    return Context(turns, batch.mask, batch.garbage, log_prob, advantage, {"extra_fields": records(batch)})


def records(batch) -> list[dict]:
    """Rows' records as the agent loop gives them: the anchor stands in for the action, every second turn is inadmissible."""
    found = []
    for fields, position in zip(batch.rows["turn_fields"], batch.rows["position_R"], strict=True):
        found.append(
            {"turns": [{**f, "action": f["anchor"], "admissible": (position + i) % 2 == 0} for i, f in enumerate(fields)]}
        )
    return found


@pytest.mark.parametrize("layout", ["step-wise", "one-row"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_equal_to_the_pure_functions(layout, seed):
    x = context(make_episodes(seed), layout, shuffle=seed, padding=2, extra_width=3)
    found = live.step_diagnostics(x, live.Live(early_late=3))
    turns, entropy, log_prob, advantage = x.turns, x.entropy_RT, x.old_log_probs_RT, x.advantages_RT
    for name, slow in (("turns", windows_by_turn), ("tokens", windows_by_token)):
        expected = slow(entropy, turns, 3)
        assert found[f"{P}entropy_early/{name}"] == pytest.approx(expected.early, rel=1e-6)
        assert found[f"{P}entropy_late/{name}"] == pytest.approx(expected.late, rel=1e-6)
    for name, value in likelihood_by_class(log_prob, turns).items():
        assert found[f"{P}likelihood/{name}"] == pytest.approx(value, rel=1e-5)
    for name, value in aem_drift(advantage, log_prob, entropy, turns).items():
        assert found[f"{P}aem_drift/{name}"] == pytest.approx(float(value), rel=1e-4, abs=1e-6)
    assert found[f"{P}predictor/repo"] == float(predictors.repo_predictor(advantage, log_prob, entropy, x.mask_RT))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_equal_to_slow_python(seed):
    episodes = make_episodes(seed)
    found = live.step_diagnostics(context(episodes, shuffle=seed))
    responses = [np.mean(t) for e in episodes for t in e.tokens]
    assert found[f"{P}response_entropy/p90"] == pytest.approx(np.percentile(responses, 90), rel=1e-5)
    assert found[f"{P}response_entropy/std"] == pytest.approx(np.std(responses), rel=1e-5)
    correct = [np.mean([h for t in e.tokens for h in t]) for e in episodes if e.success]
    assert found[f"{P}entropy_of/correct"] == pytest.approx(np.mean(correct), rel=1e-5)
    pairs = [a == b for e in episodes for a, b in zip(e.anchor, e.anchor[1:], strict=False)]
    assert found[f"{P}repeated_action_ratio"] == pytest.approx(np.mean(pairs))
    groups = {g: {e.score for e in episodes if e.group == g} for g in dict.fromkeys(e.group for e in episodes)}
    assert found[f"{P}group/zero_variance"] == pytest.approx(np.mean([len(s) == 1 for s in groups.values()]))
    assert found[f"{P}group/effective_batch"] == sum(len(groups[e.group]) > 1 for e in episodes)
    invalid = [p > 0 for e in episodes for p in e.penalty]
    assert found[f"{P}invalid_turn_ratio"] == pytest.approx(np.mean(invalid))


def test_layouts_agree():
    episodes = make_episodes(5)
    one, other = (live.step_diagnostics(context(episodes, layout)) for layout in ("step-wise", "one-row"))
    assert one.keys() == other.keys()
    for key in one.keys() - {f"{P}format_error_ratio", f"{P}inadmissible_action_ratio"}:
        assert one[key] == pytest.approx(other[key], rel=1e-5, abs=1e-7), key


def test_what_is_missing_is_left_out():
    x = context(make_episodes(0))
    x.entropy_RT = x.old_log_probs_RT = x.advantages_RT = None
    x.fields = {}
    found = live.step_diagnostics(x)
    assert {k.removeprefix(P) for k in found} == {
        "group/zero_variance",
        "group/effective_batch",
        "group/singletons",
        "success",
        "turns",
        "valid_action_ratio",
        "invalid_turn_ratio",
        "valid_trajectory_ratio",
    }


def test_sentences_only_with_text():
    x = context(make_episodes(0))
    assert live.step_diagnostics(x, texts=["a. b. a.", "c."])[f"{P}duplication"] == pytest.approx(1 / 3)
    assert f"{P}duplication" not in live.step_diagnostics(x)


def test_every_metric_is_in_the_glossary_and_is_finite():
    x = context(make_episodes(0))
    x.fields["vocab_centre"] = torch.zeros_like(x.entropy_RT)
    diagnostics = live.LiveDiagnostics()
    diagnostics.step(x)
    x.step, x.entropy = 2, 0.6
    found = diagnostics.step(x, texts=["a."])
    known = {e.key for e in glossary.GLOSSARY}
    assert len(known) == len(glossary.GLOSSARY) and all(map(math.isfinite, found.values()))
    assert [k for k in found if glossary.find(k) is None] == []
    methods = (f"{m.name}/{name}" for m in registry.methods() for name in m.metrics)
    elsewhere = {P + k for k in (*glossary._OURS, *methods, *glossary._SAMPLED)} | glossary._VERL.keys()
    assert {k for k in known - found.keys() - elsewhere if "<" not in k} == set()
    assert all(e.formula and e.unit and e.source for e in glossary.GLOSSARY)


def test_change_and_agreement_over_steps():
    x, diagnostics = context(make_episodes(1)), live.LiveDiagnostics()
    values = [0.5, 0.4, 0.3, 0.45]
    found = []
    for x.step, x.entropy in enumerate(values):
        found.append(diagnostics.step(x))
    rises = found[0][f"{P}predictor/repo"] > 0
    assert f"{P}entropy_change" not in found[0]
    assert [m[f"{P}entropy_change"] for m in found[1:]] == pytest.approx([-0.1, -0.1, 0.15])
    assert found[-1][f"{P}cumulative_entropy"] == pytest.approx(1.65)
    assert found[-1][f"{P}predictor_agreement/repo"] == pytest.approx((1 if rises else 2) / 3)


@pytest.mark.parametrize("action", ["none", "warn", "checkpoint", "stop"])
def test_an_eruption_asks_for_its_action_once(action):
    diagnostics = live.LiveDiagnostics(read_live({"on_eruption": action, "detector": {"warmup": 5}}, "algorithm.entropy"))
    x, asked = context(make_episodes(1)), []
    for x.step in range(60):
        x.entropy = 0.2 + 0.05 * max(x.step - 30, 0)
        diagnostics.step(x)
        asked.append((diagnostics.action, len(diagnostics.messages)))
    assert sum(a != "none" for a, _ in asked) == (action != "none") and sum(n for _, n in asked) == 1


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"detector": {"windoww": 3}}, "detector.window"),
        ({"detector": {"window": 0}}, "window=0"),
        ({"detector": {"smooth": 4}}, "smooth=4"),
        ({"detector": 3}, "group of settings"),
        ({"on_eruption": "panic"}, "none, warn, checkpoint, stop"),
    ],
)
def test_wrong_settings_are_named(values, text):
    with pytest.raises(ConfigError, match=text):
        read_live(values, "algorithm.entropy.diagnostics")


def test_resume_is_bit_equal():
    x, whole, part = context(make_episodes(1)), live.LiveDiagnostics(), live.LiveDiagnostics()
    for x.step in range(8):
        x.entropy = 0.5 + 0.1 * math.sin(x.step)
        expected = whole.step(x)
        if x.step == 4:
            state = json.loads(json.dumps(part.state_dict(), allow_nan=False))
            part = live.LiveDiagnostics()
            part.load_state_dict(state)
        assert part.step(x) == expected
    assert part.state_dict() == whole.state_dict()


def test_trajectories_carry_the_tokens_of_their_turns():
    episodes = make_episodes(2)
    x = context(episodes, "one-row", extra_width=2)
    ids = torch.arange(x.mask_RT.numel()).view(x.mask_RT.shape)
    samples = live.trajectories(x, ids, lambda tokens: " ".join(map(str, tokens)), limit=3)
    assert len(samples) == 3 and samples[0]["score"] == pytest.approx(episodes[0].score)
    first = samples[0]["turns"]
    assert [t["entropy"] for t in first] == [[pytest.approx(h, abs=1e-4) for h in t] for t in episodes[0].tokens]
    assert first[0]["text"] == "".join(first[0]["tokens"]) and first[0]["reward"] == episodes[0].reward[0]
    columns = live.turn_columns(x)
    assert {len(c) for c in columns.values()} == {sum(len(e.tokens) for e in episodes)}


def test_an_empty_batch_gives_nothing():
    batch = lay_out(make_episodes(0), "one-row")
    turns = batch.turns(padding_R=[True] * len(batch.mask))
    assert live.step_diagnostics(Context(turns, batch.mask, batch.entropy, None, None)) == {}


class Joining:
    """A tokenizer whose decoder puts spaces between words and none at the start, as that of the quickstart; bytes of ü are two tokens."""

    words = ("<action>", "go", "to", "fridge", "1", "</action>")

    def decode(self, ids):
        text = ""
        for i in ids:
            if i >= 100:
                text += "\ufffd" if (i == 101 or not text.endswith("\ufffd")) and i == 100 else ""
                text = text[:-1] + "ü" if i == 101 else text
            else:
                word = self.words[i]
                text += (" " if text and word[0] != "<" and not text.endswith("<action>") else "") + word
        return text


def test_tokens_keep_their_spaces():
    """Decoded one by one they read <action>gotofridge1</action>."""
    ids = [0, 1, 2, 3, 4, 5] * 7
    decode = Joining().decode
    assert "".join(decode([i]) for i in ids[:6]) == "<action>gotofridge1</action>"
    found = live.pieces(ids, decode)
    assert "".join(found) == decode(ids) and found[:6] == ["<action>", "go", " to", " fridge", " 1", "</action>"]
    assert live.pieces([1, 100, 101, 2], decode) == ["go", "", "ü", " to"]
    assert live.pieces([], decode) == []


@pytest.mark.parametrize("layout", ["one-row", "step-wise"])
def test_trajectories_carry_what_the_agent_saw(layout):
    """Prompt, task, observation, thought; advantages before and after the transforms; ratio; the tokens that a transform dropped."""
    episodes = make_episodes(2)
    x = context(episodes, layout, extra_width=2)
    turns = x.turns
    chosen = int(turns.trajectory_K.bincount().argmax())
    first = (turns.trajectory_K == chosen).nonzero().flatten()[0]
    row = int(turns.row_K[first])
    place = (turns.turn_RT[row] == first).nonzero().flatten()
    ids = torch.arange(x.mask_RT.numel()).view(x.mask_RT.shape)
    records = [{"observation": "", "reward": 0.0, "valid": True, "admissible": False} for _ in range(99)]
    x.fields["extra_fields"] = [{"task": "put it down", "task_type": "put", "turns": records}] * len(x.mask_RT)
    x.advantages_RT = torch.where(x.mask_RT, 2.0, 0.0)
    x.advantages_RT[row, place[0]] = 5.0
    x.fields["base_advantages"] = torch.where(x.mask_RT, 1.0, 0.0)
    x.fields["rollout_log_probs"] = x.old_log_probs_RT - math.log(2.0)
    x.mask_RT = x.mask_RT.clone()
    x.mask_RT[row, place[-1]] = False
    prompts = [torch.arange(900, 903)] * len(x.mask_RT)
    text = lambda tokens: f"<think> {' '.join(map(str, tokens))} </think> x"  # noqa: E731
    (sample,) = live.trajectories(x, ids, text, chosen=[chosen], prompts=prompts)
    turn = sample["turns"][0]
    assert (sample["task"], sample["task_type"], sample["group"]) == ("put it down", "put", int(turns.group_J[chosen]))
    assert "900 901 902" in turn["prompt"] and turn["thought"] == " ".join(map(str, ids[row][place].tolist()))
    assert turn["advantage_before"] == 1.0 and "advantages_before" not in turn and turn["advantages"][0] == 5.0
    assert turn["ratio"] == pytest.approx([2.0] * len(turn["tokens"]), abs=1e-3)
    assert turn["dropped"] == [0] * (len(turn["tokens"]) - 1) + [1]
    later = sample["turns"][1]
    assert ("prompt" in later) == (layout == "step-wise") and ("observation" in later) == (layout == "one-row")
    json.dumps(sample, allow_nan=False)


def test_the_observation_of_the_environments_record_is_kept():
    x = context(make_episodes(2), "one-row")
    records = [{"observation": f"you see {k}", "action": "look"} for k in range(99)]
    x.fields["extra_fields"] = [{"turns": records}] * len(x.mask_RT)
    ids = torch.arange(x.mask_RT.numel()).view(x.mask_RT.shape)
    (sample,) = live.trajectories(x, ids, str, chosen=[0], prompts=[torch.arange(9000)] * len(x.mask_RT))
    assert [t["observation"] for t in sample["turns"]] == [f"you see {k}" for k in range(len(sample["turns"]))]
    assert len(sample["turns"][0]["prompt"]) <= live.MAX_PROMPT_CHARS + 20 and "[...]" in sample["turns"][0]["prompt"]
