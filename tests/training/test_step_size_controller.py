"""Test the step-size controller on sequences of rounds made by hand."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from tests.support.refusals import refused
from torch import Tensor

from drfl.core.errors import DivergedError
from drfl.federation.algorithm import Info
from drfl.federation.sampling import Cohort
from drfl.testing.state import bits_differ
from drfl.training.run_state import RunState
from drfl.training.safeguard import SafePoint
from drfl.training.step_size import StepSize
from drfl.training.step_size_controller import (
    FIRST,
    MOST_LOWERED,
    Continue,
    Repeat,
    RollBack,
    StepSizeController,
    Watch,
)

N = 3
ETA = 0.5


class Model(NamedTuple):
    w: Tensor


def size_of(lowered=0, **changes):
    """Return a determined step size ETA after a number of halvings."""
    found = StepSize.unknown(N)._replace(eta=torch.tensor(ETA / 2**lowered).double(), lowered=torch.tensor(lowered))
    return found._replace(losses=torch.ones(N).double(), **changes)


def played(r, way=0.0, excess=None, answered=(0, 1, 2)):
    """Play round r with a given distance from 0; ``excess`` is the factor by which replies are too long."""
    clients = torch.tensor(answered)
    info = Info(Cohort(clients, torch.ones(len(answered)).double()), clients)
    info = info if excess is None else info._replace(excess=torch.tensor(excess).double())
    return RunState(r, 0, Model(torch.tensor([way, 0.0]).double()), (), {}, 0.0, info=info)


class Looks:
    """Clients that report a far larger loss than at the start, or the same."""

    def __init__(self, answer=False):
        self.answer, self.models = answer, []

    def __call__(self, attempt, w):
        self.models.append(w.tolist())
        return torch.full((N,), 9.0 if self.answer else 1.0).double()


INITIAL = SafePoint.start(N, Model(torch.zeros(2).double()), None, None)


def controller(r, size=None, looks=None, factor=1.0):
    """Return the controller of round r, which begins at the model 0 and compares with the start."""
    return StepSizeController(size or size_of(), played(r - 1), factor, INITIAL, Watch(looks or Looks(), None))


def test_accepted_round_continues():
    attempt = played(1, way=3.0)
    answer = controller(1).accept(attempt)
    assert isinstance(answer, Continue)
    moved = torch.tensor(3.0).double()
    assert answer.progress.state is attempt.state
    assert bits_differ(answer.progress.step_size, size_of(moved=moved)) == []


@pytest.mark.parametrize(("before", "after"), [(1.0, 3.0), (5.0, 5.0)])
def test_longest_distance_of_a_round_is_remembered(before, after):
    answer = controller(2, size_of(moved=torch.tensor(before).double())).accept(played(2, way=3.0))
    assert isinstance(answer, Continue)
    assert float(answer.progress.step_size.moved) == after


def test_losses_are_compared_in_scheduled_rounds():
    still = size_of(moved=torch.tensor(1.0).double())
    asked = []
    for r in range(1, 50):
        controller(r, still, looks := Looks()).accept(played(r, way=1.0))
        asked += [r] * len(looks.models)
    assert asked == [4, 6, 8, 12, 16, 24, 32, 48]


@pytest.mark.parametrize(
    ("r", "way", "asks"), [(5, 2.0, False), (5, 2.5, True), (FIRST - 1, 9.0, False), (5, math.inf, True)]
)
def test_losses_are_compared_after_a_long_round(r, way, asks):
    looks = Looks()
    controller(r, size_of(moved=torch.tensor(1.0).double()), looks).accept(played(r, way=way))
    assert looks.models == [[way, 0.0]] * asks


@pytest.mark.parametrize(("r", "rollbacks"), [(4, 0), (6, 2)])
def test_risen_loss_rolls_the_run_back(r, rollbacks):
    size = size_of(lowered=rollbacks, rollbacks=torch.tensor(rollbacks), moved=torch.tensor(7.0).double())
    answer = controller(r, size, Looks(True)).accept(played(r, way=3.0))
    assert isinstance(answer, RollBack)
    assert float(answer.size.eta) == float(size.eta) / 2
    assert [int(n) for n in (answer.size.lowered, answer.size.rollbacks)] == [rollbacks + 1, rollbacks + 1]
    assert (int(answer.size.restarted), float(answer.size.moved)) == (r - 1, 0.0)
    assert answer.size.describe_fault() is None
    assert int(answer.size.lost) == r - 1
    notice = answer.notice(answer.size, r - 1)
    assert (notice.code, notice.field) == ("step-size-lowered", "lr")
    assert f"round {r}" in notice


def test_divergence_rolls_the_run_back():
    answer = controller(1).accept(DivergedError("lost"))
    assert isinstance(answer, RollBack)
    assert (float(answer.size.eta), int(answer.size.restarted)) == (ETA / 2, 0)
    assert answer.reason == "lost"


def test_divergence_after_the_last_halving_is_raised():
    error = DivergedError("lost")
    with refused("diverged", kind=DivergedError) as caught:
        controller(4, size_of(lowered=MOST_LOWERED)).accept(error)
    assert caught.value is error


def test_risen_loss_after_the_last_halving_is_kept():
    looks = Looks(True)
    last = size_of(lowered=MOST_LOWERED)
    assert isinstance(controller(4, last, looks).accept(played(4, way=3.0, excess=[9.0, 0.0, 0.0])), Continue)
    assert not looks.models
    before = size_of(lowered=MOST_LOWERED - 1)
    assert isinstance(controller(4, before, looks).accept(played(4, way=3.0)), RollBack)


def test_reply_shortened_by_a_smaller_step_lowers_the_step_size():
    control, again = controller(1), played(1, way=1.0, excess=[0.0, 0.0, 2.4])
    assert control.accept(played(1, way=3.0, excess=[0.0, 0.0, 10.0])) == Repeat(ETA / 2)
    # With η/4 the step does not diverge, so the remaining length of the reply is accepted.
    answer = control.accept(again)
    assert isinstance(answer, Continue)
    assert answer.progress.state is again.state
    size = answer.progress.step_size
    assert (float(size.eta), int(size.lowered), int(size.rollbacks)) == (ETA / 2, 1, 0)
    assert float(size.moved) == 1.0
    assert not size.unaffected.any()


def test_quarter_can_help_if_half_does_not():
    control, last = controller(1, factor=2.0), played(1, excess=[0.0, 0.0, 0.0])
    assert control.accept(played(1, excess=[0.0, 8.0, 0.0])) == Repeat(ETA / 2)
    assert control.accept(played(1, excess=[0.0, 2.0, 0.0])) == Repeat(ETA / 4)  # not yet short enough
    answer = control.accept(last)
    assert isinstance(answer, Continue)
    assert answer.progress.state is last.state
    assert (float(answer.progress.step_size.eta), int(answer.progress.step_size.lowered)) == (ETA / 4, 2)
    assert not answer.progress.step_size.unaffected.any()


@pytest.mark.parametrize(
    "again",
    [
        {"excess": [10.0, 0.0, 0.0]},
        {"excess": [2.5, 0.0, 0.0]},
        {"excess": None, "answered": (1, 2)},  # a silent client was not helped
    ],
)
def test_client_that_is_not_helped_is_ignored_afterwards(again):
    control, attempt = controller(1), played(1, way=3.0, excess=[10.0, 0.0, 0.0])
    assert control.accept(attempt) == Repeat(ETA / 2)
    answer = control.accept(played(1, way=1.0, **again))
    assert isinstance(answer, Continue)
    assert answer.progress.state is attempt.state
    size = answer.progress.step_size
    assert (float(size.eta), int(size.lowered), float(size.moved)) == (ETA, 0, 3.0)
    assert size.unaffected.tolist() == [True, False, False]
    assert isinstance(controller(2, size).accept(played(2, excess=[10.0, 0.0, 0.0])), Continue)
    assert controller(2, size).accept(played(2, excess=[10.0, 0.0, 1.1])) == Repeat(ETA / 2)


def test_helped_and_unhelped_clients_together():
    control, half = controller(1, factor=2.0), played(1, excess=[10.0, 0.0, 0.0])
    assert control.accept(played(1, excess=[10.0, 10.0, 0.0])) == Repeat(ETA / 2)
    assert control.accept(half) == Repeat(ETA / 4)
    answer = control.accept(played(1, excess=[10.0, 0.0, 0.0]))
    assert isinstance(answer, Continue)
    assert answer.progress.state is half.state
    assert float(answer.progress.step_size.eta) == ETA / 2
    assert answer.progress.step_size.unaffected.tolist() == [True, False, False]


@pytest.mark.parametrize(("factor", "repeats"), [(0.5, 0), (1.0, 1), (2.0, 2), (3.6, 3)])
def test_step_size_stays_above_a_quarter_of_the_first(factor, repeats):
    """This is the first step size of the run, regardless of later halvings."""
    for lowered in (0, 1):
        control, found = controller(9, size_of(lowered), factor=factor * 2**lowered), []
        while not isinstance(answer := control.accept(played(9, excess=[math.inf, 0.0, 0.0])), Continue):
            found.append(answer)
        assert found == [Repeat(ETA / 2**lowered / 2**k) for k in range(1, repeats + 1)]
        assert answer.progress.step_size.unaffected.tolist() == [repeats > 0, False, False]


def test_diverging_repetition_rolls_back_from_the_earlier_step_size():
    control = controller(1, factor=3.6)
    assert control.accept(played(1, excess=[9.0, 8.0, 0.0])) == Repeat(ETA / 2)
    assert control.accept(played(1, excess=[0.0, 8.0, 0.0])) == Repeat(ETA / 4)
    answer = control.accept(DivergedError("lost"))
    assert isinstance(answer, RollBack)
    assert bits_differ(answer.size, size_of().reset(0)) == []


def test_repeated_round_with_risen_loss_rolls_back_from_its_step_size():
    control = controller(4, looks=(looks := Looks(True)), factor=1.0)
    assert control.accept(played(4, excess=[9.0, 0.0, 0.0])) == Repeat(ETA / 2)
    answer = control.accept(played(4, way=1.0))
    assert isinstance(answer, RollBack)
    assert looks.models == [[1.0, 0.0]], "once, at the attempt that counts"
    assert (float(answer.size.eta), int(answer.size.lowered), int(answer.size.rollbacks)) == (ETA / 4, 2, 1)
