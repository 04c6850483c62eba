# SPDX-License-Identifier: Apache-2.0
"""What the attributes of verl's modules are, as text: walk.py OUT writes it for this process, with what waits for an import."""

import importlib
import json
import sys
import types

IMPORTS = (
    "verl",
    "verl.trainer.main_ppo",
    "verl.trainer.ppo.v1",
    "verl.trainer.ppo.v1.trainer_base",
    "verl.workers.engine_workers",
    "verl.workers.engine.fsdp.transformer_impl",
    "verl.experimental.agent_loop.agent_loop",
    "verl.utils.model",
    "transfer_queue.client",
    "hydra.main",
)
ROOTS = ("verl", "transfer_queue", "transformers.modeling_utils", "transformers.masking_utils", "hydra")


def _text(value, depth: int) -> object:
    if isinstance(value, types.FunctionType):
        return f"function {value.__qualname__} of {value.__code__.co_filename}:{value.__code__.co_firstlineno}"
    if isinstance(value, staticmethod | classmethod):
        return [type(value).__name__, _text(value.__func__, depth)]
    if isinstance(value, property):
        return [_text(part, depth) for part in (value.fget, value.fset, value.fdel)]
    if isinstance(value, type):
        return f"class {value.__module__}.{value.__qualname__}"
    if isinstance(value, dict) and depth < 4:
        return {f"{type(k).__name__} {getattr(k, '__qualname__', k)}": _text(v, depth + 1) for k, v in list(value.items())}
    if isinstance(value, str | int | float | bool | bytes | None):
        return repr(value)
    return type(value).__qualname__


def attributes() -> dict[str, object]:
    """Of every loaded module of verl and what verl's trainer stands on, and of the classes that they define."""
    for name in IMPORTS:
        importlib.import_module(name)
    found = {}
    for name, module in sorted(sys.modules.items()):
        if not isinstance(module, types.ModuleType) or (name.partition(".")[0] not in ROOTS and name not in ROOTS):
            continue
        for key, value in sorted(vars(module).items()):
            if key in ("__builtins__", "__warningregistry__", "__cached__"):
                continue
            found[f"{name}.{key}"] = _text(value, 0)
            if isinstance(value, type) and value.__module__ == name:
                members = {k: v for k, v in vars(value).items() if not k.startswith("__pydantic")}  # pydantic's hold addresses
                found.update({f"{name}.{key}.{k}": _text(v, 0) for k, v in members.items()})
    return found


def here() -> dict[str, object]:
    """Attributes, finders and the modules of this package of a process."""
    import verl  # noqa: F401

    at_import = sorted(name for name in sys.modules if name.partition(".")[0] == "verl_entropy")
    found = attributes()
    finders = sorted(f"{type(f).__module__}.{type(f).__qualname__}" for f in sys.meta_path)
    late = sorted(name for name in sys.modules if name.partition(".")[0] == "verl_entropy")
    return {"attributes": found, "finders": finders, "at_import": at_import, "late": late}


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(here(), file)
