# SPDX-License-Identifier: Apache-2.0
"""verl's configuration tree with overrides, presets and recipes, as ``main_ppo`` composes it; imports neither verl nor torch.

A word is one of

    key=value, +key=value, ~key     an override of Hydra
    gigpo  or  gigpo,aem            presets, short for +entropy=[gigpo,aem]
    file.yaml                       a recipe

A recipe is an option of a Hydra group (``# @package _global_``; ``main_ppo --config-dir recipes +aem/alfworld=grpo``), a Hydra
configuration with a defaults list, as ``main_ppo --config-path --config-name`` takes it, or a plain mapping
of keys over verl's defaults, in which ``entropy: [gigpo, aem]`` at the top names presets.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib.util
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_entropy.config import presets, reading
from verl_entropy.config.settings import ConfigError
from verl_entropy.config.spelling import did_you_mean

CONFIG = "ppo_trainer"
_KEY = re.compile(r"[A-Za-z_][\w.@/-]*")
_PRESETS = re.compile(r"[a-z][a-z0-9_]*(,[a-z][a-z0-9_]*)*")


@dataclass
class Words:
    """Overrides in their order, and at most one recipe."""

    overrides: list[str] = field(default_factory=list)
    recipe: str | None = None


def sort(words: Sequence[str], recipe: str | None = None) -> Words:
    """Tell overrides, presets and a recipe apart."""
    found = Words(recipe=recipe)
    for word in words:
        check_group(word)
        if word.endswith((".yaml", ".yml")) and "=" not in word:
            if found.recipe is not None:
                raise ConfigError(f"{word}: one recipe at a time, and {found.recipe} is one already. Leave one out.")
            found.recipe = word
        elif "=" in word or word.startswith("~"):
            found.overrides.append(word)
        elif _PRESETS.fullmatch(word):
            _check_presets(word.split(","))
            found.overrides.append(f"+entropy=[{word}]")
        else:
            raise ConfigError(f"{word!r}: neither an override (key=value), a preset nor a recipe (file.yaml).")
    return found


def _check_presets(names: Sequence[str]) -> None:
    known = presets.preset_names()
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{name!r}: no such preset.{did_you_mean(name, known)} Known: {', '.join(known)}. An override has the form key=value."
            )


_GROUP = re.compile(r"\+{0,2}entropy=\[?([\w, ]+)\]?")


def check_group(word: str) -> None:
    """``+entropy=[gigpoo]``: Hydra says which folders it searched, not which name was meant."""
    found = _GROUP.fullmatch(word)
    known = presets.preset_names()
    for name in filter(None, map(str.strip, found.group(1).split(","))) if found else ():
        if name not in known and name != "null":
            raise ConfigError(f"{word}: no preset entropy/{name}.{did_you_mean(name, known)} Known: {', '.join(known)}.")


def _grammar(overrides: Sequence[str]) -> str | None:
    """The override that Hydra's grammar cannot read, with the fix; None if all can be read."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    for word in overrides:
        try:
            parser.parse_override(word)
        except HydraException as error:
            key, _, value = word.partition("=")
            reason = " ".join(str(error).split()).split(" See https")[0]
            if value and value[0] not in "[{'\"":
                escaped = value.replace("'", "\\'")
                return f"{word}: Hydra cannot read the value ({reason}). Quote it: \"{key}='{escaped}'\"."
            return f"{word}: Hydra cannot read it ({reason}). Check brackets, quotes and commas."
    return None


def verl_folder() -> Path:
    """verl's folder of configurations."""
    root = importlib.util.find_spec("verl")
    if root is None or not root.submodule_search_locations:
        raise ConfigError("verl is not installed, so its configuration cannot be composed. Fix: pip install 'verl==0.9.1'.")
    return Path(next(iter(root.submodule_search_locations))) / "trainer" / "config"


