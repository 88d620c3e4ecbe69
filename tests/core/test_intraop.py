"""Test that small operations use one intra-op thread, regardless of torch's setting, and large ones all threads."""

from __future__ import annotations

import pytest
import torch

import drfl
from drfl.core.intraop import SMALL, allowed, column_slices, threads_for
from drfl.engine import Stacked, Threads
from drfl.optim.local import LocalSGD


@pytest.fixture(autouse=True)
def _three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_threads_depend_on_the_size_of_the_work():
    with threads_for(SMALL):
        assert (torch.get_num_threads(), allowed()) == (1, 3)
        with threads_for(SMALL + 1):
            assert torch.get_num_threads() == 3
        assert torch.get_num_threads() == 1
        with threads_for(1):
            assert (torch.get_num_threads(), allowed()) == (1, 3)
    assert torch.get_num_threads() == 3


def test_threads_are_restored_after_an_error():
    with pytest.raises(ZeroDivisionError), threads_for(1):
        _ = 1 / 0
    assert torch.get_num_threads() == allowed() == 3


def test_workers_follow_the_torch_thread_setting():
    with threads_for(1):
        assert Threads()._count() == 3


class Watched(torch.nn.Linear):
    """Record the number of threads of its products."""

    def forward(self, x):
        seen.append(torch.get_num_threads())
        return super().forward(x)


seen: list[int] = []


@pytest.mark.parametrize(("small", "threads"), [(SMALL, {1}), (0, {3})])
def test_small_runs_use_one_thread(small, threads, monkeypatch):
    monkeypatch.setattr(drfl.core.intraop, "SMALL", small)
    sites = {name: (torch.randn(4, 5), torch.arange(4) % 2) for name in "abc"}
    fed = drfl.Simulation(drfl.ClientData.from_arrays(sites), drfl.Task(Watched(5, 2)), engine=Stacked())
    seen.clear()
    drfl.run(drfl.QFedAvg(m=2, local=LocalSGD(steps=1, lr=0.1)), fed, rounds=1, check_data=False)
    assert set(seen) == threads
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize(("device", "sizes"), [("cpu", [3, 3, 1]), ("meta", [7])])
def test_only_a_cpu_computes_columns_in_slices(device, sizes):
    slices = column_slices(3, torch.empty(7, device=device))
    assert [len(range(7)[part]) for part in slices] == sizes
