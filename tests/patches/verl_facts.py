# SPDX-License-Identifier: Apache-2.0
"""Runs in a process of its own, with a patched copy of verl on the path: compares it with the stock files given as argument.

    python verl_facts.py STOCK    (STOCK: the folder of the stock package verl)

Prints one JSON object. verl's own functions run; only the queue (which needs Ray) is a dictionary.
"""

import importlib.util
import inspect
import json
import sys
import types
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos, ray_trainer
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1 import utils as v1_utils
from verl.workers.config import ActorConfig, PolicyLossConfig
from verl.workers.utils import losses

from verl_entropy.hosts.install import patched

STOCK = Path(sys.argv[1])
ROWS, PROMPT = 8, 3
KEYS = [f"u{i // 4}_{i // 2 % 2}_{i % 2}" for i in range(ROWS)]
LENGTHS = torch.tensor([4, 2, 5, 3, 1, 5, 2, 4])
MASK = (torch.arange(5) < LENGTHS[:, None]).long()


def stock(name: str):
    """A stock module beside the patched one."""
    spec = importlib.util.spec_from_file_location("stock_" + name.replace("/", "_"), STOCK / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


stock_core = stock("trainer/ppo/core_algos")
stock_ray = stock("trainer/ppo/ray_trainer")
stock_ray.core_algos = stock_core
stock_v1 = stock("trainer/ppo/v1/utils")
stock_v1.compute_advantage = stock_ray.compute_advantage
stock_losses = stock("workers/utils/losses")
for name in ("agg_loss", "get_policy_loss_fn", "kl_penalty"):
    setattr(stock_losses, name, getattr(stock_core, name))


def rand(seed: int) -> torch.Tensor:
    return torch.rand((ROWS, 5), generator=torch.Generator().manual_seed(seed))


def batch(baselines: bool = False) -> DataProto:
    """What the advantage step hands to an estimator."""
    last = torch.nn.functional.one_hot(LENGTHS - 1, 5).float()
    tensors = {
        "response_mask": MASK,
        "token_level_rewards": last * rand(0)[:, :1],
        "old_log_probs": -rand(1) * MASK,
        "entropy": rand(2) * MASK,
        "values": rand(3) * MASK,
        "sum_pi_squared": rand(4) * MASK,
    }
    if baselines:
        tensors["reward_baselines"] = rand(5)[:, 0]
    data = DataProto(batch=TensorDict(tensors, batch_size=ROWS))
    data.non_tensor_batch["uid"] = np.array([k.split("_")[0] for k in KEYS], dtype=object)
    data.non_tensor_batch["row_ids"] = np.array(KEYS, dtype=object)
    return data


ALGORITHM = OmegaConf.create({"use_pf_ppo": False, "norm_adv_by_std_in_grpo": True, "gamma": 1.0, "f": 1.0})


def same(a: DataProto, b: DataProto) -> bool:
    return all(torch.equal(a.batch[k], b.batch[k]) for k in ("advantages", "returns"))


def estimators() -> dict:
    """Bit for bit the stock advantages, for every estimator in the tree that these columns feed."""
    found = {}
    for name in sorted(stock_core.ADV_ESTIMATOR_REGISTRY):
        if name == "gdpo":  # wants reward dimensions in non_tensor_batch
            continue
        old, new = (m.compute_advantage(batch(name == "remax"), name, config=ALGORITHM) for m in (stock_ray, ray_trainer))
        found[name] = same(old, new)
    arguments = {"batch_keys": KEYS, "adv_estimator": "grpo", "config": ALGORITHM}
    old, new = (m.compute_advantage_for_multi_trajectories(batch(), **arguments) for m in (stock_v1, v1_utils))
    found["grpo, sessions"] = same(old, new)
    return found


def estimator_arguments() -> dict:
    seen = {}

    def names(token_level_rewards, response_mask, index=None, config=None, entropy=None, old_log_probs=None, row_ids=None):
        seen["names"] = (entropy, old_log_probs, row_ids)
        return response_mask * 1.0, response_mask * 1.0

    def silent(token_level_rewards, response_mask, **kwargs):
        seen.setdefault("silent", []).append(sorted(kwargs))
        return response_mask * 1.0, response_mask * 1.0

    for core in (core_algos, stock_core):
        core.ADV_ESTIMATOR_REGISTRY["silent"] = silent
    core_algos.ADV_ESTIMATOR_REGISTRY["names"] = names
    data = batch()
    ray_trainer.compute_advantage(data, "names", config=ALGORITHM)
    entropy, old_log_probs, row_ids = seen["names"]
    data.batch.pop("entropy")
    ray_trainer.compute_advantage(data, "names", config=ALGORITHM)
    for module in (stock_ray, ray_trainer):
        module.compute_advantage(batch(), "silent", config=ALGORITHM)
    return {
        "entropy": torch.equal(entropy, batch().batch["entropy"]),
        "old_log_probs": torch.equal(old_log_probs, batch().batch["old_log_probs"]),
        "row_ids": list(row_ids) == KEYS,
        "default where verl has none": seen["names"][0] is None,
        "**kwargs as before": seen["silent"][0] == seen["silent"][1],
    }


def nested(padded: torch.Tensor) -> torch.Tensor:
    return torch.nested.as_nested_tensor([r[:n] for r, n in zip(padded, LENGTHS, strict=True)], layout=torch.jagged)


class Queue:
    """``transfer_queue`` for one partition, in a dictionary; absent fields are left out, as there."""

    def __init__(self, fields: dict):
        self.fields = fields

    def kv_batch_get(self, keys, partition_id, select_fields):
        return TensorDict({k: self.fields[k] for k in select_fields if k in self.fields}, batch_size=len(keys))

    def kv_batch_put(self, keys, partition_id, fields):
        self.fields.update(fields.items())
        return types.SimpleNamespace(keys=keys, partition_id=partition_id)


def advantage_step(with_entropy: bool, estimator: str) -> tuple[dict, Queue]:
    """The real PPOTrainer._compute_advantage."""
    data, seen = batch(), {}

    def watch(token_level_rewards, response_mask, index=None, config=None, entropy=None, row_ids=None):
        seen.update(entropy=entropy, row_ids=row_ids)
        return response_mask * 1.0, response_mask * 1.0

    core_algos.ADV_ESTIMATOR_REGISTRY["watch"] = watch
    fields = {k: nested(data.batch[k]) for k in ("response_mask", "old_log_probs", "entropy")}
    fields["rm_scores"] = nested(data.batch["token_level_rewards"])
    fields["uid"] = NonTensorStack(*data.non_tensor_batch["uid"])
    if not with_entropy:
        fields.pop("entropy")
    queue = trainer_base.tq = Queue(fields)
    algorithm = {"use_kl_in_reward": False, "adv_estimator": estimator, "gamma": 1.0, "lam": 1.0}
    config = OmegaConf.create({"algorithm": algorithm, "actor_rollout_ref": {"rollout": {"n": 2}}})
    step = trainer_base.PPOTrainer._compute_advantage
    meta = KVBatchMeta(keys=KEYS, tags=[{}] * ROWS, partition_id="train")
    step(types.SimpleNamespace(config=config), meta, {})
    return seen, queue


def trainer() -> dict:
    seen, _ = advantage_step(True, "watch")
    without, _ = advantage_step(False, "watch")
    _, queue = advantage_step(True, "grpo")
    grpo = stock_v1.compute_advantage_for_multi_trajectories(batch(), KEYS, "grpo", config=ALGORITHM).batch["advantages"]
    written = queue.fields["advantages"].to_padded_tensor(0.0)
    return {
        "entropy": torch.equal(seen["entropy"], batch().batch["entropy"]),
        "row_ids": list(seen["row_ids"]) == KEYS,
        "bypass mode goes on without": without["entropy"] is None,
        "grpo written to the queue": torch.equal(written, grpo),
    }


def run_loss(module, mode: str, entropy: bool):
    """verl's ppo_loss on packed outputs; value and gradient."""
    values = torch.randn(int((LENGTHS + PROMPT).sum()), 2, generator=torch.Generator().manual_seed(7)).requires_grad_()
    offsets = torch.nn.functional.pad((LENGTHS + PROMPT).cumsum(0), (1, 0))
    output = {"log_probs": torch.nested.nested_tensor_from_jagged(-values[:, 0].abs(), offsets)}
    if entropy:
        output["entropy"] = torch.nested.nested_tensor_from_jagged(values[:, 1].abs(), offsets)
    fields = {k: nested(batch().batch[k]) for k in ("response_mask", "old_log_probs")}
    fields["advantages"] = nested(rand(9) - 0.5)
    fields["responses"] = nested(MASK)
    fields["prompts"] = torch.nested.as_nested_tensor([torch.ones(PROMPT)] * ROWS, layout=torch.jagged)
    data = TensorDict(fields, batch_size=ROWS)
    for key, value in {"dp_size": 1, "batch_num_tokens": int(MASK.sum()), "global_batch_size": ROWS}.items():
        data.set_non_tensor(key, value)
    policy_loss = PolicyLossConfig(loss_mode=mode)
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=8, policy_loss=policy_loss, entropy_coeff=0.01
    )
    torch.manual_seed(0)
    loss, metrics = module.ppo_loss(config, output, data)
    loss.backward()
    return loss.detach(), values.grad, sorted(metrics)


