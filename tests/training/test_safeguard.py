"""Test the safeguard: when clients check the model, when a run rolls back, and which model it returns."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import pytest
import torch
from tests.support.marks import long_beyond
from tests.support.problems import federation
from tests.support.refusals import quotes
from tests.training.test_step_size import progress_of
from torch import Tensor

from drfl.algorithms import DRFA, DualDRDM, FedAvg
from drfl.ambiguity import Simplex
from drfl.core.errors import RunWarning
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.engine.simulation import Simulation
from drfl.federation.algorithm import Info
from drfl.federation.federation import WrappedFederation
from drfl.federation.requests import Losses
from drfl.federation.sampling import Cohort
from drfl.optim.local import LocalSGD
from drfl.task.task import Task
from drfl.testing import ConstantFederation, QuadraticFederation, Recording
from drfl.testing.state import bits_differ
from drfl.training.checkpoint import Checkpoints, resume_point
from drfl.training.loop import run
from drfl.training.run_log import end_notices
from drfl.training.run_state import RunState
from drfl.training.safeguard import Fallback, SafePoint, fallback, largest, objective_of, report
from drfl.training.step_size import StepSize

NAN = math.nan


class Model(NamedTuple):
    w: Tensor


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


MEAN = objective_of(FedAvg(), Model(vector(0.0)))
WORST = objective_of(DualDRDM(m=2), Model(vector(0.0)))


def checked(reports, start=(2.0, 2.0, 2.0), objective=WORST, gross=False, size=None):
    """Return the safe point after reports, one every fourth round, and whether each of them rolls the run back."""
    size = (size or StepSize.unknown(3))._replace(losses=vector(*start))
    safe = SafePoint.start(3, Model(vector(0.0)), None, None)._replace(losses=vector(*start))
    answers = []
    for k, losses in enumerate(reports, 1):
        attempt = RunState(4 * k, 0, Model(vector(float(4 * k))), (), {}, 0.0)
        safe, risen = safe.after(attempt, size, vector(*losses), objective, largest, is_gross=gross)
        answers.append(risen)
    return safe, answers


def test_rounds_in_which_clients_check():
    safe = SafePoint.start(2, Model(vector(0.0)), None, None)
    due = [r for r in range(200) if safe.is_due(r)]
    assert due == [*range(4, 33, 4), *range(40, 65, 8), *range(80, 129, 16), 160, 192]
    assert all(safe._replace(rises=torch.tensor(1)).is_due(r) for r in range(4, 200, 4))


def test_best_model_is_kept():
    safe, answers = checked([(1.5, 1.0, 1.0), (1.0, 1.2, 1.0), (1.21, 1.0, 1.0)])
    assert answers == [False] * 3
    assert (int(safe.round), safe.state.w.tolist(), safe.losses.tolist()) == (8, [8.0], [1.0, 1.2, 1.0])


def test_model_with_a_loss_above_the_start_is_not_kept():
    """Without λ, the mean loss can fall although one client's loss rises."""
    safe, _ = checked([(2.5, 0.1, 0.1)], objective=MEAN)
    assert int(safe.round) == 0
    assert int(checked([(1.9, 0.1, 0.1)], objective=MEAN)[0].round) == 4


@pytest.mark.parametrize(
    ("reports", "risen"),
    [
        ([(1, 1, 1), (1.1, 1.1, 1.1), (1.1, 1.1, 1.1)], [False, False, True]),
        ([(1, 1, 1), (1.1, 1.1, 1.1), (1.04, 1.04, 1.04), (1.1, 1.1, 1.1)], [False] * 4),
        ([(1, 1, 1), (math.inf, 1, 1), (math.inf, 1, 1)], [False, False, True]),
        ([(1, 1, 1), (NAN, 1.1, 1.1), (NAN, 1.1, 1.1)], [False, False, True]),  # client 0 does not answer
        ([(0.001, 0.001, 0.001), (0.01, 0.01, 0.01), (0.01, 0.01, 0.01)], [False] * 3),  # tiny compared to the start
    ],
)
def test_two_checks_with_a_rise_roll_the_run_back(reports, risen):
    safe, answers = checked(reports)
    assert answers == risen
    assert int(safe.round) == 4


