# SPDX-License-Identifier: Apache-2.0
"""Which of ``patches/`` the installed source has, and the plain path that they open.

With a series applied verl itself hands entropy and row ids to a registered estimator, so ``advantages`` needs none of our
wraps: no queue, no trainer seam. Source is read as text, as in ``compat``; nothing of verl is imported to find out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

VERL, VERL_AGENT = "verl-0.9.1", "verl-agent-796ed31"

# series -> version of the source, and feature -> (module, line of the patch that gives it)
SERIES: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    VERL: (
        "0.9.1",
        {
            "entropy_and_row_ids": ("verl.trainer.ppo.v1.trainer_base", 'data.non_tensor_batch["row_ids"] ='),
            "estimator_arguments": ("verl.trainer.ppo.ray_trainer", "core_algos.named_kwargs("),
            "loss_entropy": ("verl.workers.utils.losses", "**named_kwargs(policy_loss_fn, entropy=entropy)"),
        },
    ),
    VERL_AGENT: (
        "0.3.1.dev",
        {
            "entropy_order": ("verl.workers.actor.dp_actor", "entropys = entropys[revert_indices]"),
            "plugins": ("verl.__init__", "_load_external()"),
            "registries": ("verl.trainer.ppo.core_algos", "POLICY_LOSS_REGISTRY = {}"),
            "estimator_arguments": ("verl.trainer.ppo.ray_trainer", "core_algos.named_kwargs("),
            "entropy_and_row_ids": ("agent_system.multi_turn_rollout.rollout_loop", "data['row_ids'] ="),
            "loss_entropy": ("verl.workers.actor.dp_actor", "core_algos.bind_policy_loss("),
        },
    ),
}


@cache
def _root() -> Path | None:
    """The folder that holds the package verl which this process would import, or has imported."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))).parent


def _text(root: Path, *parts: str) -> str:
    path = root.joinpath(*parts)
    return path.read_text(encoding="utf-8") if path.is_file() else ""


@cache
def series() -> str | None:
    """The series of ``patches/`` made for this source (applied or not), or None."""
    root = _root()
    version = "" if root is None else _text(root, "verl", "version", "version").strip()
    return next((name for name, (wanted, _) in SERIES.items() if wanted == version), None)


@cache
def features() -> frozenset[str]:
    """What of the series is in the source; empty for unpatched source and for any other version."""
    name, root = series(), _root()
    if name is None or root is None:
        return frozenset()
    table = SERIES[name][1]
    return frozenset(f for f, (module, line) in table.items() if line in _text(root, module.replace(".", "/") + ".py"))


def describe() -> str | None:
    """A line for the banner and the doctor; None for unpatched source."""
    name, found = series(), features()
    if name is None or not found:
        return None
    missing = sorted(frozenset(SERIES[name][1]) - found)
    if missing:
        return f"patches/{name}: only partly applied, without {', '.join(missing)}; run patches/apply.sh on a clean source"
    return f"patches/{name}: applied, registered estimators and losses get entropy and row ids from verl"


# ----------------------------------------------------------------------------- the plain path


def _plan(name: str, config: Any):
    from omegaconf import DictConfig, OmegaConf

    from verl_entropy.config import plan
    from verl_entropy.config.settings import ConfigError
    from verl_entropy.methods import registry

    if isinstance(config, DictConfig):
        config = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    ours = config.get("entropy") if isinstance(config, Mapping) else None
    chosen = plan.read({"algorithm": {"adv_estimator": name, "entropy": ours}})
    if chosen.estimator is None:
        known = ", ".join(registry.names("estimator"))
        raise ConfigError(f"algorithm.adv_estimator={name}: not an estimator of verl-entropy. Use one of {known}.")
    state = [t for t in chosen.transforms if t.method.state is not None or {"step", "logits"} & t.method.needs]
    if state:
        plain = sorted(set(registry.names("transform")) - {t.name for t in state})
        raise ConfigError(
            f"algorithm.entropy.transforms={[t.name for t in chosen.transforms]}: {', '.join(t.name for t in state)} keeps state, "
            f"follows the step or reads logits, which a patched verl does not hand to an estimator. Use one of {', '.join(plain)}, "
            "or verl's own V1 trainer with this plugin."
        )
    if chosen.rollout is not None:
        raise ConfigError(
            f"algorithm.entropy.rollout={chosen.rollout.method.word}: a patched verl without the plugin samples its rollouts itself. Leave it "
            "out, or use verl's own V1 trainer with this plugin."
        )
    return chosen


