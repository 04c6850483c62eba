# SPDX-License-Identifier: Apache-2.0
"""State between steps: histories and controllers. Kept by the driver, sent to the workers with each batch, saved as one JSON
file beside verl's checkpoint (JSON writes a float's shortest exact form, so a resumed run continues bit-equal)."""

from __future__ import annotations

import functools
import json
import math
import os
from pathlib import Path
from typing import Any

from verl_entropy import __version__
from verl_entropy.batch.numerics import masked_mean
from verl_entropy.config.plan import Plan
from verl_entropy.config.settings import ACTOR_PATH, ALGORITHM_PATH, SEAL_PATH, ConfigError
from verl_entropy.files import write_atomic
from verl_entropy.hosts.common.diagnostics_side import DiagnosticsSide
from verl_entropy.log import say
from verl_entropy.methods.common.hold import scheduled

FILE = "verl_entropy.json"


class Run:
    """The plan of a run, the state of its methods, and its diagnostics (None if they are off)."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.methods = {c.name: c.method.state(c.settings) for c in plan.choices if c.method.state is not None}
        self._step, self._said = 0, {}
        self.diagnostics = DiagnosticsSide(plan.diagnostics) if plan.active and plan.diagnostics.enabled else None

    def advance(self, ctx) -> None:
        """Take the iteration's entropy into the context, step every method's state, and leave what it says in ``ctx.info``.

        One source of the entropy estimate everywhere: the mean over the batch's trained tokens of the entropy that verl's
        old-log-prob pass gives, before any update of this step. Where a step has several batches of one policy (separate_async),
        the first one moves the states. Tokens whose entropy is not finite are said once.
        """
        ctx.entropy, odd = batch_entropy(ctx)
        if odd:
            ctx.metrics["verl_entropy/entropy_not_finite"] = odd
            _warn_of_odd_entropy(self.plan.entropy.log_probs)
        if ctx.entropy is not None:
            ctx.metrics["verl_entropy/entropy"] = ctx.entropy
        ctx.info["step"] = ctx.step
        if self.plan.entropy.target is not None:
            ctx.target, ctx.target_guard = scheduled(self.plan.entropy.target, ctx.step), self.plan.entropy.target_guard
            ctx.metrics["verl_entropy/entropy_target"] = ctx.target
        if ctx.step != self._step:
            self._step, self._said = ctx.step, {}
        for name, method in self.methods.items():
            if name not in self._said or method.of_each_batch:
                self._said[name] = method.step(ctx)
            ctx.info[name] = self._said[name]

    def state_dict(self) -> dict[str, Any]:
        """State of every method by its name; ``load`` restores it."""
        return {name: method.state_dict() for name, method in self.methods.items()}


def batch_entropy(ctx) -> tuple[float | None, float]:
    """Mean entropy over the trained tokens that have a finite one, in nats, and the share of them that have none.

    None without an entropy pass or without such tokens.
    """
    if ctx.entropy_RT is None or not bool(ctx.mask_RT.any()):
        return None, 0.0
    entropy_RT = ctx.entropy_RT.double()
    value = float(masked_mean(entropy_RT, ctx.mask_RT))
    if math.isfinite(value):
        return value, 0.0
    finite_RT = ctx.mask_RT & entropy_RT.isfinite()
    share = float(finite_RT.sum() / ctx.mask_RT.sum())
    return (float(masked_mean(entropy_RT, finite_RT)) if share else None), 1.0 - share


@functools.cache
def _warn_of_odd_entropy(log_probs: str) -> None:
    fix = "Check the weights (actor/grad_norm, the learning rate)."
    if log_probs != "chunked":
        fix = f"Where a logit is -inf verl's own pass gives NaN: set +algorithm.entropy.log_probs=chunked. {fix}"
    say(
        "WARNING: trained tokens without a finite entropy (their share: verl_entropy/entropy_not_finite). They are left out of the "
        f"mean that controllers and schedules follow; without any other token those stand still. {fix}"
    )


def step_folder(root: str, step: int) -> Path:
    """verl's checkpoint folder of a step."""
    return Path(root) / f"global_step_{step}"


def resume_folder(trainer: dict[str, Any]) -> Path | None:
    """The checkpoint folder that verl is going to load, or None (the rule of ``PPOTrainer._load_checkpoint``)."""
    folder = _resume_folder(trainer)
    if folder is not None:
        check_ranks(folder, int(trainer["nnodes"]) * int(trainer["n_gpus_per_node"]))
    return folder


