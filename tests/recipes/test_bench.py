# SPDX-License-Identifier: Apache-2.0
"""The bench: every run composes, a run counts with its file alone, flags and statistics are right, the page is what the files give."""

import ast
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

pytest.importorskip("scipy")
EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path[:0] = [str(EXAMPLES), str(Path(__file__).parents[1] / "env")]
from bench import __main__ as command  # noqa: E402
from bench import bandit, claims, frozen_lake, one, outcome, plan, small, sokoban, statistics  # noqa: E402
from bench.page import sections, sources, tables, write  # noqa: E402
from bench.page.cells import load, shared  # noqa: E402
from conformance import package_and_java  # noqa: E402

from verl_entropy.data import source  # noqa: E402
from verl_entropy.data.experts import ExpertFailed  # noqa: E402
from verl_entropy.diagnostics.settings import PATH as DIAGNOSTICS  # noqa: E402

METRIC = plan.WORLDS["household"].metric


def logged(success, entropy, held):
    """Metrics by step as verl's file logger has them; ``held`` by step: success on each split."""
    steps = {
        i + 1: {"verl_entropy/success": s, "actor/entropy": e, "timing_s/step": 2.0}
        for i, (s, e) in enumerate(zip(success, entropy, strict=True))
    }
    for step, values in held.items():
        for split, value in zip(("seen", "unseen"), values, strict=True):
            steps.setdefault(step, {})[METRIC.format(split=split)] = value
    return steps


def outcome_of(success, entropy, held=None):
    steps = logged(success, entropy, held or {0: (0.1, 0.2), len(success): (0.5, 0.7)})
    world = plan.WORLDS["household"]
    return outcome.outcome(outcome.curves(steps), outcome.held_out(steps, world), world.splits)


def stored(folder, method, seed, auc, final, regime="healthy"):
    """A result file with a constant success of ``auc``."""
    steps = logged([auc] * 30, list(np.linspace(0.16, 0.08, 30)), {0: (0.1, 0.1), 30: (final, final)})
    world, job = plan.WORLDS["household"], plan.Job("household", regime, method, seed)
    found, held = outcome.curves(steps), outcome.held_out(steps, world)
    result = {
        "world": "household",
        "regime": regime,
        "method": method,
        "seed": seed,
        "steps": 30,
        "seconds": 60.0,
        "step_seconds": 2.0,
    }
    result |= {"commit": "abc", "versions": {"verl": "0.9.1"}, "machine": one.machine(1), "ended": "2026-01-01", "curves": found}
    one.write(job.file(folder), result | {"held_out": held, "outcome": outcome.outcome(found, held, world.splits)})


def test_tokens_that_branching_saved_are_counted_over_the_run():
    steps = logged([0.4] * 30, [0.2] * 30, {0: (0.1, 0.1), 30: (0.1, 0.1)})
    plain = {"curves": outcome.curves(steps), "outcome": {"auc": 0.3}, "machine": one.machine(1)}
    for step, values in steps.items():
        if step:
            values |= {"verl_entropy/rollout/generated_tokens": 3000.0, "verl_entropy/rollout/reused_tokens": 1000.0}
    branched = {"curves": outcome.curves(steps), "outcome": {"auc": 0.35}, "machine": one.machine(1)}
    lines = sections.tokens({"none": {0: plain}, "arpo": {0: branched, 1: branched}})
    title = plan.METHODS["arpo"].title
    assert f"| {title} | 0 | 120 | 90 | 25% | +0.050 |  |" in lines and f"| {title} | 1 | 120 | 90 | 25% |  |  |" in lines
    plain["curves"] = plain["curves"] | {"success": [0.0] * 10 + [0.5] * 20, "generated_tokens": [4000.0] * 30}
    early = branched | {"curves": branched["curves"] | {"success": [0.2] * 5 + [0.5] * 25}}  # .45 after 14 steps, GRPO after 19
    late = branched | {"curves": branched["curves"] | {"success": [0.44] * 30}}
    lines = sections.tokens({"none": {0: plain, 1: plain}, "arpo": {0: early, 1: late}})
    assert f"{1 - 14 * 3 / (19 * 4):.0%} |" in "\n".join(lines) and any(line.endswith("| never |") for line in lines)
    assert sections.tokens({"none": {0: plain}}) == []


@pytest.mark.slow
def test_a_pretrained_model_is_warm_started_for_the_card(tmp_path, monkeypatch):
    """With a tiny model in the place of SmolLM2: it learns the expert's turns, and what is saved is what vLLM loads."""
    transformers = pytest.importorskip("transformers")
    import torch
    from bench import card, frozen_lake_card

    from verl_entropy.quickstart import build, warm_start

    words = sorted({*frozen_lake.WORLD.vocabulary, *small.OPENINGS, *build.OTHER.split()} - set(build.SPECIAL))
    tokenizer = build.word_level([*build.SPECIAL, *words], pad_token="<pad>", eos_token="<|im_end|>", bos_token="<|im_start|>")
    warm_start.save(build.build_model(len(tokenizer), 0), tokenizer, tmp_path / "model")
    monkeypatch.setenv(plan.MODEL, str(tmp_path / "model"))
    world = dataclasses.replace(frozen_lake_card.WORLD, episodes=20, warm_steps=2, held_out=4)
    card.prepare(world, tmp_path, 3)
    made = tmp_path / "assets-seed3"
    assert {p.name for p in made.glob("*.parquet")} == {"train.parquet", "dev.parquet", "test.parquet"}
    before, after = (
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto") for folder in (tmp_path / "model", made / "warm")
    )
    assert after.dtype == torch.bfloat16 and len(transformers.AutoTokenizer.from_pretrained(made / "warm")) == len(tokenizer)
    assert not torch.equal(before.lm_head.weight.bfloat16(), after.lm_head.weight)
    stamp = (made / "warm").stat().st_mtime_ns
    card.prepare(world, tmp_path, 3)
    assert (made / "warm").stat().st_mtime_ns == stamp, "made once"
    monkeypatch.setenv(plan.MODEL, str(tmp_path / "nothing"))
    with pytest.raises(OSError, match="nothing"):
        card.prepare(world, tmp_path, 4)


