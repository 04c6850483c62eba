# SPDX-License-Identifier: Apache-2.0
"""Every recipe composes over verl's own configuration tree and passes verl's and our checks; every file is used."""

import re
from pathlib import Path

import pytest
import yaml

pytest.importorskip("verl")
from omegaconf import OmegaConf

from verl_entropy import envs
from verl_entropy.agent import verl_agent_rules
from verl_entropy.agent.settings import AgentSettings
from verl_entropy.config.settings import ConfigError
from verl_entropy.data import recipe

RECIPES = Path(__file__).parents[2] / "recipes"
OTHERS = ("warm_start", "verl_agent")
"""Folders that hold no run of main_ppo: the SFT recipe, and what belongs to another trainer."""
EXPERIMENTS = [n for n in recipe.names(RECIPES) if not n.startswith(OTHERS)]
MODELS = sorted(path.stem for path in (RECIPES / "parts/model").glob("*.yaml"))
ABLATIONS = ("epo_base", "epo_static", "epo_decay", "ea")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A configuration that verl's check of the critic can load."""
    from verl_entropy.quickstart import build

    folder, tokenizer = tmp_path_factory.mktemp("model"), build.build_tokenizer()
    build.build_model(len(tokenizer), 0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def compose(*overrides):
    return recipe.compose(overrides, RECIPES)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment(name, model):
    config = compose(f"+{name}", f"critic.model.path={model}")
    lines = recipe.validate(config)
    assert not [line for line in lines if line.startswith("note") and "vLLM" not in line], (
        lines
    )  # nothing set in vain, all checked
    paper, env = name.split("=")[0].split("/")
    assert config.data.env.name == env and env in envs.ENVIRONMENTS
    assert config.trainer.experiment_name == name.replace("/", "-").replace("=", "-")
    assert config.trainer.resume_mode == "auto" and config.trainer.use_v1 and config.trainer.project_name == "verl-entropy"
    files = [config.data.train_files, *config.data.val_files]
    splits = envs.resolve(env).SPLITS
    assert all(re.fullmatch(f"data/{env}/({'|'.join(splits)}).parquet", file) for file in files), (files, splits)
    entropy = config.algorithm.get("entropy", {}).get("presets", {})
    rows = config.actor_rollout_ref.actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
    assert rows % (config.trainer.nnodes * config.trainer.n_gpus_per_node) == 0, (
        "verl's workers refuse mini-batches of unequal parts"
    )
    assert paper != "seal" or "seal" in entropy
    assert paper not in ("aem", "epo") or paper in entropy


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["+seal/alfworld=gigpo", "entropy=[gigpo]"], "advantages: gigpo"),
        (["+seal/webshop=grpo", "entropy=[]"], "nothing of verl-entropy is chosen"),
        (["+seal/webshop=grpo", "parts/env=webshop_like"], "head: seal, alpha 0.02"),
        (["+aem/alfworld=dapo", "entropy=[]"], "nothing of verl-entropy is chosen"),
        (
            ["+epo/scienceworld=grpo", "entropy=[]", "~actor_rollout_ref.actor.policy_loss.epo"],
            "nothing of verl-entropy is chosen",
        ),
        *((["+epo/scienceworld=grpo", f"entropy=[{name}]"], f"{name.split('_')[0]}") for name in ABLATIONS),
        *(([f"+{name}=grpo", "entropy=[loop]"], "advantages: loop") for name in ("repo/appworld", "repo/math")),
    ],
)
def test_baselines_and_ablations_are_one_override(overrides, says):
    assert any(says in line for line in recipe.validate(compose(*overrides)))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_fits_a_recipe(name):
    config = compose("+aem/webshop=grpo", f"parts/model={name}")
    assert name.lower().replace("-", "") in config.actor_rollout_ref.model.path.lower().replace("-", "")
    assert config.critic.model.path == config.actor_rollout_ref.model.path
    needs = config.trainer.n_gpus_per_node * config.trainer.nnodes
    assert "32b" in name or needs % config.actor_rollout_ref.rollout.tensor_model_parallel_size == 0


