# SPDX-License-Identifier: Apache-2.0
"""SEAL (arXiv 2605.27954): a classifier of success on the last hidden states, its loss and its labels."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from verl_entropy.batch.turns import Turns
from verl_entropy.methods.context import AdvantageContext, LossContext
from verl_entropy.methods.method import Head, Metric, setting


@dataclass(frozen=True)
class Seal:
    """Auxiliary success classifier on the last hidden states (arXiv 2605.27954, Eq. 3)."""

    alpha: float = setting(0.02, "weight of the loss (authors' README); 0: no head", ge=0.0, usual=1.0)
    layers: int = setting(3, "linear layers of the head (authors' README: porj_layer=3)", ge=1, le=16)
    dropout: float = setting(0.1, "dropout between the layers, off in the log-prob pass", ge=0.0, lt=1.0)
    hidden_shift: str = setting(
        "token",
        "the token's own state (sec. 4.1 and the authors' code), or the state that predicts it (Lemma 3.2)",
        choices=("token", "predicting"),
    )
    label: str = setting(
        "success",
        "what the head learns: success of the trajectory (Eq. 3), or the sign of each token's advantage (authors' code)",
        choices=("success", "advantage"),
    )
    skip_uniform_groups: bool = setting(False, "leave out groups that are all correct or all wrong")
    success_threshold: float = setting(0.0, "a trajectory without a success flag is correct if its score is above this")
    seed: int = setting(0, "seed of the head's initial weights", ge=0)


class SealHead(nn.Module):
    """Logit of "this trajectory is correct" from a token's hidden state; (..., D) -> (...), fp32.

        (layers - 1) x [Linear(D, D), GELU, LayerNorm(D), Dropout], then Linear(D, 1)

    The shape of the authors' code; the paper gives none. ``layers=1`` is a linear probe. The hidden layers
    run in the dtype of the parameters, or of autocast where those are fp32, and the last one always in fp32. The
    weights come from ``seed`` alone: equal on every rank and device, and the global random state is left as it was.
    Dropout acts in training mode only.
    """

    def __init__(
        self,
        hidden_size: int,
        layers: int = 3,
        dropout: float = 0.1,
        *,
        seed: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if hidden_size < 1 or layers < 1:
            raise ValueError(f"hidden_size={hidden_size}, layers={layers}: both must be >= 1; layers=1 is a linear probe.")
        self.hidden_size, self.seed, self.dropout = hidden_size, seed, dropout
        device = torch.get_default_device() if device is None else torch.device(device)
        body: OrderedDict[str, nn.Module] = OrderedDict()
        for i in range(layers - 1):
            body[f"linear_{i}"] = nn.utils.skip_init(nn.Linear, hidden_size, hidden_size, device=device, dtype=dtype)
            body[f"gelu_{i}"] = nn.GELU()
            body[f"norm_{i}"] = nn.LayerNorm(hidden_size, device=device, dtype=dtype)
            body[f"dropout_{i}"] = nn.Dropout(dropout)
        self.body = nn.Sequential(body)
        self.out = nn.utils.skip_init(nn.Linear, hidden_size, 1, device=device, dtype=dtype)
        if device.type != "meta":
            self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """torch's default initialisation, drawn from ``seed``; to be called after leaving a meta device."""
        generator = torch.Generator().manual_seed(self.seed)
        bound = 1 / math.sqrt(self.hidden_size)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                for parameter in (module.weight, module.bias):
                    # on the CPU in fp32, whatever the parameter is: the same numbers everywhere
                    draw = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
                    parameter.copy_(draw.uniform_(-bound, bound, generator=generator))
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits (...,) of the states (..., D). Under autograd only ``hidden`` and the random state are kept: backward runs the
        head again, which costs a third of its FLOPs and saves about 28 KB per token at D = 1536.
        """
        if torch.is_grad_enabled():
            random = self.training and self.dropout > 0
            return checkpoint(self._logits, hidden, use_reentrant=False, preserve_rng_state=random)
        return self._logits(hidden)

    def _logits(self, hidden: Tensor) -> Tensor:
        device, dtype = hidden.device.type, self.out.weight.dtype
        # Under FSDP the parameters have autocast's dtype already. Autocast would only lift the norms to fp32, with copies of
        # their inputs and outputs, though their kernel computes in fp32 anyway.
        with torch.autocast(device, enabled=torch.is_autocast_enabled(device) and dtype == torch.float32):
            hidden = self.body(hidden.to(dtype))
        with torch.autocast(device, enabled=False):
            logits = F.linear(hidden.float(), self.out.weight.float(), self.out.bias.float())
        # A copy, for FSDP hooks the outputs of its modules, and torch warns where one is a view.
        return logits.squeeze(-1).clone()


def seal_loss(logits_RT: Tensor, label: Tensor, mask_RT: Tensor | None, *, row_weight_R: Tensor | None = None) -> Tensor:
    """Binary cross-entropy of each token, to minimise; (R, T), fp32, 0 outside the mask.

        loss = -[z log p + (1 - z) log(1 - p)],   p = sigmoid(logit), z = 1 on a correct trajectory      Eq. 3

    The paper's L_SEAL is the token mean over the global batch: ``aggregate(loss_RT, ..., "token-mean")``. The
    authors' code differs in the label, see ``advantage_label``, and reads the token's own hidden state.

    Args:
        logits_RT: output of ``SealHead``, with gradient; masked positions may hold anything.
        label: bool or 0/1, one per row (R,) or token (R, T).
        mask_RT: trained tokens. None: ``logits_RT`` holds the trained tokens alone, as the head returns them, and label and
            weight are given per token, all (N,).
        row_weight_R: weight of the row's loss, for example ``mixed_group_weight``; the denominator stays.
    """
    logits_RT, label_RT = _masked(logits_RT, label, mask_RT)
    loss_RT = F.binary_cross_entropy_with_logits(logits_RT, label_RT, reduction="none")
    if row_weight_R is not None:
        loss_RT = loss_RT * _per_token(row_weight_R.to(loss_RT.dtype), loss_RT)
    return loss_RT if mask_RT is None else torch.where(mask_RT.bool(), loss_RT, 0.0)


def seal_parts(logits_RT: Tensor, label: Tensor, mask_RT: Tensor | None) -> dict[str, Tensor]:
    """Per-token accuracy, probability and label; their token means are ``verl_entropy/seal/<name>``. Layouts as ``seal_loss``."""
    logits_RT, label_RT = _masked(logits_RT.detach(), label, mask_RT)
    parts = {
        "accuracy": ((logits_RT > 0) == label_RT.bool()).to(logits_RT.dtype),
        "probability": torch.sigmoid(logits_RT),
        "label": label_RT,
    }
    if mask_RT is None:
        return parts
    return {name: torch.where(mask_RT.bool(), part, 0.0) for name, part in parts.items()}


def _masked(logits_RT: Tensor, label: Tensor, mask_RT: Tensor | None) -> tuple[Tensor, Tensor]:
    """fp32 logits and labels, per token, 0 outside the mask."""
    logits_RT = logits_RT.to(torch.promote_types(logits_RT.dtype, torch.float32))
    label_RT = _per_token(label.to(logits_RT.dtype), logits_RT).expand_as(logits_RT)
    if mask_RT is None:
        return logits_RT, label_RT
    mask_RT = mask_RT.bool()
    return torch.where(mask_RT, logits_RT, 0.0), torch.where(mask_RT, label_RT, 0.0)


def _per_token(value: Tensor, like: Tensor) -> Tensor:
    """A value per row as one that broadcasts over the row's tokens."""
    return value[:, None] if value.dim() < like.dim() else value