def _read_recipe(path: str) -> dict[str, Any]:
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"{path}: no such file. Give the path of a recipe's YAML.")
    try:
        found: Any = OmegaConf.to_container(OmegaConf.load(file))
    except (yaml.YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path}: not YAML ({_short(error)}). Mend the file.") from None
    if not isinstance(found, dict) or not found or not all(_KEY.fullmatch(str(key)) for key in found):
        raise ConfigError(f"{path}: holds no keys. A recipe is a mapping of verl's keys.")
    if not isinstance(found.get("hydra") or {}, dict):
        raise ConfigError(f"{path}: hydra={found['hydra']!r}: expected a group of settings. Remove that key.")
    return found


@contextlib.contextmanager
def _primary(recipe: str | None, name: str) -> Iterator[tuple[Path, str, list[str], list[str]]]:
    """Folder and name of the primary configuration, the search path that it needs, and overrides that come first."""
    if recipe is None:
        yield verl_folder(), name, [], []
        return
    content = _read_recipe(recipe)
    hydra = content.get("hydra")
    extra = [*((hydra or {}).get("searchpath") or []), _source(verl_folder())]
    file = Path(recipe).resolve()
    if file.read_text(encoding="utf-8").lstrip().startswith("# @package _global_"):
        root = _root(file, content.get("defaults") or [])
        yield verl_folder(), CONFIG, [_source(root)], [f"+{file.parent.relative_to(root).as_posix()}={file.stem}"]
        return
    if "defaults" in content:
        yield file.parent, file.stem, extra, []
        return
    with tempfile.TemporaryDirectory() as folder:
        names = content.pop("entropy", [])
        names = [names] if isinstance(names, str) else names
        _check_presets(names)
        _write_plain(Path(folder) / "recipe.yaml", content, names)
        yield Path(folder), "recipe", extra, []


def _source(folder: Path) -> str:
    """An entry of Hydra's search path, which knows no percent signs (so no ``as_uri``)."""
    return f"file://{folder.resolve()}"


def _root(file: Path, defaults: Sequence[Any]) -> Path:
    """The folder given as --config-dir: the nearest from which an absolute entry of the defaults lists is found.

    Not every entry: presets and verl's own groups are found elsewhere.
    """
    names = _absolute(file, defaults)
    for folder in list(file.parents)[1:]:
        if any((folder / f"{name.lstrip('/')}.yaml").is_file() for name in names):
            return folder
    return file.parent.parent


def _absolute(file: Path, defaults: Sequence[Any]) -> list[str]:
    """Entries that start at the root, those of the siblings that the file extends included."""
    found: list[str] = []
    for entry in defaults:
        parts = [entry] if isinstance(entry, str) else map(str, next(iter(entry.items())))
        name = "/".join(part.removeprefix("override ").split("@")[0] for part in parts)
        sibling = file.parent / f"{name}.yaml"
        if name.startswith("/"):
            found.append(name)
        elif sibling.is_file() and sibling != file:
            found += _absolute(sibling, _read_recipe(str(sibling)).get("defaults") or [])
    return found


def _write_plain(file: Path, content: dict[str, Any], names: Sequence[str]) -> None:
    from omegaconf import OmegaConf

    defaults: list[Any] = [CONFIG, *([{"entropy": list(names)}] if names else []), "_self_"]
    file.write_text(OmegaConf.to_yaml(OmegaConf.create({"defaults": defaults, **content})), encoding="utf-8")


