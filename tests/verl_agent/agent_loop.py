# SPDX-License-Identifier: Apache-2.0
"""Run with verl-agent: whole training loops of its RayPPOTrainer on a CPU, in one process.

Real: its ``fit``, ``_validate``, checkpoints, data set, TrajectoryCollector, environment manager base, reward manager,
``adjust_batch``, balancing, ActorRolloutRefWorker (all methods but the building of the model) and HF rollout.
Not here: Ray (the worker is called directly), FSDP (the model is plain: verl-agent's FSDP asks for CUDA), vLLM, ALFWorld.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from agent_kit import HOME, composed, cpu_device, report

cpu_device()
SCRATCH = Path(tempfile.mkdtemp())
os.environ.update(
    {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "HF_HOME": str(SCRATCH / "hf"),
        "DISABLE_WORKER_INIT": "1",
    }
)
torch.distributed.init_process_group("gloo", init_method=f"file://{SCRATCH / 'store'}", rank=0, world_size=1)

from agent_system.environments.base import EnvironmentManagerBase  # noqa: E402
from agent_system.multi_turn_rollout import TrajectoryCollector  # noqa: E402
from agent_system.reward_manager import EpisodeRewardManager  # noqa: E402
from verl.trainer import main_ppo  # noqa: E402
from verl.trainer.ppo.ray_trainer import RayPPOTrainer, ResourcePoolManager, Role  # noqa: E402
from verl.utils.dataset.rl_dataset import collate_fn  # noqa: E402
from verl.workers.fsdp_workers import ActorRolloutRefWorker  # noqa: E402

from verl_entropy.hosts.verl_agent import settings  # noqa: E402
from verl_entropy.hosts.verl_agent.trainer import EntropyRayPPOTrainer  # noqa: E402
from verl_entropy.hosts.verl_agent.worker import EntropyActorRolloutRefWorker  # noqa: E402

WORDS = ["<pad>", "<unk>", "<s>", "</s>", "user", "room", *"abcdefgh", "go", "look"]
TEMPLATE = "{% for m in messages %}{{ '<s> ' + m['role'] + ' ' + m['content'] + ' ' }}{% endfor %}"
SIZES = [
    "data.train_batch_size=2",
    "data.val_batch_size=2",
    "data.max_prompt_length=12",
    "data.max_response_length=4",
    "data.return_raw_chat=True",
    "+data.dataloader_num_workers=0",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False",
    "actor_rollout_ref.rollout.name=hf",
    "actor_rollout_ref.rollout.top_k=0",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.val_kwargs.top_k=0",
    "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
    "actor_rollout_ref.rollout.val_kwargs.temperature=0.4",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "env.max_steps=3",
    "trainer.nnodes=1",
    "trainer.device=cpu",
    "trainer.logger=[console]",
    "trainer.val_before_train=False",
    "trainer.total_epochs=5",
]


class Rooms(EnvironmentManagerBase):
    """Says a room; done when the reply's first letter fits it or the third turn is over. Some replies are invalid."""

    def __init__(self, count: int, config):
        super().__init__(None, None, config)
        self.count = count

    def _observe(self):
        letters = [chr(ord("a") + (i // 4 + self.turn) % 8) for i in range(self.count)]
        return {"text": [f"room {x}" for x in letters], "image": None, "anchor": letters}, letters

    def reset(self, kwargs):
        # verl-agent's data loader draws from the global generators when it starts, so that a resumed run of its own is not
        # bit-equal; with the same draws in every rollout, what is left is the state.
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(17)
        self.turn = 0
        observation, self.letters = self._observe()
        return observation, [{} for _ in range(self.count)]

    def step(self, text_actions):
        # by remainders, so that an untrained model succeeds about every third time
        pairs = list(zip(text_actions, self.letters, strict=True))
        won = [bool(text) and ord(text[0]) % 3 == ord(letter) % 3 for text, letter in pairs]
        infos = [
            {"won": float(w), "is_action_valid": np.array(len(text) % 4 > 0)} for w, (text, _) in zip(won, pairs, strict=True)
        ]
        self.turn += 1
        observation, self.letters = self._observe()
        dones = np.array([x or self.turn >= 3 for x in won])
        return observation, np.array([10.0 * x for x in won], dtype=np.float32), dones, infos


class PlainModel:
    """Builds the actor without FSDP; everything else is the worker's."""

    def _build_model_optimizer(self, model_path, fsdp_config, optim_config, override_model_config, **_):
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
        from verl.utils.torch_functional import get_constant_schedule_with_warmup

        self.tokenizer, self.processor = AutoTokenizer.from_pretrained(model_path), None
        model = AutoModelForCausalLM.from_pretrained(model_path, attn_implementation="sdpa", dtype=torch.float32)
        self.generation_config = GenerationConfig(eos_token_id=3, pad_token_id=0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=optim_config.lr, weight_decay=optim_config.weight_decay)
        return model, optimizer, get_constant_schedule_with_warmup(optimizer, 0), model.config


class StockWorker(PlainModel, ActorRolloutRefWorker):
    pass


class OurWorker(PlainModel, EntropyActorRolloutRefWorker):
    pass


class Group:
    """A worker group of one worker in this process."""

    world_size = 1

    def __init__(self, worker):
        self.worker = worker

    def __getattr__(self, name):
        return getattr(self.worker, name)


def assets() -> Path:
    """Model, tokenizer and data on disk."""
    import pandas
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    folder = SCRATCH / "model"
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokens = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    tokens.chat_template = TEMPLATE
    tokens.save_pretrained(folder)
    torch.manual_seed(0)
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    config = Qwen2Config(
        vocab_size=len(WORDS),
        max_position_embeddings=64,
        tie_word_embeddings=False,
        eos_token_id=3,
        pad_token_id=0,
        bos_token_id=2,
        **shape,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    row = {"data_source": "text", "prompt": [{"role": "user", "content": "look"}], "ability": "agent", "extra_info": {"index": 0}}
    for name in ("train", "test"):
        pandas.DataFrame([row] * 4).to_parquet(SCRATCH / f"{name}.parquet")
    return folder


MODEL = assets()


class Loop:
    """Mixed into a trainer: the workers are the ones of this process."""

    worker_class = StockWorker

    def init_workers(self):
        self.async_rollout_mode = False
        self.actor_rollout_wg = Group(self.worker_class(config=self.config.actor_rollout_ref, role="actor_rollout"))
        self.actor_rollout_wg.init_model()


class StockTrainer(Loop, RayPPOTrainer):
    pass


class OurTrainer(Loop, EntropyRayPPOTrainer):
    worker_class = OurWorker

    def init_workers(self):
        super().init_workers()
        self._watch_updates(self.actor_rollout_wg)


def configured(name: str, steps: int, *overrides: str, save: int = -1):
    """verl-agent's configuration for a run in the folder ``name``."""
    files = {"train": SCRATCH / "train.parquet", "test": SCRATCH / "test.parquet"}
    where = [f"data.train_files={files['train']}", f"data.val_files={files['test']}", f"actor_rollout_ref.model.path={MODEL}"]
    length = [f"trainer.total_training_steps={steps}", f"trainer.save_freq={save}", f"trainer.default_local_dir={SCRATCH / name}"]
    return composed(*SIZES, *where, *length, *overrides)


def train(name: str, steps: int, *overrides: str, save: int = -1, ours: bool = True, metrics: list | None = None):
    """Train to step ``steps`` in the folder ``name``, resuming what is there; returns the trainer."""
    from transformers import AutoTokenizer
    from verl.utils.tracking import Tracking

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    config = configured(name, steps, *overrides, save=save)
    chosen = settings.prepare(config) if ours else None
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    train_set = main_ppo.create_rl_dataset(config.data.train_files, config.data, tokenizer, None)
    val_set = main_ppo.create_rl_dataset(config.data.val_files, config.data, tokenizer, None)
    trainer = (OurTrainer if chosen is not None else StockTrainer)(
        config=config,
        tokenizer=tokenizer,
        role_worker_mapping={Role.ActorRollout: None},
        resource_pool_manager=ResourcePoolManager({"pool": [1]}, {Role.ActorRollout: "pool"}),
        reward_fn=EpisodeRewardManager(tokenizer=tokenizer, num_examine=0),
        val_reward_fn=EpisodeRewardManager(tokenizer=tokenizer, num_examine=0),
        train_dataset=train_set,
        val_dataset=val_set,
        collate_fn=collate_fn,
        train_sampler=main_ppo.create_rl_sampler(config.data, train_set),
        device_name="cpu",
        traj_collector=TrajectoryCollector(config=config, tokenizer=tokenizer, processor=None),
        envs=Rooms(8, config),
        val_envs=Rooms(2, config),
    )
    trainer.init_workers()
    kept, original = [] if metrics is None else metrics, Tracking.log
    Tracking.log = lambda self, data, step, backend=None: kept.append({"step": step, **data})
    try:
        trainer.fit()
    finally:
        Tracking.log = original
    return trainer


def weights(trainer) -> list[torch.Tensor]:
    worker = trainer.actor_rollout_wg.worker
    head = getattr(worker.actor, "head", None)
    return [p.detach().clone() for p in worker.actor_module_fsdp.parameters()] + (
        [p.detach() for p in head.module.parameters()] if head else []
    )


def equal(a, b) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def neutral(estimator: str) -> dict:
    """Two steps of verl-agent's trainer, and of ours with a method that is switched off."""
    base = f"algorithm.adv_estimator={estimator}"
    plain, mine = [], []
    theirs = train(f"stock_{estimator}", 2, base, ours=False, metrics=plain)
    with_ours = train(f"ours_{estimator}", 2, base, "+entropy=aem", "algorithm.entropy.aem.temperature=0", metrics=mine)
    timed = ("timing", "perf", "global_seqlen")
    same = [k for k in plain[-1] if not k.startswith(timed)]
    return {
        "weights": equal(weights(theirs), weights(with_ours)),
        "moved": not equal(
            weights(theirs), weights(train(f"start_{estimator}", 1, base, "actor_rollout_ref.actor.optim.lr=0.0", ours=False))
        ),
        "different": [k for k in same if plain[-1][k] != mine[-1].get(k)],
        "compared": len(same),
    }


EVERYTHING = (
    "+entropy=[gigpo,aem,repo_r,seal,epo]",
    "algorithm.adv_estimator=gigpo",
    "actor_rollout_ref.actor.seal.dropout=0.1",
    "trainer.test_freq=2",
)


def everything() -> dict:
    """Three steps of several methods at once; the third again from the checkpoint of the second."""
    metrics: list[dict] = []
    whole = train("whole", 3, *EVERYTHING, save=1, metrics=metrics)
    folder = SCRATCH / "whole/global_step_2"
    files = sorted(p.name for p in (folder / "actor").iterdir())
    (SCRATCH / "whole/latest_checkpointed_iteration.txt").write_text("2")
    again: list[dict] = []
    resumed = train("whole", 3, *EVERYTHING, metrics=again)
    state = torch.load(folder / "actor/model_world_size_1_rank_0.pt", weights_only=False)
    last = {k: float(v) for k, v in metrics[-1].items()}
    return {
        "steps": [m["step"] for m in metrics],
        "resumed_steps": [m["step"] for m in again],
        "resumed_equal": equal(weights(whole), weights(resumed)),
        "zeta": [metrics[-1].get("verl_entropy/repo_r/zeta"), again[-1].get("verl_entropy/repo_r/zeta")],
        "files": files,
        "state_file": (folder / "verl_entropy.json").is_file(),
        "head_in_model": [k for k in state if "seal" in k],
        "metrics": {k: v for k, v in last.items() if k.startswith(("verl_entropy/", "actor/", "val/", "episode/"))},
        "copies": sum(m.get("verl_entropy/copied_rows", 0.0) for m in metrics),
    }


def refusals() -> dict:
    """A worker class that is not ours, and a checkpoint without the head."""
    found = {}
    OurTrainer.worker_class = StockWorker
    try:
        train("refused", 1, "+entropy=aem")
    except RuntimeError as error:
        found["stock_worker"] = str(error)
    finally:
        OurTrainer.worker_class = OurWorker
    train("headless", 1, "+entropy=aem", save=1)
    try:
        train("headless", 2, "+entropy=[aem,seal]")
    except SystemExit as error:
        found["headless"] = str(error)
    return found


def task_runner() -> dict:
    """``run`` of the TaskRunner that the launcher sends to Ray, in this process: it must choose our trainer and worker."""
    import agent_system.environments as environments
    from verl.workers import fsdp_workers

    from verl_entropy.hosts.verl_agent import trainer as trainer_module
    from verl_entropy.hosts.verl_agent.runner import EntropyTaskRunner

    found: dict = {}

    class Trainer(Loop, EntropyRayPPOTrainer):
        def init_workers(self):
            chosen = self.role_worker_mapping[Role.ActorRollout].__ray_actor_class__
            found["worker"] = chosen.__name__
            self.worker_class = type("Worker", (PlainModel, chosen), {})
            super().init_workers()
            self._watch_updates(self.actor_rollout_wg)
            found["trainer"] = self

    kept = main_ppo.RayPPOTrainer, fsdp_workers.ActorRolloutRefWorker, fsdp_workers.AsyncActorRolloutRefWorker
    original, made = trainer_module.EntropyRayPPOTrainer, environments.make_envs
    trainer_module.EntropyRayPPOTrainer = Trainer
    environments.make_envs = lambda config: (Rooms(8, config), Rooms(2, config))
    try:
        config = configured("runner", 1, "+entropy=[aem,seal]")
        settings.prepare(config)
        EntropyTaskRunner().run(config)
    finally:
        trainer_module.EntropyRayPPOTrainer, environments.make_envs = original, made
        main_ppo.RayPPOTrainer, fsdp_workers.ActorRolloutRefWorker, fsdp_workers.AsyncActorRolloutRefWorker = kept
    return {"worker": found["worker"], "steps": found["trainer"].global_steps}


def main() -> None:
    wanted = sys.argv[1:] or ["grpo", "gigpo", "everything", "refusals", "task_runner"]
    parts = {"everything": everything, "refusals": refusals, "task_runner": task_runner}
    report({name: parts[name]() if name in parts else neutral(name) for name in wanted} | {"home": str(HOME)})


if __name__ == "__main__":
    main()