def success_label(turns: Turns) -> Tensor:
    """Label of the paper: every turn of a trajectory that reached its goal is correct; (R,), bool."""
    return _to_rows(turns.success_J[turns.trajectory_K], turns)


def advantage_label(advantages_RT: Tensor) -> Tensor:
    """Label of the authors' code: "correct" where the advantage is not negative, 0 included; (R, T), bool."""
    return advantages_RT >= 0


def mixed_group_weight(turns: Turns) -> Tensor:
    """1 for rows of prompt groups with correct and wrong trajectories, 0 for uniform groups; (R,), fp32."""
    correct_J = turns.success_J.long()
    correct_P = correct_J.new_zeros(turns.num_groups).index_add_(0, turns.group_J, correct_J)
    size_P = torch.bincount(turns.group_J, minlength=turns.num_groups)
    mixed_P = (correct_P > 0) & (correct_P < size_P)
    return _to_rows(mixed_P[turns.group_K], turns).float()


def _to_rows(value_K: Tensor, turns: Turns) -> Tensor:
    """Value of the row's turns, which agree; 0 for rows without a turn."""
    return value_K.new_zeros(turns.mask_RT.shape[0]).index_copy_(0, turns.row_K, value_K)


def _columns(ctx: AdvantageContext, s: Seal) -> Mapping[str, Tensor]:
    columns = {"label": success_label(ctx.turns).float()}
    if s.skip_uniform_groups:
        columns["head_weight"] = mixed_group_weight(ctx.turns)
    return columns


