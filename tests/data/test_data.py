# SPDX-License-Identifier: Apache-2.0
"""`verl-entropy data`: rows for verl's RL trainer, and expert turns as the tokens of the agent loop for its SFT trainer."""

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("pyarrow")
import pandas as pd

from verl_entropy import cli
from verl_entropy.data import experts, source, write
from verl_entropy.data.expert_turns import Noise, TurnWriter, collect, play, prompt_builder
from verl_entropy.quickstart import build

PROMPT, RESPONSE = build.MAX_PROMPT, build.MAX_RESPONSE
SETTINGS = [
    f"data.env.{k}={json.dumps(v) if isinstance(v, bool) else v}" for k, v in build.AGENT.items() if k not in ("name", "kwargs")
]
SETTINGS += ["data.env.kwargs.difficulty=tiny", "data.env.kwargs.list_places=false", f"data.max_prompt_length={PROMPT}"]
SETTINGS += [f"data.max_response_length={RESPONSE}"]


class Corridor:
    """Walk to the end; knows its solution, or is told a wrong one."""

    SPLITS = ("train", "test")
    wrong = False

    def __init__(self, length=3):
        self.length = length

    @classmethod
    def episodes(cls, split, *, count=None, seed=0, **kwargs):
        rows = [
            {"seed": 10 * seed + i, "options": {"start": i} if i else {}, "task_type": "walk", "prompt": f"{split} {i}"}
            for i in range(4)
        ]
        return rows[:count]

    def reset(self, *, seed=None, options=None):
        self.place = 0
        return "start", {"task": "reach the end", "admissible_actions": ["left", "right"], "task_type": "walk"}

    def step(self, action):
        self.place += action == "right"
        done = self.place >= self.length
        return f"place {self.place}", float(done), done, False, {"won": done, "admissible_actions": ["left", "right"]}

    def close(self):
        pass

    def expert_actions(self):
        return ["left" if self.wrong else "right"] * self.length


class Lost(Corridor):
    """Its solution is none."""

    wrong = True


class Silent(Corridor):
    """Does not say what its task is."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset()
        del info["task"]
        return observation, info


class Unprepared(Corridor):
    """What its episodes need cannot be made."""

    @classmethod
    def prepare(cls, options):
        raise ValueError("a package is missing")


class Plain:
    """Gymnasium's interface and nothing more."""

    def reset(self, *, seed=None, options=None):
        return "start", {}

    def step(self, action):
        return "end", 0.0, True, False, {}

    def close(self):
        pass


