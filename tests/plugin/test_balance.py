# SPDX-License-Identifier: Apache-2.0
"""Rows are balanced over ranks as verl does it, without a torch call for each comparison."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("verl")
from verl.utils import seqlen_balancing
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from verl_entropy.hosts.install import activate

activate.install()  # after the import by name above, as in a driver whose configuration is composed when verl is loaded


class Calls(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("rows", "ranks", "equal"), [(64, 1, True), (96, 8, True), (50, 3, False), (8, 8, True)])
def test_partitions_are_verls(rows, ranks, equal):
    work = calculate_workload(torch.randint(1, 4000, (rows,), generator=torch.Generator().manual_seed(rows)))
    assert get_seqlen_balanced_partitions is seqlen_balancing.get_seqlen_balanced_partitions
    stock = get_seqlen_balanced_partitions.__wrapped__
    assert get_seqlen_balanced_partitions(work, k_partitions=ranks, equal_size=equal) == stock(work, ranks, equal)
    assert get_seqlen_balanced_partitions(work.tolist(), ranks, equal) == stock(work, ranks, equal)


def test_a_thousand_rows_are_one_torch_call():
    work = calculate_workload(torch.arange(1, 1025))
    with Calls() as calls:
        get_seqlen_balanced_partitions(work, 2, equal_size=True)
    assert calls.count <= 2