def _build(hidden_size: int, s: Seal, device: Any = None) -> SealHead:
    return SealHead(hidden_size, layers=s.layers, dropout=s.dropout, seed=s.seed, device=device)


def _apply(ctx: LossContext, s: Seal, logits_N: Tensor, token_N: Tensor, row_N: Tensor) -> Tensor:
    # Trained tokens alone, from the engine's list of them: no padded matrix, no mask, no wait for the device.
    if s.label == "advantage":
        label_N = advantage_label(ctx.micro_batch["advantages"].values().index_select(0, token_N))
    else:
        label_N = ctx.column("label").index_select(0, row_N)
    weight_N = ctx.column("head_weight").index_select(0, row_N) if s.skip_uniform_groups else None
    if s.label == "advantage":  # tokens that rollout correction rejected have an advantage of 0, which is no label
        kept_N = ctx.head_allowed().to(logits_N.dtype)
        weight_N = kept_N if weight_N is None else weight_N * kept_N
    loss = seal_loss(logits_N, label_N, None, row_weight_R=weight_N).sum()
    # The loss sums over all trajectories, also those that a transform keeps from the policy's loss.
    share = max(ctx.num_tokens, 1.0) / ctx.head_tokens
    sums = {"loss": loss} | {name: part.sum() for name, part in seal_parts(logits_N, label_N, None).items()}
    ctx.token_sums.update({f"seal/{name}": total * share for name, total in sums.items()})
    return loss * (s.alpha * ctx.dp_size / ctx.head_tokens)


SEAL = Head(
    name="seal",
    summary="auxiliary classifier that separates the representations of successful and failed trajectories",
    when="entropy erupts in cycles, valid-action ratio and likelihood of correct trajectories fall",
    cost="under 1 % of the actor update; three d x d layers of parameters",
    source="arXiv 2605.27954, Eq. 3",
    settings=Seal,
    function="verl_entropy.methods.heads.seal.seal_loss",
    needs=frozenset({"hidden"}),
    metrics={
        "loss": Metric("binary cross-entropy of the head", "nats", "SEAL, Eq. 3"),
        "accuracy": Metric("share of tokens whose trajectory the head judges right", "share", "SEAL"),
        "probability": Metric("mean probability of success that the head gives", "share", "SEAL"),
        "label": Metric("share of tokens of correct trajectories", "share", "SEAL"),
    },
    columns=_columns,
    build=_build,
    shape=("layers",),
    shift=lambda s: -1 if s.hidden_shift == "predicting" else 0,
    weight="alpha",
    apply=_apply,
)