PLAIN = f"{Plain.__module__}:Plain"
CORRIDOR, LOST, SILENT, UNPREPARED = (f"{Corridor.__module__}:{name}" for name in ("Corridor", "Lost", "Silent", "Unprepared"))
RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer") / "model"
    tokenizer = build.build_tokenizer()
    build.build_model(len(tokenizer), 0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(*args):
    return cli.main(["data", *map(str, args)])


# ----------------------------------------------------------------------------- RL rows


def test_rows_are_the_same_again_and_hold_what_the_agent_loop_reads(tmp_path):
    for out in ("a", "b"):
        assert run("household", "--split", "unseen", "--count", 5, "--seed", 2, "--out", tmp_path / out) == 0
    a, b = (pd.read_parquet(tmp_path / out / "unseen.parquet").to_dict("records") for out in ("a", "b"))
    assert repr(a) == repr(b) and len({row["extra_info"]["seed"] for row in a}) == 5
    assert all(row["extra_info"]["options"] == '{"split": "unseen"}' and row["agent_name"] == "stepwise_env" for row in a)


def test_what_was_written_is_told_as_json(tmp_path, capsys):
    assert run("household", "--split", "unseen", "--count", 5, "--out", tmp_path, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["episodes"], told["agent"], told["expert"]) == (5, "stepwise_env", None)
    assert len(pd.read_parquet(told["file"])) == 5


def test_a_class_without_splits_gets_seeds():
    train, test = (source.tasks(PLAIN, split, count=3, seed=2) for split in ("train", "test"))
    assert not {t.seed for t in train} & {t.seed for t in test} and test[0].options == {"split": "test"}
    assert not {t.seed for t in train} & {t.seed for t in source.tasks(PLAIN, "train", count=3, seed=1)}


def seeds(split, count, seed=0):
    return {task.seed for task in source.tasks(PLAIN, split, count=count, seed=seed)}


def test_splits_of_seeds_share_none():
    assert min(seeds("train", 3, seed=2)) == 200_000 and min(seeds("dev", 3)) == 1_000_000
    names = ("dev", "test", "valid", "validation", "val", "eval", "seen", "unseen", "iid", "ood")
    firsts = sorted(min(seeds(split, 3)) for split in names)
    assert min(b - a for a, b in itertools.pairwise(firsts)) >= source.SEEDS_PER_SPLIT
    assert firsts[-1] + source.SEEDS_PER_SPLIT < 2**31


@pytest.mark.parametrize(
    ("split", "count", "seed", "says"),
    [
        ("train", 3, 10, "Choose a seed of at most 9"),
        ("train", 100_001, 9, "Choose a seed of at most 8"),
        ("train", 1_000_001, 0, "--count=1000001"),
        ("test", 1_000_001, 0, "--count=1000001"),
    ],
)
def test_seeds_that_reach_another_split_are_refused(tmp_path, capsys, split, count, seed, says):
    assert run(PLAIN, "--split", split, "--count", count, "--seed", seed, "--out", tmp_path) == 2
    assert says in capsys.readouterr().err and not list(tmp_path.iterdir())
    assert len(seeds("train", 100_000, seed=9)) == 100_000


def test_an_environment_with_splits_gives_them_whole():
    rows = source.rl_rows(source.tasks(CORRIDOR, "test", count=None), CORRIDOR, "test")
    assert [json.loads(row["extra_info"]["options"]) for row in rows] == [{}, {"start": 1}, {"start": 2}, {"start": 3}]
    assert rows[1]["prompt"][0]["content"] == "test 1" and rows[0]["extra_info"]["task_type"] == "walk"


def test_files_of_several_environments_are_one_data_set(tmp_path):
    """Options of the same name and another type, and none at all: verl's own data set joins the files, the agent loop reads each."""
    pytest.importorskip("verl.experimental.agent_loop.agent_loop")
    import datasets

    from verl_entropy.agent.loop import _options

    wanted = [{"task": "boil", "variation": 3}, {"task": 7, "split": "test"}, {}]
    files = [tmp_path / f"{i}.parquet" for i in range(3)]
    for file, options in zip(files, wanted, strict=True):
        write.write_parquet(source.rl_rows([source.Task(1, options)], "any", "train"), file)
    parts = [datasets.load_dataset("parquet", data_files=str(file), cache_dir=str(tmp_path / "cache"))["train"] for file in files]
    assert [_options(row["extra_info"]) for row in datasets.concatenate_datasets(parts)] == wanted


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["household", "--split", "attic", "--count", "3"], "--split='attic': household has train, seen, unseen"),
        ([PLAIN, "--split", "train"], "--count 1000"),
        ([PLAIN, "--split", "train", "--count", "2", "--expert", "--tokenizer", "{checkpoint}"], "knows no expert"),
        (["household", "--split", "train", "--count", "0"], "must be at least 1"),
        ([CORRIDOR, "--split", "attic"], "has train, test"),
        (["household", "--split", "train", "--count", "3", "--set", "data.env.max_turn=3"], "Did you mean data.env.max_turns"),
        (["household", "--split", "train", "--count", "3", "--set", "trainer.seed=3"], "expected KEY=VALUE with a key of data."),
        (
            ["household", "--split", "train", "--set", "data.env.kwargs.foo=1"],
            "data.env.kwargs={'foo': 1}: environment household",
        ),
        ([CORRIDOR, "--split", "train", "--set", "data.env.kwargs.foo=1"], "Its settings: length."),
        ([PLAIN, "--split", "train", "--count", "2", "--set", "data.env.kwargs.foo=1"], "Its settings: none."),
        (
            ["textworld_express", "--split", "dev", "--recipe", "first_look/textworld_expres=grpo"],
            "mean first_look/textworld_express=grpo?",
        ),
        (["textworld_express", "--split", "dev", "--recipe", "nope=x"], "with a group of these: aem/alfworld,"),
        (["textworld_express", "--split", "dev", "--recipe", "seal/alfworld"], "mean seal/alfworld=grpo"),
        (["household", "--split", "train", "--count", "3", "--expert"], "--tokenizer: needed by --expert"),
        (["household", "--split", "train", "--count", "3", "--expert", "--tokenizer", "nowhere"], "--tokenizer=nowhere"),
        (["household", "--split", "train", "--count", "3", "--expert", "--agent", "span_env"], "--agent stepwise_env"),
        ([CORRIDOR, "--split", "train", "--expert", "--tokenizer", "x", "--noise-play", "0.5"], "does not recover"),
    ],
)
def test_wrong_input_is_one_message(tmp_path, capsys, checkpoint, args, says):
    args = [a.replace("{checkpoint}", str(checkpoint)) for a in args]
    assert run(*args, "--recipes", RECIPES, "--out", tmp_path) == 2
    error = capsys.readouterr().err
    assert says in error and len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "expert", "says"),
    [
        (UNPREPARED, [], "a package is missing"),
        (CORRIDOR, ["--expert"], "--tokenizer: needed"),
        (LOST, ["--expert", "--tokenizer", "{checkpoint}"], "reached its goal"),
        (CORRIDOR, ["--expert", "--tokenizer", "{checkpoint}"], "a folder has this name"),
    ],
)
def test_a_failure_leaves_every_file_as_it_was(tmp_path, capsys, checkpoint, name, expert, says):
    (tmp_path / "train.parquet").write_text("old")
    (tmp_path / "train_expert.parquet").mkdir()
    expert = [a.replace("{checkpoint}", str(checkpoint)) for a in expert]
    assert run(name, "--split", "train", *expert, "--out", tmp_path) == 2
    told = capsys.readouterr()
    assert says in told.err and not told.out
    assert (tmp_path / "train.parquet").read_text() == "old" and len(os.listdir(tmp_path)) == 2