def check_ranks(folder: Path, ranks: int) -> None:
    """ConfigError if the actor's shards are of other numbers of ranks, where verl has but a missing file to report."""
    actor = folder / "actor"
    saved = {int(path.name.split("_")[3]) for path in actor.glob("model_world_size_*_rank_*.pt")}
    # A node may hold the files of its own ranks only. verl-agent's older verl writes no fsdp_config.json; the command does not know its format.
    if saved and ranks not in saved and (actor / "fsdp_config.json").is_file():
        raise ConfigError(
            f"{folder}: was saved by {' or '.join(map(str, sorted(saved)))} rank(s), and this run has {ranks} "
            f"(trainer.nnodes * trainer.n_gpus_per_node); verl would not find model_world_size_{ranks}_rank_0.pt. "
            f"Run `verl-entropy reshard {folder} --ranks {ranks}`, then start again; or use as many ranks as saved it."
        )


def _resume_folder(trainer: dict[str, Any]) -> Path | None:
    mode = trainer.get("resume_mode")
    if mode == "resume_path":
        return Path(trainer["resume_from_path"]).absolute()
    if mode != "auto":
        return None
    from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

    found = find_latest_ckpt_path(os.path.abspath(trainer["default_local_dir"]))
    return None if found is None else Path(found)


def save(run: Run, folder: Path, step: int) -> None:
    """Write the state atomically, before verl marks the checkpoint as complete."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "version": __version__,
        "step": step,
        "head": head_shape(run.plan),
        "state": run.state_dict(),
        "diagnostics": None if run.diagnostics is None else run.diagnostics.state_dict(),
    }
    write_atomic(folder / FILE, json.dumps(content, indent=1, allow_nan=False).encode())


def load(run: Run, folder: Path) -> None:
    """Restore the state from ``folder``, or raise ConfigError with what is missing and the fix."""
    path = folder / FILE
    content: dict[str, Any] = {}
    if path.is_file():
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:  # JSON or its encoding
            raise ConfigError(f"{path}: not valid JSON ({error}). Resume from another checkpoint.") from None
        if not isinstance(content, dict) or not isinstance(content.get("state", {}), dict):
            raise ConfigError(f"{path}: holds no state. Resume from another checkpoint.")
    _check_head(run.plan, content.get("head"), folder)
    saved = content.get("state", {})
    missing = [name for name in run.methods if name not in saved]
    if missing and not run.plan.entropy.allow_missing_state:
        raise ConfigError(
            f"{folder}: the checkpoint has no state of {', '.join(missing)} (no or older {FILE}). Resume from a checkpoint that "
            f"was written with the same methods, or set {ALGORITHM_PATH}.allow_missing_state=true to start it afresh."
        )
    for name in run.methods:
        if name in saved and not (saved[name] == {} and run.plan.entropy.allow_missing_state):
            try:
                run.methods[name].load_state_dict(saved[name])
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    f"{path}: the state of {name} was written with other settings ({error}). Resume with those settings, or start it "
                    f'afresh: remove {name!r} under "state" in that file and set {ALGORITHM_PATH}.allow_missing_state=true.'
                ) from None
    if run.diagnostics is not None:
        run.diagnostics.load_state_dict(content.get("diagnostics"))


def head_shape(plan: Plan) -> dict[str, Any] | None:
    """What a checkpoint's head must agree in: the settings that shape it, and its name unless it is SEAL's (as older files)."""
    if plan.head is None:
        return None
    shape = {name: getattr(plan.head.settings, name) for name in plan.head.method.shape}
    return shape if plan.head.method.path == SEAL_PATH else {"name": plan.head.name, **shape}


def _check_head(plan: Plan, saved: dict | None, folder: Path) -> None:
    wanted = head_shape(plan)
    if wanted == saved:
        return
    if saved is None:
        raise ConfigError(
            f"{folder}: {plan.head.method.path} is set, but the checkpoint has no head. Start without resuming "
            "(trainer.resume_mode=disable, actor_rollout_ref.model.path=<exported model>), or leave the head out."
        )
    if wanted is None:
        raise ConfigError(
            f"{folder}: the checkpoint has a head ({saved}), and none is set. Set {ACTOR_PATH}.{saved.get('name', 'seal')}, or remove "
            f"the head with `verl-entropy strip-head {folder}`."
        )
    raise ConfigError(f"{folder}: the checkpoint's head has {saved}, the configuration asks for {wanted}. Make them equal.")
