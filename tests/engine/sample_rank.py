# SPDX-License-Identifier: Apache-2.0
"""One rank that runs the log-prob pass of ``engine_rank`` with and without the diagnostics' sample: sample_rank.py MODEL OUT NAME..."""

from __future__ import annotations

import sys

import torch
import verl.utils.distributed as distributed
from engine_rank import RESPONSE, actor_config, batch, build
from verl.utils import tensordict_utils as tu

from verl_entropy.hosts.common.trainer_keys import NUM_SAMPLED, SAMPLE_CODE, SAMPLE_LEAD, SAMPLED

NUM = 3
TEMPERATURE = 0.8


def codes(row: int) -> list[int]:
    """Trajectory 0: rows 0 and 1, 1: rows 2 and 5, 2: row 7; every second token is picked."""
    trajectory = {0: 0, 1: 0, 2: 1, 5: 1, 7: 2}.get(row)
    return [0 if trajectory is None else (trajectory + 1) * (-1) ** (i % 2) for i in range(RESPONSE[row])]


LEAD = [1, 0, 2, 0, 0, 0, 0, 3, 0, 0]


def run(engine, packed: bool, budget: int, sample: bool) -> dict:
    data = batch(packed, budget)
    own = list(range(len(RESPONSE)))[torch.distributed.get_rank() :: torch.distributed.get_world_size()]
    data[SAMPLE_CODE] = torch.nested.as_nested_tensor([torch.tensor(codes(i)).int() for i in own], layout=torch.jagged)
    data[SAMPLE_LEAD] = torch.tensor([LEAD[i] for i in own])
    if sample:
        tu.assign_non_tensor(data, **{NUM_SAMPLED: NUM})
    with engine.eval_mode():
        output = engine.infer_batch(data)["model_output"]
    found = {name: [row.clone() for row in output[name].unbind()] for name in ("log_probs", "entropy")}
    if SAMPLED in output:
        lead = [LEAD[i] for i in own]
        found["sampled"] = {j: row for j, row in zip(lead, output[SAMPLED].unbind(), strict=True) if j}
    return found


def expected(model: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Inner products of the autograd gradients of the output layer, and mean predicting states, from the plain model."""
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
    world = torch.distributed.get_world_size()
    assert world == 1
    data = batch(False, 1000)
    total, count, log_prob, picked = torch.zeros(NUM, 32), torch.zeros(NUM), [0.0] * NUM, [0] * NUM
    for i, (ids, prompt) in enumerate(zip(data["input_ids"].unbind(), data["prompts"].unbind(), strict=True)):
        output = network(ids[None], output_hidden_states=True)
        log_p = (output.logits[0] / TEMPERATURE).log_softmax(-1)
        for t, code in enumerate(codes(i)):
            if code:
                place, j = len(prompt) + t - 1, abs(code) - 1
                total[j] += output.hidden_states[-1][0, place].detach()
                count[j] += 1
                if code < 0:
                    log_prob[j] = log_prob[j] + log_p[place, ids[place + 1]]
                    picked[j] += 1
    weight = network.lm_head.weight
    grads = [torch.autograd.grad(x / n, weight, retain_graph=True)[0] for x, n in zip(log_prob, picked, strict=True)]
    # The chain rule's 1/T of each gradient is left out by the diagnostics.
    gram = torch.tensor([[float((a * b).sum()) for b in grads] for a in grads]) * TEMPERATURE**2
    return gram, total / count[:, None]


def main(model: str, out: str, *names: str) -> None:
    import verl.workers.engine
    import verl.workers.engine_workers  # noqa: F401

    torch.set_num_threads(1)
    distributed.initialize_global_process_group_ray()
    results: dict = {}
    if torch.distributed.get_world_size() == 1:
        results["expected"] = expected(model)
    for strategy in names:
        engine = build(model, actor_config(strategy, {}, "chunked"))
        for packed in (False, True):
            for budget in (1000, 24):
                results[strategy, packed, budget] = run(engine, packed, budget, True)
        results[strategy, "without"] = run(engine, False, 1000, False)
    torch.save(results, f"{out}.{torch.distributed.get_rank()}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
