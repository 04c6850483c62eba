# SPDX-License-Identifier: Apache-2.0
"""Run with verl-agent: its compute_advantage and its real actor beside ours, on the CPU with a tiny model (no FSDP, no Ray)."""

from __future__ import annotations

import copy
import itertools
import math
import shlex
import subprocess
import tempfile
from pathlib import Path

import torch
from agent_batch import PENALTY, arranged, rollout, scored
from agent_kit import composed, cpu_device, prepared, proto, report, tiny_model

cpu_device()

from gigpo import core_gigpo  # noqa: E402
from verl.trainer.ppo import ray_trainer  # noqa: E402
from verl.workers.actor.dp_actor import DataParallelPPOActor  # noqa: E402

from verl_entropy.hosts.common.state import Run  # noqa: E402
from verl_entropy.hosts.verl_agent import advantages, fingerprints, order  # noqa: E402
from verl_entropy.hosts.verl_agent.actor import EntropyActor  # noqa: E402
from verl_entropy.hosts.verl_agent.head import OutsideHead  # noqa: E402
from verl_entropy.hosts.verl_agent.ranks import average  # noqa: E402

LOSS_SIDE = {
    "epo": ["+entropy=epo"],
    "epo_turn": ["+entropy=epo", "actor_rollout_ref.actor.policy_loss.epo.history=turn"],
    "entropy_bonus": ["+entropy=entropy_bonus"],
    "siren": ["+entropy=siren"],
    "steer": ["+entropy=steer"],
    "aepo": ["+entropy=aepo_update"],
    "adapo": ["+entropy=adapo"],
    "adapo_gspo": ["+entropy=adapo_gspo"],
    "gspo_repo_r": ["+entropy=gspo_repo_r"],
    "clip_b": ["+entropy=clip_b", "algorithm.entropy.clip_b.mu=0.5"],
    "clip_v": ["+entropy=clip_v", "algorithm.entropy.clip_v.mu=0.5", "algorithm.entropy.clip_v.max_frac=null"],
    "seal": ["+entropy=seal"],
    "seal_gigpo_aem_epo": ["+entropy=[gigpo,aem,seal,epo]", "algorithm.adv_estimator=gigpo"],
    "chunked": ["+entropy=[aem,epo]", "+algorithm.entropy.log_probs=chunked"],
}


def fit_arguments(config) -> dict:
    """The keywords with which ``fit`` calls ``compute_advantage``."""
    s = config.algorithm
    return {
        "adv_estimator": s.adv_estimator,
        "gamma": s.gamma,
        "lam": s.lam,
        "num_repeat": 1,
        "norm_adv_by_std_in_grpo": s.norm_adv_by_std_in_grpo,
        "multi_turn": False,
        "step_advantage_w": s.gigpo.step_advantage_w,
        "gigpo_mode": s.gigpo.mode,
        "gigpo_enable_similarity": s.gigpo.enable_similarity,
        "gigpo_similarity_thresh": s.gigpo.similarity_thresh,
    }


def batch_for(estimator: str, copies: int = 0, shuffle: bool = False):
    """A scored DataProto; for verl-agent's gigpo with its step returns, computed while rows are in order."""
    batch = rollout(groups=3)
    if estimator == "gigpo":
        ordered = proto(scored(batch))
        ordered.non_tensor_batch["active_masks"] = ordered.non_tensor_batch["rewards"] * 0 + 1
        batch["tensors"]["step_rewards"] = core_gigpo.compute_step_discounted_returns(ordered, 0.95)
    data = proto(scored(arranged(batch, copies, shuffle)))
    if estimator == "gigpo":
        invalid = 1 - data.non_tensor_batch["is_action_valid"].astype(float)
        data.batch["step_rewards"] = data.batch["step_rewards"] - PENALTY * torch.from_numpy(invalid).float()
    return data


def ours(config, chosen, data):
    return advantages.compute(ray_trainer.compute_advantage, Run(chosen), 1, 10, PENALTY, data, fit_arguments(config))