def policy_losses() -> dict:
    """Every loss in the tree that these arguments feed: value, gradient and metrics as before."""
    found = {}
    for mode in ("vanilla", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "cispo", "dppo_tv", "dppo_kl"):
        for entropy in (False, True):
            old, new = (run_loss(m, mode, entropy) for m in (stock_losses, losses))
            found[f"{mode}, entropy {entropy}"] = torch.equal(old[0], new[0]) and torch.equal(old[1], new[1]) and old[2] == new[2]
    return found


def loss_arguments() -> dict:
    seen = []

    def names(old_log_prob, log_prob, advantages, response_mask, entropy=None, **kwargs):
        seen.append(entropy)
        terms = log_prob if entropy is None else log_prob + entropy
        return (terms * response_mask).sum(), {}

    core_algos.POLICY_LOSS_REGISTRY["names"] = names
    _, with_grad, _ = run_loss(losses, "names", True)
    run_loss(losses, "names", False)
    return {
        "shape": list(seen[0].shape) == list(MASK.shape),
        "gradient flows": bool(seen[0].requires_grad and with_grad[:, 1].abs().sum() > 0.5),
        "default where none is computed": seen[1] is None,
        "no loss in the tree names it": not any(
            "entropy" in inspect.signature(f).parameters for f in stock_core.POLICY_LOSS_REGISTRY.values()
        ),
    }


