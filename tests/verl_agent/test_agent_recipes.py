# SPDX-License-Identifier: Apache-2.0
"""Every recipe for verl-agent gives a command, without a GPU and without verl-agent; its values are the papers'."""

from __future__ import annotations

import os
import shlex
import subprocess
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from agent_config import agent_config

from verl_entropy.config.presets import preset_names
from verl_entropy.hosts.verl_agent import settings

ROOT = Path(__file__).parents[2]
ACTOR = "actor_rollout_ref.actor"
ENVS, BASES, METHODS = ("alfworld", "webshop"), ("grpo", "gigpo", "dapo", "gspo", "ppo"), ("seal", "epo", "aem")


@cache
def command(*words: str, script: str = "run.sh", **variables: str) -> list[str]:
    env = {"PATH": os.environ["PATH"], "HOME": "/home/user", **variables}
    done = subprocess.run(
        ["bash", str(ROOT / "examples/verl_agent" / script), *words],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return shlex.split(done.stdout)


def values(words: list[str]) -> dict[str, str]:
    """Overrides as Hydra takes them: the last one of a key wins."""
    return dict(word.split("=", 1) for word in words if "=" in word)


@pytest.mark.parametrize(("env", "base", "method"), product(ENVS, BASES, METHODS))
def test_every_combination_gives_a_checked_command(env, base, method):
    words = command(env, base, method, "--dry-run")
    assert words[1:3] == ["-m", "verl_entropy.verl_agent"]
    found = values(words)
    assert found["+entropy"] == method and method in preset_names()
    parts = ("algorithm.adv", "algorithm.entropy", ACTOR, "env.rollout")
    read = [f"{k}={v}" for k, v in found.items() if k.startswith(parts)]
    config = agent_config([method], read)
    chosen = settings.prepare(config)
    assert method in {c.name for c in chosen.choices}
    assert found["data.train_files"].split("/")[-3] == found["data.train_batch_size"]
    assert int(found["data.train_batch_size"]) * int(found["env.rollout.n"]) == 128


def test_a_flag_counts_wherever_it_stands_and_another_one_is_refused():
    override = "trainer.total_epochs=3"
    words = command("alfworld", "grpo", "seal", override, "--dry-run")
    assert words == command("alfworld", "grpo", "seal", "--dry-run", override) and words[-1] == override
    with pytest.raises(subprocess.CalledProcessError) as error:
        command("alfworld", "grpo", "seal", "--dryrun")
    assert "--dryrun: one of --dry-run --check" in error.value.stderr


PAPERS = [
    ("alfworld grpo seal", f"{ACTOR}.optim.lr=2e-6 env.max_steps=25 {ACTOR}.ppo_mini_batch_size=256 {ACTOR}.seal.alpha=0.02"),
    ("webshop gigpo seal", f"env.max_steps=10 {ACTOR}.ppo_mini_batch_size=64 data.max_prompt_length=4096 algorithm.gamma=0.95"),
    ("alfworld ppo epo", f"critic.model.path=Qwen/Qwen2.5-3B-Instruct {ACTOR}.optim.warmup_style=cosine {ACTOR}.optim.lr=5e-6"),
    ("alfworld gspo aem", f"{ACTOR}.clip_ratio_high=0.0004 trainer.total_epochs=200 env.max_steps=50"),
    ("webshop dapo aem", f"algorithm.filter_groups.enable=True {ACTOR}.clip_ratio_high=0.28 {ACTOR}.optim.lr=1e-6"),
    ("webshop ppo aem", "env.rollout.n=8 algorithm.adv_estimator=gae critic.ppo_micro_batch_size_per_gpu=4"),
]


@pytest.mark.parametrize(("words", "wanted"), PAPERS)
def test_values_are_those_of_the_paper_or_of_verl_agent(words, wanted):
    found, wanted = values(command(*words.split(), "--dry-run")), values(wanted.split())
    assert {k: found[k] for k in wanted} == wanted


def test_a_users_override_and_model_win():
    words = command("alfworld", "grpo", "epo", "--dry-run", "trainer.total_epochs=3", MODEL="my/model")
    assert values(words)["trainer.total_epochs"] == "3"
    assert values(words)["actor_rollout_ref.model.path"] == "my/model"


def test_slurm_variant_tells_what_the_job_got():
    words = command(
        "webshop", "grpo", "aem", "--dry-run", "a=1", script="run.slurm", SLURM_GPUS_ON_NODE="4", SLURM_CPUS_PER_TASK="48"
    )
    found = values(words)
    assert (found["trainer.n_gpus_per_node"], found["ray_init.num_cpus"], found["a"]) == ("4", "48", "1")


def test_a_wrong_word_is_named():
    with pytest.raises(subprocess.CalledProcessError) as failed:
        command("alfworld", "reinforce", "aem", "--dry-run")
    assert "BASE=reinforce: one of grpo gigpo dapo gspo ppo" in failed.value.stderr