def compose(words: Sequence[str], recipe: str | None = None, *, folders: Sequence[Path] = (), name: str = CONFIG) -> Any:
    """The composed configuration (a DictConfig); ConfigError with the fix for whatever Hydra or OmegaConf refuses.

    ``folders`` are searched for groups as those of --config-dir are; ``name`` is verl's primary configuration.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    chosen = sort(words, recipe)
    presets.ensure_search_path()
    with _primary(chosen.recipe, name) as (folder, primary, extra, first):
        extra = [*extra, *map(_source, folders)]
        paths = ",".join("'" + path.replace("'", "\\'") + "'" for path in extra)
        search = [f"hydra.searchpath=[{paths}]"] if extra else []
        try:
            with reading.reading(), initialize_config_dir(str(folder), version_base=None):
                config = hydra_compose(primary, overrides=[*first, *chosen.overrides, *search])
                OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(_grammar(chosen.overrides) or f"{_short(error)}{_hint(str(error))}") from None
    # Interpolations stay as they are: a wrong value is named at the key that was set, not at its copies.
    if name == CONFIG:  # the SFT trainer takes words where its defaults are numbers (save_freq=after_each_epoch)
        values: Any = OmegaConf.to_container(config)
        _check_types(values, _defaults(values.get("model_engine", "dp")), "")
    return config


_ARR = "actor_rollout_ref"
REQUIRED = (
    *("algorithm", "data", "trainer", "critic", _ARR),
    *(f"{_ARR}.{part}" for part in ("actor", "rollout", "model", "actor.policy_loss", "actor.fsdp_config")),
)
"""Groups that nothing works without."""


def _check_types(values: dict[str, Any], usual: dict[str, Any], prefix: str) -> None:
    """verl's YAML has no types, so a word where a number belongs would fail late: compare with the defaults."""
    for key, default in usual.items():
        path, value = f"{prefix}{key}", values.get(key)
        if isinstance(default, dict):
            if value is None and path in REQUIRED:
                raise ConfigError(f"{path}=null: verl needs this group of settings. Leave that override out.")
            if value is not None and not isinstance(value, dict) and "${" not in str(value):
                raise ConfigError(f"{path}={value!r}: expected a group of settings. Set {path}.<key>=<value>.")
            if isinstance(value, dict):
                _check_types(value, default, f"{path}.")
        elif isinstance(default, bool):
            if isinstance(value, list | dict) or _is_word(value):
                raise ConfigError(f"{path}={value!r}: expected true or false (verl's default: {str(default).lower()}).")
        elif isinstance(default, int | float) and (isinstance(value, bool | list | dict) or _is_word(value)):
            raise ConfigError(f"{path}={value!r}: expected a number (verl's default: {default}).")


def _is_word(value: Any) -> bool:
    """A string that is not a number in YAML 1.2 (Hydra leaves 1e-6 as a string where there is no dot)."""
    if not isinstance(value, str) or value == "???" or "${" in value:
        return False
    try:
        float(value)
    except ValueError:
        return True
    return False


def _short(error: BaseException) -> str:
    """The first lines of an error, in one; Hydra appends its search path and the configuration to it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept: list[str] = []
    for line in lines:
        if line.startswith(("full_key:", "object_type=", "Config search path", "provider=", "Set the environment")):
            break
        kept.append(line)
    where = [line.removeprefix("full_key:").strip() for line in lines if line.startswith("full_key:")]
    return " ".join([*(f"{key}:" for key in where if key), *(kept or lines[:1])])


def _hint(message: str) -> str:
    """What to do about the commonest mistake: a key that is not there."""
    found = re.search(r"Could not override '([^']+)'", message)
    if found is None:
        return ""
    close = difflib.get_close_matches(found.group(1), _keys(), n=1, cutoff=0.75)
    return f" Did you mean {close[0]}?" if close else " Check the spelling; a new key takes a + in front."


@functools.cache
def _defaults(engine: str = "dp") -> dict[str, Any]:
    """verl's configuration without overrides, for this ``model_engine``; interpolations are strings."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(verl_folder()), version_base=None):
        usual: Any = OmegaConf.to_container(hydra_compose(CONFIG, overrides=[f"model_engine={engine}"]))
    return usual


def _keys(node: dict[str, Any] | None = None, prefix: str = "") -> list[str]:
    """Every dotted key of verl's configuration."""
    keys = []
    for key, value in (_defaults() if node is None else node).items():
        keys.append(prefix + str(key))
        if isinstance(value, dict):
            keys += _keys(value, f"{prefix}{key}.")
    return keys
