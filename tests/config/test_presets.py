# SPDX-License-Identifier: Apache-2.0
"""Every preset composes in verl's own configuration, alone and in a list, and equals the class defaults."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from verl_entropy.config import presets
from verl_entropy.methods import registry

pytest.importorskip("verl")


@pytest.fixture(scope="module")
def compose():
    import verl  # noqa: F401  (loads the plugin, which hears what is composed)
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    def run(*overrides):
        with initialize_config_module("verl.trainer.config", version_base=None):
            return compose("ppo_trainer", overrides=list(overrides))

    run.plain = lambda node: OmegaConf.to_container(node, resolve=True)
    return run


def _prepare(config):
    from omegaconf import open_dict

    from verl_entropy.hosts.verl_engine import driver

    with open_dict(config):
        config.actor_rollout_ref.rollout.n = 8
        config.actor_rollout_ref.rollout.agent.default_agent_loop = "span_env"  # a rollout method refuses verl's own loops
        config.actor_rollout_ref.actor.strategy = "fsdp2"
    return driver.prepare(config)


@pytest.mark.parametrize("name", presets.preset_names())
def test_preset_composes_and_passes_the_checks(compose, name):
    config = compose(f"+entropy={name}")
    chosen = _prepare(config)
    # A variant (epo_decay) extends the preset of its method (epo).
    method = (
        name
        if name in METHODS
        else {"arpo": "branching"}.get(name) or next(m for m in sorted(METHODS, key=len, reverse=True) if m in name)
    )
    assert method in chosen.entropy.presets
    assert any(c.name == method for c in chosen.choices)


@pytest.mark.parametrize("name", [a.name for a in registry.methods()])
def test_preset_values_are_the_class_defaults(compose, name):
    chosen = _prepare(compose(f"+entropy={name}"))
    choices = [c for c in chosen.choices if c.name == name]
    assert choices
    for choice in choices:
        assert dataclasses.asdict(choice.settings) == dataclasses.asdict(choice.method.settings())


def test_the_bidirectional_preset_keeps_the_sign_of_a_rare_correct_token(compose):
    settings = _prepare(compose("+entropy=repo_r_bidirectional")).transforms[0].settings
    assert settings.bidirectional and settings.keep_sign


def test_every_algorithm_has_a_preset():
    assert {a.name for a in registry.methods()} <= set(presets.preset_names())


def test_list_of_presets_and_later_overrides(compose):
    config = compose("+entropy=[gigpo,aem,seal,epo]", "algorithm.entropy.aem.temperature=0.5")
    chosen = _prepare(config)
    assert chosen.base == "gigpo" and [t.name for t in chosen.transforms] == ["aem"]
    assert chosen.transforms[0].settings.temperature == 0.5
    assert chosen.regularizer.name == "epo" and chosen.head.settings.alpha == 0.02
    actor = config.actor_rollout_ref.actor
    assert actor.calculate_entropy is True
    assert actor._target_.endswith("EntropyFSDPActorConfig")
    assert actor.fsdp_config.head.settings.layers == 3


@pytest.mark.parametrize(("engine", "name"), [("megatron", "Mcore"), ("veomni", "VeOmni"), ("torchtitan", "TorchTitan")])
def test_a_loss_reaches_the_workers_of_another_engine(compose, engine, name):
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers import config as of_verl

    from verl_entropy.hosts.verl_engine import driver
    from verl_entropy.hosts.verl_engine.configs import OurActor

    more = ("algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=8", "actor_rollout_ref.actor.use_dynamic_bsz=True")
    config = compose(f"model_engine={engine}", "+entropy=[adapo,steer,clip_b]", *more)
    driver.prepare(config)
    assert driver.in_workers(config) and driver.run_of(config).plan.diagnostics.costly_every == 0
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert isinstance(actor, OurActor) and isinstance(actor, getattr(of_verl, f"{name}ActorConfig"))
    found = actor.loss_plan()
    assert (found.loss.name, found.clip.name, actor.policy_loss.loss_mode) == ("steer", "adapo", "steer")
    assert type(actor.engine).__name__ == type(getattr(actor, engine)).__name__


def test_keys_without_a_preset(compose):
    config = compose(
        "+algorithm.entropy.transforms=[aem]",
        "+actor_rollout_ref.actor.policy_loss.regularizer=epo",
        "+actor_rollout_ref.actor.seal.alpha=0.1",
        "algorithm.adv_estimator=grpo",
    )
    chosen = _prepare(config)
    assert [t.name for t in chosen.transforms] == ["aem"]
    assert chosen.regularizer.name == "epo" and chosen.head.settings.alpha == 0.1


def test_nothing_chosen_leaves_the_configuration_alone(compose):
    config = compose()
    before = compose.plain(config)
    assert _prepare_untouched(config) is None
    assert compose.plain(config) == before


def _prepare_untouched(config):
    from verl_entropy.hosts.verl_engine import driver

    return driver.prepare(config)


def test_the_dataclasses_of_verl_build_from_a_prepared_configuration(compose):
    from verl.utils.config import omega_conf_to_dataclass

    config = compose("+entropy=[gigpo,aem,seal,epo]", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1")
    _prepare(config)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    loss_plan = actor.loss_plan()
    assert loss_plan.regularizer.settings.kappa_high == 2.0
    assert loss_plan.head.settings.layers == 3
    assert actor.engine.chosen_head().settings.dropout == 0.1


def test_settings_of_a_method_from_outside_reach_the_trainer_and_the_workers(compose, monkeypatch):
    """verl's dataclasses have no field for its section: the driver moves it, and the plan is read from there in every process."""
    from verl.utils.config import omega_conf_to_dataclass

    from verl_entropy.hosts.verl_engine import driver

    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "own_methods"))
    words = ("regularizer=own_methods:FLOOR", "entropy_floor.floor=0.5")
    config = compose(*(f"+{LOSS}.{word}" for word in words), "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1")
    assert _prepare(config).regularizer.settings.floor == 0.5
    assert driver.read_plan(config).regularizer.settings.floor == 0.5  # what the trainer reads in its own process
    assert omega_conf_to_dataclass(config.actor_rollout_ref.actor).loss_plan().regularizer.settings.floor == 0.5