@pytest.mark.slow
def test_a_warm_start_does_not_depend_on_the_kernels_that_the_processor_has(tmp_path):
    """torch's own choice, and what it would choose on a processor without AVX."""
    made = []
    for kernels in ({}, {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}):
        work = tmp_path / f"work{len(made)}"
        code = f"from pathlib import Path; from bench import one; one.prepare('bandit', 3, Path({str(work)!r}))"
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | kernels
        subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, timeout=300)
        made.append((work / "bandit/assets-seed3/warm/model.safetensors").read_bytes())
    assert made[0] == made[1]


def test_a_world_that_cannot_be_made_ends_its_run(tmp_path, monkeypatch):
    monkeypatch.setenv(plan.MODEL, str(tmp_path / "nothing"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    with pytest.raises(RuntimeError, match=r"the data and warm start of seed 4 in .* ended with 1"):
        one.prepare("frozen_lake_card", 4, tmp_path)


def test_how_near_entropy_was_to_its_target_is_told():
    """GRPO stands beside it; the last steps waver, so that not all of them can be near."""
    held_out, wavering = {0: (0.1, 0.1), 30: (0.3, 0.3)}, [0.5] * 6 + [0.4, 0.6] * 2
    plain, steered = (outcome.curves(logged([0.4] * 30, e, held_out)) for e in ([0.4] * 30, [0.9] * 20 + wavering))
    base = {"curves": plain, "outcome": {"auc": 0.3, "held_out_final": 0.3}}
    held = {"curves": steered, "settings": {sections.TARGET: "0.5"}, "outcome": {"auc": 0.4, "held_out_final": 0.25}}
    lines = sections.holding({"none": {0: base, 1: base}, "held_bonus": {0: held}})
    assert lines[-3:-1] == [
        "| GRPO | 0 |  | 0.400 (0.400 to 0.400) | 0% | 100% | 0.30 |  |",
        f"| {plan.METHODS['held_bonus'].title} | 0 | 0.5 | 0.500 (0.400 to 0.600) | 60% | 30% | 0.25 | +0.100 |",
    ]
    assert sections.holding({"none": {0: base}}) == []
    short = held | {"curves": outcome.curves(logged([0.4] * 20, [0.5] * 20, {0: (0.1, 0.1), 20: (0.3, 0.3)}))}
    assert sections.holding({"held_bonus": {0: short}}) == [], "nothing is left after the first steps"


def test_a_world_on_a_card_asks_for_a_model_and_shares_the_cards(tmp_path, monkeypatch, capsys):
    assert "frozen_lake_card" not in command.arguments([]).worlds
    for words, says in (
        (["--world", "frozen_lake_card"], "give --model FOLDER"),
        (["--model", "m", "--cards", "0,x"], "--cards 0,x: expected numbers"),
    ):
        with pytest.raises(SystemExit):
            command.arguments(words)
        assert says in capsys.readouterr().err
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/__init__.py").touch()
    (tmp_path / "bench/one.py").write_text(
        "import os, sys, time, pathlib\ntime.sleep(1)\n"
        f"print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['{plan.MODEL}'], file=open(pathlib.Path(sys.argv[5]) / sys.argv[4], 'w'))"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(command, "STAGGER", 0.0)
    given = ["--world", "frozen_lake_card", "--model", str(tmp_path / "m"), "--cards", "0,1", "--regime", "rate_1e-5"]
    args = command.arguments([*given, "--method", "none", "--seeds", "100-103", "--jobs", "4", "--work", str(tmp_path)])
    assert command.run_all(command.jobs(args.worlds, args.regimes, args.methods, args.seeds), args) == 0
    told = sorted((tmp_path / str(seed)).read_text() for seed in args.seeds)
    assert told == [f"{card} {tmp_path / 'm'}\n" for card in (0, 0, 1, 1)]


@pytest.mark.parametrize(
    ("world", "environment"),
    [("frozen_lake_card", "bench.frozen_lake:FrozenLake"), ("textworld_express_card", "bench.textworld_express_card:Game")],
)
def test_a_run_on_a_card_trains_with_vllm(tmp_path, world, environment):
    job = plan.Job(world, "rate_1e-5", "gigpo-aem-seal", 100)
    words = one.words(job, tmp_path, tmp_path / "run", 50)
    settings = dict(word.lstrip("+").split("=", 1) for word in words)
    assert settings["actor_rollout_ref.rollout.name"] == "vllm" and "trainer.device" not in settings
    assert settings["data.env.name"] == environment and settings["actor_rollout_ref.actor.optim.lr"] == "1e-5"
    assert settings["data.val_files"].endswith("test.parquet]") and "+entropy=[gigpo,aem,seal]" in words


def test_the_expert_of_the_card_s_games_finds_its_way_again():
    from bench.textworld_express_card import Expert

    game = types.SimpleNamespace(last=None)
    expert = Expert(game, ["look around", "read map", "move north", "take coin"])
    admissible, told = ("read map", "move north", "move south", "take coin"), []
    for played in ("read map", "move south", None, "take coin", "move north"):  # None: as told
        told.append(expert.act("", admissible))
        game.last = played or told[-1]
    assert told == ["read map", *["move north"] * 4], "back, on, and on again after the coin was tried for nothing"
    assert expert.act("", ("take coin",)) == "take coin" and expert.thought.endswith("take coin")
    game.last = "take coin"
    with pytest.raises(ExpertFailed):
        expert.act("", admissible)


def test_no_held_out_game_of_the_card_is_one_of_training():
    if reason := package_and_java("textworld_express"):
        pytest.skip(reason)
    from bench.textworld_express_card import GAMES, Game

    game, seen = Game(), {}
    try:
        for split, first in (("train", 0), ("dev", source.FIRST_HELD_OUT), ("test", 2 * source.FIRST_HELD_OUT)):
            infos = [game.reset(seed=first + i, options={"split": split})[1] for i in range(200)]
            seen[split] = {info["anchor"] for info in infos}
            assert {info["task_type"] for info in infos} == set(GAMES)
        assert not seen["train"] & seen["dev"] and not seen["train"] & seen["test"] and not seen["dev"] & seen["test"]
        expert, ended = game.expert(None), False
        admissible = infos[-1]["admissible_actions"]
        while not ended:
            _, _, ended, truncated, info = game.step(expert.act("", admissible))
            admissible, ended = info["admissible_actions"], ended or truncated
        assert info["won"]
    finally:
        game.close()


def test_dynamic_sampling_is_compared_by_held_out_success_alone(tmp_path):
    for seed in range(5):
        stored(tmp_path, "none", seed, 0.5, 0.2 + 0.01 * seed)
        stored(tmp_path, "dynamic_sampling", seed, 0.9, 0.5 + 0.01 * seed)
    cells, title = load(tmp_path)["household", "healthy"], plan.METHODS["dynamic_sampling"].title
    for run in cells["dynamic_sampling"].values():
        run["curves"] |= {"evicted_groups": [None, *[4.0] * 29], "surplus_groups": [2.0] * 30}
    assert sections.sampled(cells)[0].endswith("6 (seed 0), 6 (seed 1), 6 (seed 2), 6 (seed 3), 6 (seed 4).")
    by_area, by_held_out, _ = tables.verdicts(cells)
    assert by_area.endswith("nothing but GRPO was run.") and f"above GRPO: {title}" in by_held_out
    line = tables.row("dynamic_sampling", cells["dynamic_sampling"], cells["none"])
    assert "0.90" not in line and "|  |  | 1.00" in line and "| 0/5 | 0/5 |  | 0/5 |" in line


def test_a_run_that_ends_at_half_of_its_best_held_out_success_is_told(tmp_path):
    steps = logged([0.4] * 30, [0.2] * 30, {0: (0.1, 0.1), 15: (0.4, 0.6), 30: (0.2, 0.3)})
    world = plan.WORLDS["household"]
    held = outcome.held_out(steps, world)
    run = {"method": "none", "seed": 3, "outcome": outcome.outcome(outcome.curves(steps), held, world.splits)}
    assert outcome.told(run).startswith("GRPO, seed 3: held-out success 0.10 -> 0.50 at best -> 0.25, entropy 0.200 ->")
    assert outcome.told(run).endswith(": held out halved")
    run["outcome"] |= {"held_out_final": 0.26, "erupted": True}
    assert outcome.told(run).endswith(": erupted")
    run["outcome"] |= {"erupted": False, "lost_half": True, "success_final": 0.1}
    assert outcome.told(run).endswith(": lost half") and outcome.told(run | {"method": "dynamic_sampling"}).endswith(
        ": nothing lost"
    )


def test_the_box_trains_grpo_and_the_remedy_with_interference(tmp_path):
    (tmp_path / "bench.py").write_text("import sys; print(sys.argv[1:])")
    script = EXAMPLES / "box.sh"
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {tmp_path}/bench.py "$@"\n')
    fake.chmod(0o755)
    env = {**os.environ, "PYTHON": str(fake)}
    found = subprocess.run(
        ["bash", str(script), "--work", "w", "--seeds", "2"], env=env, text=True, capture_output=True, check=True
    )
    words = ast.literal_eval(found.stdout)
    args = command.arguments(words)
    assert (args.worlds, args.regimes, args.methods, args.seeds) == (
        ["household"],
        ["unstable"],
        ["none", "dynamic_sampling"],
        [2],
    )
    assert args.diagnose and args.steps is None and args.work == Path("w") and args.results == Path("w/results")
    found = subprocess.run(["bash", str(script), "--jobs", "1", "--work=v"], env=env, text=True, capture_output=True, check=True)
    assert command.arguments(ast.literal_eval(found.stdout)).results == Path("v/results")
    job = plan.Job("household", "unstable", "dynamic_sampling", 0)
    plain = one.words(job, tmp_path, tmp_path / "run", 60)
    more = one.words(job, tmp_path, tmp_path / "run", 60, diagnose=True)[len(plain) :]
    folder = tmp_path / "run_files/run"
    assert one.run_file(tmp_path / "run") == folder and f"++{DIAGNOSTICS}.run_file.folder={folder}" in more
    assert any(word.endswith("costly_every=5") for word in more)


@pytest.mark.parametrize("name", ["bench", "box", "quickstart"])
def test_help_is_the_whole_head_of_a_script(name):
    """box.sh and bench.sh left out its last line."""
    script = EXAMPLES / f"{name}.sh"
    head = script.read_text(encoding="utf-8").split("\nset -euo", 1)[0].splitlines()[1:]
    env = {**os.environ, "PYTHON": "true"}
    told = subprocess.run(["bash", str(script), "--help"], env=env, text=True, capture_output=True, check=True).stdout
    assert told.splitlines() == [line.removeprefix("#").removeprefix(" ") for line in head]


def test_a_regime_in_which_grpo_loses_shows_every_run(tmp_path):
    lost, kept = [0.4] * 15 + [0.0] * 15, [0.4] * 30
    cells = {}
    for method, success in (("none", lost), ("seal", kept)):
        steps = logged(success, [0.2] * 30, {0: (0.1, 0.1), 30: (0.1, 0.1)})
        for step, values in steps.items():
            if step:
                values |= {
                    "verl_entropy/valid_action_ratio": step / 30,
                    "verl_entropy/entropy_of/wrong": 0.3,
                    "actor/ppo_kl": step / 100,
                }
        found = outcome.curves(steps)
        held = outcome.held_out(steps, plan.WORLDS["household"])
        cells[method] = {
            0: {
                "seed": 0,
                "method": method,
                "curves": found,
                "outcome": outcome.outcome(found, held, plan.WORLDS["household"].splits),
            }
        }
    lines = sections.ends(cells)
    assert lines[0].endswith("or held out: GRPO 1 of 1; SEAL 0 of 1.")
    assert "| GRPO | 0 | 0.40 -> 0.00 | 0.18 -> 0.85 | 0.30 -> 0.30 -> 0.30 | 0.30 |" in lines
    assert "| SEAL | 0 | 0.40 -> 0.40 | 0.18 -> 0.85 | 0.30 -> 0.30 -> 0.30 | 0.30 |" in lines
    assert sections.ends({"none": cells["seal"], "seal": cells["none"]}) == []


def test_an_eruption_says_in_which_trajectories_it_was():
    """The highest five steps are 16 to 20; of correct trajectories there were none then, and of valid ones nothing was recorded."""
    entropy = [0.2] * 10 + [0.3] * 5 + [0.9] * 5 + [0.3] * 10
    kinds = {"entropy": entropy, "entropy_wrong": [2 * v for v in entropy], "entropy_correct": [0.1] * 12 + [None] * 18}
    calm = {"seed": 0, "curves": {"entropy": [0.2] * 30}, "outcome": {"erupted": False}}
    erupted = {"seed": 3, "curves": kinds, "outcome": {"erupted": True}}
    lines = sections.eruptions({"none": {0: calm, 3: erupted}, "seal": {0: calm}})
    assert lines[-2:] == ["| GRPO | 3 | 16 to 20 | 0.20 -> 0.90 | 0.40 -> 1.80 | 0.10 -> none |  |", ""] and len(lines) == 6
    assert sections.eruptions({"none": {0: calm}}) == []


@pytest.mark.parametrize("split", ("train", "dev", "test"))
@pytest.mark.parametrize(
    ("module", "make", "draw"),
    [(frozen_lake, frozen_lake.FrozenLake, frozen_lake.draw_map), (sokoban, sokoban.Sokoban, sokoban.draw_room)],
    ids=["frozen_lake", "sokoban"],
)
def test_an_expert_reaches_the_goal_on_tasks_of_its_split_alone(module, make, draw, split):
    world, others = make(), {"train", "dev", "test"} - {split}
    tasks = {name: {tuple(draw(seed, name)) for seed in range(300)} for name in (split, *others)}
    assert len(tasks[split]) > 100 and not any(tasks[split] & tasks[other] for other in others)
    for seed in range(30):
        seen, info = world.reset(seed=seed, options={"split": split})
        assert (seen, info) == world.reset(seed=seed, options={"split": split})
        assert set(seen.split()) < set(module.WORLD.vocabulary)
        expert, done = world.expert(info), False
        for _ in range(module.WORLD.max_turns):
            action = expert.act(seen, info["admissible_actions"])
            assert expert.thought.split()[0] in small.OPENINGS and expert.thought.endswith(action)
            seen, reward, done, _, info = world.step(action)
            if done:
                break
        assert done and reward == 1.0 and info["won"] is True
    assert world.reset(seed=1)[0].count("p") == 1 and world.step("swim")[0] == world.reset(seed=1)[0]


def test_a_box_is_pushed_never_pulled_and_stays_in_a_corner():
    room = sokoban.Room(frozenset({(1, 2)}), target=(0, 2), player=(1, 0), box=(1, 1))
    assert room.text() == "e e t e / p b w e / e e e e / e e e e"
    assert room.after("right") == room, "a wall is behind the box"
    assert room.after("left") == room, "there are walls around the room, too"
    pushed = room.after("down").after("right").after("up")
    assert pushed.text() == "e b t e / e p w e / e e e e / e e e e" and pushed.after("down").box == pushed.box
    assert pushed.solution() == ["left", "up", "right"]
    stuck = sokoban.Room(frozenset(), target=(2, 2), player=(0, 1), box=(0, 0))
    assert stuck.solution() is None
    world = sokoban.Sokoban()
    _, info = world.reset(seed=0)
    world._room = stuck
    with pytest.raises(ExpertFailed):
        world.expert(info).act("", ())


def test_the_bold_arm_of_the_bandit_pays_more_and_wins_whatever_it_pays():
    game, paid = bandit.Bandit(), {"safe": 0.0, "bold": 0.0}
    for seed in range(4000):
        for arm in paid:
            _, info = game.reset(seed=seed)
            assert {game.safe, game.bold} == set(info["admissible_actions"])
            _, reward, done, _, info = game.step(getattr(game, arm))
            assert done and info["won"] is (arm == "bold")
            paid[arm] += reward / 4000
    assert paid["safe"] == pytest.approx(bandit.PAYS) and paid["bold"] == pytest.approx(bandit.CHANCE, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("world", sorted(set(plan.WORLDS) - {"household"}))
def test_every_world_would_start(world, tmp_path):
    pytest.importorskip("verl")
    from verl_entropy.config import compose
    from verl_entropy.hosts.verl_engine import resolved

    regime = next(iter(plan.WORLDS[world].regimes))
    words = one.words(plan.Job(world, regime, "gigpo", 3), tmp_path, tmp_path / "run", 30)
    found = resolved.check(compose.compose(words))
    data = found.raw["data"]
    own = data["env"]["name"].startswith("bench.")
    assert found.verl is None and own == (world != "household_easy") == ("kwargs" not in data["env"])
    assert data["val_files"] == [str(tmp_path / f"assets-seed3/{s}.parquet") for s in plan.WORLDS[world].splits]
    assert found.raw["actor_rollout_ref"]["rollout"]["prompt_length"] == data["max_prompt_length"]
    assert data["max_prompt_length"] <= {"textworld_express_card": 512, "household_easy": 128}.get(world, 96)


@pytest.mark.slow
@pytest.mark.parametrize("method", plan.METHODS)
def test_every_method_would_start_and_differs_from_grpo_as_it_says(method, tmp_path):
    pytest.importorskip("verl")
    from verl_entropy.config import compose
    from verl_entropy.hosts.verl_engine import resolved

    job = plan.Job("household", "healthy", method, 3)
    words = one.words(job, tmp_path, tmp_path / "run", 30)
    found = resolved.check(compose.compose(words))
    actor = found.raw["actor_rollout_ref"]["actor"]
    assert found.verl is None and actor["optim"]["lr"] == 1e-4
    assert found.raw["trainer"]["save_freq"] == -1 and found.raw["trainer"]["test_freq"] == 15 and found.raw["data"]["seed"] == 3
    if method in ("clip_cov", "kl_cov"):
        assert actor["policy_loss"]["loss_mode"] == method
    if method == "clip_higher":
        assert actor["clip_ratio_high"] == 0.28
    if method == "adam_beta2":
        assert list(actor["optim"]["betas"]) == [0.9, 0.95]
    if method == "kl":
        assert actor["use_kl_loss"] and actor["kl_loss_coef"] == 0.01
    given = one.settings(words, tmp_path)
    assert given["actor_rollout_ref.actor.optim.lr"] == "1e-4" and str(tmp_path) not in json.dumps(given)


def test_a_regime_s_words_come_after_the_world_s_and_seeds_are_outermost():
    found = plan.jobs(["household"], ["healthy", "unstable"], ["none", "gigpo"], [0, 1])
    assert [(j.seed, j.regime, j.method) for j in found[:4]] == [
        (0, "healthy", "none"),
        (0, "healthy", "gigpo"),
        (0, "unstable", "none"),
        (0, "unstable", "gigpo"),
    ] and len(found) == 8


def test_flags_of_known_shapes():
    level = [0.15] * 40
    healthy = outcome_of(list(np.linspace(0.3, 0.8, 40)), list(np.linspace(0.16, 0.06, 40)))
    assert not (healthy["erupted"] or healthy["collapsed"] or healthy["lost_half"])
    assert healthy["held_out_first"] == pytest.approx(0.15) and healthy["held_out_final"] == healthy[
        "held_out_best"
    ] == pytest.approx(0.6)
    assert healthy["auc"] == pytest.approx(0.55) and healthy["entropy_first"] == 0.16
    burst = outcome_of([0.5] * 40, [0.15] * 20 + [0.24] * 5 + [0.15] * 15)
    assert burst["erupted"] and not burst["collapsed"] and not burst["lost_half"]
    spike = outcome_of([0.5] * 40, [0.15] * 20 + [0.3] + [0.15] * 19)  # one step is no eruption
    assert not spike["erupted"]
    assert outcome_of([0.5] * 40, [0.16] * 10 + [0.03] * 30)["collapsed"]
    lost = outcome_of([0.8] * 20 + [0.3] * 20, level)
    assert lost["lost_half"] and not outcome_of([0.8] * 20 + [0.5] * 20, level)["lost_half"]


def test_a_run_without_validation_has_no_outcome():
    with pytest.raises(ValueError, match="look into its log"):
        steps = logged([0.5], [0.1], {})
        outcome.outcome(outcome.curves(steps), outcome.held_out(steps, plan.WORLDS["household"]), ("seen", "unseen"))


def test_statistics_by_hand():
    eight = [[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 9.0]]
    found = statistics.interquartile_mean(eight)
    assert found.value == pytest.approx(np.mean([0.2, 0.3, 0.4, 0.5])) and found.low < found.value < found.high
    assert statistics.improvement([[1.0, 2.0, 3.0]], [[0.0, 2.0, 2.5]]).value == pytest.approx((1 + 1.5 + 3) / 9)
    assert statistics.improvement([[1.0] * 4], [[0.0] * 4]).low == 1.0
    paired = statistics.difference([[0.6, 0.7, 0.8]], [[0.5, 0.6, 0.7]])
    assert paired.value == pytest.approx(0.1) and paired.low == pytest.approx(0.1) and paired.side() == 1
    assert statistics.difference([[0.6, 0.7]], [[0.5, 0.6]]).low is None, "two seeds give no interval"
    assert statistics.difference([[0.4, 0.6, 0.8]], [[0.5, 0.6, 0.7]]).side() == 0
    assert statistics.interquartile_mean(eight) == found, "the same files give the same page"


def test_three_gains_of_one_sign_tell_nothing():
    """Chance gives three differences one sign one time in four; a percentile interval leaves out 0 each of those times."""
    few = statistics.difference([[0.504, 0.462, 0.423]], [[0.5, 0.45, 0.38]])
    assert few.side() == 0 and few.low == pytest.approx(-0.032, abs=1e-3) and few.high == pytest.approx(0.071, abs=1e-3)
    rng, told = np.random.default_rng(0), 0
    for _ in range(400):
        told += statistics.difference([rng.normal(size=3)], [rng.normal(size=3)]).side() != 0
    assert told < 40, f"{told} of 400 differences by chance were told from 0"


def test_worlds_are_resampled_apart():
    """A world of equal scores adds no width: mixed, the worlds' distance would."""
    near = statistics.difference([[0.1, 0.1, 0.1], [0.9, 0.9, 0.9]], [[0.0] * 3, [0.0] * 3])
    assert (near.low, near.high) == (pytest.approx(0.5), pytest.approx(0.5))


def test_a_performance_profile_is_the_share_of_runs_at_least_as_good():
    assert statistics.profile([0.0, 0.5, 0.5, 1.0], [0.1, 0.5, 0.6, 1.0]) == pytest.approx([0.75, 0.75, 0.25, 0.25])


def test_the_page_tells_methods_apart_and_names_what_was_not_run(tmp_path):
    results = tmp_path / "results"
    for seed in range(5):
        stored(results, "none", seed, 0.5 + 0.01 * seed, 0.6)
        stored(results, "gigpo", seed, 0.6 + 0.01 * seed, 0.6 + 0.01 * (seed - 2))
        stored(results, "repo_r", seed, 0.4 + 0.01 * seed, 0.5)
    stored(results, "aem", 0, 0.9, 0.9)
    stored(results, "none", 100, 0.99, 0.99)
    text = write.render(results)
    assert "By area under the curve, paired over seeds: above GRPO: GiGPO (+0.100 (+0.100 to +0.100)); below GRPO: REPO-R" in text
    assert "too few seeds to tell: AEM" in text and "not told from GRPO: GiGPO" in text
    assert all(row in text for row in ("\n| AEM | 1 |  |", "\n| GRPO | 5 |  |", "\n| SEAL |  |  |"))
    assert "| household | healthy | 100 | 0.10 -> 0.99 |" in text
    assert "| GRPO | 5 | 0.60 (0.60 to 0.60)" in text, "a tuning seed is no result"
    assert write.write_page(results).read_text() == text and (tmp_path / "household-healthy.png").stat().st_size < 150_000


def test_a_method_of_fewer_seeds_is_held_against_grpo_s_runs_of_these(tmp_path):
    for seed in range(5):
        stored(tmp_path, "none", seed, 0.5, 0.2 if seed < 3 else 0.9)
    for seed in range(3):
        stored(tmp_path, "aem", seed, 0.5, 0.3)
    cells = load(tmp_path)["household", "healthy"]
    assert "| 1.00 (1.00 to 1.00) |" in tables.row("aem", cells["aem"], cells["none"])
    assert list(shared(cells["none"], cells["aem"])) == [0, 1, 2]


def test_runs_whose_warm_start_is_another_policy_are_not_paired(tmp_path):
    for seed in range(5):
        stored(tmp_path, "none", seed, 0.5, 0.5)
        stored(tmp_path, "gigpo", seed, 0.6, 0.6)
    cells = load(tmp_path)["household", "healthy"]
    base, cell = cells["none"], cells["gigpo"]
    assert list(shared(base, cell)) == [0, 1, 2, 3, 4], "runs of older commits have no norm"
    cell[0]["weight_norm"] = 27.5
    assert list(shared(base, cell)) == [1, 2, 3, 4], "one has a norm: the name of a processor does not tell its kernels"
    for run in (base[0], cell[0]):
        run["machine"] = run["machine"] | {"card": "a card"}
    assert 0 in shared(base, cell), "one has a norm: a card of one make trained both"
    base[0]["machine"] = base[0]["machine"] | {"card": "another"}
    assert list(shared(base, cell)) == [1, 2, 3, 4]
    base[0]["weight_norm"], base[1]["weight_norm"], cell[1]["weight_norm"] = 27.5 * (1 + 1e-9), 27.5, 27.6
    assert list(shared(base, cell)) == [0, 2, 3, 4], "two norms: these alone count, up to rounding"
    assert tables.versus(cell, base, "auc").text(sign=True) == "+0.100 (+0.100 to +0.100)"
    assert sources.unpaired({("household", "healthy"): cells})[0].endswith(": household, healthy, GiGPO: 1.")
    assert sources.unpaired({("household", "healthy"): {"none": base}}) == []
    gain = "| 0.60 | +0.100 | 1.00 | 0/1 |"
    assert gain in tables.row("gigpo", {2: cell[2]}, base)
    assert gain.replace("+0.100 | 1.00", " | ") in tables.row("gigpo", {1: cell[1]}, base)
    assert tables.parts({"none": base, "gigpo": cell}) == []


def test_committed_pairs_on_a_cpu_begin_with_the_same_success():
    """Held-out success before training is sampled anew in each run; of one policy it differed by .02 at most."""
    for (world, regime), cells in load(plan.RESULTS).items():
        for method, cell in cells.items():
            if not plan.WORLDS[world].card:
                for seed, base in shared(cells.get("none", {}), cell).items():
                    first = [run["outcome"]["held_out_first"] for run in (base, cell[seed])]
                    assert abs(first[0] - first[1]) <= 0.025, f"{world}, {regime}, {method}, seed {seed}: {first}"


def test_the_norm_of_the_first_policy_is_that_of_all_its_files(tmp_path):
    from safetensors.torch import save_file

    words = [f"actor_rollout_ref.model.path={tmp_path}", "+entropy=[gigpo]"]
    assert one.weight_norm(words) == 0
    save_file({"a": torch.tensor([3.0]), "b": torch.zeros(2, 2, dtype=torch.bfloat16)}, tmp_path / "model-1.safetensors")
    save_file({"c": torch.tensor([[-4.0]])}, tmp_path / "model-2.safetensors")
    assert one.weight_norm(words) == pytest.approx(5)


def test_a_combination_is_held_against_its_parts_over_the_seeds_of_both(tmp_path):
    for seed in range(5):
        stored(tmp_path, "none", seed, 0.5, 0.5)
        stored(tmp_path, "gigpo-aem-seal", seed, 0.6 + 0.01 * seed, 0.7)
        if seed:
            stored(tmp_path, "gigpo", seed, 0.57 + 0.01 * seed, 0.7)
        if seed > 2:
            stored(tmp_path, "seal", seed, 0.5, 0.5)
    cells = load(tmp_path)["household", "healthy"]
    assert tables.parts(cells) == [("gigpo-aem-seal", "gigpo", [1, 2, 3, 4])], "two seeds are too few, and GRPO is no part"
    title, part = (plan.METHODS[m].title for m in ("gigpo-aem-seal", "gigpo"))
    gains = "+0.030 (+0.030 to +0.030) | +0.000 (+0.000 to +0.000)"
    assert f"| {title} | {part} | 4 | {gains} |" in tables.beside_parts(cells)
    assert tables.beside_parts({m: cells[m] for m in ("none", "seal")}) == []
    assert f"- {2 * 3 + 3 + 2} intervals at 95 %" in write.render(tmp_path)


def test_a_cut_run_is_told_and_counts_nowhere(tmp_path):
    results = tmp_path / "results"
    stored(results, "none", 0, 0.5, 0.6)
    stored(tmp_path / sources.CUT, "none", 1, 0.25, 0.6)
    path = plan.Job("household", "healthy", "none", 1).file(tmp_path / sources.CUT)
    given = {sources.RATE: "1e-4", "trainer.total_training_steps": "30"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"steps": 12, "cut": "the power failed", "settings": given}))
    text = write.render(results)
    assert "| GRPO | 1 |" in text and "Because the power failed:" in text
    told = "- household, GRPO, learning rate 1e-4, seed 1, 12 of 30 steps: success 0.25 -> 0.25, entropy 0.154 -> 0.086"
    assert told + "." in text
    run = json.loads(path.read_text())
    run["curves"]["entropy_wrong"] = [0.2] * 20 + [None] + [0.9] * 9
    path.write_text(json.dumps(run))
    assert told + ", of wrong trajectories 0.200 -> 0.900." in write.render(results)
    path.unlink()
    assert "Cut runs" not in write.render(results)


def test_tuning_runs_are_a_table_that_tells_an_eruption_of_wrong_trajectories(tmp_path):
    results = tmp_path / "results"
    stored(results, "none", 0, 0.5, 0.6)
    assert "| 100 |" not in write.render(results)
    stored(results, "none", 100, 0.5, 0.6, regime="rate_6e-4")
    path = plan.Job("household", "rate_6e-4", "none", 100).file(results)
    run = json.loads(path.read_text())
    run["curves"] |= {"entropy_wrong": [0.16] * 20 + [0.31] * 5 + [0.1] * 5, "entropy_correct": [0.12, None] * 10 + [0.09] * 10}
    path.write_text(json.dumps(run))
    assert "| household | 6e-4 | 100 | 0.10 -> 0.60 | 0.50 -> 0.50 | 0.16 -> 0.31 | 0.12 -> 0.09 |" in write.render(results)


def test_committed_cut_runs_are_cut_and_nobody_s_folders():
    found = list((plan.RESULTS.parent / sources.CUT).glob("*/*/*.json"))
    for path in found:
        run = json.loads(path.read_text())
        job = plan.Job(run["world"], run["regime"], run["method"], run["seed"])
        assert job.file(plan.RESULTS.parent / sources.CUT) == path and not re.search("/(tmp|root|work)/", path.read_text())
        assert run["steps"] == len(run["curves"]["success"]) < plan.WORLDS[job.world].regimes[job.regime].steps
        assert run["cut"] and not job.file(plan.RESULTS).exists(), "a run that was trained to its end since is no longer cut"


def test_the_committed_page_is_what_the_files_give():
    readme = plan.RESULTS.parent / "README.md"
    assert readme.read_text(encoding="utf-8") == write.render(plan.RESULTS), "run bash examples/bench.sh --page"
    assert plan.QUICKSTART.read_text(encoding="utf-8") == write.baseline(plan.RESULTS), "run bash examples/bench.sh --page"
    drawn = {f"{world}-{regime}.png" for world, regime in load(plan.RESULTS)}
    assert drawn == {path.name for path in readme.parent.glob("*.png")}


def test_committed_results_are_whole_small_and_nobody_s_folders():
    for path in plan.RESULTS.glob("*/*/*.json"):
        text = path.read_text()
        run = json.loads(text)
        job = plan.Job(run["world"], run["regime"], run["method"], run["seed"])
        assert job.file(plan.RESULTS) == path and len(text) < 12_000 and "/tmp" not in text and "/root" not in text
        regime = plan.WORLDS[job.world].regimes[job.regime]
        assert run["steps"] == regime.steps == len(run["curves"]["success"])
        world = plan.WORLDS[job.world]
        for word in (*regime.overrides, *plan.METHODS[job.method].overrides):
            key, value = word.format(held=world.held).lstrip("+").split("=", 1)
            assert run["settings"][key] == value, f"{path.name}: the plan has changed since this run"
        assert run["outcome"] == outcome.outcome(run["curves"], run["held_out"], world.splits), (
            f"{path.name}: written by other rules"
        )


FAKE = """
import sys, time
from bench import one
def train(job, run, command, env):
    (run / "started").touch()
    time.sleep({sleep})
    import json
    lines = [{{"step": s, "data": {{"verl_entropy/success": 0.5, "actor/entropy": 0.1, "timing_s/step": 1.0,
              "val-core/household/seen/acc/mean@1": 0.5, "val-core/household/unseen/acc/mean@1": 0.5}}}} for s in range(1, 4)]
    (run / "metrics.jsonl").write_text("\\n".join(map(json.dumps, lines)) + "\\n")
one.train, one.prepare = train, lambda world, seed, work: work / world
one.main(sys.argv[1:])
"""


def one_run(tmp_path, sleep):
    """bench.one with the trainer's process replaced by one that writes three steps: what is tested is what happens around it."""
    words = ["household", "healthy", "none", "100", str(tmp_path / "work"), str(tmp_path / "results"), "1", "--steps=3"]
    env = {**os.environ, "PYTHONPATH": f"{EXAMPLES}:{EXAMPLES.parent}"}
    return subprocess.Popen([sys.executable, "-c", FAKE.format(sleep=sleep), *words], env=env)


def test_a_killed_run_does_not_count_and_is_trained_anew(tmp_path):
    job = plan.Job("household", "healthy", "none", 100)
    work, results = tmp_path / "work", tmp_path / "results"
    killed = one_run(tmp_path, 60)
    started = job.folder(work) / "started"
    for _ in range(600):
        if started.exists():
            break
        time.sleep(0.1)
    assert started.exists()
    second = one_run(tmp_path, 0)
    assert second.wait(timeout=60) == one.BUSY, "two processes must not train one run"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not job.file(results).exists()
    assert one_run(tmp_path, 0).wait(timeout=60) == 0
    run = json.loads(job.file(results).read_text())
    assert run["steps"] == 3 and run["outcome"]["auc"] == 0.5 and not list(results.rglob("*.partial"))


@pytest.mark.parametrize(
    ("says", "starts"), [("EADDRINUSE", one.STARTS), ("Address already in use", one.STARTS), ("out of memory", 1)]
)
def test_a_start_whose_port_was_taken_is_tried_again(tmp_path, says, starts):
    script = f"open('starts', 'a').write('x'); print('errno: 98 - {says}'); raise SystemExit(1)"
    with pytest.raises(RuntimeError, match=f"ended with 1.*\n.*{says}"):
        one.train(plan.Job("household", "healthy", "none", 100), tmp_path, [sys.executable, "-c", script], dict(os.environ))
    assert (tmp_path / "starts").read_text() == "x" * starts


def test_a_run_that_makes_no_step_is_given_up_and_ended(tmp_path, monkeypatch):
    """It logs three steps for longer than the limit in all, then waits for ever, as verl does for a process that Ray ended."""
    monkeypatch.setattr(one, "STALLED", 3.0)
    script = (
        "import os, time\nopen('pid', 'w').write(str(os.getpid()))\n"
        "for _ in range(3): time.sleep(1.2); print('{}', file=open('metrics.jsonl', 'a'))\n"
        "print('the third', flush=True); time.sleep(600)"
    )
    with pytest.raises(RuntimeError, match=r"ended without a new step for 3 s; its log is(.|\n)*the third"):
        one.train(plan.Job("household", "healthy", "none", 100), tmp_path, [sys.executable, "-c", script], dict(os.environ))
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_only_what_is_missing_is_trained(tmp_path, monkeypatch, capsys):
    asked, kept = [], plan.QUICKSTART.read_text(encoding="utf-8")
    monkeypatch.setattr(command, "run_all", lambda missing, args: asked.extend(missing) or 0)
    stored(tmp_path, "none", 0, 0.5, 0.5)
    words = [
        "--results",
        str(tmp_path),
        "--method",
        "none,gigpo",
        "--seeds",
        "0-1",
        "--regime",
        "healthy",
        "--world",
        "household",
    ]
    assert command.main(words) == 0
    assert [job.name for job in asked] == ["gigpo-seed0", "none-seed1", "gigpo-seed1"]
    assert "4 runs, 1 are there, 3 to train" in capsys.readouterr().out
    assert plan.QUICKSTART.read_text(encoding="utf-8") == kept, "results of one's own leave the package as it is"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "gipgo"], "--method gipgo: unknown; known are none, dr_grpo"),
        (["--seeds", "a"], "--seeds a: expected"),
        (["--steps", "3"], "give --results FOLDER"),
        (["--jobs", "0"], "must be at least 1"),
        (["--diagnose"], "give --results FOLDER"),
        (["--regime", "rate_4e-4"], "give --seeds from 100 up"),
    ],
)
def test_wrong_words_are_refused(words, message, capsys):
    with pytest.raises(SystemExit) as refused:
        command.arguments(words)
    assert message in str(refused.value) + capsys.readouterr().err


