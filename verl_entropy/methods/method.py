# SPDX-License-Identifier: Apache-2.0
"""What a method is: its kind, settings, text, needs and the functions that a host calls. Imports no torch, so that text is cheap.

A method is one module-level object of one of the seven kinds in one file; ``registry`` finds it. The kinds differ in ``apply``:

    Estimator     apply(ctx, settings) -> (advantages_K (K,), metrics)                  advantage of each turn
    Transform     apply(ctx, advantages, settings) -> TransformResult                   advantages after the base estimator
    Loss          apply(ctx, settings, clip, log_prob_RT, old_log_prob_RT, advantages_RT, mask_RT) -> (loss_RT, parts)
    Clip          apply(said) -> upper clip bound                                       ``said``: what its state said this step
    Regularizer   apply(ctx, settings) -> scalar                                        added to the policy loss
    Head          apply(ctx, settings, logits_N, token_N, row_N) -> scalar              loss of an auxiliary head
    Rollout       apply(settings, told) -> Scheme                                       how the leaves of a prompt are sampled

``ctx`` is an AdvantageContext (estimator, transform) or a LossContext (loss, regularizer, head) of ``context.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

    from verl_entropy.batch.turns import Packed
    from verl_entropy.methods.common.hold import Hold
    from verl_entropy.methods.context import AdvantageContext, ClipBounds, LossContext
    from verl_entropy.methods.result import TransformResult
    from verl_entropy.methods.scheme import Scheme

ALGORITHM_PATH = "algorithm.entropy"
"""Where verl's configuration holds the settings of the advantage side."""
ACTOR_PATH = "actor_rollout_ref.actor"
POLICY_LOSS_PATH = f"{ACTOR_PATH}.policy_loss"
"""Where it holds those of losses, clip controllers and regularizers."""

NEEDS = {
    "entropy": "entropy of the old-log-prob pass, which verl runs anyway (not with rollout_correction.bypass_mode)",
    "group": "several rollouts per prompt (actor_rollout_ref.rollout.n >= 2)",
    "anchor": "the observation of each turn (our agent loops give it)",
    "step": "the number of the step, and of all steps",
    "grad_entropy": "entropy with gradient (sets actor.calculate_entropy)",
    "logits": "this package's log-prob pass over the logits (no fused kernels, log_probs not verl)",
    "hidden": "the last hidden states of the actor (no fused kernels)",
    "sampled": "the sampler's log-probs of its tokens (actor_rollout_ref.rollout.calculate_log_probs=True)",
    "top_log_probs": "the sampler's log-probs of the most likely words at each token (rollout.name=hf)",
    "snapshot": "stepwise_env or span_env, and an environment that clones or replays (its SNAPSHOT); or tool_agent_branching",
}
"""What a method may ask for."""


class ConfigError(ValueError):
    """A wrong setting; the message says the key, the value, what is allowed and the fix."""


def setting(
    default: Any,
    doc: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: tuple[Any, ...] | None = None,
    usual: float | None = None,
) -> Any:
    """A dataclass field with its documentation and bounds; a value above ``usual`` is allowed and warned of."""
    meta = {"doc": doc, "ge": ge, "gt": gt, "le": le, "lt": lt, "choices": choices, "usual": usual}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=meta)
    return field(default=default, metadata=meta)


@dataclass(frozen=True)
class Metric:
    """A value that a method reports as ``verl_entropy/<method>/<name>``."""

    formula: str
    unit: str
    """nats, share, number, loss, tokens."""
    source: str = ""
    """Paper and equation; empty: the method's."""


@dataclass(frozen=True)
class LogitsOutput:
    """A number per response token that a method computes from the logits, in the log-prob pass and, if asked, in the update."""

    compute: Callable[..., Tensor]
    """(logits_NV, temperature=Tensor (N,) or None) -> (N,); works in chunks."""
    in_update: bool
    """Also with gradient in the update, where the loss reads it; else only in the log-prob pass, for the advantages."""