def neutral_advantages() -> dict:
    """With the method switched off, the batch is the one that verl-agent computes, bit for bit."""
    out = {}
    for estimator in ("grpo", "gigpo", "rloo", "reinforce_plus_plus_baseline"):
        config, chosen = prepared("+entropy=aem", "algorithm.entropy.aem.temperature=0", f"algorithm.adv_estimator={estimator}")
        arguments = batch_for(estimator, 5, True), batch_for(estimator, 5, True)
        theirs = ray_trainer.compute_advantage(arguments[0], **fit_arguments(config))
        mine, _ = ours(config, chosen, arguments[1])
        out[estimator] = torch.equal(theirs.batch["advantages"], mine.batch["advantages"]) and torch.equal(
            theirs.batch["returns"], mine.batch["returns"]
        )
    return out


def equal_returns() -> dict:
    """A group whose rows all have one score: verl-agent's GRPO leaves a rounding error, with a method of ours it is 0."""
    out = {}
    for setting in ("zero", "verl"):
        config, chosen = prepared(
            "+entropy=aem", "algorithm.entropy.aem.temperature=0", f"+algorithm.entropy.equal_returns={setting}"
        )
        batches = batch_for("grpo", 5, True), batch_for("grpo", 5, True)
        group = torch.from_numpy(batches[0].non_tensor_batch["uid"] == "g0")
        last_R = batches[0].batch["response_mask"].sum(-1) - 1
        # which scores have a mean that is not themselves depends on their number
        score = max((-0.1, -0.7, -1.2, -3.3, -9.9), key=lambda v: (torch.full((int(group.sum()),), v).mean() - v).abs())
        for data in batches:
            data.batch["token_level_rewards"][group, last_R[group]] = score
        theirs = ray_trainer.compute_advantage(batches[0], **fit_arguments(config)).batch["advantages"]
        mine, metrics = ours(config, chosen, batches[1])
        mine = mine.batch["advantages"]
        out[setting] = {
            "theirs": float(theirs[group].abs().max()),
            "ours": float(mine[group].abs().max()),
            "others_equal": torch.equal(theirs[~group], mine[~group]),
            "metric": metrics["verl_entropy/equal_returns/rounding"],
        }
    return out


def row_statistics() -> dict:
    """Largest difference of ours with statistics=row to verl-agent's own functions, copies included."""
    out = {}
    pairs = {
        "gigpo": ("gigpo", []),
        "grpo": ("group_norm", ["algorithm.entropy.group_norm.singleton=raw"]),
        "rloo": ("loop", []),
    }
    for theirs, (name, more) in pairs.items():
        config, chosen = prepared(
            f"+entropy={name}", f"algorithm.adv_estimator={name}", f"algorithm.entropy.{name}.statistics=row", *more
        )
        mine, _ = ours(config, chosen, batch_for(theirs, 5, True))
        arguments = {**fit_arguments(config), "adv_estimator": theirs}
        other = ray_trainer.compute_advantage(batch_for(theirs, 5, True), **arguments)
        out[theirs] = float((mine.batch["advantages"] - other.batch["advantages"]).abs().max())
    return out


# ----------------------------------------------------------------------------- actor


class WatchedActor(EntropyActor):
    """Ours, counting the tokens that the loss gets."""

    trained = 0

    def _loss_context(self, response_mask):
        self.trained += int(response_mask.sum())
        return super()._loss_context(response_mask)


def actor_of(config, chosen, model, plain=False, reduce=average):
    actor = config.actor_rollout_ref.actor
    optimizer = torch.optim.AdamW(model.parameters(), lr=actor.optim.lr)
    if plain:
        return DataParallelPPOActor(actor, model, optimizer)
    head = None
    if chosen.head is not None:
        head = OutsideHead(model.config.hidden_size, chosen.head, actor.optim, "cpu", reduce, actor.grad_clip)
    return WatchedActor(actor, model, optimizer, plan=chosen, head=head)


def log_probs(actor, data, dynamic=False):
    data.meta_info.update({"micro_batch_size": 4, "temperature": 1.0, "use_dynamic_bsz": dynamic, "max_token_len": 40})
    return actor.compute_log_prob(data, calculate_entropy=True)


def stepped(config, chosen, model, copies=4, plain=False, reduce=average):
    """One iteration: old log-probs, advantages, update; returns metrics and the actor."""
    actor = actor_of(config, chosen, model, plain, reduce)
    data = proto(scored(arranged(rollout(groups=3), copies, True)))
    theirs_log_prob, _ = log_probs(actor, data)
    data.batch["old_log_probs"] = theirs_log_prob.float()
    if plain:
        data = ray_trainer.compute_advantage(data, **fit_arguments(config))
        return actor.update_policy(data), actor, data
    data.batch.update(actor.outputs)
    data, metrics = ours(config, chosen, data)
    return {**metrics, **actor.update_policy(data)}, actor, data


