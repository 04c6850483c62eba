# SPDX-License-Identifier: Apache-2.0
"""Time of verl's own row handling and of ours in its place, on one thread; results are equal bit for bit.

    python tests/benchmarks/bench_glue.py [--repeats 15] [--json FILE]

"balance" partitions rows over ranks by their work, "slice" takes the responses out of packed log-probs and goes back through it, and
"select" cuts a micro-batch of a tenth of the rows out of four nested columns. On a GPU verl's slices also wait for the device
three times a row, which this does not show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from report import median_ms, parser, table, write
from tensordict import TensorDict
from verl.utils import seqlen_balancing
from verl.utils import tensordict_utils as tu
from verl.workers.utils import losses

from verl_entropy.hosts.install import activate
from verl_entropy.upstream.rows import MARK

activate.install()


def nested(lengths: list[int], generator: torch.Generator) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.rand(n, generator=generator) for n in lengths], layout=torch.jagged)


def balance(rows: int, ranks: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    lengths = torch.randint(100, 4000, (rows,), generator=torch.Generator().manual_seed(0))
    work, ours = seqlen_balancing.calculate_workload(lengths), seqlen_balancing.get_seqlen_balanced_partitions
    return lambda: ours.__wrapped__(work, ranks, True), lambda: ours(work, ranks, True)


def slices(rows: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    g = torch.Generator().manual_seed(0)
    prompts, responses = (torch.randint(low, high, (rows,), generator=g).tolist() for low, high in ((100, 400), (10, 64)))
    data = {"prompts": nested(prompts, g), "responses": nested(responses, g)}
    values = torch.rand(sum(prompts) + sum(responses), generator=g).requires_grad_()

    def both_ways(function: Callable[..., torch.Tensor]) -> None:
        function(values, data).sum().backward()
        values.grad = None

    ours = losses.no_padding_2_padding
    return lambda: both_ways(ours.__wrapped__), lambda: both_ways(ours)


def select(rows: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    g = torch.Generator().manual_seed(0)
    lengths = torch.randint(10, 500, (rows,), generator=g).tolist()
    stock = TensorDict({name: nested(lengths, g) for name in "abcd"}, batch_size=[rows])
    marked = stock.copy()
    tu.assign_non_tensor(marked, **{MARK: True})
    index = torch.randperm(rows, generator=g)[: rows // 10]
    cut = tu.index_select_tensor_dict
    return lambda: cut(stock, index), lambda: cut(marked, index)


CASES = {
    "balance of 1,024 rows on 1 rank": lambda: balance(1024, 1),
    "balance of 8,192 rows on 8 ranks": lambda: balance(8192, 8),
    "slices of 1,024 responses, both ways": lambda: slices(1024),
    "selection of a tenth of 4,096 rows, four columns": lambda: select(4096),
}


def main() -> None:
    args = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, build in CASES.items():
        stock, ours = (median_ms(run, args.repeats) for run in build())
        rows.append({"what": name, "verl ms": stock, "ours ms": ours, "ratio": stock / ours})
    table(rows)
    write(args.json, {"results": rows})


if __name__ == "__main__":
    main()