def test_largest_loss_may_rise_while_the_mean_falls():
    falling = [(1.9, 1.9, 1.9), (2.2, 1.5, 1.5), *[(2.2, 1.4 - 0.1 * k, 1.4) for k in range(8)]]
    assert checked(falling)[1] == [False] * 10
    assert checked([*falling, (2.2, 1.9, 1.9), (2.2, 1.9, 1.9)])[1] == [False] * 11 + [True]
    assert checked([(1.9, 1.9, 1.9), (2.2, 1.9, 1.9), (2.2, 1.5, 1.5), (2.2, 1.9, 1.9)])[1] == [False] * 4
    # The low report of one client cannot hide a rise of the others.
    assert checked([(1.9, 1.9, 1.9), *[(2.2, -1e9, 2.2)] * 2])[1] == [False, False, True]
    assert checked([(2.6, 2.0, 2.0)] * 2)[1] == [False, True]


def test_second_return_to_a_model_needs_twice_as_many_checks():
    returned = StepSize.unknown(3)._replace(
        rollbacks=torch.tensor(1), lowered=torch.tensor(1), restarted=torch.tensor(8)
    )
    worse = [(1.1, 1.1, 1.1)] * 4
    # The best model is of round 4 (before the last roll-back) or 12 (after it).
    assert checked([(1, 1, 1), *worse], size=returned)[1] == [False, False, False, False, True]
    assert checked([(1.5, 1.5, 1.5), (1.2, 1.2, 1.2), (1, 1, 1), *worse[:2]], size=returned)[1] == [False] * 4 + [True]


def test_large_rise_needs_one_check():
    assert checked([(9.0, 9.0, 9.0)], gross=True)[1] == [True]


@pytest.mark.parametrize("objective", [MEAN, WORST])
def test_report_of_one_client_rolls_back_once(objective):
    lies = [(9.0, 1, 1)] * 2
    safe, answers = checked([(1, 1, 1), *lies, *lies, *lies], objective=objective)
    assert answers == [False, False, True, False, False, False, False]
    assert safe.spent.tolist() == [True, False, False]
    # Other clients still count, and progress is still detected.
    safe, answers = checked([(1, 1, 1), *lies, (9, 0.5, 0.5), *[(9, 0.9, 0.9)] * 2], objective=objective)
    assert answers == [False, False, True, False, False, True]
    assert int(safe.round) == 16


def test_single_client_is_believed():
    one = [(1, NAN, NAN), *[(2, NAN, NAN)] * 2]
    safe, answers = checked([*one, *one[1:]])
    assert answers == [False, False, True, False, True]
    assert not safe.spent.any()


def test_checked_objective_is_that_of_the_algorithm():
    losses = vector(3.0, NAN, 1.0)
    assert (MEAN(losses), WORST(losses)) == (2.0, 3.0)
    assert WORST(vector(math.inf, 1.0)) == math.inf
    assert MEAN(vector(NAN)) == math.inf


def test_silent_clients_are_unknown_and_nan_counts_as_infinite():
    fed = ConstantFederation([1.0, NAN, 3.0])
    silent, *told = report(fed, torch.tensor([1, 2]), fed.w0, Key(0), None).tolist()
    assert math.isnan(silent)
    assert told == [math.inf, 3.0]
    assert report(fed, torch.tensor([], dtype=torch.int64), fed.w0, Key(0), None).isnan().all()


# ------------------------------------------------------------------------------------------------- in a run

ALL = Cohort(torch.arange(3), torch.ones(3).double())


