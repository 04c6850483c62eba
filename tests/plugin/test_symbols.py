# SPDX-License-Identifier: Apache-2.0
"""Whatever hosts/ and upstream/ use of verl is in the list that is checked before a run."""

import ast
import importlib
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")
sys.path.insert(0, str(Path(__file__).parent))

import symbols

from verl_entropy.hosts.install import compat


def _listed(module: str, name: str) -> bool:
    if name in compat.SYMBOLS.get(module, {}):
        return True
    owner, _, member = name.partition(".")
    if "vllm_rollout" in module:  # imports vLLM
        return False
    found = vars(importlib.import_module(module)).get(owner)
    if isinstance(found, type) and member:  # a base class may define it
        return any(f"{c.__name__}.{member}" in compat.SYMBOLS.get(c.__module__, {}) for c in found.__mro__)
    home = getattr(found, "__module__", None)  # imported from the package that exports it
    return name in compat.SYMBOLS.get(home, {})


def test_every_symbol_that_is_used_is_listed():
    used = symbols.uses()
    missing = sorted({(module, name) for module, name, _ in used if not _listed(module, name)})
    assert not missing, [(m, n, next(w for x, y, w in used if (x, y) == (m, n))) for m, n in missing]
    assert compat.missing_symbols() == []


def test_the_scan_sees_every_way_of_using_something():
    used = {f"{module}.{name}" for module, name, _ in symbols.uses()}
    assert {
        "verl.workers.utils.padding.response_from_nested",  # imported in a function
        "verl.utils.tensordict_utils.assign_non_tensor",  # of a module under another name
        "transfer_queue.kv_batch_put",
        "verl.utils.seqlen_balancing.get_seqlen_balanced_partitions",  # of the module that a piece gets
        "verl.trainer.ppo.v1.trainer_base.PPOTrainer._build_replay_buffer",  # of a class in it
        "verl.trainer.ppo.v1.trainer_base.PPOTrainer._compute_metrics",  # of a class handed to a function
        "verl.trainer.ppo.v1.trainer_base.PPOTrainer.global_steps",  # of self in a method put into a class
        "verl.trainer.ppo.v1.replay_buffer.ReplayBuffer._sync_metadata_from_transfer_queue",  # of an object
        "verl.workers.engine.fsdp.transformer_impl.FSDPEngineWithLMHead.prepare_model_inputs",  # of super()
        "verl.workers.engine.fsdp.transformer_impl.FSDPEngineWithLMHead.use_ulysses_sp",  # of self in a subclass
        "verl.workers.rollout.vllm_rollout.vllm_rollout.ServerAdapter.zmq_handle",
    } <= used
    assert not {name for name in used if name.endswith(("FSDPEngineWithLMHead._collector", "vLLMHttpServer.zmq_handle"))}


def test_attributes_that_a_method_sets_are_names_too():
    names = compat._names(ast.parse("class A:\n    x: int\n    def f(self, a):\n        self.y, other.z = a, 1\n"))
    assert set(names) == {"A", "A.x", "A.f", "A.y"} and names["A.f"] == {"self", "a"}


@pytest.mark.parametrize("version", compat.SUPPORTED)
def test_a_symbol_is_missed_in_a_known_version_too_for_people_edit_their_checkout(monkeypatch, version):
    monkeypatch.setattr(compat, "verl_version", lambda: version)
    assert compat.unsupported_reason() is None
    monkeypatch.setitem(compat.SYMBOLS, "verl.utils.config", {"validate_everything": None})
    assert "lacks verl.utils.config.validate_everything" in compat.unsupported_reason()
    assert compat.unsupported_reason(read=False) is None  # a worker: the driver has read it
