# SPDX-License-Identifier: Apache-2.0
"""State of the methods that have one. ``step`` runs once per iteration, after the old-log-prob pass and before advantages and
updates: it takes the iteration's entropy and returns what transforms and workers use in this iteration."""

from __future__ import annotations

from typing import Any

from verl_entropy.config.plan import Plan
from verl_entropy.hosts.common.context import AdvantageContext
from verl_entropy.methods.controllers import TargetEntropyController
from verl_entropy.methods.regularizers import epo
from verl_entropy.methods.regularizers.siren import SirenAnchor, masked_row_mean, peak_mask


class ControllerState:
    """A coefficient moved by ``TargetEntropyController``; ``name`` is its key in the worker info."""

    of_each_batch = False

    def __init__(self, algorithm: str, name: str, adaptive: bool, **controller):
        self.algorithm, self.name, self.adaptive = algorithm, name, adaptive
        self.fixed = controller["value"]
        self.controller = TargetEntropyController(**controller) if adaptive else None

    def step(self, ctx: AdvantageContext) -> dict[str, Any]:
        value = self.fixed
        if self.controller is not None:
            value = self.controller.update(float("nan") if ctx.entropy is None else ctx.entropy)
        ctx.metrics[f"verl_entropy/{self.algorithm}/{self.name}"] = value
        return {self.name: value}

    def state_dict(self) -> dict[str, Any]:
        return {} if self.controller is None else self.controller.state_dict()

    def load_state_dict(self, values: dict[str, Any]) -> None:
        if self.controller is not None:
            self.controller.load_state_dict(values)


class EpoState:
    """EPO's corridor and weight: the history of the entropies of earlier steps."""

    of_each_batch = False

    def __init__(self, settings):
        self.settings = settings
        self.history = epo.TurnEntropyHistory() if settings.history == "turn" else epo.EntropyHistory()

    def _beta(self, k: int, total: int) -> float:
        s = self.settings
        if s.weight == "paper":
            return epo.epo_beta(k, total, s.beta_start, s.beta_end, s.decay)
        if s.weight == "released":
            return epo.epo_released_weight(k, total)
        return s.beta_start if s.weight == "constant" else 0.0

    def step(self, ctx: AdvantageContext) -> dict[str, Any]:
        """Corridor centre, beta_k and the factor of lambda; ``k`` counts from 0 (Alg. 1), later steps keep the last value."""
        s = self.settings
        total = s.total_steps or ctx.total_steps
        k = min(ctx.step - 1, total)
        hbar, beta = self.history.mean(), self._beta(k, total)
        if s.history == "turn":
            trained_K = ctx.turns.trained_K
            self.history.append(ctx.turns.trained_mean(ctx.entropy_RT)[trained_K], ctx.turns.index_K[trained_K])
        elif ctx.entropy is not None:
            self.history.append(ctx.entropy)
        decay = epo.epo_released_weight(k, total) if s.entropy_decay else 1.0
        ctx.metrics["verl_entropy/epo/beta"] = beta
        ctx.metrics["verl_entropy/epo/entropy_coeff"] = s.entropy_coeff * decay
        if isinstance(hbar, float):
            ctx.metrics["verl_entropy/epo/corridor_low"] = s.kappa_low * hbar
            ctx.metrics["verl_entropy/epo/corridor_high"] = s.kappa_high * hbar
        return {"hbar": None if hbar == [] else hbar, "beta": beta, "decay": decay}

    def state_dict(self) -> dict[str, Any]:
        return self.history.state_dict()

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.history.load_state_dict(values)


class SirenState:
    """SIREN's anchor, and the masked nucleus entropy of this iteration's experience under the old policy."""

    of_each_batch = True
    """What it says is about the batch, where the others move once a step."""

    def __init__(self, settings):
        self.settings = settings
        self.anchor = SirenAnchor(settings.anchor)

    def step(self, ctx: AdvantageContext) -> dict[str, Any]:
        nucleus_RT = ctx.fields["nucleus_entropy"]
        peak_RT = peak_mask(nucleus_RT, ctx.mask_RT, self.settings.tau)
        hbar = float(masked_row_mean(nucleus_RT, peak_RT))
        anchor = self.anchor.update(hbar)
        ctx.fields["peak"] = peak_RT
        ctx.metrics["verl_entropy/siren/hbar"] = hbar
        ctx.metrics["verl_entropy/siren/anchor"] = anchor
        return {"hbar": hbar, "anchor": anchor}

    def state_dict(self) -> dict[str, Any]:
        return self.anchor.state_dict()

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.anchor.load_state_dict(values)


def _controlled(
    algorithm: str, name: str, s, first: float, low: float, high: float, *, adaptive: bool, **options
) -> ControllerState:
    bounds = {"value": first, "low": low, "high": high, "factor": s.factor, "target": s.target}
    return ControllerState(algorithm, name, adaptive, **bounds, **options)


def _zeta(algorithm: str, s) -> ControllerState:
    options = {"bidirectional": s.bidirectional, "flip": s.flip} if algorithm == "repo_r" else {}
    return _controlled(algorithm, "zeta", s, s.zeta, s.zeta_min, s.zeta_max, adaptive=s.adaptive, **options)


def _adapo(s) -> ControllerState:
    return _controlled("adapo", "eps_high", s, s.eps_high, s.eps_min, s.eps_max, adaptive=True)


def _bonus(s) -> ControllerState:
    return _controlled("entropy_bonus", "coef", s, s.coef, s.coef_min, s.coef_max, adaptive=s.adaptive)


STATES = {
    "repo_r": lambda s: _zeta("repo_r", s),
    "repo_d": lambda s: _zeta("repo_d", s),
    "adapo": _adapo,
    "entropy_bonus": _bonus,
    "epo": EpoState,
    "siren": SirenState,
}


def stateful_methods(plan: Plan) -> dict[str, Any]:
    """State objects of the chosen methods, by name."""
    return {c.name: STATES[c.name](c.settings) for c in plan.choices if c.algorithm.state}
