# SPDX-License-Identifier: Apache-2.0
"""Versions that this package was tested with, and how the installed ones compare. Imports none of them."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass

from verl_entropy.hosts.install import compat


@dataclass(frozen=True)
class Component:
    """A package and its tested versions."""

    name: str
    distribution: str
    tested: tuple[str, ...]
    """Empty: never tested, only known to be used by verl."""
    required: bool = False
    without: str = ""
    """What is missing without it."""
    least: str = ""
    """A version below this series cannot work."""


COMPONENTS: tuple[Component, ...] = (
    Component("python", "", ("3.10", "3.11", "3.12"), True),
    Component("verl", "verl", compat.SUPPORTED, True, "nothing to extend. Fix: pip install 'verl==0.9.1'"),
    Component("torch", "torch", ("2.11.0", "2.13.0"), True, "nothing can train. Fix: install torch for your card"),
    Component("transformers", "transformers", ("5.9.0", "5.10.4"), True, "verl cannot load a model"),
    Component("ray", "ray", ("2.60.0",), True, "verl cannot start its workers"),
    Component(
        "TransferQueue", "TransferQueue", ("0.1.11",), True, "verl's V1 trainer does not import. Fix: pip install TransferQueue"
    ),
    Component("vllm", "vllm", ("0.24.0",), False, "no sampler for a GPU; the CPU backend (VERL_PLATFORM=cpu) has its own"),
    Component("flash-attn", "flash-attn", (), False, "log-probs come from verl-entropy's chunked pass (log_probs=auto)"),
    Component("hydra-core", "hydra-core", ("1.3.8",), True, "no configuration. Fix: pip install 'hydra-core>=1.3'", "1.3"),
    Component("pyarrow", "pyarrow", (), True, "no data file and no run file can be read. Fix: pip install pyarrow"),
    Component("matplotlib", "matplotlib", (), False, "no report. Fix: pip install 'verl-entropy[report]'"),
)
"""CPU: python 3.11, torch 2.13.0, verl 0.9.1, transformers 5.10.4 (every test); 3.10 and 3.12 without trainer runs.
GPU: torch 2.11.0, verl 0.9.1, vllm 0.24.0,
transformers 5.9.0 (tests/gpu/results). flash-attn and matplotlib of any version."""


@dataclass(frozen=True)
class Version:
    """An installed component."""

    name: str
    installed: str | None
    status: str
    """ok, warn, fail or skip."""
    note: str


def installed(component: Component) -> str | None:
    """The version of the distribution, without importing it; None if it is not there."""
    if component.name == "python":
        return platform.python_version()
    try:
        return importlib.metadata.version(component.distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _series(version: str) -> tuple[str, ...]:
    return tuple(version.split("+")[0].split(".")[:2])


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in _series(version) if part.isdigit())


def compare(component: Component, version: str | None) -> Version:
    """ok: a tested version or another patch of one; warn: untested; fail or skip: missing."""
    if version is None:
        return Version(component.name, None, "fail" if component.required else "skip", f"not installed: {component.without}")
    if component.least and _order(version) < _order(component.least):
        return Version(component.name, version, "fail", f"too old: {component.without}")
    if not component.tested:
        return Version(component.name, version, "ok", "any version")
    if version.split("+")[0] in component.tested:
        return Version(component.name, version, "ok", "tested")
    tested = f"tested: {', '.join(component.tested)}"
    if _series(version) in map(_series, component.tested):
        return Version(component.name, version, "ok", f"{tested}; same series")
    return Version(component.name, version, "warn", f"not tested ({tested})")


def versions() -> list[Version]:
    """Every component of the matrix that the installed verl uses."""
    left = {"TransferQueue"} if compat.verl_version() and not compat.has_v1() else set()
    return [compare(component, installed(component)) for component in COMPONENTS if component.name not in left]