def test_a_full_disk_leaves_the_old_file_and_says_so(tmp_path):
    """A limit on the size of files is the full disk that a test can have."""
    assert run("household", "--split", "seen", "--count", 2, "--out", tmp_path) == 0
    before = (tmp_path / "seen.parquet").read_bytes()
    code = (
        "import resource, signal, sys; import pandas, pyarrow; from verl_entropy import cli;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600));"
        f"sys.exit(cli.main(['data', 'household', '--split', 'seen', '--count', '500', '--out', {str(tmp_path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "cannot be written" in done.stderr and "another --out" in done.stderr
    assert (tmp_path / "seen.parquet").read_bytes() == before and os.listdir(tmp_path) == ["seen.parquet"]


# ----------------------------------------------------------------------------- expert turns


def expert_texts(count):
    """Turns of household experts as (prompt ids, response ids, text), per episode."""
    writer = TurnWriter(build.agent_settings(), build.build_tokenizer(), PROMPT, RESPONSE)
    tasks = [source.Task(100 + i, {"split": "train"}) for i in range(count)]
    rows, failed = collect(writer, tasks)
    assert not failed
    return writer, tasks, rows


def silent_texts(prompts):
    """The same of an environment that says no task: it is the data set's, where that knows one."""
    writer = writer_for(SILENT, action_format="number")
    tasks = [source.Task(i, {}, "", prompt) for i, prompt in enumerate(prompts)]
    rows, failed = collect(writer, tasks)
    assert not failed and ["Task: " in r["messages"][0]["content"] for r in rows] == [bool(p) for p in prompts for _ in range(3)]
    return writer, tasks, rows


@pytest.mark.parametrize(
    "texts", [lambda: expert_texts(3), lambda: silent_texts(["walk", "", "walk on", "go"])], ids=["household", "silent"]
)
def test_the_tokens_are_those_of_the_agent_loop(texts):
    """The real step-wise loop, its server giving the expert's answers: prompts and responses token for token."""
    pytest.importorskip("verl")
    import asyncio

    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.workers.rollout.replica import TokenOutput

    from verl_entropy.agent.pool import close_all
    from verl_entropy.agent.stepwise import StepwiseAgentLoop

    writer, tasks, rows = texts()
    answers = iter(rows)

    class Server:
        async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
            ids = writer.tokenizer.encode(next(answers)["messages"][-1]["content"], add_special_tokens=False)
            return TokenOutput(token_ids=[*ids, writer.tokenizer.eos_token_id], log_probs=None, extra_fields={}, num_preempted=0)

    env = build.AGENT if writer.settings.name == "household" else {"name": writer.settings.name, "action_format": "number"}
    rollout = {"prompt_length": writer.max_prompt_length, "response_length": RESPONSE, "full_determinism": False}
    rollout["multi_turn"] = {"max_assistant_turns": None}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "algorithm": {}, "data": {"env": env}})

    async def main():
        loop = StepwiseAgentLoop(
            DictConfigWrap(config), Server(), writer.tokenizer, None, None, DictConfigWrap(config.data), hf_model_type="llama"
        )
        sessions = []
        for task in tasks:
            row = source.rl_row(0, task, writer.settings.name, "train")
            sessions += await loop.run({"temperature": 1.0}, uid="u", raw_prompt=row["prompt"], extra_info=row["extra_info"])
        return sessions

    played = asyncio.run(main())
    close_all()
    assert [(p.prompt_ids, p.response_ids) for p in played] == [(r["prompt_ids"], r["response_ids"]) for r in rows]
    assert all(p.extra_fields["success"] for p in played) and len(played) > 10


