# SPDX-License-Identifier: Apache-2.0
"""``verl-entropy doctor``: can this installation do what it says, in the driver and in a Ray worker, and what does it not warn of.

Sections: versions against the tested matrix; the methods and their packages; the plugin and verl's code under it; registries; a Ray
worker; the environment; and with --config what a run would use.
"""

from __future__ import annotations

import argparse
import collections
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from verl_entropy import __version__
from verl_entropy.commands import planned
from verl_entropy.commands.output import MARKS, fill, json_option, print_json
from verl_entropy.config import engines
from verl_entropy.config.settings import ConfigError
from verl_entropy.hosts.install import compat, fingerprint, matrix
from verl_entropy.methods import registry


@dataclass(frozen=True)
class Check:
    """One line: ok, warn, fail or skip."""

    section: str
    status: str
    name: str
    note: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ray",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="check that the plugin is active in a worker of a local Ray, which is started and stopped here (default; 10 to 55 s)",
    )
    parser.add_argument(
        "--config",
        nargs="+",
        metavar="WORD",
        help="also check a run: overrides (a.b=c), presets (gigpo,aem) or recipe.yaml, as for validate",
    )
    json_option(parser)


def run(args: argparse.Namespace) -> int:
    found = list(_checks(args.ray))
    usable = not any(c.status == "fail" and c.section in ("versions", "plugin") for c in found)
    config = None
    if args.config and usable:
        config = _configuration(args.config)
        found += config.pop("checks")
    elif args.config:
        found.append(Check("configuration", "skip", "run", "not checked: fix what failed above first"))
    number = {status: sum(c.status == status for c in found) for status in MARKS}
    if args.json:
        print_json({"version": __version__, "checks": [asdict(c) for c in found], "number": number, "config": config})
    else:
        print(_render(found, number, config))
    return int(number["fail"] > 0)


def _checks(with_ray: bool) -> Iterator[Check]:
    yield from _versions()
    yield from _guarded("methods", "packages", lambda: iter((_methods(),)))
    plugin = list(_plugin())
    yield from plugin
    if any(c.status == "fail" for c in plugin):
        yield Check("registries", "skip", "names", "not checked: fix what failed above first")
        return
    yield from _guarded("registries", "names", _registries)
    yield from _guarded("Ray", "worker", lambda: iter((_ray(with_ray),)))
    yield from _guarded("environment", "environment", _environment)