@dataclasses.dataclass(frozen=True)
class Walking:
    """An algorithm that moves along a line by one step per round, as a function of round and step size."""

    path: tuple[float, ...]
    local: LocalSGD = dataclasses.field(default_factory=LocalSGD)

    def init(self, fed):
        return Model(fed.w0)

    def round(self, state, fed, key):
        return Model(vector(self.path[key.round - 1])), Info(ALL, ALL.clients)


@dataclasses.dataclass(frozen=True)
class RobustWalking(Walking):
    """The same, minimising the largest loss."""

    ambiguity: Simplex = dataclasses.field(default_factory=Simplex)


def bowl(s=(0.0, 0.0, 0.0)):
    """Make losses ½(w − b)² + s around 1, which start at ½ + s."""
    return QuadraticFederation(torch.ones(3, 1, 1).double(), vector(1.0, 1.0, 1.0)[:, None], vector(*s) + 0.5)


def test_run_returns_to_the_best_model_and_continues():
    """The best model is that of round 8; rounds 12 and 16 are worse."""
    path = [0.9] * 4 + [1.0] * 4 + [1.8] * 16
    result = run(Walking(tuple(path)), bowl(), rounds=16, returned="last", check_data=False)
    size = result.step_size
    assert (int(size.lowered) > 0, result.rollbacks) == (True, 1)
    assert (int(size.restarted), int(size.lost)) == (15, 7)
    assert (result.returned, result.effective_rounds) == ("earlier", 8), "round 16 is no better"
    assert result.marks.is_late


@pytest.mark.parametrize(
    ("path", "returned", "w"),
    [
        ([0.9] * 5, "last", 0.9),
        ([0.9] * 4 + [1.4], "earlier", 0.9),  # worse than the best
        ([0.9] * 4 + [2.5], "earlier", 0.9),  # worse than the start
        ([2.5], "initial", 0.0),
        ([1.4], "last", 1.4),
    ],
)
def test_returned_model_depends_on_the_losses(path, returned, w):
    fed = bowl()
    with pytest.warns(RunWarning) if returned != "last" else pytest.MonkeyPatch.context():
        result = run(Walking(tuple(path)), fed, rounds=len(path), returned="last")
    assert (result.returned, result.model.tolist()) == (returned, [w])
    assert torch.equal(result.evaluation.loss, fed.evaluate(result.model).loss)
    assert result.history.last.metrics.worst_loss == float(result.evaluation.loss.max())
    assert result.history.last.last_metrics.worst_loss == float(fed.evaluate(vector(path[-1])).loss.max())
    assert result.effective_rounds == {"last": len(path), "earlier": 4, "initial": 0}[returned]
    assert result.history.last.ledger == fed.ledger.totals(), "the cost of the checks is counted"


def test_warning_names_client_and_round():
    path = (0.9,) * 4 + (2.5,)
    for walk, named in ((RobustWalking(path), True), (Walking(path), False)):  # a mean has no single client to name
        with pytest.warns(RunWarning) as told:
            run(walk, bowl(s=(0.0, 0.1, 0.0)), rounds=5, returned="last")
        (notice,) = [w.message for w in told if w.message.code == "earlier-model"]
        assert "round 4" in str(notice)
        assert ("client 1" in str(notice)) == named


def test_warning_names_the_client_that_does_not_count():
    """The loss of one client alone has reset the model, so that another one has the largest loss that counts."""
    draw = torch.Generator().manual_seed(0)
    pairs = {name: (torch.randn(40, 3, generator=draw), torch.randn(40, generator=draw)) for name in ("A", "B", "C")}
    fed = Simulation(ClientData.from_arrays(pairs), Task(torch.nn.Linear(3, 1), torch.nn.MSELoss()))
    result = run(FedAvg(m=3), fed, rounds=1, check_data=False)
    for ignored, suspect in (((), "B"), (((0, 4.9e4),), "A")):
        earlier = Fallback(0, 0, result.model, None, 106.5, 3.2, 1, ignored)
        notice = end_notices(FedAvg(), fed, result._replace(fallback=earlier))[0]
        assert (notice.code, notice.field) == ("earlier-model", "lr")
        assert "106.5 at the end, at client 'B'" in notice
        assert ("client 'A' (4.9e+04)" in notice) == bool(ignored)
        assert notice.endswith(f"check the data of client '{suspect}'")


