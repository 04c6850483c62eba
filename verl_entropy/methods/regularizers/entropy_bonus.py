# SPDX-License-Identifier: Apache-2.0
"""Entropy bonus: the plain regulariser, with a fixed or a controlled coefficient."""

from __future__ import annotations

import torch
from torch import Tensor


def entropy_bonus(entropy_RT: Tensor, mask_RT: Tensor, *, coef: float) -> Tensor:
    """Loss of each token, -coef H, to minimise; [R, T], 0 outside the mask.

    ``entropy_RT`` is the full-vocabulary entropy in nats, with gradient. Aggregate like the policy loss. A
    ``coef`` driven by ``TargetEntropyController`` is the "H bonus" baseline of the REPO paper (DAPO + beta
    H); a negative one pushes entropy down. Neutral: coef = 0 (value and gradient 0).
    """
    return -coef * torch.where(mask_RT, entropy_RT, torch.zeros((), dtype=entropy_RT.dtype, device=entropy_RT.device))