def advantages(
    name: str, token_level_rewards, response_mask, index, row_ids, *, config=None, entropy=None, old_log_probs=None
) -> tuple[Any, Any]:
    """Advantages and returns (R, T) of our estimator ``name`` and the transforms in ``config``, from verl's arguments alone.

    Groups, trajectories and turns come from ``index`` and ``row_ids``; observations of turns are not among the arguments, so
    GiGPO is without its step advantage (``omega=0``). Rows with equal id are copies (verl-agent fills batches up with them):
    they count once, and each gets its original's advantages. Ids are ``{uid}_{session}_{turn}``; a uid that starts with
    ``pad`` is verl's filling and gets zeros.
    """
    import numpy as np
    import torch

    from verl_entropy.batch.turns import build_turns
    from verl_entropy.hosts.common import advantage_side
    from verl_entropy.hosts.common.trainer_keys import PAD_UID
    from verl_entropy.methods.context import AdvantageContext

    _, first, inverse = np.unique(np.asarray(row_ids).astype(str), return_index=True, return_inverse=True)
    first_R, inverse_R = torch.as_tensor(first), torch.as_tensor(inverse).reshape(-1)
    uid_R = [str(u) for u in np.asarray(index, dtype=object)[first]]
    sessions, positions = zip(*(str(row_ids[i]).rsplit("_", 1) for i in first), strict=True)
    mask_RT = response_mask[first_R].bool()
    turns = build_turns(
        mask_RT,
        group_R=uid_R,
        trajectory_R=list(sessions),
        position_R=[int(p) for p in positions],
        padding_R=[u.startswith(PAD_UID) for u in uid_R],
        score_R=token_level_rewards[first_R].float().sum(-1),
    )
    ctx = AdvantageContext(
        plan=_plan(name, config),
        step=0,
        total_steps=0,
        turns=turns,
        mask_RT=mask_RT,
        entropy_RT=None if entropy is None else entropy[first_R].float(),
        old_log_probs_RT=None if old_log_probs is None else old_log_probs[first_R].float(),
        fields={},
    )
    _check_entropy(ctx)
    shaped_RT, keep_RT = advantage_side.apply_transforms(ctx, advantage_side.estimate(ctx))
    if keep_RT is not None:
        raise RuntimeError(
            f"verl-entropy: transforms={[t.name for t in ctx.plan.transforms]} removes tokens from the loss, which an estimator of "
            "a patched verl cannot do. Use verl's own V1 trainer with this plugin, or a transform that masks nothing."
        )
    shaped_RT = shaped_RT[inverse_R]
    return shaped_RT, shaped_RT


def register(core_algos) -> None:
    """Register the estimators that verl's arguments suffice for, in a patched ``verl.trainer.ppo.core_algos``.

    GiGPO is left out: verl-agent has its own under that name.
    """
    from verl_entropy.methods import registry

    def estimator_of(name: str):
        def estimator(token_level_rewards, response_mask, index, row_ids, config=None, entropy=None, old_log_probs=None):
            given = {"config": config, "entropy": entropy, "old_log_probs": old_log_probs}
            return advantages(name, token_level_rewards, response_mask, index, row_ids, **given)

        estimator.__name__ = estimator.__qualname__ = f"verl_entropy_{name}"
        return estimator

    for name in registry.names("estimator"):
        if "anchor" not in registry.get("estimator", name).needs:
            core_algos.register_adv_est(name)(estimator_of(name))


def _check_entropy(ctx) -> None:
    users = [c.name for c in ctx.plan.choices if "entropy" in c.method.needs]
    if users and ctx.entropy_RT is None:
        raise RuntimeError(
            f"verl-entropy: {', '.join(users)} needs the entropy of the old-log-prob pass, and verl passed none. "
            "Set algorithm.rollout_correction.bypass_mode=False."
        )
