# SPDX-License-Identifier: Apache-2.0
"""RayPPOTrainer's batches: rows of several turns, their filling, nested columns for the workers, tokens of a growing chat before 0.9."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("verl")
from verl.protocol import DataProto
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import left_right_2_no_padding, no_padding_2_padding

from verl_entropy.hosts.install import activate
from verl_entropy.hosts.verl_ray import layout, loops, rows, tokens, trainer

activate.install()


def objects(values):
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def batch(sessions=(0, 0, 1, 2, 2, 2), positions=(0, 1, 0, 0, 1, 2), wide=4, width=5) -> DataProto:
    """Rows of three episodes; row i has a prompt of 1 + i % 3 tokens and a response of 1 + i % 4."""
    number, g = len(sessions), torch.Generator().manual_seed(0)
    attention = torch.zeros(number, wide + width, dtype=torch.long)
    for i in range(number):
        attention[i, wide - 1 - i % 3 : wide + 1 + i % 4] = 1
    ids = torch.randint(1, 50, (number, wide + width), generator=g) * attention
    mask = attention[:, wide:]
    tensors = {
        "prompts": ids[:, :wide],
        "responses": ids[:, wide:],
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp_min(0),
        "response_mask": mask,
        "rm_scores": torch.rand(number, width, generator=g) * mask,
    }
    columns = {rows.SESSION: objects(list(sessions)), rows.POSITION: objects(list(positions))}
    return DataProto.from_dict(tensors=tensors, non_tensors=columns, meta_info={"temperature": 1.0})


def test_rows_of_episodes_find_their_prompts():
    """What fit does with the manager's result: slice, then unite with the prompts' own columns."""
    data = loops.filled(batch(), 4)
    assert len(data) == 8
    made = loops.Episodes(batch=data.batch, non_tensor_batch=data.non_tensor_batch, meta_info=data.meta_info)
    taken = made.slice(0, 3)
    assert isinstance(taken, loops.Episodes) and len(taken) == 8
    assert [int(s) for s in made.slice(1, 2).non_tensor_batch[rows.SESSION]] == [1]  # REMAX takes the greedy episodes apart
    prompts = DataProto.from_dict(tensors={"index": torch.arange(3)}, non_tensors={"uid": objects(["a", "a", "b"])})
    united = prompts.union(taken)
    assert united.batch["index"].tolist() == [0, 0, 1, 2, 2, 2, 0, 0]
    assert list(united.non_tensor_batch["uid"]) == ["a", "a", "a", "b", "b", "b", "pad_6", "pad_7"]
    assert not united.batch["response_mask"][6:].any() and not united.batch["rm_scores"][6:].any()
    assert united.batch["attention_mask"][6:].sum(1).tolist() == [2, 2]
    assert len(loops.kept(united)) == 6
    united.batch["token_level_rewards"] = united.batch["token_level_scores"] = united.batch["rm_scores"]
    keys = rows.keys(united)
    turns = rows.turns(united, keys, rows.extra_fields(united), 0.0)
    assert turns.num_trajectories == 3 and turns.num_turns == 6 and turns.num_groups == 2
    assert turns.index_K.tolist() == [0, 1, 0, 0, 1, 2]


def test_a_full_batch_is_not_filled():
    data = batch()
    assert loops.filled(data, 3) is data


def test_a_worker_flattens_lists_and_a_validation_counts_episodes():
    class Worker:
        async def _run_agent_loop(self, *_, **kwargs):
            assert rows.SESSION not in kwargs  # a loop may take no column that it does not know
            made = [SimpleNamespace(extra_fields={}) for _ in range(kwargs["number"])]
            return await self._agent_loop_postprocess(made, **kwargs)

        async def _agent_loop_postprocess(self, output, **_):
            return output

        def _postprocess(self, inputs, input_non_tensor_batch=None):
            return inputs, input_non_tensor_batch

    class Manager:
        def generate_sequences(self, prompts):
            return prompts

    loops.wrap(SimpleNamespace(AgentLoopWorker=Worker, AgentLoopManager=Manager))

    async def play(**session):
        return await asyncio.gather(*(Worker()._run_agent_loop(number=n, **session) for n in (1, 3)))

    trained = asyncio.run(play(**{rows.SESSION: 7}))
    flat, columns = Worker()._postprocess(trained, {"uid": np.array(["a", "b"]), rows.SESSION: np.array([7, 7])})
    assert [one.extra_fields for one in flat[1:]] == [{rows.SESSION: 7, rows.POSITION: i} for i in range(3)]
    assert columns["uid"].tolist() == ["a", "b", "b", "b"] and list(columns) == ["uid"]
    assert [len(made) for made in asyncio.run(play())] == [1, 1]
    with pytest.raises(RuntimeError, match=r"data\.env\.episode_retries"):
        asyncio.run(Worker()._run_agent_loop(number=0))


def test_workers_get_rows_of_their_own_length_and_verls_loss_its_width():
    data = batch()
    data.batch["advantages"] = torch.rand(6, 5) * data.batch["response_mask"]
    data.non_tensor_batch["turns"] = objects([[{"reward": 0.0}]] * 6)
    sent = layout.for_workers(left_right_2_no_padding(data.to_tensordict()))
    assert "turns" not in sent.keys() and "rm_scores" not in sent.keys()  # no worker reads them
    assert sent["responses"].offsets().diff().tolist() == [1, 2, 3, 4, 1, 2]
    assert sent["prompts"].offsets().diff().tolist() == [1, 2, 3, 1, 2, 3]
    for name in ("response_mask", "advantages"):
        back = torch.nested.to_padded_tensor(sent[name], padding=0.0, output_size=(6, 5))
        assert torch.equal(back, data.batch[name]), name
    values = torch.nested.nested_tensor_from_jagged(
        torch.arange(sent["input_ids"].values().shape[0]), sent["input_ids"].offsets()
    )
    assert no_padding_2_padding(values, sent).shape == (6, 5)
    assert tu.get_non_tensor_data(sent, "temperature", None) == 1.0


def test_the_tokens_of_a_growing_chat_are_those_of_verl_0_9(tmp_path):
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    from verl_entropy.quickstart.build import word_level

    words = ["<pad>", "<unk>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>", *"user assistant system go left right now".split()]
    tokenizer = word_level(words, pad_token="<pad>", eos_token="<|im_end|>", bos_token="<bos>")
    verl, ours = create_continuous_token_builder(tokenizer, hf_model_type="llama"), tokens.TokenBuilder(tokenizer, {})
    before = [{"role": "user", "content": "go left"}]
    after = [*before, {"role": "assistant", "content": "right"}, {"role": "user", "content": "go now"}]
    first = ours.build_initial_tokens(before)
    assert first == verl.build_initial_tokens(before)
    stream = [*first, tokenizer.convert_tokens_to_ids("right"), tokenizer.eos_token_id]
    merged = verl.merge_context_tokens(after[:2], after, stream).token_ids
    assert [*stream, *ours.after_answer(after[2:], stream[-1])] == merged


def test_the_diagnostics_end_a_training(monkeypatch):
    """``fit`` has computed whether a step is the last one before the step begins; it ends where the step is logged."""
    steps = []

    class Trainer:
        config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(actor={}))
        _verl_entropy_metrics, _verl_entropy_stop = {}, False

        def __init__(self):
            pass

        def fit(self):
            for step in range(1, 4):
                steps.append(step)
                self._verl_entropy_stop = step == 2
                tracking.Tracking().log({"training/global_step": step}, step)

        init_workers = _compute_old_log_prob = _update_actor = _save_checkpoint = _load_checkpoint = fit

    tracking = SimpleNamespace(Tracking=type("Tracking", (), {"log": lambda self, data, step: None}))
    module = SimpleNamespace(RayPPOTrainer=Trainer, compute_advantage=len, compute_data_metrics=len)
    run = SimpleNamespace(plan=SimpleNamespace(active=True), diagnostics=None)
    monkeypatch.setattr(trainer, "run_of", lambda one: run)
    monkeypatch.setattr(trainer, "_latest", None)
    trainer.wrap(module)
    trainer.wrap_tracking(tracking)
    Trainer().fit()
    assert steps == [1, 2]
