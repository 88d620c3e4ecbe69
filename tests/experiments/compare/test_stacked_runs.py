"""Comparisons and searches whose runs are stacked: the results of single runs up to rounding, and the same files."""

from __future__ import annotations

import pytest
import torch
from tests.experiments.compare.test_compare_objects import DATA, PAIR, TASK, clients, content, task
from tests.support.refusals import refused
from tests.support.stacked_calls import counted_calls

import drfl
from drfl.experiments.run.runner import StopSignal

SETTINGS = {"rounds": 3, "seeds": 3, "progress": None}


@pytest.fixture
def sizes(monkeypatch):
    return counted_calls(monkeypatch)


def alike(one, other):
    assert [(o.algorithm, o.seed, o.stopped) for o in one] == [(o.algorithm, o.seed, o.stopped) for o in other]
    for a, b in zip(one, other, strict=True):
        if a.metrics is not None:
            torch.testing.assert_close(torch.tensor(a.metrics), torch.tensor(b.metrics), rtol=1e-5, atol=1e-6)


def test_a_comparison_is_that_of_single_runs(tmp_path, sizes):
    one = drfl.compare(PAIR, clients, task, out=tmp_path / "one", **SETTINGS)
    assert not sizes
    several = drfl.compare(PAIR, clients, task, out=tmp_path / "several", stack=2, **SETTINGS)
    assert max(sizes) == 2
    alike(one.outcomes, several.outcomes)
    assert content(tmp_path / "one").keys() == content(tmp_path / "several").keys()


@pytest.mark.long
def test_one_that_was_stopped_goes_on_stacked_or_not(tmp_path, monkeypatch):
    whole = drfl.compare(PAIR, DATA, TASK, out=tmp_path / "whole", stack=3, **SETTINGS)

    def stop_at_the_third(line):
        if line.startswith("[3/"):
            monkeypatch.setattr(StopSignal, "stop", True)

    for name, stack in (("stacked", 2), ("not", 1)):
        told = {**SETTINGS, "progress": stop_at_the_third}
        part = drfl.compare(PAIR, DATA, TASK, out=tmp_path / name, stack=3, **told)
        assert len(part.outcomes) == 3
        monkeypatch.undo()
        again = drfl.compare(PAIR, DATA, TASK, out=tmp_path / name, stack=stack, resume=True, **SETTINGS)
        alike(again.outcomes, whole.outcomes)
        # What had ended is as it was.
        assert [o for o in again.outcomes if o.algorithm == "mine"] == list(part.outcomes)


@pytest.mark.long
def test_runs_under_way_go_on_from_their_checkpoints(tmp_path, monkeypatch):
    """Three runs are stopped after the same round, and end as those that never stopped, bit for bit."""
    settings = {**SETTINGS, "checkpoint_every": 1, "stack": 3}
    drfl.compare({"DRFA": PAIR["DRFA"]}, DATA, TASK, out=tmp_path / "whole", **settings)
    seen = []

    def stop(watch, step):
        seen.extend([step.round] * (step.round == 2))
        return step.round == 2

    with monkeypatch.context() as patched:
        patched.setattr(StopSignal, "__call__", stop)
        patched.setattr(StopSignal, "stop", property(lambda watch: bool(seen)))
        with refused("interrupted", kind=drfl.DrflError):
            drfl.compare({"DRFA": PAIR["DRFA"]}, DATA, TASK, out=tmp_path / "r", **settings)
    lines = []
    drfl.compare(
        {"DRFA": PAIR["DRFA"]}, DATA, TASK, out=tmp_path / "r", resume=True, **settings | {"progress": lines.append}
    )
    assert sum(getattr(line, "code", None) == "resumed" for line in lines) == 3
    assert content(tmp_path / "r") == content(tmp_path / "whole")


def test_a_run_that_diverges_does_not_take_its_stack_along(tmp_path):
    """Data of one seed are so large that its losses are infinite from the start."""

    def data(seed):
        found, factor = clients(seed), 1e30 if seed == 1 else 1.0
        return drfl.ClientData.from_arrays([(found.inputs[own] * factor, found.targets[own]) for own in found.train])

    algorithms = {"FedAvg": drfl.FedAvg(m=3, local=drfl.LocalSGD(lr=1.0))}
    one, several = (drfl.compare(algorithms, data, TASK, stack=k, **SETTINGS) for k in (1, 3))
    assert [o.stopped for o in several.outcomes] == ["rounds", "diverged", "rounds"]
    alike(one.outcomes, several.outcomes)


@pytest.mark.long
def test_stacks_in_processes(tmp_path):
    one, two = (drfl.compare(PAIR, DATA, TASK, out=tmp_path / str(k), jobs=k, stack=3, **SETTINGS) for k in (1, 2))
    assert one.outcomes == two.outcomes
    assert content(tmp_path / "1") == content(tmp_path / "2")


@pytest.mark.long
def test_a_search_is_that_of_single_runs(sizes):
    def space(trial):
        return drfl.DRFA(m=3, local=drfl.LocalSGD(steps=2, batch=8, lr=trial.suggest_float("lr", 0.01, 1, log=True)))

    found = [drfl.tune(space, DATA, TASK, rounds=3, trials=3, seeds=3, stack=stack, progress=None) for stack in (1, 3)]
    assert max(sizes) == 3
    assert found[0].best_params == found[1].best_params
    assert found[0].best_value == pytest.approx(found[1].best_value)


@pytest.mark.parametrize("call", [drfl.compare, drfl.tune])
def test_what_cannot_be_stacked_is_refused(call):
    with refused("out-of-range", "stack"):
        call(PAIR if call is drfl.compare else lambda trial: PAIR["DRFA"], DATA, TASK, stack=0)
    with refused("conflicting-options", "stack"):
        call(PAIR if call is drfl.compare else lambda trial: PAIR["DRFA"], DATA, TASK, stack=2, jobs="ray")