METHODS = {a.name for a in registry.methods()}

GSPO = ("gspo_repo_r", "gspo_repo_d", "adapo_gspo")
REPO = (
    "repo_r",
    "repo_r_bidirectional",
    "repo_d",
    "adapo",
    "entropy_bonus_adaptive",
    "loop_dapo",
    "loop_ppo",
    "loop_ppo_narrow",
    *GSPO,
)


@pytest.mark.parametrize("name", [*REPO, "rloo_repo_r", "rloo_repo_d"])
def test_a_preset_of_the_repo_paper_is_the_papers_whole_method(compose, name):
    """Leave-one-out, no dual clip, 1 / |tau| for each trajectory; verl has gae, 3 and token-mean."""
    config = compose(f"+entropy={name}")
    chosen = _prepare(config)
    actor = config.actor_rollout_ref.actor
    assert chosen.base == config.algorithm.adv_estimator == "loop"
    assert float(actor.clip_ratio_c) >= 1e5 and actor.loss_agg_mode == "seq-mean-token-mean"
    assert actor.policy_loss.loss_mode == ("gspo" if name in GSPO else "vanilla")
    if name.startswith("rloo"):  # one update of the whole batch
        assert actor.ppo_epochs == 1 and actor.ppo_mini_batch_size == config.data.train_batch_size
    elif name not in GSPO:
        upper = {"loop_ppo": 0.2, "loop_ppo_narrow": 0.1}.get(name, 0.28 if name != "adapo" else None)
        assert upper is None or float(actor.clip_ratio_high) == upper
        assert float(actor.clip_ratio_low) == (0.1 if name == "loop_ppo_narrow" else 0.2)


@pytest.mark.parametrize(
    "names", ["gigpo,repo_r", "repo_r,gigpo", "siren,gigpo", "clip_b,group_norm", "entropy_bonus_adaptive,gigpo"]
)
def test_a_preset_of_a_transform_leaves_the_estimator_of_another(compose, names):
    chosen = _prepare(compose(f"+entropy=[{names}]"))
    assert chosen.base == next(n for n in names.split(",") if n in ("gigpo", "group_norm")) and chosen.estimator is not None


def test_an_override_of_the_user_wins_over_a_preset_and_is_said(compose):
    from verl_entropy.hosts.verl_engine import driver

    overrides = ["algorithm.adv_estimator=rloo", "actor_rollout_ref.actor.clip_ratio_high=0.2"]
    config = compose("+entropy=[repo_r]", *overrides)
    chosen = _prepare(config)
    assert chosen.base == "rloo" and config.actor_rollout_ref.actor.clip_ratio_high == 0.2
    notes = [line for line in driver.banner(chosen, config) if "the paper's method" in line]
    assert len(notes) == 2 and all(any(o in note for note in notes) for o in overrides)
    assert not [line for line in driver.banner(*_prepared(compose("+entropy=[repo_r]"))) if "the paper's method" in line]