def numbers(metrics: dict) -> dict:
    return {k: float(sum(v) / len(v)) if isinstance(v, list) else float(v) for k, v in metrics.items()}


def neutral_update() -> dict:
    """One update of a run that chose something neutral equals verl-agent's own, bit for bit."""
    config, chosen = prepared("+entropy=aem", "algorithm.entropy.aem.temperature=0")
    first, second = tiny_model(), tiny_model()
    theirs, _, _ = stepped(config, chosen, first, plain=True)
    mine, _, _ = stepped(config, chosen, second)
    same = all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    moved = any(not torch.equal(a, b) for a, b in zip(first.parameters(), tiny_model().parameters(), strict=True))
    theirs, mine = numbers(theirs), numbers(mine)
    return {"parameters": same, "moved": moved, "metrics": {k: mine[k] == theirs[k] for k in theirs}}


def entropy_order() -> dict:
    config, chosen = prepared("+entropy=aem")
    data = proto(scored(arranged(rollout(groups=3), 4, True)))
    mask = data.batch["response_mask"].bool()
    model = tiny_model()
    with torch.no_grad():  # uneven entropies, so that rows can be told apart
        model.lm_head.weight.mul_(8.0)
    plain, mine = actor_of(config, chosen, model, True), actor_of(config, chosen, model)
    reference = log_probs(plain, data)
    stock, fixed = log_probs(plain, data, dynamic=True), log_probs(mine, data, dynamic=True)

    def off(found, wanted):
        return float((found.float() - wanted.float())[mask].abs().max())

    return {
        "stock_log_probs": off(stock[0], reference[0]),
        "stock_entropy": off(stock[1], reference[1]),
        "fixed_log_probs": off(fixed[0], reference[0]),
        "fixed_entropy": off(fixed[1], reference[1]),
        "own_pass": off(mine.outputs[advantages.OLD_ENTROPY], reference[1]),
        "self_check": order.lines(True),
    }


def loss_side() -> dict:
    """Two iterations of every method that acts in the workers: the metrics are finite and the state is there."""
    out = {}
    for name, overrides in LOSS_SIDE.items():
        config, chosen = prepared(*overrides)
        model = tiny_model()
        metrics, actor, data = stepped(config, chosen, model)
        mask = data.batch["response_mask"].bool()
        kept = data.batch[advantages.KEEP].bool() if advantages.KEEP in data.batch.keys() else mask
        values = numbers(metrics)
        moved = any(not torch.equal(a, b) for a, b in zip(model.parameters(), tiny_model().parameters(), strict=True))
        out[name] = {
            "moved": moved,
            "finite": all(math.isfinite(v) for v in values.values()),
            "ours": sorted(k for k in values if k.startswith("verl_entropy/")),
            "values": {k: v for k, v in values.items() if k.startswith(("verl_entropy/", "actor/"))},
            "dropped": int((mask & ~kept).sum()),
            "trained_as_kept": actor.trained == int(kept.sum()),
        }
    return out


def split_of_head() -> dict:
    """Loss of the head, and its gradients at every optimiser step, do not depend on the micro-batches."""
    found = {}
    for name, override in {
        "4": "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "2": "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
        "dynamic": "actor_rollout_ref.actor.use_dynamic_bsz=True",
    }.items():
        config, chosen = prepared(
            "+entropy=seal", "actor_rollout_ref.actor.seal.dropout=0.0", "actor_rollout_ref.actor.optim.lr=1e-4", override
        )
        gradients: list[float] = []

        def reduce(gradient, kept=gradients):
            kept.append(float(gradient.norm()))
            return gradient

        metrics, _, _ = stepped(config, chosen, tiny_model(), reduce=reduce)
        found[name] = (numbers(metrics)["verl_entropy/seal/loss"], gradients)
    loss, reference = found.pop("4")
    off = {k: max(abs(a - b) / (b + 1e-6) for a, b in zip(v[1], reference, strict=True)) for k, v in found.items()}
    return {k: [abs(v[0] - loss), off[k]] for k, v in found.items()}