def test_fallback_lists_clients_that_do_not_count():
    curved = vector(4.0, 1.0, 1.0)[:, None, None]
    fed = QuadraticFederation(curved, vector(1.0, 1.0, 1.0)[:, None], vector(0.5, 0.5, 0.5))
    start = vector(2.5, 1.0, 1.0)
    size = StepSize.unknown(3)._replace(losses=start, eta=torch.tensor(0.1, dtype=torch.float64))
    safe = SafePoint.start(3, Model(fed.w0), None, None)._replace(
        losses=start, spent=torch.tensor([True, False, False])
    )
    progress = RunState(4, 0, Model(vector(9.0)), (), {}, 0.0, step_size=size, safe=safe)
    for algorithm, client in ((RobustWalking(()), 1), (Walking(()), None)):
        earlier = fallback(algorithm, fed, progress, vector(9.0), Key(0), is_selected=False)
        assert (earlier.round, earlier.client) == (0, client)
        assert [i for i, _ in earlier.ignored] == [0]
        assert earlier.ignored[0][1] > earlier.end


def test_user_step_size_and_rule_start_are_not_checked():
    path = (0.9,) * 4 + (2.5,)
    given = run(Walking(path, LocalSGD(lr=0.1)), bowl(), rounds=5, returned="last", check_data=False)
    start = run(Walking(path), bowl(), rounds=5, returned="last", safeguard="start", check_data=False)
    assert (given.returned, start.returned, given.model.tolist()) == ("last", "last", [2.5])
    assert given.end.safe is None
    assert int(start.end.safe.round) == 0


def test_final_loss_above_the_start_is_a_warning():
    fed = bowl()
    with pytest.warns(RunWarning) as told:
        run(Walking((2.5,), LocalSGD(lr=0.1)), fed, rounds=1, returned="last")
    assert [w.message.code for w in told] == ["loss-rose"]
    with pytest.warns(RunWarning) as told:
        chosen = run(Walking((2.5,)), fed, rounds=1, returned="last", safeguard="start")
    (notice,) = [w.message for w in told if w.message.code == "loss-rose"]
    assert quotes(str(notice), f"{float(chosen.step_size.eta):.3g}"), "the user can set a smaller one"
    assert quotes(repr(chosen.step_size), f"{float(chosen.step_size.eta):.3g}")
    assert len(repr(chosen.step_size).splitlines()) == 1
    worse = QuadraticFederation(torch.ones(3, 1, 1).double(), vector(1.0, 1.0, -1.0)[:, None], vector(0.5, 0.5, 0.5))
    with pytest.warns(RunWarning) as told:
        run(Walking((1.0,), LocalSGD(lr=0.1)), worse, rounds=4 - 3, returned="last")
    assert [w.message.code for w in told] == ["worst-loss-rose"]


@pytest.mark.parametrize("kind", ["raw table", "standardised table", "images", "tokens"])
def test_advice_to_standardise_is_for_raw_tables_only(kind):
    draw = torch.Generator().manual_seed(0)
    shape, model = (6,), torch.nn.Linear(6, 2)
    if kind == "images":
        shape, model = (1, 2, 3), torch.nn.Sequential(torch.nn.Flatten(), model)
    pairs = {f"c{i}": (torch.randn(20, *shape, generator=draw), torch.arange(20) % 2) for i in range(3)}
    if kind == "tokens":
        model = torch.nn.Sequential(torch.nn.Embedding(3, 2), torch.nn.Flatten(), torch.nn.Linear(12, 2))
        pairs = {name: (torch.randint(3, (20, 6), generator=draw), y) for name, (_, y) in pairs.items()}
    data = ClientData.from_arrays(pairs, standardise=kind == "standardised table")
    fed = WrappedFederation(Simulation(data, Task(model)))
    with pytest.warns(RunWarning) as told:
        run(FedAvg(m=3, local=LocalSGD(steps=5, lr=30.0)), fed, rounds=3, returned="last")
    (notice,) = [w.message for w in told if w.message.code == "loss-rose"]
    assert ("standardise" in str(notice)) == (kind == "raw table")


