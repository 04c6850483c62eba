# SPDX-License-Identifier: Apache-2.0
"""verl-agent's own functions and actor, unchanged, beside ours (needs VERL_AGENT_HOME; CPU, tiny model)."""

from __future__ import annotations

import pytest

SCRIPT = "agent_actor.py"


def test_checkout_is_the_known_one(results):
    assert results(SCRIPT)["changed"] == []


@pytest.mark.parametrize("estimator", ["grpo", "gigpo", "rloo", "reinforce_plus_plus_baseline"])
def test_neutral_setting_gives_verl_agents_advantages_bit_for_bit(results, estimator):
    assert results(SCRIPT)["neutral_advantages"][estimator]


@pytest.mark.parametrize("estimator", ["gigpo", "grpo", "rloo"])
def test_row_statistics_give_verl_agents_values(results, estimator):
    assert results(SCRIPT)["row_statistics"][estimator] < 1e-6


@pytest.mark.parametrize("setting", ["zero", "verl"])
def test_equal_returns_give_no_advantage_where_verl_agents_grpo_rounds(results, setting):
    found = results(SCRIPT)["equal_returns"][setting]
    assert found["theirs"] > 1e-3 and found["metric"] == pytest.approx(found["theirs"], rel=1e-5)
    assert found["ours"] == (0 if setting == "zero" else found["theirs"]) and found["others_equal"]


def test_neutral_update_is_verl_agents_bit_for_bit(results):
    found = results(SCRIPT)["neutral_update"]
    assert found["parameters"] and found["moved"]
    assert all(found["metrics"].values()), found["metrics"]


def test_entropies_are_in_the_order_of_the_rows_under_dynamic_batch_size(results):
    found = results(SCRIPT)["entropy_order"]
    rounding = 0.05  # bf16 of verl-agent's pass on a CPU, which depends on the rows beside
    assert found["stock_log_probs"] < rounding and found["fixed_log_probs"] < rounding
    assert found["fixed_entropy"] < rounding and found["own_pass"] < rounding
    patched = found["stock_entropy"] < rounding  # with patches/ applied verl-agent's own order is right, too
    assert found["self_check"][0].startswith("order self-check of entropy: ok")
    assert ("keeps the order" in found["self_check"][0]) == patched


EXPECTED = {
    "epo": ["epo/entropy", "epo/penalty", "epo/beta"],
    "epo_turn": ["epo/entropy", "epo/beta"],
    "entropy_bonus": ["entropy_bonus/entropy", "entropy_bonus/coef"],
    "siren": ["siren/loss", "siren/anchor"],
    "steer": ["steer/steer_weight", "steer/steer_omega"],
    "aepo": ["aepo/clipfrac_high"],
    "adapo": ["adapo/eps_high"],
    "adapo_gspo": ["adapo/eps_high"],
    "gspo_repo_r": ["repo_r/zeta"],
    "clip_b": ["entropy"],
    "clip_v": ["entropy"],
    "seal": ["seal/loss", "seal/accuracy"],
    "seal_gigpo_aem_epo": ["gigpo/anchor_groups", "seal/loss", "epo/entropy"],
    "chunked": ["epo/entropy"],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_method_runs_in_the_real_actor(results, name):
    found = results(SCRIPT)["loss_side"][name]
    assert found["moved"] and found["finite"], found["values"]
    wanted = {f"verl_entropy/{key}" for key in [*EXPECTED[name], "active", "clipfrac_high", "clipfrac_low"]}
    assert wanted <= set(found["ours"])
    assert (found["dropped"] > 0) == name.startswith("clip_") and found["trained_as_kept"]


def test_head_and_its_loss_do_not_depend_on_the_split(results):
    for loss, gradient in results(SCRIPT)["split_of_head"].values():
        assert loss < 2e-3 and gradient < 0.05  # bf16 forward


def test_launcher_hands_over_the_prepared_configuration_and_our_runner(results):
    found = results(SCRIPT)["launched"]
    assert found == {"nothing": False, "nothing_runner": "TaskRunner", "aem": True, "aem_runner": "EntropyTaskRunner"}


def test_every_recipe_composes_with_verl_agents_configuration(results):
    found = results(SCRIPT)["recipes"]
    assert len(found) == 30 and all(names == [words.split()[-1]] for words, names in found.items())


def test_task_runner_is_verl_agents_and_goes_to_ray_by_reference(results):
    found = results(SCRIPT)["runner"]
    assert found == {"module": "verl.trainer.main_ppo", "subclass": True, "by_reference": True, "remote": True}


def test_head_learns_stays_out_of_the_model_and_is_restored(results):
    found = results(SCRIPT)["head_learns"]
    assert found["last"] < 0.6 * found["first"]
    assert found["in_model"] == [] and found["restored"]
