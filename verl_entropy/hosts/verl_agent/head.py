# SPDX-License-Identifier: Apache-2.0
"""The auxiliary head beside the actor: outside FSDP and the actor's state dict, with an optimiser and a file of its own.

As a part of the module it would be flattened into FSDP's parameters, sent to the rollout engine (which does not know it) and put
into every export. Here each rank holds the whole head in fp32; gradients are averaged over the ranks before a step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verl_entropy.config.plan import Choice
from verl_entropy.config.settings import ConfigError
from verl_entropy.files import replacing

FILE = "seal_head.pt"


class OutsideHead:
    """Head, its AdamW and its checkpoint. ``average`` averages a tensor over the data-parallel ranks in place."""

    def __init__(self, hidden_size: int, choice: Choice, optim: Any, device: Any, average, max_norm: float = 1.0):
        self.choice, self.hidden_size, self.average, self.max_norm = choice, hidden_size, average, max_norm
        self.shape = {name: getattr(choice.settings, name) for name in choice.method.shape}
        # The same seed on every rank: the same weights without a broadcast.
        self.module = choice.method.build(hidden_size, choice.settings, device)
        self.optimizer = torch.optim.AdamW(
            self.module.parameters(),
            lr=float(optim["lr"]),
            betas=tuple(optim.get("betas", (0.9, 0.999))),
            weight_decay=float(optim.get("weight_decay", 1e-2)),
            fused=next(self.module.parameters()).is_cuda,
        )
        self.skipped = 0

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Logits of hidden states, in training mode while there is a gradient."""
        self.module.train(torch.is_grad_enabled())
        return self.module(hidden_ND)

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def step(self, lr: float, finite: bool) -> None:
        """One step at the actor's learning rate, or none where the actor skips its own."""
        parameters = list(self.module.parameters())
        for parameter in parameters:
            if parameter.grad is None:  # no trained token on this rank, but perhaps on another
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters]
        # All of them in one tensor: one collective.
        mean = self.average(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        parts = mean.split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [part.view_as(g) for part, g in zip(parts, gradients, strict=True)])
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.max_norm)
        if finite and bool(torch.isfinite(norm)):
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
        else:
            self.skipped += 1
        self.zero_grad()

    def save(self, folder: str | Path) -> None:
        """Write the head into a checkpoint folder, atomically."""
        path = Path(folder) / FILE
        content = {
            "head": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            **self.shape,
            "hidden_size": self.hidden_size,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, flush=False) as (temporary,):
            torch.save(content, temporary)

    def load(self, folder: str | Path) -> None:
        """Restore the head and its optimiser, or ConfigError."""
        path = Path(folder) / FILE
        if not path.is_file():
            raise ConfigError(
                f"{path} is missing, and {self.choice.method.path} is set: the checkpoint was written without the head. Start without resuming "
                "(trainer.resume_mode=disable), or leave the head out."
            )
        device = next(self.module.parameters()).device
        content = torch.load(path, map_location=device, weights_only=True)
        wanted = {**self.shape, "hidden_size": self.hidden_size}
        found = {name: content.get(name) for name in wanted}
        if found != wanted:
            raise ConfigError(f"{path}: the checkpoint's head has {found}, the configuration asks for {wanted}. Make them equal.")
        self.module.load_state_dict(content["head"])
        self.optimizer.load_state_dict(content["optimizer"])