def test_validation_rows_select_among_models_below_the_start():
    class Validated(WrappedFederation):
        def validate(self, w):
            evaluation = self.fed.evaluate(w)
            return evaluation._replace(score=w.expand(3).double())

    for last, returned in ((1.4, "selected"), (2.5, "earlier")):
        fed = Validated(bowl())
        result = run(Walking((0.9,) * 4 + (last,)), fed, rounds=5, returned="last", select="worst", check_data=False)
        assert result.returned == returned


class Lying(WrappedFederation):
    """Client 0 reports a huge loss to the safeguard from the k-th report on."""

    def __init__(self, fed, k):
        super().__init__(fed)
        self.left = k

    def ask(self, request):
        reply = self.fed.ask(request)
        if isinstance(reply, Losses) and request.key.path == Key(0).fold("step size").path:
            self.left -= 1
            if self.left < 0:
                return reply._replace(values=torch.where(reply.clients == 0, 1e6, reply.values))
        return reply


@pytest.mark.long
@pytest.mark.parametrize("k", long_beyond(1, [1, 2, 5]))
def test_malicious_client_halves_the_step_size_at_most_once(k):
    result = run(FedAvg(), Lying(federation(), k), rounds=40, check_data=False)
    assert result.rollbacks == 1
    assert result.end.safe.spent.tolist() == [True, *[False] * 5]


@pytest.mark.long
@pytest.mark.parametrize("algorithm", long_beyond(1, [DRFA(m=2), DualDRDM(m=2)], ["DRFA", "DualDRDM"]))
def test_resumed_run_with_a_best_model_is_bitwise_equal(algorithm, tmp_path):
    """The run resumes after a check that keeps the model, after a first rise, and after a return to the best model."""
    path = tuple([0.9] * 4 + [1.0] * 4 + [1.8] * 20)
    for name, alg, make in (("walk", Walking(path), bowl), ("run", algorithm, federation)):
        whole, kept = progress_of(make, alg, 20, averaged=name == "run", check_data=False)
        assert any(int(progress.safe.round) > 0 for progress in kept)
        for progress in kept[3::5]:
            folder = tmp_path / f"{name}{progress.round}"
            Checkpoints(folder, dict).write(progress)
            fresh = None
            if name == "run":
                from drfl.training.run_state import first

                fresh = first(alg, make(), averaged=True)
            start = resume_point(folder, alg, make(), rounds=20, fresh=fresh).progress
            assert bits_differ(start.safe, progress.safe) == []
            again = run(alg, make(), rounds=20, start=start, averaged=name == "run", check_data=False)
            for part in ("state", "step_size", "safe"):
                assert bits_differ(getattr(again.end, part), getattr(whole.end, part)) == []
            assert torch.equal(again.model, whole.model)
            assert again.history.to_csv() == whole.history.to_csv()


@pytest.mark.long
def test_clients_check_with_the_samples_of_the_start():
    fed = Recording(federation())
    run(FedAvg(), fed, rounds=8)
    start, *checks = fed.of("losses")
    assert len(checks) == 2, "after rounds 4 and 8; the last check covers all rows, so that the end needs none"
    assert {(call.key, call.batch, tuple(call.cohort.tolist())) for call in checks} == {
        (start.key, start.batch, tuple(range(6)))
    }


def test_impossible_safe_points_are_refused():
    safe = SafePoint.start(2, Model(vector(0.0)), None, None)
    assert safe.describe_fault() is None
    for changes in ({"round": -1}, {"lost": 1}, {"rises": -1}):
        wrong = {name: torch.tensor(value) for name, value in changes.items()}
        assert safe._replace(**wrong).describe_fault()