class State(Protocol):
    """What a method remembers between steps."""

    of_each_batch: bool
    """Step for every batch; False: once a step, also where a step has several batches of one policy."""

    def step(self, ctx: AdvantageContext) -> dict[str, Any]:
        """Take the iteration's batch; what is returned is ``ctx.info[<method>]`` on both sides, in plain values."""

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON values."""

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Restore ``state_dict``, or ValueError, KeyError or TypeError, and nothing is changed."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """One selectable method; see the kinds below."""

    kind: ClassVar[str] = ""
    select: ClassVar[str] = ""
    """The override that selects it, with {name}."""

    name: str
    summary: str
    when: str
    cost: str
    source: str
    settings: type
    """Frozen dataclass of ``setting`` fields; its defaults are the paper's."""
    function: str
    """Dotted path of the pure function whose docstring holds the equation."""
    equations: tuple[str, ...] = ()
    """Further functions whose equation belongs to it."""
    needs: frozenset[str] = frozenset()
    """Keys of ``NEEDS``."""
    needs_with: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Further needs: setting -> value -> key of ``NEEDS``."""
    conflicts: Mapping[str, str] = field(default_factory=dict)
    """Methods it cannot run with, each with the reason."""
    doubtful_with: Mapping[str, str] = field(default_factory=dict)
    """Methods it runs with, but hardly should: what to know."""
    bounded: tuple[str, str, str] | None = None
    """A setting that a controller moves, and its bounds: (value, low, high)."""
    hold: Hold | None = None
    """How that setting can follow ``algorithm.entropy.target``; None: it cannot."""
    ordered: tuple[tuple[str, str], ...] = ()
    """Pairs of settings (low, high)."""
    steers: bool = False
    """Steers entropy to a target or range of its own."""
    doubts: Callable[[Any, Mapping[str, Any]], Iterable[str]] | None = None
    """(settings, verl's configuration as plain containers): what to warn of at start, one sentence or two each."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    neutral: Mapping[str, Any] | None = None
    """Settings under which it changes nothing; None: it has none."""
    example: Mapping[str, Any] = field(default_factory=dict)
    """Settings under which a dozen rows show an effect, where the defaults need more; for the contract."""
    state: Callable[[Any], State] | None = None
    """The state for given settings; None: it keeps none."""
    logits: Callable[[Any], Mapping[str, LogitsOutput]] | None = None
    """What it computes from the logits, by name: ``ctx.fields[name]`` on the advantage side, ``ctx.output(name)`` in the loss."""
    logits_bytes: tuple[int, str] | None = None
    """Transient bytes of that per word of the vocabulary, and what for."""
    columns: Callable[[AdvantageContext, Any], Mapping[str, Tensor]] | None = None
    """What its loss side reads of the batch: (R,) or (R, T) by name; ``ctx.column(name)`` there."""
    batch: Callable[[AdvantageContext, Any], dict[str, Any]] | None = None
    """Statistics over the whole batch, taken after the advantages; joined to ``ctx.info[<method>]``."""
    drops: bool = False
    """A transform, or a rollout's ``share``: may drop tokens from the policy's loss."""
    keeps_with: tuple[str, Any] | None = None
    """(setting, value) with which it drops none all the same."""
    origin: str = "verl-entropy"
    """The distribution it comes from; set by the registry for methods from outside."""
    chosen_as: str = ""
    """How it was named in the configuration, if not by its name: pkg.mod:NAME."""

    @property
    def path(self) -> str:
        """Configuration path of its settings."""
        return f"{ALGORITHM_PATH}.{self.name}"

    @property
    def key(self) -> str:
        """The override that selects it."""
        return self.select.format(name=self.chosen_as or self.name, section=self.name)

    def drops_with(self, settings: Any) -> bool:
        """Whether it drops tokens with these settings."""
        return self.drops and (self.keeps_with is None or getattr(settings, self.keeps_with[0]) != self.keeps_with[1])

    @property
    def word(self) -> str:
        """How the configuration names it."""
        return self.chosen_as or self.name


@dataclass(frozen=True, kw_only=True)
class Estimator(Method):
    """Advantages of turns from rewards; takes the place of verl's ``adv_estimator``."""

    kind = "estimator"
    select = "algorithm.adv_estimator={name}"
    apply: Callable[[AdvantageContext, Any], tuple[Tensor, dict[str, float]]]
    over_rows: Callable[[Any, Any], tuple[Tensor, dict[str, float]]] | None = None
    """(RowScores, settings): the same with a score of each row, as verl-agent's code does; None: it cannot."""


@dataclass(frozen=True, kw_only=True)
class Transform(Method):
    """Changes advantages, or drops tokens, after any base estimator."""

    kind = "transform"
    select = "+" + ALGORITHM_PATH + ".transforms=[{name}]"
    apply: Callable[[AdvantageContext, Tensor | Packed, Any], TransformResult]
    order: int = 100
    """Position among the transforms where the configuration gives no order."""


@dataclass(frozen=True, kw_only=True)
class _LossSide(Method):
    @property
    def path(self) -> str:
        return f"{POLICY_LOSS_PATH}.{self.name}"


@dataclass(frozen=True, kw_only=True)
class Loss(_LossSide):
    """Policy loss of each token; aggregation and importance weights are verl's."""

    kind = "loss"
    select = POLICY_LOSS_PATH + ".loss_mode={name}"
    apply: Callable[[LossContext, Any, ClipBounds, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, dict[str, Tensor]]]


@dataclass(frozen=True, kw_only=True)
class Clip(_LossSide):
    """Moves the upper clip bound of any clipped loss."""

    kind = "clip"
    select = "+" + POLICY_LOSS_PATH + ".clip_controller={name}"
    apply: Callable[[Mapping[str, Any]], float]


@dataclass(frozen=True, kw_only=True)
class Regularizer(_LossSide):
    """A term added to the policy loss; it owns the entropy term."""

    kind = "regularizer"
    select = "+" + POLICY_LOSS_PATH + ".regularizer={name}"
    apply: Callable[[LossContext, Any], Tensor]
    coefficient: tuple[str | None, str] = (None, "")
    """Setting that is the weight of the entropy in the loss (loss = policy loss - weight x H), if any, and a remark."""


@dataclass(frozen=True, kw_only=True)
class Head(Method):
    """An auxiliary head on the actor's last hidden states, trained with the policy; the sampler never sees it."""

    kind = "head"
    select = "+" + ACTOR_PATH + ".head={name}"
    apply: Callable[[LossContext, Any, Tensor, Tensor, Tensor], Tensor]
    """Loss from the head's outputs at the trained tokens; ``token_N`` are their places among the response tokens, ``row_N`` their
    rows."""
    build: Callable[[int, Any, Any], nn.Module]
    """(hidden size, settings, device) -> module, with the same weights on every rank."""
    shape: tuple[str, ...] = ()
    """Settings that a checkpoint's head must agree in."""
    shift: Callable[[Any], int] = lambda settings: 0
    """-1: the state that predicts the token; 0: the token's own."""
    weight: str | None = None
    """The setting that is the weight of its loss; where it is 0, the head is left out."""

    @property
    def path(self) -> str:
        return f"{ACTOR_PATH}.{self.name}"

    @property
    def key(self) -> str:
        """The section alone chooses a head that is known by name."""
        if self.chosen_as or self.weight is None:
            return super().key
        return f"+{self.path}.{self.weight}={getattr(self.settings(), self.weight)}"


@dataclass(frozen=True, kw_only=True)
class Rollout(Method):
    """How the n leaves of a prompt are sampled by our agent loops; keys, rewards and groups stay the trainer's."""

    kind = "rollout"
    select = "+" + ALGORITHM_PATH + ".rollout={name}"
    apply: Callable[[Any, Mapping[str, Any]], Scheme]
    """(settings, what its state last saved, or nothing) -> the rules that an agent loop asks."""
    share: Callable[[AdvantageContext, Tensor | Packed, Any], TransformResult] | None = None
    """After the transforms: the advantages of turns that several leaves have in common."""


KINDS: dict[str, type[Method]] = {c.kind: c for c in (Estimator, Transform, Loss, Clip, Regularizer, Head, Rollout)}
