# SPDX-License-Identifier: Apache-2.0
"""Runs in a process of its own, with a patched copy of verl-agent on the path: compares it with the stock checkout given.

    python agent_facts.py VERL_AGENT_HOME

Prints one JSON object. verl-agent's own functions run on the CPU, its actor with a tiny model and without FSDP.
"""

import copy
import importlib.util
import json
import sys
import types
from pathlib import Path

import numpy as np
import torch

if importlib.util.find_spec("openai") is None:  # comes with vLLM there; only its async server, which is not used here, has it
    chat = types.ModuleType("openai.types.chat.chat_completion")
    chat.ChatCompletion = sys.modules.setdefault("openai", types.ModuleType("openai")).AsyncOpenAI = type("Absent", (), {})
    sys.modules.update({"openai.types": chat, "openai.types.chat": chat, "openai.types.chat.chat_completion": chat})

from agent_system.multi_turn_rollout import TrajectoryCollector, adjust_batch
from omegaconf import OmegaConf
from tensordict import TensorDict
from transformers import Qwen2Config, Qwen2ForCausalLM
from verl import DataProto
from verl.trainer.ppo import core_algos, ray_trainer
from verl.workers.actor import dp_actor

from verl_entropy.hosts.install import patched

# verl-agent logs the device's memory around each pass; the CPU has no such counters.
torch.cpu.memory_allocated = torch.cpu.memory_reserved = lambda: 0
torch.cpu.mem_get_info = lambda: (0, 0)

STOCK = Path(sys.argv[1])
ROWS, PROMPT, RESPONSE = 8, 4, 6
LENGTHS = torch.tensor([6, 2, 5, 3, 1, 4, 2, 6])


def stock(name: str):
    """A stock module beside the patched one."""
    spec = importlib.util.spec_from_file_location("stock_" + name.replace("/", "_"), STOCK / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


stock_actor, stock_ray = stock("verl/workers/actor/dp_actor"), stock("verl/trainer/ppo/ray_trainer")


def rand(seed: int) -> torch.Tensor:
    return torch.rand((ROWS, RESPONSE), generator=torch.Generator().manual_seed(seed))


# ----------------------------------------------------------------------------- the actor


def model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": False}
    net = Qwen2ForCausalLM(Qwen2Config(**sizes, **heads)).float()
    net.lm_head.weight.data *= 50.0  # entropies that differ between rows
    return net


def actor(module, loss_mode: str = "vanilla", entropy_coeff: float = 0.0):
    net = model()
    settings = {
        "ppo_mini_batch_size": 8,
        "ppo_micro_batch_size_per_gpu": 4,
        "ppo_epochs": 1,
        "use_dynamic_bsz": False,
        "clip_ratio": 0.2,
        "clip_ratio_low": None,
        "clip_ratio_high": 0.28,
        "entropy_coeff": entropy_coeff,
        "loss_agg_mode": "token-mean",
        "policy_loss": {"loss_mode": loss_mode},
        "use_kl_loss": False,
        "grad_clip": 1.0,
        "ulysses_sequence_parallel_size": 1,
        "use_torch_compile": False,
    }
    return module.DataParallelPPOActor(OmegaConf.create(settings), net, torch.optim.SGD(net.parameters(), lr=0.1))


def rows() -> DataProto:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 32, (ROWS, PROMPT + RESPONSE), generator=generator)
    mask = torch.cat([torch.ones(ROWS, PROMPT), (torch.arange(RESPONSE) < LENGTHS[:, None]).float()], 1).long()
    tensors = {
        "input_ids": ids,
        "responses": ids[:, PROMPT:],
        "attention_mask": mask,
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
        "old_log_probs": -3 * rand(2),
        "advantages": rand(3) - 0.5,
        "entropy": rand(4),
    }
    meta = {"temperature": 1.0, "micro_batch_size": 8, "max_token_len": 16, "use_dynamic_bsz": False}
    return DataProto(batch=TensorDict(tensors, batch_size=ROWS), meta_info=meta)


def entropy_order() -> dict:
    """Entropies under use_dynamic_bsz against those of the rows in order; they are in bf16 on the CPU."""

    def run(module, dynamic: bool):
        data = rows()
        data.meta_info["use_dynamic_bsz"] = dynamic
        return module.DataParallelPPOActor.compute_log_prob(actor(module), data, calculate_entropy=True)

    wanted, (log_probs, entropys), (_, wrong) = run(dp_actor, False), run(dp_actor, True), run(stock_actor, True)
    data = rows()
    data.meta_info["use_dynamic_bsz"] = True
    without = actor(dp_actor).compute_log_prob(data, calculate_entropy=False)
    near = {"atol": 0.05, "rtol": 0.05}
    return {
        "log_probs in order": torch.allclose(log_probs.float(), wanted[0].float(), **near),
        "entropy in order": torch.allclose(entropys.float(), wanted[1].float(), **near),
        "stock is not": not torch.allclose(wrong.float(), wanted[1].float(), **near),
        "none when not asked": without[1] is None,
    }