@pytest.mark.parametrize(
    ("name", "values"),
    # The numbers of the papers, as the trainer will read them.
    [
        ("seal/alfworld=grpo", {"actor_rollout_ref.actor.optim.lr": 2e-6, "data.env.max_turns": 25, "data.env.invalid_action_penalty": 0.1,
                                "actor_rollout_ref.rollout.n": 8, "actor_rollout_ref.actor.seal.alpha": 0.02}),
        ("seal/search=grpo", {"data.env.max_turns": 3, "data.train_batch_size": 256, "actor_rollout_ref.rollout.n": 5,
                              "data.env.invalid_action_penalty": 0.01, "actor_rollout_ref.actor.kl_loss_coef": 0.001}),
        ("seal/webshop=gigpo", {"algorithm.entropy.gigpo.gamma": 0.95, "algorithm.entropy.gigpo.norm": "mean",
                                "data.env.kwargs.human_goals": False, "data.env.kwargs.goals": "verl_agent",
                                "data.max_prompt_length": 4096, "data.env.max_turns": 10}),
        ("epo/scienceworld=ppo", {"actor_rollout_ref.actor.optim.lr": 3e-6, "actor_rollout_ref.actor.policy_loss.epo.smooth_coeff": 0.05,
                                  "trainer.total_training_steps": 125, "actor_rollout_ref.actor.ppo_mini_batch_size": 64,
                                  "actor_rollout_ref.actor.optim.min_lr_ratio": 0.2, "algorithm.adv_estimator": "gae"}),
        ("epo/alfworld=grpo", {"actor_rollout_ref.actor.optim.lr": 5e-6, "actor_rollout_ref.actor.policy_loss.epo.smooth_coeff": 0.1,
                               "trainer.total_training_steps": 150, "data.env.kwargs.win_reward": 1.0, "data.env.invalid_action_penalty": 0}),
        ("aem/webshop=dapo", {"actor_rollout_ref.actor.clip_ratio_high": 0.28, "algorithm.filter_groups.enable": True, "data.env.max_turns": 15,
                              "actor_rollout_ref.actor.optim.lr": 1e-6}),
        ("aem/alfworld=gspo", {"actor_rollout_ref.actor.policy_loss.loss_mode": "gspo", "actor_rollout_ref.actor.clip_ratio_low": 3e-4,
                               "trainer.total_training_steps": 200, "data.env.max_turns": 50}),
        ("repo/appworld=rloo", {"actor_rollout_ref.actor.ppo_epochs": 1, "actor_rollout_ref.actor.ppo_mini_batch_size": 64,
                                "actor_rollout_ref.model.lora_rank": 16, "actor_rollout_ref.actor.optim.lr": 5e-5}),
        ("repo/math=adapo", {"actor_rollout_ref.actor.policy_loss.adapo.eps_high": 0.28, "trainer.total_training_steps": 200,
                             "data.train_batch_size": 128, "actor_rollout_ref.rollout.n": 6, "data.max_response_length": 4096}),
    ],
)  # fmt: skip
def test_the_papers_values_arrive(name, values):
    config = compose(f"+{name}")
    assert {key: OmegaConf.select(config, key) for key in values} == pytest.approx(values)


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if re.match(r"(seal|aem)/(?!swe)", name)])
def test_papers_that_build_on_verl_agent_have_its_prompts_and_rules(name):
    env = AgentSettings.from_mappings(OmegaConf.to_container(compose(f"+{name}").data.env, resolve=True))
    assert env.prompt_template == "verl_agent" and not env.require_admissible


def test_without_verl_agents_checkout_a_recipe_composes_and_no_run_starts(monkeypatch):
    from verl_entropy.hosts.verl_engine import driver, resolved

    monkeypatch.delenv("VERL_AGENT_HOME")
    monkeypatch.delenv("VERL_ENTROPY_CACHE", raising=False)
    verl_agent_rules.templates.cache_clear()
    config = compose("+seal/alfworld=grpo")
    with pytest.raises(ConfigError, match=r"prompt_template=verl_agent: VERL_AGENT_HOME is not set.*git clone"):
        driver.check_prompts(config)
    found = resolved.check(config)
    assert [
        w for w in found.warnings if w.startswith("not on this machine: data.env.prompt_template=verl_agent: VERL_AGENT_HOME")
    ]


