# SPDX-License-Identifier: Apache-2.0
"""Corners of the glue that no run of the tests reaches: what verl hands over in rare settings, and what must come of it."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("verl")
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.ray_trainer import apply_kl_penalty
from verl.utils import tensordict_utils as tu
from verl.workers import engine_workers
from verl.workers.config import ActorConfig, PolicyLossConfig

from verl_entropy.batch.turns import build_turns
from verl_entropy.config import plan
from verl_entropy.config.settings import ConfigError
from verl_entropy.diagnostics.settings import read_live
from verl_entropy.hosts.common import advantage_side, diagnostics_side, loss_side, state
from verl_entropy.hosts.common.trainer_keys import HEAD_LOGITS, HEAD_ROWS, HEAD_TOKENS, NUM_ROWS, TOTALS
from verl_entropy.hosts.install import activate
from verl_entropy.hosts.verl_engine import configs, driver, engine, loss
from verl_entropy.hosts.verl_engine.predicting import Predicting
from verl_entropy.hosts.verl_v1 import trainer
from verl_entropy.methods.context import LossContext

activate.install()


def jagged(*rows):
    return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in rows], layout=torch.jagged)


def read(policy_loss=None, seal=None, **entropy):
    actor = {"policy_loss": {"loss_mode": "vanilla"} | (policy_loss or {}), "seal": seal}
    return plan.read({"algorithm": {"adv_estimator": "grpo", "entropy": entropy}, "actor_rollout_ref": {"actor": actor}})


# ----------------------------------------------------------------------------- driver


def test_success_is_that_of_the_scores_before_a_kl_penalty():
    scores, old = torch.zeros(4, 6), torch.full((4, 6), -1.0)
    scores[:2, -1] = 1.0  # rows 0 and 1 succeeded
    reference = old.clone()
    reference[1] -= 60.0  # row 1 is so far from the reference that its penalty exceeds its reward
    reference[2] += 0.2  # the reference likes row 2 better: the estimate of its KL is negative
    tensors = {"response_mask": torch.ones(4, 6).long(), "token_level_scores": scores}
    data = DataProto(batch=TensorDict(tensors | {"old_log_probs": old, "ref_log_prob": reference}, batch_size=4))
    data.non_tensor_batch["uid"] = np.array(["a"] * 4, dtype=object)
    data, _ = apply_kl_penalty(data, kl_ctrl=core_algos.FixedKLController(0.003), kl_penalty="kl")
    rows = {"extra_fields": [{}] * 4, "response_mask": jagged(*[[1] * 6] * 4)}
    turns, _ = trainer.rows_to_turns(data, rows, [f"a_{i}_0" for i in range(4)], 0.0)
    assert turns.success_J.tolist() == [True, True, False, False]
    torch.testing.assert_close(turns.score_J, data.batch["token_level_rewards"].sum(-1))  # what the estimators compare
    assert turns.score_J[1] < 0 < turns.score_J[2]


def test_a_step_with_several_batches_of_one_policy_moves_a_controller_once():
    run = state.Run(read(presets={"repo_r": True, "epo": True}, policy_loss={"regularizer": "epo"}))

    def advance(step, entropy):
        ctx = SimpleNamespace(
            step=step,
            total_steps=10,
            entropy_RT=torch.full((2, 3), entropy),
            mask_RT=torch.ones(2, 3).bool(),
            metrics={},
            info={},
            target=None,
        )
        run.advance(ctx)
        return ctx.info

    first = advance(1, 1.0)
    low = [advance(2, 0.5) for _ in range(4)]
    assert first["repo_r"]["zeta"] == 1e-3 and {info["repo_r"]["zeta"] for info in low} == {2e-3}
    assert [info["epo"] for info in low] == [low[0]["epo"]] * 4 and low[0]["epo"]["hbar"] == pytest.approx(1.0)
    third = advance(3, 0.5)
    assert third["repo_r"]["zeta"] == 4e-3 and third["epo"]["hbar"] == pytest.approx(0.75)


@pytest.mark.parametrize(("row", "mean", "share"), [([1.0, 2.0, math.nan], 1.5, 1 / 3), ([math.nan] * 3, None, 1.0)])
def test_tokens_without_a_finite_entropy_are_said_and_left_out_of_the_mean(row, mean, share, capsys):
    run = state.Run(read(presets={"repo_r": True}))
    state._warn_of_odd_entropy.cache_clear()
    for step in (1, 2):
        mask, entropy = torch.tensor([[True] * 3, [False] * 3]), torch.tensor([row, [math.nan] * 3])
        ctx = SimpleNamespace(step=step, total_steps=10, entropy_RT=entropy, mask_RT=mask, metrics={}, info={}, target=None)
        run.advance(ctx)
        assert ctx.metrics["verl_entropy/entropy_not_finite"] == pytest.approx(share)
        assert ctx.metrics.get("verl_entropy/entropy") == mean == ctx.entropy
    said = capsys.readouterr().err
    assert said.count("WARNING") == 1 and "algorithm.entropy.log_probs=chunked" in said
    ctx.entropy_RT = torch.ones(2, 3)
    ctx.metrics.clear()
    run.advance(ctx)
    assert "verl_entropy/entropy_not_finite" not in ctx.metrics


@pytest.mark.parametrize(
    ("saved", "wanted"),
    [
        ({"regularizer": "entropy_bonus"}, {"regularizer": "entropy_bonus", "entropy_bonus": {"adaptive": True}}),
        ({"regularizer": "epo"}, {"regularizer": "epo", "epo": {"history": "turn"}}),
    ],
    ids=["now adaptive", "other history"],
)
def test_a_state_of_other_settings_is_refused_with_the_fix_and_the_fix_works(tmp_path, saved, wanted):
    state.save(state.Run(read(saved)), tmp_path, 5)
    run = state.Run(read(wanted))
    with pytest.raises(ConfigError, match="allow_missing_state=true"):
        state.load(run, tmp_path)
    path = tmp_path / state.FILE
    content = json.loads(path.read_text())
    content["state"] = {}
    path.write_text(json.dumps(content))
    state.load(state.Run(read(wanted, allow_missing_state=True)), tmp_path)


def test_a_loss_of_the_users_external_lib_is_known_at_start(tmp_path, monkeypatch):
    name = "loss_of_a_user"
    body = f"from verl.trainer.ppo.core_algos import register_policy_loss\n@register_policy_loss('{name}')\ndef loss(): pass\n"
    (tmp_path / "users_module.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    chosen = read({"loss_mode": name}, presets={"aem": True})
    with pytest.raises(ConfigError, match=name):
        driver.check_names(chosen)
    driver.check_names(chosen, "users_module")
    core_algos.POLICY_LOSS_REGISTRY.pop(name)


def test_what_rollout_correction_rejects_stays_in_the_denominator(monkeypatch):
    """verl thins the response mask and not the loss mask; a transform that drops a token must not change that."""
    spans, thin = torch.ones(4, 25).bool(), torch.ones(4, 25).bool()
    thin[:2, :20] = False
    keep = torch.ones(4, 25).bool()
    keep[3, 3] = False
    monkeypatch.setattr(advantage_side, "apply_transforms", lambda ctx, advantages: (advantages, keep))
    monkeypatch.setattr(advantage_side, "settle_equal_returns", lambda ctx, advantages: advantages)
    call = SimpleNamespace(
        run=SimpleNamespace(advance=lambda ctx: None, diagnostics=None), ride=SimpleNamespace(), info={}, metrics={}
    )
    data = SimpleNamespace(batch={"response_mask": thin.long(), "advantages": torch.zeros(4, 25)})
    ctx = SimpleNamespace(plan=read(), info={}, metrics={}, fields={}, mask_RT=thin, turns=None)
    trainer._advantages(lambda data, *_, **__: data, call, ctx, data, {"response_mask": jagged(*spans.long())}, [], (), {})
    names = ("verl_entropy_loss_mask", "verl_entropy_response_mask")
    loss_mask, response_mask = (call.ride.write[name].to_padded_tensor(0)[:, :25] for name in names)
    assert int(loss_mask.sum()) == 99 and int(response_mask.sum()) == 59
    assert torch.equal(response_mask.bool(), thin & keep)
    # the critic learns the value of every token
    assert torch.equal(data.batch["response_mask"].bool(), thin)
    assert not {"response_mask", "loss_mask"} & set(call.ride.write)


# ----------------------------------------------------------------------------- diagnostics


def test_a_run_that_only_validates_leaves_the_run_file_alone(tmp_path):
    side = diagnostics_side.DiagnosticsSide(read_live({"run_file": {"folder": str(tmp_path / "run")}}))
    side.open(OmegaConf.create({"trainer": {"experiment_name": "e"}}))
    for step in (1, 2):
        side.finish(step, {"actor/grad_norm": 1.0})
    before = (tmp_path / "run/steps.jsonl").read_bytes()
    other = diagnostics_side.DiagnosticsSide(read_live({"run_file": {"folder": str(tmp_path / "run")}}))
    other.open(OmegaConf.create({"trainer": {"experiment_name": "e", "val_only": True}}))
    other.write(0, {"val-core/x": 1.0})
    assert (tmp_path / "run/steps.jsonl").read_bytes() == before


def test_hidden_states_that_are_not_finite_have_no_coordinates():
    mean = torch.ones(3, 4)
    mean[1, 2] = math.nan
    assert diagnostics_side._coordinates(mean) == [[], [], []]


# ----------------------------------------------------------------------------- workers


def micro_batch(tokens: int):
    """Two rows of which ``tokens`` tokens are trained."""
    mask = (torch.arange(6) < tokens).long().view(2, 3)
    fields = {
        "prompts": jagged([1], [1]),
        "responses": jagged([2, 3, 4], [5, 6, 7]),
        "old_log_probs": jagged([-1.0] * 3, [-1.0] * 3),
        "advantages": jagged([1.0] * 3, [-1.0] * 3),
        "response_mask": jagged(*mask),
        "loss_mask": jagged(*mask),
    }
    data = TensorDict(fields, batch_size=2)
    tu.assign_non_tensor(
        data, dp_size=1, batch_num_tokens=tokens, global_batch_size=2, **{NUM_ROWS: float(tokens > 0), TOTALS: {}}
    )
    return data


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_a_mini_batch_without_tokens_has_a_loss_of_zero(monkeypatch, mode):
    monkeypatch.setattr(loss, "_plan", lambda config: read({"regularizer": "entropy_bonus"}))
    monkeypatch.setattr(loss, "_metrics", lambda ctx: {})
    monkeypatch.setattr(loss_side, "extra_terms", lambda ctx: [])
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=8, policy_loss=PolicyLossConfig(), loss_agg_mode=mode
    )
    values = torch.full((8,), -1.2, requires_grad=True)
    found = {}
    for tokens in (0, 5):
        data = micro_batch(tokens)
        output = {"log_probs": torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 4, 8]))}
        total, _ = engine_workers.ppo_loss(config, output, data)
        (found[tokens],) = torch.autograd.grad(total, values)
        assert math.isfinite(float(total))
    assert not found[0].any() and found[5].any()


def test_clip_bounds_that_are_null_are_verls_clip_ratio():
    config = SimpleNamespace(clip_ratio=0.2, clip_ratio_low=None, clip_ratio_high=None, clip_ratio_c=3.0)
    data = micro_batch(6)
    ctx = loss._context(read(), {"log_probs": jagged([-1.0] * 4, [-1.0] * 4)}, data)
    ctx.model_output["log_probs"] = jagged([-0.7, -1.0, -1.0, 0.0], [-0.7, -1.3, -1.0, 0.0])
    loss._clip_sides(config, ctx)
    assert ctx.token_means["clipfrac_high"].tolist() == [[1, 0, 0], [0, 0, 0]]  # ratio 1.35, advantage 1
    assert ctx.token_means["clipfrac_low"].tolist() == [[0, 0, 0], [0, 1, 0]]  # ratio .74, advantage -1


def test_clipped_tokens_are_told_one_by_one_of_rows_that_are_stored(monkeypatch):
    """Side, row and place; the trainer finds them again, whichever micro-batch they came in."""
    monkeypatch.setattr(loss, "_plan", lambda config: read())
    monkeypatch.setattr(loss_side, "extra_terms", lambda ctx: [])
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=8, policy_loss=PolicyLossConfig())
    output = {"log_probs": torch.nested.nested_tensor_from_jagged(CLIPPED_AT, torch.tensor([0, 4, 8]))}
    assert loss.CLIPPED not in engine_workers.ppo_loss(config, output, micro_batch(6))[1]
    data = micro_batch(6)
    data[loss.ROW] = torch.tensor([7, 3])
    codes = engine_workers.ppo_loss(config, output, data)[1][loss.CLIPPED]
    assert sorted(codes) == [-(3 * 2**32 + 1), 7 * 2**32]
    data[loss.ROW], output["log_probs"] = torch.tensor([7, 3]), jagged([-1.0] * 4, [-1.0] * 4)
    assert engine_workers.ppo_loss(config, output, data)[1][loss.CLIPPED] == [
        0
    ]  # verl joins these lists, and takes none that is empty


CLIPPED_AT = torch.tensor([-0.7, -1.0, -1.0, 0.0, -0.7, -1.3, -1.0, 0.0])


def test_a_rejected_token_is_no_example_for_a_head_that_learns_advantages():
    data = micro_batch(6)
    data["advantages"] = jagged([1.0, 1.0, 0.0], [-1.0] * 3)
    logits = torch.zeros(6, requires_grad=True)
    output = {HEAD_LOGITS: logits, HEAD_TOKENS: torch.arange(6), HEAD_ROWS: torch.tensor([0, 0, 0, 1, 1, 1])}
    ctx = LossContext(
        plan=read(seal={"alpha": 1.0, "label": "advantage"}),
        micro_batch=data,
        model_output=output,
        entropy_RT=None,
        mask_RT=torch.tensor([[1, 1, 0], [1, 1, 1]]).bool(),  # rollout correction rejected a token of a correct row
        loss_mask_RT=torch.ones(2, 3).bool(),
        num_tokens=6.0,
        num_rows=2.0,
        dp_size=1,
        info={},
    )
    loss_side.extra_terms(ctx)[0].backward()
    assert logits.grad.sign().tolist() == [-1, -1, 0, 1, 1, 1]


@pytest.mark.parametrize("with_entropy", [True, False], ids=["old log-probs", "reference under LoRA"])
def test_the_reference_pass_of_lora_does_not_write_the_policys_columns(with_entropy):
    class Engine(engine.EntropyEngineMixin):
        engine_config = configs.EntropyFSDPEngineConfig(
            logits=[
                {"kind": "transform", "word": "clip_v", "settings": {}},
                {"kind": "regularizer", "word": "siren", "settings": {"top_p": 0.8}},
            ]
        )

    data = TensorDict({"input_ids": jagged([1, 2, 3, 4])}, batch_size=1)
    tu.assign_non_tensor(data, calculate_entropy=with_entropy)
    arguments = {
        "input_ids_rmpad_rolled": torch.tensor([2, 3, 4, 1]),
        "temperature_is_one": True,
        engine.PREDICTING: Predicting(torch.tensor([1, 2]), torch.tensor([1, 2]), 4, False),
    }
    with torch.no_grad():
        found = Engine()._chunked_outputs(SimpleNamespace(logits=torch.randn(1, 4, 7)), arguments, data)
    ours = {"verl_entropy_vocab_centre", "verl_entropy_nucleus_entropy"}
    assert ours & set(found) == (ours if with_entropy else set())


def rolled_out(*turns):
    """One prompt, a row of two tokens for each turn, each a session of its own."""
    mask_RT = torch.ones(len(turns), 2, dtype=torch.bool)
    sessions = [f"u_{i}" for i in range(len(turns))]
    built = build_turns(mask_RT, ["u"] * len(turns), sessions, [0] * len(turns), [False] * len(turns), torch.zeros(len(turns)))
    return built, [{"turns": [turn]} for turn in turns]


def test_tokens_are_counted_as_generated_or_taken_over_and_a_rollout_that_did_nothing_is_an_error():
    chosen = plan.read({"algorithm": {"entropy": {"rollout": "branching"}}})
    plain, own = {"reward": 0.0}, {"origin": "0.0", "copied": False, "prompt_tokens": 10}
    found = trainer._rollout_metrics(plan.read({}), *rolled_out(plain, plain))
    assert found == {"verl_entropy/rollout/generated_tokens": 4.0, "verl_entropy/rollout/reused_tokens": 0.0}
    turns = (
        own,
        own | {"cached_tokens": 6},
        own | {"cached_tokens": 9, "branched": True},
        own | {"copied": True, "cached_tokens": 9},
    )
    found = trainer._rollout_metrics(chosen, *rolled_out(*turns))
    assert found["verl_entropy/rollout/generated_tokens"] == 6.0 and found["verl_entropy/rollout/reused_tokens"] == 2.0
    assert found["verl_entropy/rollout/cached_share"] == 0.75 and found["verl_entropy/rollout/branch_cached_share"] == 0.9
    with pytest.raises(RuntimeError, match="no turn of this batch was sampled under branching"):
        trainer._rollout_metrics(chosen, *rolled_out(plain, plain))


def test_every_training_prompt_carries_what_the_rollout_method_remembers():
    run = state.Run(plan.read({"algorithm": {"entropy": {"rollout": "branching"}}}))
    run.methods["branching"].load_state_dict({"root": 1.5, "tool": None, "first": 0.1})
    owner = SimpleNamespace(config=OmegaConf.create({"actor_rollout_ref": {"rollout": {"n": 6}}}))
    batch = TensorDict({"index": torch.arange(3)}, batch_size=[3])
    trainer._tell(run, owner, batch)
    words = [part.data for part in batch[:2].get("verl_entropy_rollout")]  # a part of the batch, as a worker gets it
    assert [json.loads(word) for word in words] == [{"n": 6, "state": {"root": 1.5, "tool": None, "first": 0.1}}] * 2
    plain = TensorDict({"index": torch.arange(3)}, batch_size=[3])
    trainer._tell(state.Run(plan.read({})), owner, plain)
    assert list(plain.keys()) == ["index"]
