# SPDX-License-Identifier: Apache-2.0
"""The classifier of SEAL (arXiv 2605.27954) on the last hidden states."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


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
        factory = {
            "device": torch.get_default_device() if device is None else torch.device(device),
            "dtype": dtype,
        }
        body: OrderedDict[str, nn.Module] = OrderedDict()
        for i in range(layers - 1):
            body[f"linear_{i}"] = nn.utils.skip_init(nn.Linear, hidden_size, hidden_size, **factory)
            body[f"gelu_{i}"] = nn.GELU()
            body[f"norm_{i}"] = nn.LayerNorm(hidden_size, **factory)
            body[f"dropout_{i}"] = nn.Dropout(dropout)
        self.body = nn.Sequential(body)
        self.out = nn.utils.skip_init(nn.Linear, hidden_size, 1, **factory)
        if factory["device"].type != "meta":
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
            return F.linear(hidden.float(), self.out.weight.float(), self.out.bias.float()).squeeze(-1)
