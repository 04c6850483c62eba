# SPDX-License-Identifier: Apache-2.0
"""What a run has chosen: read once from verl's configuration, checked, and the same in every process.

Works on plain mappings, so it needs neither torch nor verl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_entropy.config import settings as config
from verl_entropy.config.settings import ConfigError
from verl_entropy.diagnostics.settings import PATH as DIAGNOSTICS_PATH
from verl_entropy.diagnostics.settings import Live, read_live
from verl_entropy.methods import registry
from verl_entropy.methods.method import Method


@dataclass(frozen=True)
class Choice:
    """A chosen method and its settings."""

    method: Method
    settings: Any

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def needs(self) -> frozenset[str]:
        """What the method needs with these settings."""
        further = (values.get(str(getattr(self.settings, name))) for name, values in self.method.needs_with.items())
        return self.method.needs | {need for need in further if need is not None}


@dataclass(frozen=True)
class Plan:
    """Everything this package does in a run."""

    entropy: config.Entropy
    base: str
    """Name of the advantage estimator, verl's or ours."""
    estimator: Choice | None
    transforms: tuple[Choice, ...]
    loss_mode: str
    loss: Choice | None
    clip: Choice | None
    regularizer: Choice | None
    head: Choice | None
    rollout: Choice | None = None
    unused: tuple[str, ...] = ()
    """Sections that are set although their method is not chosen."""
    diagnostics: Live = Live()
    diagnosed: bool = False
    """The section of the diagnostics is given: they run also where no method is chosen."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        single = (self.estimator, self.loss, self.clip, self.regularizer, self.head, self.rollout)
        return tuple(c for c in single if c is not None) + self.transforms

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(c.needs for c in self.choices))

    @property
    def presets(self) -> list[str]:
        """Names of the chosen presets."""
        return [name for name, chosen in self.entropy.presets.items() if chosen]

    @property
    def success_threshold(self) -> float:
        """A trajectory without a success flag counts as correct if its score is above this."""
        return float(getattr(self.head.settings, "success_threshold", 0.0)) if self.head else 0.0

    @property
    def stateful(self) -> list[str]:
        """Names of the chosen methods that keep state between steps."""
        return [c.name for c in self.choices if c.method.state is not None]

    @property
    def active(self) -> bool:
        """Whether anything of this package was chosen."""
        diagnosed = self.diagnosed and self.diagnostics.enabled
        own = self.entropy.log_probs != "auto" or self.entropy.equal_returns not in (None, "verl")
        return bool(self.choices or self.entropy.presets or own or diagnosed)

    @property
    def zeroes_equal_returns(self) -> bool:
        """Whether groups of equal returns get no advantage."""
        chosen = self.entropy.equal_returns
        return bool(self.choices) if chosen is None else chosen != "verl"

    @property
    def drops_groups(self) -> bool:
        """Whether groups without a difference leave the loss."""
        return self.entropy.equal_returns in ("drop", "drop_by_success")

    def describe(self) -> list[str]:
        """The start-up banner, a line each."""
        chain = " -> ".join([self.base, *(t.name for t in self.transforms)])
        lines = [f"advantages: {chain}", f"policy loss: {self.loss_mode}"]
        lines.append(f"clip controller: {self.clip.name if self.clip else 'none'}")
        lines.append(f"regularizer: {self.regularizer.name if self.regularizer else 'none'}")
        lines.append(f"head: {_head(self.head)}")
        if self.rollout is not None:
            lines.append(f"rollout: {self.rollout.name}")
        if self.entropy.target is not None:
            lines.append(f"target entropy: {self.entropy.target} nats, guard {self.entropy.target_guard}")
        lines.append(f"diagnostics: {_diagnostics(self.diagnostics)}")
        lines += [f"{c.method.path}: {c.settings}" for c in self.choices]
        lines += [f"note: {path} is set, but that method is not chosen" for path in self.unused]
        return lines


def _diagnostics(s: Live) -> str:
    if not s.enabled:
        return "off"
    costly = "costly ones never"
    if s.costly_every:
        costly = f"costly ones every {s.costly_every} ({s.sample_trajectories} trajectories, {s.sample_tokens} tokens of each)"
    file = s.run_file.folder or f"none, set {DIAGNOSTICS_PATH}.run_file.folder"
    return f"every step; {costly}; on eruption: {s.on_eruption}; run file: {file}"


def _section(node: Any, path: str) -> Mapping[str, Any]:
    if node is None:
        return {}
    if not isinstance(node, Mapping):
        raise ConfigError(f"{path}={node!r}: expected a group of settings, for example {path}.<key>=<value>.")
    return node


def _head(choice: Choice | None) -> str:
    if choice is None:
        return "none"
    weight = getattr(choice.method, "weight", None)
    return choice.name + (f", {weight} {getattr(choice.settings, weight)}" if weight else "")


def _choose(kind: str, word: str, sections: Mapping[str, Any]) -> Choice:
    method = registry.get(kind, word)
    return Choice(method, config.parse(method.settings, _section(sections.get(method.name), method.path), method.path))


def _check_sections(sections: Mapping[str, Any], known: set[str], path: str) -> None:
    for key in sections:
        if key not in known:
            raise ConfigError(f"{path}.{key}: no such setting. Known: {', '.join(sorted(known))}.")


def _transform_names(entropy: config.Entropy) -> list[str]:
    if entropy.transforms is not None:
        listed = [str(n) for n in entropy.transforms]
        twice = sorted({n for n in listed if listed.count(n) > 1})
        if twice:
            raise ConfigError(f"{config.ALGORITHM_PATH}.transforms: {', '.join(twice)} is listed twice; list it once.")
        return listed
    return [m.name for m in registry.methods("transform") if m.name in entropy.presets]


def _unused(sections: Mapping[str, Any], kinds: tuple[str, ...], chosen: set[str]) -> list[str]:
    """Paths of sections of methods that are not chosen; their values are checked all the same."""
    paths = []
    for method in registry.methods():
        if method.kind in kinds and method.name in sections and method.name not in chosen:
            section = _section(sections[method.name], method.path)
            config.parse(method.settings, section, method.path)
            if section:
                paths.append(method.path)
    return paths


def _ours(kind: str, word: str) -> bool:
    """Whether ``word`` chooses a method of this registry on an axis that verl's own names share."""
    return word in registry.names(kind) or registry.is_reference(word)