def update(module, *args):
    a = actor(module, *args)
    metrics = a.update_policy(rows())
    return torch.cat([p.detach().flatten() for p in a.actor_module.parameters()]), metrics


def built_in_losses() -> dict:
    """Parameters after an update, and metrics, bit for bit."""
    found = {}
    for mode in ("vanilla", "gspo"):
        for coefficient in (0.0, 0.01):
            (old, old_metrics), (new, new_metrics) = (update(m, mode, coefficient) for m in (stock_actor, dp_actor))
            found[f"{mode}, entropy_coeff {coefficient}"] = torch.equal(old, new) and old_metrics == new_metrics
    return found


def registered_loss() -> dict:
    seen = {}

    @core_algos.register_policy_loss("probe", batch_keys=("entropy",))
    def probe(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, entropy, micro_batch, cliprange_high):
        seen.update(entropy=entropy, old=micro_batch["entropy"], high=cliprange_high, config=config)
        loss = core_algos.agg_loss(log_prob - entropy, response_mask, loss_agg_mode)
        return loss, {"actor/ppo_kl": torch.tensor(0.5), "probe/mean": entropy.mean()}

    def vanilla(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, cliprange, **kwargs):
        clip = {"cliprange_high": kwargs["config"].clip_ratio_high, "cliprange_low": cliprange}
        loss, frac, kl, lower = core_algos.compute_policy_loss(
            old_log_prob, log_prob, advantages, response_mask, cliprange, loss_agg_mode=loss_agg_mode, **clip
        )
        return loss, {"actor/pg_clipfrac": frac, "actor/ppo_kl": kl, "actor/pg_clipfrac_lower": lower}

    core_algos.register_policy_loss("copy_of_vanilla")(vanilla)
    _, metrics = update(dp_actor, "probe")
    (copied, copied_metrics), (wanted, wanted_metrics) = update(dp_actor, "copy_of_vanilla"), update(dp_actor)
    try:
        update(dp_actor, "nobody")
    except ValueError as error:
        unknown = str(error)
    return {
        "entropy with gradient": bool(seen["entropy"].requires_grad) and list(seen["entropy"].shape) == [4, RESPONSE],
        "columns asked for": torch.equal(seen["old"], rows().batch["entropy"][4:]),
        "clip range and config": seen["high"] == 0.28 and seen["config"].clip_ratio == 0.2,
        "metrics": metrics["actor/ppo_kl"] == [0.5, 0.5] and len(metrics["probe/mean"]) == 2,
        "same update as the built-in": torch.equal(copied, wanted) and copied_metrics == wanted_metrics,
        "unknown name": "nobody" in unknown,
    }


# ----------------------------------------------------------------------------- the trainer


def advantage_batch() -> DataProto:
    mask = (torch.arange(RESPONSE) < LENGTHS[:, None]).float()
    last = torch.nn.functional.one_hot(LENGTHS - 1, RESPONSE).float()
    tensors = {
        "response_mask": mask,
        "token_level_rewards": last * rand(5)[:, :1],
        "step_rewards": rand(6)[:, 0],
        "values": rand(7) * mask,
        "reward_baselines": rand(8)[:, 0],
        "entropy": rand(9) * mask,
        "old_log_probs": -rand(10) * mask,
    }
    data = DataProto(batch=TensorDict(tensors, batch_size=ROWS))
    ids = {"uid": lambda i: f"u{i // 4}", "traj_uid": lambda i: f"t{i // 2}", "anchor_obs": lambda i: f"o{i % 2}"}
    ids["row_ids"] = lambda i: f"u{i // 4}_t{i // 2}_{i % 2}"
    for name, make in ids.items():
        data.non_tensor_batch[name] = np.array([make(i) for i in range(ROWS)], dtype=object)
    return data


def built_in_estimators() -> dict:
    found = {}
    for name in [e.value for e in stock_ray.AdvantageEstimator]:
        old, new = (m.compute_advantage(advantage_batch(), name, config=None) for m in (stock_ray, ray_trainer))
        found[name] = all(torch.equal(old.batch[k], new.batch[k]) for k in ("advantages", "returns"))
    return found