def plain_path() -> dict:
    """Our estimators through verl's own compute_advantage, with nothing of verl wrapped."""
    patched.register(core_algos)
    config = OmegaConf.create({"adv_estimator": "loop", "entropy": {"transforms": ["aem"]}})
    shaped = ray_trainer.compute_advantage(batch(), "loop", config=config).batch["advantages"]
    data = batch()
    arguments = {k: data.batch[k] for k in ("token_level_rewards", "response_mask")}
    wanted = patched.advantages("loop", *arguments.values(), data.non_tensor_batch["uid"], KEYS)[0]
    plain = ray_trainer.compute_advantage(batch(), "loop", config=ALGORITHM).batch["advantages"]
    return {
        "seen whole": "verl-0.9.1: applied" in patched.describe(),
        "estimator": torch.equal(plain, wanted) and bool(wanted.any()),
        "transform": not torch.equal(shaped, plain),
        "queue to queue": torch.equal(advantage_step(True, "loop")[1].fields["advantages"].to_padded_tensor(0.0), wanted),
    }


FACTS = (plain_path, estimators, estimator_arguments, trainer, policy_losses, loss_arguments)

if __name__ == "__main__":
    result = {f.__name__: f() for f in FACTS}
    result["file"] = core_algos.__file__
    print(json.dumps(result))
