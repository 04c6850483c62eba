# SPDX-License-Identifier: Apache-2.0
"""What the quickstart is made of, without running it."""

import json
import random
from pathlib import Path

import pytest

pytest.importorskip("transformers")
from verl_entropy.agent.parsing import format_response, parse_response
from verl_entropy.agent.settings import AgentSettings
from verl_entropy.data.expert_turns import prompt_builder
from verl_entropy.envs.worlds.household import HouseholdEnv, HouseholdExpert
from verl_entropy.quickstart import __main__ as quickstart
from verl_entropy.quickstart import build, figure, warm_start


@pytest.fixture(scope="module")
def tokenizer():
    return build.build_tokenizer()


@pytest.mark.parametrize("split", ["train", "seen", "unseen"])
def test_the_tokenizer_knows_every_word_and_prompts_fit(tokenizer, split):
    """Expert and random play: no unknown token, no prompt or response over the limits that the trainer gets."""
    rng, prompts = random.Random(0), prompt_builder(build.agent_settings())
    env = HouseholdEnv(**{**build.ENV, "split": split}, task_types=build.TASK_TYPES, max_turns=build.MAX_TURNS)
    for seed in range(60):
        observation, info = env.reset(seed=seed)
        expert, history, done = HouseholdExpert(info["task"]), [], False
        while not done:
            admissible = info["admissible_actions"]
            action = expert.act(observation, admissible)
            messages = prompts.messages(info["task"], observation, history, admissible, len(history) + 1)
            ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
            answer = tokenizer.encode(format_response(action, expert.thought), add_special_tokens=False)
            assert tokenizer.unk_token_id not in [*ids, *answer], tokenizer.decode(ids)
            assert len(ids) <= build.MAX_PROMPT and len(answer) < build.MAX_RESPONSE
            parsed = parse_response(tokenizer.decode(answer), admissible)
            assert parsed.valid_format and parsed.admissible and parsed.action == action
            played = action if rng.random() < 0.5 else rng.choice([*admissible, "none"])
            history.append((observation, played))
            observation, _, terminated, truncated, info = env.step(played)
            done = terminated or truncated


def test_the_agent_loop_builds_the_prompts_of_the_warm_start():
    given = dict(o.removeprefix("+data.env.").split("=", 1) for o in quickstart.environment_overrides()[1:])
    from omegaconf import OmegaConf

    dotted = OmegaConf.from_dotlist([f"{k}={v}" for k, v in given.items()])
    settings = AgentSettings.from_mappings(OmegaConf.to_container(dotted))
    assert (settings.history_length, settings.show_admissible, settings.prompt_template) == (3, False, "brief")
    assert settings == build.agent_settings()
    assert settings.max_turns == build.MAX_TURNS and tuple(settings.kwargs["task_types"]) == build.TASK_TYPES


def test_same_seed_same_model_and_rows(tokenizer):
    a, b, c = (build.build_model(len(tokenizer), seed) for seed in (0, 0, 1))
    equal = [(p == q).all() for p, q in zip(a.parameters(), b.parameters(), strict=True)]
    assert all(equal) and any((p != q).any() for p, q in zip(a.parameters(), c.parameters(), strict=True))
    assert warm_start.expert_rows(tokenizer, 0, episodes=5) == warm_start.expert_rows(tokenizer, 0, episodes=5)


def test_warm_start_lowers_the_loss(tokenizer):
    rows, losses = warm_start.expert_rows(tokenizer, 0, episodes=40), []
    warm_start.train(build.build_model(len(tokenizer), 0), rows, 0, steps=12, tick=losses.append)
    assert losses[-1] < 0.8 * losses[0]


def test_metrics_of_several_sessions_and_a_torn_line(tmp_path):
    (tmp_path / "metrics-0.jsonl").write_text('{"step": 1, "data": {"a": 1}}\n{"step": 2, "data": {"a": 2}}\n')
    (tmp_path / "metrics-1.jsonl").write_text('{"step": 2, "data": {"a": 3}}\n{"step": 3, "da')
    assert quickstart.read_metrics(quickstart.metric_files(tmp_path)) == {1: {"a": 1}, 2: {"a": 3}}


def test_the_figure_is_drawn_with_and_without_values(tmp_path):
    pytest.importorskip("matplotlib")
    steps = {0: {"val-core/household/seen/acc/mean@1": 0.3}}
    for step in range(1, 6):
        steps[step] = {"verl_entropy/success": 0.1 * step, "verl_entropy/turn_entropy/0": 1.0, "verl_entropy/turn_entropy/3": 0.5}
    figure.draw(steps, tmp_path / "a.png", "title")
    figure.draw({}, tmp_path / "b.png", "title")
    grpo = quickstart.recorded(quickstart.arguments([]))
    assert grpo["steps"] == len(grpo["low"]) == len(grpo["high"])
    figure.draw(steps, tmp_path / "c.png", "title", grpo)
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "c.png").read_bytes()
    assert (tmp_path / "a.png").stat().st_size > 10_000 and (tmp_path / "b.png").stat().st_size > 1_000


def test_recorded_runs_stand_beside_a_run_of_the_same_settings_only():
    """Plain GRPO of the bench has the quickstart's settings, method aside; other lengths, other settings and plain GRPO have no comparison."""
    results = json.loads((Path(__file__).parents[2] / "recipes/bench/results/household/healthy/none-seed0.json").read_text())
    folder = Path("folder")
    ours = dict(word.lstrip("+").split("=", 1) for word in quickstart.overrides(quickstart.arguments([]), folder, folder) if word)
    theirs = results["settings"]
    own = {"trainer.save_freq", "trainer.test_freq", "trainer.experiment_name", "algorithm.adv_estimator", "entropy"}
    compared = [key for key in theirs if key in ours and key not in own and "diagnostics" not in key]
    assert len(compared) > 50 and [key for key in compared if ours[key] != theirs[key]] == []
    for argv in (["--steps", "60"], ["--preset", "none"], ["algorithm.gamma=0.9"]):
        assert quickstart.recorded(quickstart.arguments(argv)) is None


@pytest.mark.parametrize("argv", [["--preset", "nonesuch"], ["--steps", "0"], ["--seed", "-1"]])
def test_wrong_arguments_stop_at_once(argv, capsys):
    with pytest.raises(SystemExit):
        quickstart.arguments(argv)
    assert "--" in capsys.readouterr().err