def registered_estimator() -> dict:
    seen = {}

    @core_algos.register_adv_est("probe")
    def probe(token_level_rewards, response_mask, index, config, entropy, row_ids, anchor_obs, old_log_probs, step_rewards):
        seen.update(index=index, config=config, entropy=entropy, row_ids=row_ids, anchor_obs=anchor_obs, step=step_rewards)
        return response_mask * 2.0, response_mask * 3.0

    @core_algos.register_adv_est("with_critic")
    def with_critic(token_level_rewards, response_mask, values, **kwargs):
        return values, values

    config = OmegaConf.create({"alpha": 0.5})
    data = ray_trainer.compute_advantage(advantage_batch(), "probe", config=config)
    wanted = advantage_batch()
    again = None
    try:
        core_algos.register_adv_est("probe")(with_critic)
    except ValueError as error:
        again = str(error)
    return {
        "advantages and returns": torch.equal(data.batch["returns"], 3 * wanted.batch["response_mask"]),
        "entropy": torch.equal(seen["entropy"], wanted.batch["entropy"]),
        "row ids": list(seen["row_ids"]) == list(wanted.non_tensor_batch["row_ids"]),
        "other columns": list(seen["anchor_obs"]) == list(wanted.non_tensor_batch["anchor_obs"]),
        "config": seen["config"].alpha == 0.5,
        "a name is taken once": "probe is registered already" in (again or ""),
        "critic": {name: use_critic(name) for name in ("probe", "with_critic", "gae", "grpo")},
        "unknown name": use_critic("nobody"),
    }


def use_critic(name: str):
    """What the real constructor decides; configuration checks and data are left out."""

    class Trainer(ray_trainer.RayPPOTrainer):
        def _validate_config(self):
            pass

        def _create_dataloader(self, *args):
            pass

    config = {
        "actor_rollout_ref": {"hybrid_engine": True, "model": {}},
        "algorithm": {"use_kl_in_reward": False, "adv_estimator": name},
    }
    try:
        return Trainer(OmegaConf.create(config), None, {ray_trainer.Role.ActorRollout: None}, None).use_critic
    except NotImplementedError:
        return "NotImplementedError"


def row_ids() -> dict:
    """gather_rollout_data and adjust_batch on two episodes of three and one turns, one row each too many."""
    episodes = []
    for e, active in enumerate((3, 1)):
        turns = []
        for t in range(3):
            turn = {"traj_uid": f"t{e}", "uid": "u0", "active_masks": t < active, "input_ids": torch.full((2,), 10 * e + t)}
            turns.append(turn)
        episodes.append(turns)
    collector = TrajectoryCollector(config=None, tokenizer=None)
    numbers = np.zeros(2)
    data = collector.gather_rollout_data(copy.deepcopy(episodes), numbers, numbers, {}, np.array(["t0", "t1"]), numbers)
    ids = data.non_tensor_batch["row_ids"].tolist()
    config = {
        "trainer": {"n_gpus_per_node": 1, "nnodes": 1},
        "algorithm": {"use_kl_in_reward": False},
        "actor_rollout_ref": {
            "rollout": {"log_prob_micro_batch_size_per_gpu": 3},
            "actor": {"ppo_micro_batch_size_per_gpu": 3, "use_kl_loss": False},
        },
    }
    grown = adjust_batch(OmegaConf.create(config), data)
    tokens = {}
    for row_id, token in zip(grown.non_tensor_batch["row_ids"], grown.batch["input_ids"][:, 0].tolist(), strict=True):
        tokens.setdefault(row_id, set()).add(token)
    return {
        "ids": ids == ["u0_t0_0", "u0_t0_1", "u0_t0_2", "u0_t1_0"],
        "copies share theirs": len(grown) == 6 and set(tokens) == set(ids) and all(len(v) == 1 for v in tokens.values()),
    }


def plain_path() -> dict:
    """Our estimators through verl-agent's own compute_advantage; a batch with a copy in it."""
    patched.register(core_algos)
    config = OmegaConf.create({"entropy": {"transforms": ["aem"]}})
    data = advantage_batch()
    arguments = [data.batch["token_level_rewards"], data.batch["response_mask"], data.non_tensor_batch["uid"]]
    wanted = patched.advantages("loop", *arguments, data.non_tensor_batch["row_ids"])[0]
    order = torch.tensor([*range(ROWS), 2])
    copied = ray_trainer.compute_advantage(data.select_idxs(order), "loop", config=OmegaConf.create({})).batch["advantages"]
    shaped = ray_trainer.compute_advantage(data, "loop", config=config).batch["advantages"]
    return {
        "seen whole": "verl-agent-796ed31: applied" in patched.describe(),
        "estimator, copies count once": torch.equal(copied, wanted[order]) and bool(wanted.any()),
        "transform": not torch.equal(shaped, wanted),
    }


def plugins() -> dict:
    """The test put three entry points on the path and allowed two of them."""
    return {"loaded": "probe_works" in sys.modules, "not allowed": "probe_other" not in sys.modules}


FACTS = (entropy_order, built_in_losses, registered_loss, built_in_estimators, registered_estimator, row_ids, plain_path, plugins)

if __name__ == "__main__":
    result = {f.__name__: f() for f in FACTS}
    result["file"] = core_algos.__file__
    print(json.dumps(result))