def writer_for(name, **settings):
    from verl_entropy.agent.settings import AgentSettings

    return TurnWriter(AgentSettings.from_mappings({"name": name, **settings}), build.build_tokenizer(), 400, 60)


def test_a_replayed_solution_has_its_thought_and_number():
    rows, failed = collect(
        writer_for(CORRIDOR, action_format="number"), source.tasks(CORRIDOR, "train", count=2), thought="go {action}"
    )
    assert not failed and len(rows) == 6
    assert rows[0]["messages"][-1]["content"] == "<think> go right </think> <action> 2 </action>"


def test_an_answer_that_needs_no_thought_has_none():
    rows, _ = collect(writer_for(CORRIDOR, require_think=False), source.tasks(CORRIDOR, "train", count=1), thought="")
    assert rows[0]["messages"][-1]["content"] == "<action> right </action>"


SEARCH = {"action_tags": ["search", "answer"], "show_admissible": False}
WHOLE = {"action_format": "whole", "show_admissible": False}


@pytest.mark.parametrize(
    ("name", "needs", "form", "prompt", "answer"),
    [
        (
            "search",
            "bm25s",
            SEARCH,
            "one block <search> </search> or <answer>",
            r"<think> .* </think> <(search|answer)> [^<]+ </\1>",
        ),
        ("math", "math_verify", WHOLE, "all of it counts as your action", r"<think> .* </think> \\boxed\{.+\}"),
    ],
)
def test_experts_write_the_form_that_the_loop_reads(name, needs, form, prompt, answer):
    pytest.importorskip(needs)
    from verl_entropy.agent.parsing import parse_response

    rows, failed = collect(writer_for(name, **form), source.tasks(name, "train", count=3))
    assert rows and not failed
    options = {key: value for key, value in form.items() if key != "show_admissible"}
    for row in rows:
        *_, asked, given = (message["content"] for message in row["messages"])
        assert prompt in asked and "<action>" not in asked + given and re.fullmatch(answer, given, re.DOTALL)
        assert parse_response(given, strict=True, **options).valid()


def test_an_episode_whose_goal_is_not_reached_is_left_out(tmp_path, checkpoint, capsys):
    assert collect(writer_for(LOST), source.tasks(LOST, "train", count=2)) == ([], [0, 1])
    assert run(LOST, "--split", "train", "--expert", "--tokenizer", checkpoint, "--out", tmp_path) == 2
    assert "no episode of split train reached its goal" in capsys.readouterr().err


def test_noise_changes_targets_and_play_separately():
    from verl_entropy.envs.worlds.household import HouseholdEnv

    writer = TurnWriter(build.agent_settings(), build.build_tokenizer(), PROMPT, RESPONSE)
    env = HouseholdEnv(difficulty="tiny", list_places=False)
    make = lambda info: experts.make_expert("household", env, info)  # noqa: E731
    clean, noisy = (play(env, writer, make, seed=5, noise=n) for n in (Noise(), Noise(play=0.9)))
    assert clean.success and len(noisy.turns) > len(clean.turns)  # it lost its way, and still shows the expert's action
    assert clean.turns[0].response == noisy.turns[0].response
    targets = play(env, writer, make, seed=5, noise=Noise(target=0.9))
    assert {t.response for t in targets.turns} != {t.response for t in clean.turns}