def head_learns() -> dict:
    """The head learns the label of the trajectories, and its gradient reaches the model."""
    config, chosen = prepared(
        "+entropy=seal", "actor_rollout_ref.actor.seal.dropout=0.0", "actor_rollout_ref.actor.seal.alpha=1.0"
    )
    model = tiny_model()
    actor = actor_of(config, chosen, model)
    losses = []
    for _ in range(12):
        data = proto(scored(arranged(rollout(groups=3), 4, True)))
        data.batch["old_log_probs"] = log_probs(actor, data)[0].float()
        data.batch.update(actor.outputs)
        data, _ = ours(config, chosen, data)
        data.batch["advantages"] = torch.zeros_like(data.batch["advantages"])
        losses.append(actor.update_policy(data)["verl_entropy/seal/loss"])
    names = [name for name, _ in model.named_parameters()]
    with tempfile.TemporaryDirectory() as folder:
        actor.head.save(folder)
        other = actor_of(config, chosen, copy.deepcopy(model))
        other.head.load(folder)
    same = all(torch.equal(a, b) for a, b in zip(actor.head.module.parameters(), other.head.module.parameters(), strict=True))
    return {
        "first": losses[0],
        "last": losses[-1],
        "in_model": [n for n in names if "seal" in n or ("head." in n and "lm_head" not in n)],
        "restored": same,
    }


def runner() -> dict:
    """The TaskRunner that is sent to Ray: a subclass of verl-agent's, pickled by reference."""
    import pickle

    import ray

    from verl_entropy.hosts.verl_agent.runner import EntropyTaskRunner, PlainTaskRunner

    remote = ray.remote(num_cpus=1)(EntropyTaskRunner)
    return {
        "module": PlainTaskRunner.__module__,
        "subclass": issubclass(EntropyTaskRunner, PlainTaskRunner),
        "by_reference": pickle.loads(pickle.dumps(EntropyTaskRunner)) is EntropyTaskRunner,
        "remote": callable(remote.remote),
    }


def launched() -> dict:
    """What the launcher hands to verl-agent's own ``run_ppo``: the prepared configuration, and our TaskRunner if anything is chosen."""
    from verl.trainer import main_ppo

    from verl_entropy.hosts.verl_agent.__main__ import run_with

    kept, found = (main_ppo.run_ppo, main_ppo.TaskRunner), {}
    for name, overrides in {"nothing": [], "aem": ["+entropy=aem"]}.items():
        main_ppo.run_ppo = seen_by(found, name)
        run_with(main_ppo, False, overrides)(composed(*overrides))
        found[f"{name}_runner"] = main_ppo.TaskRunner.__ray_actor_class__.__name__
        main_ppo.run_ppo, main_ppo.TaskRunner = kept
    return found


def seen_by(found: dict, name: str):
    def run_ppo(config):
        found[name] = "verl_entropy" in config.actor_rollout_ref.actor

    return run_ppo


def recipes() -> dict:
    """Every recipe, composed with verl-agent's own configuration and prepared: the methods that the workers will find."""
    found = {}
    script = Path(__file__).parents[2] / "examples/verl_agent/run.sh"
    for env, base, method in itertools.product(
        ("alfworld", "webshop"), ("grpo", "gigpo", "dapo", "gspo", "ppo"), ("seal", "epo", "aem")
    ):
        done = subprocess.run(["bash", str(script), env, base, method, "--dry-run"], capture_output=True, text=True, check=True)
        _, chosen = prepared(*shlex.split(done.stdout)[3:], plain=True)
        found[f"{env} {base} {method}"] = [c.name for c in chosen.choices]
    return found


def main() -> None:
    report(
        {
            "launched": launched(),
            "recipes": recipes(),
            "runner": runner(),
            "changed": fingerprints.changed(fingerprints.home()),
            "neutral_advantages": neutral_advantages(),
            "row_statistics": row_statistics(),
            "equal_returns": equal_returns(),
            "neutral_update": neutral_update(),
            "entropy_order": entropy_order(),
            "loss_side": loss_side(),
            "split_of_head": split_of_head(),
            "head_learns": head_learns(),
        }
    )


if __name__ == "__main__":
    main()
