# SPDX-License-Identifier: Apache-2.0
"""What a run has chosen: read once from verl's configuration, checked, and the same in every process.

Works on plain mappings, so it needs neither torch nor verl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_entropy.config import registry
from verl_entropy.config import settings as config
from verl_entropy.config.settings import ConfigError
from verl_entropy.diagnostics.settings import PATH as DIAGNOSTICS_PATH
from verl_entropy.diagnostics.settings import Live, read_live


@dataclass(frozen=True)
class Choice:
    """A chosen algorithm and its settings."""

    algorithm: registry.Algorithm
    settings: Any

    @property
    def name(self) -> str:
        return self.algorithm.name


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
    seal: Choice | None
    unused: tuple[str, ...] = ()
    """Sections that are set although their method is not chosen."""
    diagnostics: Live = Live()
    diagnosed: bool = False
    """The section of the diagnostics is given: they run also where no method is chosen."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        single = (self.estimator, self.loss, self.clip, self.regularizer, self.seal)
        return tuple(c for c in single if c is not None) + self.transforms

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(c.algorithm.needs for c in self.choices)) if self.choices else frozenset()

    @property
    def stateful(self) -> list[str]:
        """Names of the chosen algorithms that keep state between steps."""
        return [c.name for c in self.choices if c.algorithm.state]

    @property
    def active(self) -> bool:
        """Whether anything of this package was chosen."""
        diagnosed = self.diagnosed and self.diagnostics.enabled
        own = self.entropy.log_probs != "auto" or self.entropy.equal_returns == "zero"
        return bool(self.choices or self.entropy.presets or own or diagnosed)

    @property
    def zeroes_equal_returns(self) -> bool:
        """Whether groups of equal returns get no advantage."""
        return self.entropy.equal_returns == "zero" or (self.entropy.equal_returns is None and bool(self.choices))

    def describe(self) -> list[str]:
        """The start-up banner, a line each."""
        chain = " -> ".join([self.base, *(t.name for t in self.transforms)])
        lines = [f"advantages: {chain}", f"policy loss: {self.loss_mode}"]
        lines.append(f"clip controller: {self.clip.name if self.clip else 'none'}")
        lines.append(f"regularizer: {self.regularizer.name if self.regularizer else 'none'}")
        lines.append(f"head: {'seal, alpha ' + str(self.seal.settings.alpha) if self.seal else 'none'}")
        lines.append(f"diagnostics: {_diagnostics(self.diagnostics)}")
        lines += [f"{c.algorithm.path}: {c.settings}" for c in self.choices]
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


def _choose(kind: str, name: str, sections: Mapping[str, Any]) -> Choice:
    algorithm = registry.get(kind, name)
    return Choice(algorithm, config.parse(algorithm.settings, _section(sections.get(name), algorithm.path), algorithm.path))


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
    chosen = [registry.get("transform", n) for n in entropy.presets if n in registry.names("transform")]
    return [a.name for a in sorted(chosen, key=lambda a: a.order)]


def _unused(sections: Mapping[str, Any], kinds: tuple[str, ...], chosen: set[str]) -> list[str]:
    """Paths of sections of methods that are not chosen; their values are checked all the same."""
    paths = []
    for algorithm in registry.ALGORITHMS:
        if algorithm.kind in kinds and algorithm.name in sections and algorithm.name not in chosen:
            section = _section(sections[algorithm.name], algorithm.path)
            config.parse(algorithm.settings, section, algorithm.path)
            if section:
                paths.append(algorithm.path)
    return paths


def read(raw: Mapping[str, Any]) -> Plan:
    """The plan of a resolved configuration given as plain containers."""
    algorithm = _section(raw.get("algorithm"), "algorithm")
    actor = _section(_section(raw.get("actor_rollout_ref"), "actor_rollout_ref").get("actor"), "actor")
    ours = dict(_section(algorithm.get("entropy"), config.ALGORITHM_PATH))
    shared_keys = set(config.Entropy.__dataclass_fields__)
    method_keys = set(registry.names("estimator")) | set(registry.names("transform"))
    _check_sections(ours, shared_keys | method_keys | {"diagnostics"}, config.ALGORITHM_PATH)
    entropy = config.parse(config.Entropy, {k: v for k, v in ours.items() if k in shared_keys}, config.ALGORITHM_PATH)
    loss_section = _section(actor.get("policy_loss"), config.POLICY_LOSS_PATH)
    base = str(algorithm.get("adv_estimator"))
    transforms = _transform_names(entropy)
    if base in registry.names("transform"):
        # A transform given as the estimator: its base is a setting, and it comes first unless it is listed.
        transforms = transforms if base in transforms else [base, *transforms]
        base = entropy.base
    loss_mode = str(loss_section.get("loss_mode", "vanilla"))
    clip = loss_section.get("clip_controller")
    if loss_mode in registry.names("clip"):
        clip = loss_mode
        loss_mode = _choose("clip", clip, loss_section).settings.loss
    regularizer = loss_section.get("regularizer")
    seal = actor.get("seal")
    seal_choice = None
    if seal is not None:
        head = registry.get("head", "seal")
        settings = config.parse(config.Seal, _section(seal, config.SEAL_PATH), config.SEAL_PATH)
        # A head of weight 0 trains nothing: it is left out, and the run is the one without it, bit for bit.
        seal_choice = Choice(head, settings) if settings.alpha > 0 else None
    unused = _unused(ours, ("estimator", "transform"), {base, *transforms})
    unused += _unused(loss_section, ("loss", "clip", "regularizer"), {loss_mode, str(clip), str(regularizer)})
    return Plan(
        entropy=entropy,
        base=base,
        estimator=_choose("estimator", base, ours) if base in registry.names("estimator") else None,
        transforms=tuple(_choose("transform", n, ours) for n in transforms),
        loss_mode=loss_mode,
        loss=_choose("loss", loss_mode, loss_section) if loss_mode in registry.names("loss") else None,
        clip=_choose("clip", str(clip), loss_section) if clip is not None else None,
        regularizer=_choose("regularizer", str(regularizer), loss_section) if regularizer is not None else None,
        seal=seal_choice,
        unused=tuple(unused),
        diagnostics=read_live(_section(ours.get("diagnostics"), DIAGNOSTICS_PATH)),
        diagnosed=ours.get("diagnostics") is not None,
    )