def test_the_warm_start_composes_over_verls_sft_trainer():
    on_a_cpu = recipe.compose(["+warm_start/expert=cpu", "model.path=m"], RECIPES, trainer="sft")
    assert (on_a_cpu.trainer.device, on_a_cpu.model.use_remove_padding, on_a_cpu.optim.lr) == ("cpu", False, 1e-5)
    config = recipe.compose(["+warm_start/expert=sft", "model.path=m"], RECIPES, trainer="sft")
    from verl.utils.import_utils import load_extern_object

    from verl_entropy.data.sft_dataset import TokenDataset

    assert load_extern_object(config.data.custom_cls.path, config.data.custom_cls.name) is TokenDataset
    assert "hf_model" in config.checkpoint.save_contents and config.model.path == "m"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["+seal/alfworld=grpo", "parts/model=gpt"], "Could not find 'parts/model/gpt'"),
        (["+seal/alfworld=grpo", "entropy=[sael]"], "no preset entropy/sael. Did you mean seal?"),
        (["+seal/alfworld=grpo", "data.env.max_turn=3"], "Could not override 'data.env.max_turn'"),
        (["+seal/alfworld=grpo", "actor_rollout_ref.actor.optim.lr=fast"], "optim.lr='fast': expected a number"),
        (["+seal/alfworld=grpo", "+data.env.max_turn=3"], "Did you mean data.env.max_turns"),
        (["+seal/alfworld=grpo", "actor_rollout_ref.model.lora_rank=8"], "the head is not trained under LoRA"),
        (["+epo/scienceworld=grpo", "actor_rollout_ref.rollout.n=1"], "nothing to compare"),
    ],
)
def test_a_mistake_is_found_before_ray(overrides, says):
    with pytest.raises(ConfigError, match=says):
        recipe.validate(compose(*overrides))


# ----------------------------------------------------------------------------- the files


def defaults_of(path):
    """Files that a recipe's defaults list names."""
    for entry in yaml.safe_load(path.read_text()).get("defaults", []):
        group, names = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
        group = group.removeprefix("override ").strip()
        for name in names if isinstance(names, list) else [names]:
            target = f"{group}/{name}" if group else name
            if target == "_self_" or target.startswith("/entropy"):
                continue
            yield RECIPES / f"{target.lstrip('/')}.yaml" if target.startswith("/") else path.parent / f"{target}.yaml"


def test_no_file_is_an_orphan():
    """Each is an experiment, a part of one, or named in the README of a recipe or in a launcher."""
    reached, todo = set(), [RECIPES / f"{name.replace('=', '/')}.yaml" for name in EXPERIMENTS]
    todo.append(RECIPES / "warm_start/expert/cpu.yaml")
    texts = [*RECIPES.rglob("README.md"), *(RECIPES.parent / "examples").glob("*.sh")]
    named = " ".join(path.read_text() for path in texts)
    todo += [p for p in RECIPES.glob("parts/*/*.yaml") if f"parts/{p.parent.name}={p.stem}" in named]
    while todo:
        path = todo.pop()
        if path not in reached:
            assert path.is_file(), path
            reached.add(path)
            todo += defaults_of(path)
    everything = {p for p in RECIPES.rglob("*.yaml") if "verl_agent" not in p.parts}
    assert everything == reached


SOURCELESS = {"name", "path", "experiment_name", "train_files", "val_files", "max_ckpt_to_keep", "project_name", "problems"}
SOURCES = "AEPO SEAL EPO AEM REPO verl DeepSWE GSPO DAPO (n/s) ours".split()
FACTS = ("free text", "one turn")
"""What follows from the environment itself needs no source."""
FILES = [p for p in sorted(RECIPES.glob("*/*/*.yaml")) if p.parts[-3] not in OTHERS and p.parent.name != "model"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: "/".join(p.parts[-3:]))
def test_every_value_names_its_source(path):
    """A comment behind each value that starts with the paper, the framework, (n/s) or ours."""
    for line in path.read_text().split("defaults:")[-1].splitlines():
        found = re.match(r"\s+([a-z_0-9]+): ([^\s#{\[].*)", line)
        if found and found[1] not in SOURCELESS and "_files" not in found[1]:
            comment = line.partition("#")[2].strip()
            words = set(re.split(r"[\s:,;']+", comment))
            assert words & {*SOURCES, "verl-agent"} or any(fact in comment for fact in FACTS), f"{path.name}: {line}"


def test_every_experiment_folder_has_a_readme_with_claim_and_status():
    for folder in sorted({RECIPES / name.split("=")[0] for name in EXPERIMENTS}):
        text = (folder / "README.md").read_text()
        for heading in ("Claim", "Hardware", "Run", "Not run here"):
            assert heading in text, f"{folder}: {heading}"
        for path in folder.glob("*.yaml"):
            assert f"={path.stem}" in text or f"`{path.stem}`" in text, f"{folder}: {path.stem} is not mentioned"
