# SPDX-License-Identifier: Apache-2.0
"""Events that a step's metrics show beside the phases of entropy: not finite, dead, template collapse. Imports neither torch nor verl.

    non_finite         entropy, loss or gradient norm is NaN or infinite; from the first step, no smoothing
    dead               for STEPS steps: the gradient norm is 0, or every group has equal returns (``group/zero_variance`` = 1)
    template_collapse  for STEPS values: duplication of responses or of actions at least ``template_share``, while entropy stands above
                       ``collapse_nats`` (below that it is a collapse, which ``diagnostics.phases`` gives)

Each is given once, and again only after it was over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

HEALTH = ("non_finite", "dead", "template_collapse")
STEPS = 3
"""Values in a row that make a run dead or collapsed to templates; one alone may be chance."""
WATCHED = ("actor/entropy", "verl_entropy/entropy", "actor/loss", "actor/pg_loss", "actor/grad_norm")
"""Metrics that have to be finite."""
REPEATED = ("verl_entropy/duplication", "verl_entropy/action_duplication")
"""Shares of what is repeated: sentences over the responses of a step, actions within an episode."""


_READ = {*WATCHED, *REPEATED, "verl_entropy/group/zero_variance"}


def _number(value: Any) -> float | None:
    """A metric as a number; of a list, one for each mini-batch, the mean."""
    if isinstance(value, list | tuple):
        return sum(map(float, value)) / len(value) if value else None
    return None if value is None else float(value)


class Health:
    """Watches the metrics of complete steps; feed it once per step."""

    def __init__(self, template_share: float, collapse_nats: float):
        self.template_share, self.collapse_nats = template_share, collapse_nats
        self.on = dict.fromkeys(HEALTH, False)
        self._run = dict.fromkeys(HEALTH, 0)

    def update(self, metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Events of a step, with the reason of each; a condition whose metrics are missing stays as it was."""
        found = []
        for name, (seen, reason) in self._conditions(metrics).items():
            self._run[name] = self._run[name] + 1 if seen else 0
            was, self.on[name] = self.on[name], self._run[name] >= (1 if name == "non_finite" else STEPS)
            if self.on[name] and not was:
                found.append((name, reason))
        return found

    def _conditions(self, metrics: Mapping[str, Any]) -> dict[str, tuple[bool, str]]:
        metrics = {key: _number(value) for key, value in metrics.items() if key in _READ}
        values = {key: metrics[key] for key in WATCHED if metrics.get(key) is not None}
        wrong = [f"{key}={value}" for key, value in values.items() if not math.isfinite(value)]
        found = {"non_finite": (bool(wrong), ", ".join(wrong))} if values else {}
        norm, equal = metrics.get("actor/grad_norm"), metrics.get("verl_entropy/group/zero_variance")
        if norm is not None or equal is not None:
            why = "gradient norm 0" if norm == 0.0 else "every group has equal returns"
            found["dead"] = (norm == 0.0 or equal == 1.0, f"{why} for {STEPS} steps")
        repeated = {key: metrics[key] for key in REPEATED if metrics.get(key) is not None}
        if repeated:
            key = max(repeated, key=repeated.__getitem__)
            entropy = next((values[k] for k in WATCHED[:2] if k in values), math.nan)
            low = repeated[key] >= self.template_share and entropy > self.collapse_nats
            found["template_collapse"] = (low, f"{key}={repeated[key]:.2f} at an entropy of {entropy:.3g} nats")
        return found

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, as plain JSON values."""
        return {"on": dict(self.on), "run": dict(self._run)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``."""
        self.on, self._run = dict(state["on"]), dict(state["run"])