def _chosen_head(actor: Mapping[str, Any]) -> Choice | None:
    """The head that ``head`` names, or whose section is given; None where its weight is 0: it trains nothing, and the run is the one
    without it, bit for bit."""
    given = [m.name for m in registry.methods("head") if actor.get(m.name) is not None]
    word = actor.get("head") or (given[0] if given else None)
    if word is None:
        return None
    choice = _choose("head", str(word), actor)
    others = [name for name in given if name != choice.name]
    if others:
        raise ConfigError(
            f"{config.ACTOR_PATH}.{others[0]}: a run has one head, and {choice.name} is chosen. Remove that section, or set "
            f"{config.ACTOR_PATH}.head={others[0]}."
        )
    weight = getattr(choice.method, "weight", None)
    return choice if weight is None or getattr(choice.settings, weight) > 0 else None


def read(raw: Mapping[str, Any]) -> Plan:
    """The plan of a resolved configuration given as plain containers, before or after a host moved sections of methods from outside."""
    algorithm = _section(raw.get("algorithm"), "algorithm")
    actor = _section(_section(raw.get("actor_rollout_ref"), "actor_rollout_ref").get("actor"), "actor")
    ours = dict(_section(algorithm.get("entropy"), config.ALGORITHM_PATH))
    shared_keys = set(config.Entropy.__dataclass_fields__)
    entropy = config.parse(config.Entropy, {k: v for k, v in ours.items() if k in shared_keys}, config.ALGORITHM_PATH)
    actor = {**actor, **_section(actor.get("head_section"), f"{config.ACTOR_PATH}.head_section")}
    loss_section = dict(_section(actor.get("policy_loss"), config.POLICY_LOSS_PATH))
    loss_section |= _section(loss_section.pop("sections", None), f"{config.POLICY_LOSS_PATH}.sections")
    base = str(algorithm.get("adv_estimator"))
    words = _transform_names(entropy)
    if base in registry.names("transform") or (registry.is_reference(base) and registry.find(base).kind == "transform"):
        # A transform given as the estimator: its base is a setting, and it comes first unless it is listed.
        words = words if base in words else [base, *words]
        base = entropy.base
    transforms = tuple(_choose("transform", word, ours) for word in words)
    estimator = _choose("estimator", base, ours) if _ours("estimator", base) else None
    loss_mode = str(loss_section.get("loss_mode", "vanilla"))
    clip = loss_section.get("clip_controller")
    if loss_mode in registry.names("clip"):
        clip = loss_mode
        loss_mode = _choose("clip", clip, loss_section).settings.loss
    loss = _choose("loss", loss_mode, loss_section) if _ours("loss", loss_mode) else None
    clip_choice = None if clip is None else _choose("clip", str(clip), loss_section)
    regularizer = loss_section.get("regularizer")
    regularizer_choice = None if regularizer is None else _choose("regularizer", str(regularizer), loss_section)
    rollout = None if entropy.rollout is None else _choose("rollout", entropy.rollout, ours)
    advantage_side = {c.name for c in (estimator, rollout, *transforms) if c is not None}
    loss_side = {c.name for c in (loss, clip_choice, regularizer_choice) if c is not None}
    known = {m.name for kind in ("estimator", "transform", "rollout") for m in registry.methods(kind)} | advantage_side
    _check_sections(ours, shared_keys | known | {"diagnostics"}, config.ALGORITHM_PATH)
    unused = _unused(ours, ("estimator", "transform", "rollout"), advantage_side)
    unused += _unused(loss_section, ("loss", "clip", "regularizer"), loss_side)
    return Plan(
        entropy=entropy,
        base=base,
        estimator=estimator,
        transforms=transforms,
        loss_mode=loss_mode,
        loss=loss,
        clip=clip_choice,
        regularizer=regularizer_choice,
        head=_chosen_head(actor),
        rollout=rollout,
        unused=tuple(unused),
        diagnostics=read_live(_section(ours.get("diagnostics"), DIAGNOSTICS_PATH)),
        diagnosed=ours.get("diagnostics") is not None,
    )