def test_a_response_limit_that_cuts_the_expert_is_named():
    writer = TurnWriter(build.agent_settings(), build.build_tokenizer(), PROMPT, 5)
    with pytest.raises(ValueError, match=r"Set data\.max_response_length to at least"):
        collect(writer, [source.Task(1, {})])


def test_the_prompt_builder_is_the_loops(monkeypatch):
    """Every setting of the loop's prompts reaches the data."""
    from verl_entropy.agent.settings import AgentSettings

    odd = {
        "history_length": 1,
        "think_tag": "plan",
        "action_tag": "do",
        "require_think": False,
        "system_prompt": "s",
        "show_admissible": False,
    }
    messages = prompt_builder(AgentSettings.from_mappings(odd)).messages("t", "o", [("a", "b"), ("c", "d")], ["x"], 3)
    assert messages[0] == {"role": "system", "content": "s"} and "<do>" in messages[1]["content"]
    assert (
        "plan" not in messages[1]["content"]
        and "observation: a" not in messages[1]["content"]
        and "- x" not in messages[1]["content"]
    )


# ----------------------------------------------------------------------------- SFT


@pytest.fixture(scope="module")
def expert_file(tmp_path_factory, checkpoint):
    out = tmp_path_factory.mktemp("data")
    args = ["--split", "train", "--count", 24, "--expert", "--tokenizer", checkpoint, "--out", out, "--set", *SETTINGS]
    assert run("household", *args) == 0
    return out / "train_expert.parquet"


@pytest.mark.parametrize("pad_mode", ["no_padding", "right"])
def test_the_data_set_trains_the_response_only(expert_file, checkpoint, pad_mode):
    from verl_entropy.data.sft_dataset import TokenDataset

    data = TokenDataset(str(expert_file), build.build_tokenizer(), {"max_length": 120, "pad_mode": pad_mode}, max_samples=7)
    row, item = pd.read_parquet(expert_file).iloc[3], data[3]
    ids = [*row["prompt_ids"], *row["response_ids"]]
    assert len(data) == 7 and item["input_ids"][: len(ids)].tolist() == ids
    assert item["loss_mask"].nonzero().flatten().tolist() == list(range(len(row["prompt_ids"]), len(ids)))
    assert len(item["input_ids"]) == (120 if pad_mode == "right" else len(ids))


@pytest.mark.parametrize(
    ("config", "says"), [({"max_length": 20}, "Set data.max_length="), ({"pad_mode": "left"}, "must be one of")]
)
def test_the_data_set_refuses_what_would_cut_or_pad_wrongly(expert_file, config, says):
    from verl_entropy.data.sft_dataset import TokenDataset

    with pytest.raises(ValueError, match=says):
        TokenDataset([str(expert_file)], build.build_tokenizer(), config)


@pytest.mark.real
def test_verls_sft_trainer_learns_them(tmp_path, expert_file, checkpoint):
    """verl.trainer.sft_trainer with the recipe of the warm start, on the CPU backend; what it saves is what RL loads."""
    pytest.importorskip("verl")
    overrides = [
        "+warm_start/expert=cpu",
        f"model.path={checkpoint}",
        f"data.train_files={expert_file}",
        f"trainer.default_local_dir={tmp_path}/sft",
        "data.train_batch_size=32",
        "trainer.total_epochs=3",
        "optim.lr=3e-3",
        f"hydra.run.dir={tmp_path}/hydra",
    ]
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    single = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env = {
        **os.environ,
        **single,
        "VERL_PLATFORM": "cpu",
        "VERL_FILE_LOGGER_PATH": f"{tmp_path}/sft.jsonl",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "verl.trainer.sft_trainer", "--config-dir", str(RECIPES), *overrides]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    losses = [json.loads(line)["data"]["train/loss"] for line in (tmp_path / "sft.jsonl").read_text().splitlines()]
    assert losses[-1] < 0.8 * losses[0]
    from transformers import AutoModelForCausalLM

    saved = next((tmp_path / "sft").glob("global_step_*/huggingface"))
    assert AutoModelForCausalLM.from_pretrained(saved).config.vocab_size == len(build.build_tokenizer())