def _prepared(config):
    return _prepare(config), config


def test_a_preset_that_undoes_another_is_warned_of_and_a_variant_does_not_undo_its_own_base(compose):
    from verl_entropy.config import warnings
    from verl_entropy.hosts.verl_engine import driver

    def said(names):
        config = compose(f"+entropy=[{names}]")
        chosen = _prepare(config)
        return [text for text in warnings.risks(chosen, driver.plain(config), True) if "comes after it" in text]

    assert "clip_ratio_low=0.2: preset gspo_repo_r sets 0.0003" in said("gspo_repo_r,adapo")[0]
    assert not said("adapo,repo_r") and not said("gspo_repo_r") and not said("gigpo,repo_r")


@pytest.mark.parametrize("transform", registry.names("transform"))
def test_a_transform_is_reachable_as_an_estimator_with_its_base_a_setting(compose, transform):
    config = compose(f"algorithm.adv_estimator={transform}", "+algorithm.entropy.base=rloo")
    chosen = _prepare(config)
    assert chosen.base == "rloo" and [t.name for t in chosen.transforms] == [transform]
    assert config.algorithm.adv_estimator == "rloo"
    from verl_entropy.hosts.verl_engine import driver

    again = driver.read_plan(config)  # what the trainer reads in its own process
    assert again.base == "rloo" and [t.name for t in again.transforms] == [transform]


def test_adapo_as_a_loss_mode_moves_the_clip_of_its_loss(compose):
    config = compose(f"{LOSS}.loss_mode=adapo", f"+{LOSS}.adapo.loss=gspo")
    chosen = _prepare(config)
    assert chosen.clip.name == "adapo" and config.actor_rollout_ref.actor.policy_loss.loss_mode == "gspo"


@pytest.mark.slow
def test_random_combinations_pass_or_are_refused_with_a_reason(compose):
    """30 random lists of presets: each composes and passes the checks, or is refused because two exclude each other."""
    import random

    from verl_entropy.config.settings import ConfigError

    rng, passed = random.Random(0), 0
    for _ in range(30):
        names = rng.sample(sorted(METHODS), rng.randint(2, 4))
        try:
            chosen = _prepare(compose(f"+entropy=[{','.join(names)}]"))
        except ConfigError as error:
            assert "both" in str(error)
            continue
        passed += 1
        assert set(names) == set(chosen.entropy.presets)
        assert set(names) <= {c.name for c in chosen.choices}
    assert passed >= 10


LOSS = "actor_rollout_ref.actor.policy_loss"
MAIN = [sys.executable, "-m", "verl.trainer.main_ppo", "trainer.device=cpu"]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["+entropy=nonesuch"], "entropy/nonesuch"),
        (["+entropy=aem", "algorithm.entropy.aem.temperature=-1"], "must be >= 0"),
        (["+entropy=aem", "actor_rollout_ref.rollout.n=1"], "rollout.n=8"),
    ],
)
@pytest.mark.slow
def test_main_ppo_stops_at_start_with_one_message(overrides, says):
    env = {**os.environ, "VERL_PLATFORM": "cpu", "HYDRA_FULL_ERROR": "0"}
    out = subprocess.run([*MAIN, *overrides], capture_output=True, text=True, env=env, timeout=120, check=False)
    assert out.returncode != 0
    assert says in out.stderr, out.stderr[-2000:]
    assert "ray init kwargs" not in out.stdout


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("+entropi=aem", "Write entropy"),
        ("+entrpy=[aem]", "Write entropy"),
        ("+algorithm.entrop.transforms=[aem]", "Write algorithm.entropy"),
        ("+actor_rollout_ref.actor.seall.alpha=0.1", "Write actor_rollout_ref.actor.seal"),
    ],
)
def test_a_slip_in_a_key_of_ours_is_refused_and_not_taken_for_a_new_key(compose, word, says):
    from verl_entropy.config.settings import ConfigError
    from verl_entropy.hosts.verl_engine import driver

    driver.check_spelling(compose("+entropy=[gigpo,aem,seal,epo]", "+my_section.entropies=3"))
    with pytest.raises((ConfigError, SystemExit), match=says):  # SystemExit: where verl is loaded, at composition already
        driver.check_spelling(compose(word))