def test_a_host_that_is_too_small_for_the_missing_runs_is_told(tmp_path, monkeypatch, capsys):
    lake, games = (plan.Job(world, "unstable", "none", 0) for world in ("frozen_lake", "textworld_express_card"))
    with pytest.raises(SystemExit, match="sysctl -w kernel"):
        command.check_host([lake] * 10**4, 10**4)
    command.check_host([], 2)
    memory = "MemTotal: 65536000 kB\nMemFree: 1000 kB\nBuffers: 0 kB\nCached: 0 kB\nShmem: 0 kB\nActive: 0 kB\nInactive: 0 kB\n"
    (tmp_path / "meminfo").write_text(memory + "MemAvailable: 24414063 kB\n")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert psutil.virtual_memory().available // 10**9 == 25
    command.check_host([lake, lake, games], 2)  # 20 + 4
    command.check_host([lake] * 6, 8)
    assert not capsys.readouterr().out
    command.check_host([lake, games, games], 2)
    assert "needs about 40 GB of memory, and 25 are available" in capsys.readouterr().out


def test_a_predictor_is_held_against_the_change_that_follows_it():
    rng = np.random.default_rng(0)
    moves = rng.normal(size=80)
    entropy = 1 + 0.01 * np.concatenate([[0.0], np.cumsum(moves)])[:80]  # what step t predicts is seen from t + 1 on
    steps = {
        s + 1: {
            "actor/entropy": entropy[s],
            "verl_entropy/predictor/covariance": moves[s],
            "verl_entropy/predictor/repo": -moves[s],
            "verl_entropy/aem_drift/surprisal": moves[s - 1] if s else 0.0,  # what has happened already
            "verl_entropy/aem_drift/entropy_proxy": 0.3,
            **({"verl_entropy/interference/drift_negative": moves[s : s + 5].sum()} if s % 5 == 0 else {}),
        }
        for s in range(80)
    }
    found = claims.claims(steps)["predictors"]
    assert found["predictor/covariance"]["1"] == pytest.approx(1.0) and found["predictor/repo"]["1"] == pytest.approx(-1.0)
    assert abs(found["aem_drift/surprisal"]["1"]) < 0.4 and "aem_drift/entropy_proxy" not in found
    assert found["predictor/covariance"]["5"] > 0.4 and found["predictor/covariance"]["10"] > 0.2
    assert found["interference/drift_negative"] == {"5": pytest.approx(1.0)}
    assert claims.claims({s: steps[s] for s in range(1, 6)})["predictors"] == {}


