# SPDX-License-Identifier: Apache-2.0
"""The functions of verl-agent that this package subclasses or relies on, and whether they are the known ones.

Nothing is imported. ``python -m verl_entropy.hosts.verl_agent.fingerprints [FOLDER]`` prints those of a checkout.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from verl_entropy.hosts.install.fingerprint import functions

COMMIT = "796ed31"
VERSION = "0.3.1.dev"
TABLE = Path(__file__).with_name("fingerprints.json")
"""``{"module.py": {"Class.function": [accepted fingerprints]}}``: that of the commit, and with ``patches/`` applied where it differs."""

WATCHED: dict[str, tuple[str, ...]] = {
    "verl/trainer/main_ppo.py": ("main", "run_ppo", "TaskRunner.run"),
    "verl/trainer/ppo/ray_trainer.py": (
        "apply_invalid_action_penalty",
        "compute_advantage",
        "RayPPOTrainer.__init__",
        "RayPPOTrainer.init_workers",
        "RayPPOTrainer._balance_batch",
        "RayPPOTrainer._save_checkpoint",
        "RayPPOTrainer._load_checkpoint",
        "RayPPOTrainer.fit",
    ),
    "verl/workers/actor/dp_actor.py": (
        "DataParallelPPOActor.__init__",
        "DataParallelPPOActor._forward_micro_batch",
        "DataParallelPPOActor._optimizer_step",
        "DataParallelPPOActor.compute_log_prob",
        "DataParallelPPOActor.update_policy",
    ),
    "verl/workers/fsdp_workers.py": (
        "ActorRolloutRefWorker.__init__",
        "ActorRolloutRefWorker.init_model",
        "ActorRolloutRefWorker.update_actor",
        "ActorRolloutRefWorker.compute_log_prob",
        "ActorRolloutRefWorker.save_checkpoint",
        "ActorRolloutRefWorker.load_checkpoint",
    ),
    "verl/utils/seqlen_balancing.py": ("rearrange_micro_batches",),
    "verl/protocol.py": ("DataProto.select", "DataProto.union", "DataProto.reorder", "DataProto.select_idxs"),
    "agent_system/multi_turn_rollout/rollout_loop.py": (
        "TrajectoryCollector.gather_rollout_data",
        "TrajectoryCollector.multi_turn_loop",
    ),
    "agent_system/multi_turn_rollout/utils.py": ("adjust_batch",),
}


class NotVerlAgent(RuntimeError):
    """The ``verl`` on the import path is not verl-agent, or not one that is known; the message says what to do."""


def home() -> Path:
    """Folder that holds the packages ``verl`` and ``agent_system`` of the import path."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise NotVerlAgent(
            "verl-agent is not on the import path. Run from its checkout, or set PYTHONPATH to it, or install it "
            "(pip install -e . in the checkout)."
        )
    folder = Path(next(iter(spec.submodule_search_locations))).parent
    if not (folder / "agent_system").is_dir():
        raise NotVerlAgent(
            f"{folder / 'verl'} is not verl-agent (there is no agent_system beside it). For verl itself run "
            "`python -m verl.trainer.main_ppo`: the plugin is loaded there by itself. For verl-agent put its checkout first on "
            "PYTHONPATH."
        )
    return folder


def measure(folder: Path) -> dict[str, dict[str, str | None]]:
    """Fingerprints of everything in ``WATCHED``; None for a function that is not there."""
    out: dict[str, dict[str, str | None]] = {}
    for file, names in WATCHED.items():
        path = folder / file
        found = functions(path.read_text(encoding="utf-8")) if path.is_file() else {}
        out[file] = {name: found.get(name) for name in names}
    return out


@cache
def accepted() -> dict[str, dict[str, list[str]]]:
    """The table of known fingerprints."""
    return json.loads(TABLE.read_text(encoding="utf-8"))


def changed(folder: Path, allow: Iterable[str] = ()) -> list[str]:
    """Watched functions that are not the known ones, as ``file: name``; those named in ``allow`` are left out."""
    allowed, table = set(allow), accepted()
    return [
        f"{file}: {name}" + (" (missing)" if digest is None else "")
        for file, names in measure(folder).items()
        for name, digest in names.items()
        if digest not in table[file][name] and name not in allowed and name.rsplit(".", 1)[-1] not in allowed
    ]


def check(allow: Iterable[str] = ()) -> Path:
    """Folder of a known verl-agent, or NotVerlAgent with the functions that differ and the ways out."""
    folder = home()
    different = changed(folder, allow)
    if different:
        listed = "\n  ".join(different)
        raise NotVerlAgent(
            f"{folder} is not verl-agent {COMMIT}: these functions, around which verl-entropy works, are different:\n  {listed}\n"
            f"Use commit {COMMIT} (verl {VERSION}), or move your change elsewhere. If you have read both sides and the change does "
            "not touch the entropy, the rows or the losses, name the functions: --allow-changed=fit,update_policy."
        )
    return folder


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else home()
    print(json.dumps({f: {n: [d] for n, d in names.items()} for f, names in measure(folder).items()}, indent=1))


if __name__ == "__main__":
    main()