def _guarded(section: str, name: str, checks_of: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """The checks of a section; a breakage inside is a FAIL of its own, and the sections after it still run."""
    try:
        yield from checks_of()
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        yield Check(section, "fail", name, f"this check itself failed: {reason}{_whose(error)}")


def _whose(error: BaseException) -> str:
    """The module that broke, and the fix."""
    if isinstance(error, ImportError) and error.name:
        return f". Fix: pip install --force-reinstall {error.name.split('.')[0]}, or unset what imports it"
    frame, place = error.__traceback__, ""
    while frame is not None:
        place = frame.tb_frame.f_globals.get("__name__", "") or place
        frame = frame.tb_next
    modules = os.environ.get("VERL_USE_EXTERNAL_MODULES")
    fix = f"; without VERL_USE_EXTERNAL_MODULES={modules} it may pass" if modules else ""
    return f" ({type(error).__name__} in {place}){fix}. Fix: remove or rename what clashes there"


def _versions() -> Iterator[Check]:
    for v in matrix.versions():
        yield Check("versions", v.status, v.name, f"{v.installed}, {v.note}" if v.installed else v.note)


def _plugin() -> Iterator[Check]:
    reason = compat.unsupported_reason()
    yield Check("plugin", "fail" if reason else "ok", "verl version", reason or f"supported: {', '.join(compat.SUPPORTED)}")
    if compat.verl_version() is None:
        return
    missing = compat.missing_symbols()
    number = sum(map(len, compat.symbols().values()))
    note = (
        f"missing: {'; '.join(missing)}. Fix: pip install 'verl=={compat.SUPPORTED[-1]}'"
        if missing
        else f"verl has all {number} names that the plugin uses"
    )
    yield Check("plugin", "fail" if missing else "ok", "symbols of verl", note)
    hashes = fingerprint.installed()
    changed = fingerprint.changed(hashes)
    note = f"{len(hashes)} functions, fingerprint {fingerprint.total(hashes)}"
    if changed:
        note += f"; these differ from the tested source (a local patch or another build?): {', '.join(changed)}"
    yield Check("plugin", "warn" if changed else "ok", "source of verl", note)
    yield _host()
    points = [p.name for p in importlib.metadata.entry_points(group="verl.plugins")]
    if compat.before(0, 9):
        yield Check("plugin", "skip", "entry point", "this verl reads none")
        return
    there = "verl_entropy" in points  # without it verl does not load the plugin in any process
    fix = "" if there else ". Fix: pip install --force-reinstall --no-deps verl-entropy"
    yield Check("plugin", "ok" if there else "fail", "entry point", f"verl.plugins: {', '.join(points) or 'none'}{fix}")


def _host() -> Check:
    """Which of verl's trainers is served, what it takes, and how verl comes to load the plugin."""
    only_v1 = registry.names("rollout")
    if compat.has_v1():
        note = f"verl's V1 trainer; RayPPOTrainer with trainer.use_v1=False, without {', '.join(only_v1)}; verl loads the plugin by itself"
        return Check("plugin", "ok", "trainers", note)
    note = "RayPPOTrainer"
    if compat.before(0, 8):
        note += " with trainer.use_legacy_worker_impl=disable and actor_rollout_ref.model.use_remove_padding=True"
    note += f", every method but {', '.join(only_v1)}"
    if not compat.before(0, 9):
        return Check("plugin", "ok", "trainers", f"{note}; trainer.data_plane=classic; verl loads the plugin by itself")
    modules = os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")
    if "verl_entropy.plugin" in modules:
        return Check("plugin", "ok", "trainers", f"{note}; {compat.loading()} is set")
    note += f"; this verl loads no plugin by itself. Fix: set {compat.loading()} for the driver, which hands it on to Ray"
    return Check("plugin", "fail", "trainers", note)


def _methods() -> Check:
    """Where the methods come from; a package whose methods do not load is named with the fix."""
    try:
        origins = collections.Counter(method.origin for method in registry.methods())
    except ConfigError as error:
        return Check("methods", "fail", "packages", str(error))
    return Check("methods", "ok", "packages", ", ".join(f"{number} of {origin}" for origin, number in origins.items()))


def _registries() -> Iterator[Check]:
    from verl_entropy.hosts.install import seams

    found = seams.registries()
    yield Check("registries", "ok", "driver", f"{found['ours']} estimators and policy losses are verl-entropy's")
    for name, holder in found["clashes"].items():
        fix = "Remove or rename the other one (VERL_USE_EXTERNAL_MODULES, VERL_USE_EXTERNAL_PLUGINS)."
        yield Check("registries", "fail", name, f"this name is registered by {holder}, so verl-entropy's cannot be chosen. {fix}")


def _ray(wanted: bool) -> Check:
    if not wanted or importlib.util.find_spec("ray") is None:
        return Check("Ray", "skip", "worker", "not started (--no-ray)" if not wanted else "ray is not installed")
    from verl_entropy.hosts.install import seams

    found = seams.ray_worker()
    if "error" in found:
        return Check(
            "Ray",
            "fail",
            "worker",
            f"could not be checked: {found['error']}. On a busy machine run it again; else try `ray stop`, or --no-ray to leave this out.",
        )
    if not found["loaded_by_verl"]:
        note = f"verl did not load the plugin there. Fix: set {compat.loading()}, install verl-entropy on every node."
        return Check("Ray", "fail", "worker", note)
    lacking = [title for title, active in found["seams"].items() if not active]
    if lacking:
        return Check("Ray", "fail", "worker", f"not active there: {', '.join(lacking)}. Another plugin may have replaced them.")
    return Check(
        "Ray", "ok", "worker", f"plugin active: {len(found['seams'])} of {len(found['seams'])} seams, {found['seconds']} s"
    )


def _environment() -> Iterator[Check]:
    plugins = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "")
    if plugins.lower() == "none":
        yield Check("environment", "fail", "plugins", "VERL_USE_EXTERNAL_PLUGINS=none turns every plugin off. Unset it.")
    vendor = os.environ.get("VERL_ENGINE_VENDOR")
    if vendor and vendor not in engines.VENDORS:
        yield Check("environment", "fail", "engine", f"VERL_ENGINE_VENDOR={vendor} selects an engine that is not ours. Unset it.")
    modules = os.environ.get("VERL_USE_EXTERNAL_MODULES")
    if modules:
        yield Check(
            "environment",
            "ok",
            "modules",
            f"VERL_USE_EXTERNAL_MODULES={modules} (the names that they register were checked above)",
        )
    if os.environ.get("VERL_PLATFORM", "").lower() == "cpu":
        yield Check("environment", "warn", "platform", "VERL_PLATFORM=cpu: the development backend, not for training at scale")
    backends = [name for name, module in (("triton", "triton"), ("liger", "liger_kernel")) if importlib.util.find_spec(module)]
    note = f"backends here: {', '.join(['torch', *backends])}; torch and liger round entropy to bf16; the SEAL head works with none of them"
    yield Check("environment", "ok", "fused kernels", note)
    yield _card()


def _card() -> Check:
    import torch

    if not torch.cuda.is_available():
        return Check(
            "environment", "ok", "dtype", "no GPU on this machine: not checked whether it computes in bf16, verl's default"
        )
    name = torch.cuda.get_device_name()
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return Check("environment", "ok", "dtype", f"{name} computes in bf16")
    note = f"{name} has no bf16, verl's default. Set +actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp16."
    return Check("environment", "warn", "dtype", note)


def _configuration(words: list[str]) -> dict[str, Any]:
    """What a run with these words would use, its risks as checks."""
    from verl_entropy.config import compose
    from verl_entropy.hosts.verl_engine import resolved

    config = compose.compose(words)
    try:
        found = resolved.check(config)
    except ConfigError as error:
        return {"plan": None, "checks": [Check("configuration", "fail", "verl-entropy", " ".join(str(error).split()))]}
    lines = [Check("configuration", "warn", "risk", text) for text in found.warnings]
    lines.append(Check("configuration", "ok", "verl-entropy", "its checks pass"))
    verl = ("fail", f"would stop the run: {found.verl}") if found.verl else ("ok", "its checks pass")
    lines.append(Check("configuration", verl[0], "verl", verl[1]))
    return {"plan": found.as_dict()["plan"], "checks": lines}


def _render(found: list[Check], number: dict[str, int], config: dict[str, Any] | None) -> str:
    lines = [f"verl-entropy {__version__}"]
    section = None
    for c in found:
        if c.section != section:
            section = c.section
            lines += ["", section]
            if section == "configuration" and config and config["plan"]:
                lines += [planned.render_plan(config["plan"]), ""]
        lines.append(fill(c.note, f"  {MARKS[c.status]}  {c.name:<16}", " " * 24))
    lines += ["", f"{number['ok']} ok, {number['warn']} warnings, {number['fail']} failed, {number['skip']} skipped"]
    return "\n".join(lines)