def test_which_turns_lead_is_told():
    rng = np.random.default_rng(1)
    blocks = rng.normal(size=21).cumsum()
    early, late = np.repeat(blocks[1:], 5), np.repeat(blocks[:-1], 5)  # late turns do what early ones did a mean before
    steps = {
        s + 1: {"actor/entropy": 1.0, **{f"verl_entropy/turn_entropy/{k}": (early if k < 2 else late)[s] for k in range(4)}}
        for s in range(100)
    }
    found = claims.claims(steps)["turns"]
    assert found["early_leads"] == pytest.approx(1.0) and abs(found["late_leads"]) < 0.6
    holes = {s: {k: v for k, v in data.items() if s % 7 or not k.endswith("/3")} for s, data in steps.items()}
    found = claims.claims(holes)["turns"]
    assert found["early_leads"] == pytest.approx(1.0), "no episode of every seventh step reached the last turn"
    short = {s: {k: v for k, v in data.items() if not k.endswith("/3")} for s, data in steps.items()}
    assert claims.claims(short)["turns"] == {}


def test_a_run_made_again_stands_beside_its_cell(tmp_path):
    for seed in range(5):
        stored(tmp_path / "results", "none", seed, 0.5, 0.2 + 0.01 * seed)
    assert "Made again" not in write.render(tmp_path / "results")
    stored(tmp_path / sources.AGAIN, "none", 1, 0.5, 0.23)
    text = write.render(tmp_path / "results")
    assert (
        "seed 1, commit abc: held-out success at the end 0.23, in the table 0.21 for this seed and 0.22 (0.20 to 0.23) for the cell."
        in text
    )


def test_causes_are_told_over_runs_that_recorded_them():
    run = {"claims": {"predictors": {"predictor/covariance": {"1": 0.1, "5": 0.3, "10": None}}, "turns": {}}}
    cells = {"none": dict.fromkeys(range(4), run), "gigpo": {0: {}}}
    assert sections.told_of_causes(cells) == []
    cells["seal"] = {0: run}
    text = "\n".join(sections.told_of_causes(cells))
    assert (
        "over 5 runs" in text and "| -Cov(A, log pi) (arXiv 2505.22617) | 0.10 (0.10 to 0.10) | 0.30 (0.30 to 0.30) |  |" in text
    )
    assert "EPO's cascade" not in text and "REPO" not in text
