"""Test the training loop."""

from __future__ import annotations

import functools
import itertools
import math
import pickle
import warnings
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tests.support.marks import long_except
from tests.support.problems import SIZES, federation, task_of
from tests.support.refusals import refused
from torch import Tensor

from drfl.algorithms import ALGORITHMS, DRDM, DRFA, FedAvg, LocalOnly
from drfl.ambiguity import Simplex
from drfl.core.errors import DivergedError, InputError, NonFiniteError
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.engine import Simulation
from drfl.experiments.api import assess
from drfl.federation.algorithm import Info, ambiguity_of, core_of, lam_of, mixture_of
from drfl.federation.federation import WrappedFederation
from drfl.federation.local_method import OwnModels
from drfl.federation.sampling import Cohort
from drfl.optim.local import LocalSGD
from drfl.resilience import Faulty, Protected, Quorum
from drfl.task.task import Task
from drfl.testing import ConstantFederation, DropoutFederation
from drfl.training.averages import Average
from drfl.training.history import Metrics, columns_of
from drfl.training.loop import run
from drfl.training.run_state import RunState, first

LOCAL = LocalSGD(lr=0.1)
ONE = Cohort(torch.tensor([0]), torch.ones(1, dtype=torch.float64))


class Counted(NamedTuple):
    w: Tensor
    lam: Tensor
    more: object = None


@dataclass
class Counter:
    """An algorithm whose w counts the rounds, and which fails in a given round."""

    breaks: dict = field(default_factory=dict)
    empty: tuple = ()
    local: LocalSGD = LOCAL
    keys: list = field(default_factory=list)

    def init(self, fed):
        return Counted(torch.zeros_like(fed.w0), torch.full((fed.n,), 1 / fed.n))

    def round(self, state, fed, key):
        self.keys.append(key)
        r = len(self.keys)
        if isinstance(self.breaks.get(r), Exception):
            raise self.breaks[r]
        w = state.w + self.breaks.get(r, 1.0)
        return state._replace(w=w), Info.without_replies(ONE) if r in self.empty else Info(ONE, ONE.clients)


def make(name):
    return ALGORITHMS[name](local=LOCAL) if name == "AFL" else ALGORITHMS[name](m=2, local=LOCAL)


class Evaluated(ConstantFederation):
    """A federation that counts its evaluations."""

    evaluated = 0

    def evaluate(self, w):
        self.evaluated += 1
        return super().evaluate(w)


def fed():
    return Evaluated([1.0, 2.0, 4.0])


def test_run_without_rounds():
    f, steps = fed(), []
    result = run(Counter(), f, rounds=0, callbacks=[steps.append])
    assert [row.round for row in result.history.rows] == [0]
    assert result.rounds == 0
    assert f.evaluated == 1
    assert result.evaluation.loss.tolist() == [1, 2, 4]
    assert [(s.round, s.rounds, s.info, s.row.round) for s in steps] == [(0, 0, None, 0)]


@pytest.mark.parametrize("returned", ["average", "last"])
@pytest.mark.parametrize(
    ("rounds", "every", "expected"),
    [(5, 1, [0, 1, 2, 3, 4, 5]), (6, 3, [0, 3, 6]), (7, 3, [0, 3, 6, 7]), (2, 10, [0, 2])],
)
def test_evaluated_rounds(rounds, every, expected, returned):
    """The average is evaluated too, except in round 0, where it equals the initial model."""
    f, steps = fed(), []
    result = run(Counter(), f, rounds=rounds, evaluate_every=every, returned=returned, callbacks=[steps.append])
    assert [row.round for row in result.history.rows] == expected
    assert f.evaluated == (len(expected) if returned == "last" else 2 * len(expected) - 1)
    assert [s.round for s in steps] == list(range(rounds + 1))
    assert [s.round for s in steps if s.row is not None] == expected
    assert all(s.row.round == s.round for s in steps if s.row is not None)
    assert result.state.w.tolist() == [rounds] * 2
    assert result.rounds == rounds


def test_keys_of_rounds():
    algorithm = Counter()
    run(algorithm, fed(), rounds=3, seed=11)
    assert algorithm.keys == [Key(11).fold("round", r) for r in (1, 2, 3)]


@pytest.mark.parametrize(("at", "expected"), [(0, [0]), (1, [0, 1]), (4, [0, 3, 4]), (6, [0, 3, 6])])
def test_callback_stops_the_run(at, expected):
    """The last model is always evaluated, and every callback is called in every round."""
    seen, f = [], fed()
    callbacks = [lambda s: s.round == at, lambda s: seen.append(s.round)]
    result = run(Counter(), f, rounds=9, evaluate_every=3, callbacks=callbacks)
    assert [row.round for row in result.history.rows] == expected
    assert seen == list(range(at + 1))
    assert result.rounds == at
    assert f.evaluated == 2 * len(expected) - 1


@pytest.mark.parametrize(
    ("name", "value"), [("rounds", -1), ("rounds", 1.5), ("evaluate_every", 0), ("evaluate_every", -2)]
)
def test_impossible_numbers_are_refused(name, value):
    with refused("out-of-range", name, str(value)):
        run(Counter(), fed(), **{"rounds": 3, name: value})


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("returned", "Last", ("invalid-value", "'average'", "'last'", "'best'", "'Last'")),
        ("returned", None, ("invalid-value", "'last'")),
        ("safeguard", "foo", ("invalid-value", "'best'", "'start'", "'foo'")),
        ("select", 3, ("wrong-type", "'worst'", "int")),
        ("patience", "3", ("out-of-range", "'3'")),
        ("patience", True, ("out-of-range", "True")),
        ("until", 0.9, ("wrong-type", "'worst_accuracy=0.9'", "float")),
        ("checkpoints", "folder", ("wrong-type", "drfl.Checkpoints('folder')", "str")),
        ("checkpoints", 5, ("wrong-type", "drfl.Checkpoints('folder')", "int")),
        ("callbacks", print, ("wrong-type", "list", "builtin_function_or_method")),
        ("callbacks", [3], ("wrong-type", "list", "int")),
        ("certify", "pooled", ("wrong-type", "drfl.certificate.Certifier(task)", "str")),
        ("certify", True, ("wrong-type", "drfl.certificate.Certifier(task)", "bool")),
        ("start", 3, ("wrong-type", "int")),
        ("keep", 3, ("wrong-type", "int")),
        ("init_from", 3, ("wrong-type", "int")),
        ("table_dir", 3, ("wrong-type", "int")),
    ],
)
def test_options_of_the_wrong_kind_are_refused_before_the_first_round(name, value, error):
    f, (code, *quoted) = fed(), error
    with refused(code, name, *quoted):
        run(Counter(), f, rounds=1, **{name: value})
    assert f.evaluated == 0


@pytest.mark.parametrize(
    ("missing", "quoted"), [("local", "local: LocalSGD"), ("init", "'init'"), ("round", "'round'")]
)
def test_missing_part_of_an_algorithm_is_named(missing, quoted):
    parts = {"local": LOCAL, "init": Counter.init, "round": Counter.round}
    algorithm = type("Plain", (), {name: part for name, part in parts.items() if name != missing})()
    with refused("wrong-type", "algorithm", "Plain", quoted):
        run(algorithm, fed(), rounds=1)


@pytest.mark.parametrize("trouble", [math.nan, math.inf, NonFiniteError("entry 3 is nan")], ids=str)
def test_divergence_is_raised(trouble):
    quoted = "entry 3" if isinstance(trouble, NonFiniteError) else "NaN"
    with refused("diverged", None, "Counter", "round 3", quoted, kind=DivergedError) as raised:
        run(Counter(breaks={3: trouble}), fed(), rounds=5)
    assert "\n" not in str(raised.value)


def returning(result):
    """Return an algorithm whose rounds return a function of the right state and Info."""

    class Wrong(Counter):
        def round(self, state, fed, key):
            return result(*super().round(state, fed, key))

    return Wrong()


def test_failing_algorithm_of_a_user_is_named_in_one_line():
    trouble = ZeroDivisionError("no share")
    for algorithm in (Counter(breaks={2: trouble}), Protected(Counter(breaks={2: trouble}))):
        with refused("user-code-failed", "Counter", "Counter.round", "test_loop.py", "ZeroDivisionError") as caught:
            run(algorithm, fed(), rounds=5)
        assert caught.value.__cause__ is trouble


@pytest.mark.parametrize("wrap", [lambda algorithm: algorithm, Protected], ids=["alone", "protected"])
@pytest.mark.parametrize(
    ("result", "code", "quoted"),
    [
        (lambda state, info: state, "wrong-type", ("drfl.Info", "Counted")),
        (lambda state, info: (state.w, info), "wrong-type", ("w", "Tensor")),
        (lambda state, info: (state._replace(w=state.w[:1]), info), "wrong-shape", ("(2,)", "(1,)")),
        (lambda state, info: (state._replace(w=state.w.float()), info), "wrong-shape", ("float64", "float32")),
        (lambda state, info: (state, info._replace(answered=torch.tensor([99]))), "out-of-range", ("0..2", "99")),
        (lambda state, info: (state._replace(lam=torch.ones(3)), info), "out-of-range", ("lam", "sum of 3")),
        (lambda state, info: (state._replace(lam=torch.tensor([2.0, -1, 0])), info), "out-of-range", ("lam", "-1")),
        (lambda state, info: (state._replace(lam=state.lam * math.nan), info), "not-finite", ("lam",)),
        (lambda state, info: (state._replace(lam=torch.ones(2) / 2), info), "wrong-shape", ("lam", "(2,)", "3")),
        (lambda state, info: (state._replace(lam=[1 / 3] * 3), info), "wrong-type", ("lam", "list")),
        (lambda state, info: (state._replace(w=state.w.numpy()), info), "wrong-type", ("w", "ndarray")),
        (lambda state, info: (state._replace(lam=state.lam.double()), info), "wrong-shape", ("state.lam", "float64")),
        (lambda state, info: ((*state, 3.0), info), "wrong-type", ("tuple",)),
        (lambda state, info: (state._replace(more=state.w[:1]), info), "wrong-shape", ("state.more", "None", "(1,)")),
        (lambda state, info: (state._replace(more=0.5), info), "wrong-type", ("state.more", "float")),
    ],
    ids=[
        "no info",
        "no state",
        "length",
        "type",
        "client",
        "sum",
        "negative",
        "not finite",
        "clients",
        "list",
        "array",
        "type of a part",
        "tuple",
        "new part",
        "float",
    ],
)
def test_wrong_result_of_a_users_round_is_refused(result, code, quoted, wrap):
    with refused(code, "Wrong", "Wrong.round", *quoted):
        run(wrap(returning(result)), fed(), rounds=2)


@pytest.mark.parametrize("wrap", [lambda algorithm: algorithm, Protected], ids=["alone", "protected"])
@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"lam": torch.ones(3)}, "out-of-range"),
        ({"lam": torch.full((3,), math.inf)}, "not-finite"),
        ({"lam": torch.ones(4) / 4}, "wrong-shape"),
        ({"w": torch.zeros(2).float()}, "wrong-shape"),
        ({"w": np.zeros(2)}, "wrong-type"),
        ({"more": 0.5}, "wrong-type"),
        ({"more": {"w": torch.zeros(2)}}, "wrong-type"),
    ],
    ids=["sum", "not finite", "clients", "type", "array", "float", "dictionary"],
)
def test_wrong_first_state_of_a_user_is_refused(changed, code, wrap):
    class Wrong(Counter):
        def init(self, fed):
            return super().init(fed)._replace(**changed)

    with refused(code, "Wrong", "Wrong.init", *changed):
        run(wrap(Wrong()), fed(), rounds=1)


@dataclass(frozen=True)
class OwnSet(Simplex):
    """A user's ambiguity set with a mistake in ``project``."""

    wrong: object = None

    def project(self, v):
        return self.wrong(super().project(v))


@pytest.mark.parametrize("wrap", [lambda algorithm: algorithm, Protected], ids=["alone", "protected"])
@pytest.mark.parametrize(
    ("wrong", "code", "quoted"),
    [
        (lambda lam: 3 * lam, "out-of-range", ("OwnSet", "sum of 3")),
        (lambda lam: lam - lam.max(), "out-of-range", ("OwnSet", "sum of 0")),
        (lambda lam: lam * math.nan, "not-finite", ("OwnSet",)),
        (lambda lam: lam[:2], "wrong-shape", ("OwnSet", "(2,)")),
        (lambda lam: lam.tolist(), "wrong-type", ("OwnSet", "list")),
        (lambda lam: lam.float(), "wrong-type", ("OwnSet", "float32")),
    ],
    ids=["sum", "zero", "not finite", "clients", "list", "type"],
)
def test_wrong_mixture_of_a_users_ambiguity_set_is_refused(wrong, code, quoted, wrap):
    with refused(code, "OwnSet", *quoted):
        run(wrap(DRFA(m=2, local=LOCAL, ambiguity=OwnSet(wrong=wrong))), fed(), rounds=1)


def test_failing_ambiguity_set_of_a_user_is_named_with_its_line():
    def fails(lam):
        raise ZeroDivisionError("no radius")

    with refused("user-code-failed", "DRFA", "DRFA.init", "test_loop.py", "ZeroDivisionError"):
        run(DRFA(m=2, local=LOCAL, ambiguity=OwnSet(wrong=fails)), fed(), rounds=1)


def test_right_ambiguity_set_of_a_user_runs():
    result = run(DRFA(m=2, local=LOCAL, ambiguity=OwnSet(wrong=lambda lam: lam)), federation(), rounds=2)
    assert torch.equal(result.lam, run(DRFA(m=2, local=LOCAL), federation(), rounds=2).lam)


def test_mixture_of_a_diverged_run_is_a_divergence():
    algorithm = returning(lambda state, info: (Counted(state.w * math.nan, state.lam * math.nan), info))
    with refused("diverged", None, "Wrong", "round 1", kind=DivergedError):
        run(algorithm, fed(), rounds=1)


@pytest.mark.parametrize("result", [3, 0, 1.5, "stop", np.ones(2), torch.ones(2) > 0, torch.ones(()), []], ids=str)
def test_callback_that_returns_neither_none_nor_a_bool_is_refused(result):
    with refused("wrong-type", "callbacks", type(result).__name__):
        run(Counter(), fed(), rounds=2, callbacks=[lambda progress: result])


@pytest.mark.parametrize("kind", [bool, np.bool_, torch.tensor])
def test_bool_of_a_callback_stops_the_run(kind):
    assert run(Counter(), fed(), rounds=3, callbacks=[lambda progress: kind(progress.round == 2)]).rounds == 2


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_initial_model_that_is_not_finite_is_refused(value):
    f = fed()
    w = f.w0
    w[0] = value
    f.w0 = w
    with refused("not-finite", "model", f"1 of {f.w0.numel()}"):
        run(Counter(), f, rounds=1)


def test_skipped_rounds_are_counted():
    assert run(Counter(empty=(1, 4)), fed(), rounds=5).skipped == 2


@pytest.mark.parametrize(("metric", "value", "stops"), [("avg_loss", 2.4, True), ("avg_loss", 2.3, False)])
def test_target_on_a_loss(metric, value, stops):
    assert run(Counter(), fed(), rounds=2, until=f"test:{metric}={value}").rounds == (0 if stops else 2)


@pytest.mark.parametrize(("value", "stops"), [(0.5, True), (0.51, False)])
def test_target_on_an_accuracy(value, stops):
    assert run(Counter(), fed(), rounds=2, until=f"test:avg_accuracy={value}").rounds == (0 if stops else 2)


def test_target_on_the_spread():
    """The target is a small spread; it is 0.41 here."""
    assert run(Counter(), fed(), rounds=2, until="test:std_accuracy=0.5").rounds == 0
    assert run(Counter(), fed(), rounds=2, until="test:std_accuracy=0.3").rounds == 2


def test_target_waits_for_an_evaluation():
    class Improving(ConstantFederation):
        def evaluate(self, w):
            return super().evaluate(w)._replace(loss=self.values - w[0])

    result = run(Counter(), Improving([5.0, 5.0]), rounds=9, evaluate_every=4, until="test:worst_loss=2.5")
    assert result.rounds == 4


def test_unknown_metric_is_refused():
    with refused("unknown-name", "metric", "'acuracy'", "avg_accuracy"):
        run(Counter(), fed(), rounds=1, until="test:acuracy=0.5")
    for metric in (*Metrics._fields, *columns_of("accuracy")):
        run(Counter(), fed(), rounds=1, until=f"test:{metric}=0.5")


def test_average_of_a_run():
    average = Average.start(torch.tensor([9.0]), torch.tensor([1.0]))
    for i, x in enumerate([1.0, 4.0, 7.0], start=1):
        average = average.add(torch.tensor([x]), torch.tensor([2 * x]))
        assert int(average.rounds) == i
    assert average.w.tolist() == pytest.approx([4.0])
    assert average.lam.tolist() == pytest.approx([8.0])


@pytest.mark.parametrize(
    "name",
    long_except(
        ["SCAFFOLD", "DualDRDM"],
        [a for a in ALGORITHMS if not hasattr(ALGORITHMS[a], "no_average")],
    ),
)
def test_averaged_solution_is_the_mean_over_rounds(name):
    """It averages the rounds' mean global models and the λ from which they started, unless the round reports
    another λ.
    """
    algorithm, steps = make(name), []
    result = run(algorithm, federation(), rounds=4, averaged=True, callbacks=[steps.append])
    pairs = itertools.pairwise(steps)
    lam = [before.row.lam if step.info.mixture is None else step.info.mixture for before, step in pairs]
    w = [step.info.average for step in steps[1:]]
    assert {step.info.weight for step in steps[1:]} == {1.0}
    assert int(result.average.rounds) == 4
    torch.testing.assert_close(result.average.w, torch.stack(w).mean(0))
    torch.testing.assert_close(result.average.lam, torch.stack(lam).mean(0))
    assert torch.equal(steps[0].average.w, federation().w0)
    assert [int(step.average.rounds) for step in steps] == [0, 1, 2, 3, 4]
    assert torch.equal(steps[-1].average.w, result.average.w)
    assert torch.equal(result.averaged.loss, federation().evaluate(result.average.w).loss)
    plain, seen = federation(), []
    other = run(algorithm, plain, rounds=4, callbacks=[seen.append])
    assert torch.equal(other.state.w, result.state.w)
    assert (other.average, other.averaged) == (None, None)
    assert all(step.average is None and (step.info is None or step.info.average is None) for step in seen)
    more = result.history.last.ledger["bytes_up"] - other.history.last.ledger["bytes_up"]
    assert more == sum(len(step.info.answered) for step in steps[1:]) * plain.w0.numel() * 8


def test_round_without_replies_is_not_averaged():
    silent = DropoutFederation(federation(), train=range(6))
    result = run(DRFA(m=2, local=LOCAL), silent, rounds=3, averaged=True)
    assert (result.skipped, int(result.average.rounds)) == (3, 0)
    assert torch.equal(result.average.w, silent.w0)


@pytest.mark.parametrize("name", ["QFedAvg", "Counter"])
def test_algorithm_without_averaged_solution_is_refused(name):
    algorithm, f = (Counter(), fed()) if name == "Counter" else (ALGORITHMS[name](m=2, local=LOCAL), federation())
    with refused("no-average", "averaged", name):
        run(algorithm, f, rounds=2, averaged=True)


def test_client_weights_and_set_of_an_algorithm():
    f = federation()
    drfa, fedavg, alike = DRFA(m=2, local=LOCAL), FedAvg(m=2), FedAvg(m=2, by_samples=False)
    assert ambiguity_of(drfa) is drfa.ambiguity
    assert ambiguity_of(fedavg) is None
    assert torch.equal(mixture_of(fedavg, fedavg.init(f), f), f.shares)
    assert mixture_of(alike, alike.init(f), f).tolist() == [1 / 6] * 6
    assert torch.equal(mixture_of(Counter(), torch.zeros(2), f), f.shares)  # the default
    for algorithm in (drfa, fedavg, alike):
        wrapped = Protected(Faulty(Quorum(algorithm, 1)))
        assert core_of(wrapped) is algorithm
        assert ambiguity_of(wrapped) is ambiguity_of(algorithm)
        expected = mixture_of(algorithm, algorithm.init(f), f)
        assert (lam_of(wrapped.init(f)) is None) == (algorithm is not drfa)
        assert torch.equal(mixture_of(wrapped, wrapped.init(f), f), expected)
        assert torch.equal(run(wrapped, f, rounds=0).lam, expected)


class BundlingFederation(WrappedFederation):
    """A federation that returns test results only on request, and records the order of events."""

    def __init__(self, inside):
        super().__init__(inside)
        self.told = []

    def evaluate_later(self, models):
        self.told.append(f"test of {len(models)}")

        def results():
            self.told.append("result")
            return [self.fed.evaluate(w) for w in models]

        return results

    def ask(self, request):
        self.told.append(f"{request.kind} {request.key.round}")
        return super().ask(request)

    def evaluate(self, w):
        self.told.append("whole test")
        return super().evaluate(w)


@pytest.mark.parametrize(("returned", "models"), [("average", 2), ("last", 1)])
def test_next_round_is_prefetched_before_the_test_result(returned, models):
    bundling, options = BundlingFederation(federation()), {"rounds": 3, "evaluate_every": 2, "returned": returned}
    method = DRFA(m=2, local=LOCAL)
    found = run(method, bundling, callbacks=[lambda s: bundling.told.append(s.round)], **options)
    assert bundling.told == [
        *("test of 1", "train 1", "losses 1", "result", 0), 1, "train 2", "losses 2",
        *(f"test of {models}", "train 3", "losses 3", "result", 2), f"test of {models}", "result", 3,
    ]  # fmt: skip
    plain = run(method, federation(), **options)
    assert torch.equal(found.state.w, plain.state.w)
    assert torch.equal(found.model, plain.model)
    assert found.history.to_csv() == plain.history.to_csv()
    assert torch.equal(found.evaluation.loss, plain.evaluation.loss)
    assert torch.equal(found.last.loss, plain.last.loss)


@pytest.mark.parametrize(
    ("stop", "every"), long_except(["(0, 1)", "(3, 2)"], [(0, 1), (0, 3), (1, 1), (3, 1), (3, 2), (4, 2)])
)
def test_prefetched_round_is_dropped_if_a_callback_stops(stop, every):
    """Only its traffic is visible."""
    kept, seen, inside = [], [], federation()

    def note(step):
        seen.append((step.round, step.row is None, None if step.info is None else len(step.info.answered)))
        return step.round == stop

    options = {"seed": 2, "evaluate_every": every, "averaged": True}
    found = run(
        DRFA(m=2, local=LOCAL), BundlingFederation(inside), rounds=9, callbacks=[note],
        keep=lambda progress, stopping: kept.append((progress, stopping)), **options,
    )  # fmt: skip
    expected = run(DRFA(m=2, local=LOCAL), federation(), rounds=stop, **options)
    assert [r for r, _, _ in seen] == list(range(stop + 1))
    assert (found.rounds, found.skipped) == (stop, 0)
    assert found.state.reference is expected.state.reference is None
    assert all(torch.equal(a, b) for a, b in zip(found.state[:-1], expected.state[:-1], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(found.average, expected.average, strict=True))
    assert torch.equal(found.averaged.loss, expected.averaged.loss)
    assert torch.equal(found.model, expected.model)
    assert torch.equal(found.evaluation.loss, expected.evaluation.loss)
    assert torch.equal(found.last.loss, expected.last.loss)
    assert found.history.to_csv() == expected.history.to_csv()
    cost = expected.history.last.ledger
    assert found.history.last.ledger == cost
    ahead = stop % every == 0  # the prefetched round ran and has a cost
    assert (inside.ledger.messages > cost["messages"]) == ahead
    assert [(progress.round, stopping) for progress, stopping in kept] == [(r, r == stop) for r in range(1, stop + 1)]
    if stop:
        last = kept[-1][0]
        assert (last.ledger, last.skipped, int(last.average.rounds)) == (cost, 0, stop)
        assert torch.equal(last.state.w, found.state.w)
        again = run(DRFA(m=2, local=LOCAL), federation(), rounds=9, start=last, **options)
        whole = run(DRFA(m=2, local=LOCAL), federation(), rounds=9, **options)
        assert torch.equal(again.state.w, whole.state.w)
        assert torch.equal(again.average.w, whole.average.w)
        assert torch.equal(again.model, whole.model)
        assert again.history.to_csv() == whole.history.to_csv()


@pytest.mark.parametrize("wrap", [BundlingFederation, lambda inside: inside], ids=["bundling", "plain"])
@pytest.mark.parametrize("trouble", [math.nan, NonFiniteError("entry 3 is nan"), InputError("no")], ids=str)
def test_error_in_a_prefetched_round_is_raised_after_the_round_before(trouble, wrap):
    steps, kept = [], []
    options = {"callbacks": [steps.append], "keep": lambda progress, stopping: kept.append(progress.round)}
    code, quoted, kind = ("diverged", "round 3", DivergedError)
    if isinstance(trouble, InputError):
        code, quoted, kind = ("input", "no", InputError)
    with refused(code, None, quoted, kind=kind):
        run(Counter(breaks={3: trouble}), wrap(fed()), rounds=5, **options)
    assert [step.round for step in steps] == [0, 1, 2]
    assert [step.row.round for step in steps] == [0, 1, 2]
    assert kept == [1, 2]
    found = run(Counter(breaks={3: trouble}), wrap(fed()), rounds=5, callbacks=[lambda step: step.round == 2])
    assert (found.rounds, found.state.w.tolist()) == (2, [2.0, 2.0])


def test_failing_algorithm_of_a_user_is_named_if_rounds_are_bundled():
    with refused("user-code-failed", "Counter", "ZeroDivisionError"):
        run(Counter(breaks={1: ZeroDivisionError()}), BundlingFederation(fed()), rounds=5)


@pytest.mark.parametrize("at", long_except(["2"], [0, 2, 3]))
def test_resumed_run_begins_without_a_test(at):
    kept = []
    whole = run(DRFA(m=2, local=LOCAL), federation(), rounds=4, keep=lambda progress, stopping: kept.append(progress))
    start = first(DRFA(m=2, local=LOCAL), federation()) if at == 0 else kept[at - 1]
    bundling = BundlingFederation(federation())
    found = run(DRFA(m=2, local=LOCAL), bundling, rounds=4, start=start)
    assert bundling.told[0] == ("test of 1" if at == 0 else f"train {at + 1}")
    assert found.history.to_csv() == whole.history.to_csv()


@pytest.mark.parametrize("wrap", [BundlingFederation, lambda inside: inside], ids=["bundling", "plain"])
def test_callbacks_checkpoints_and_result_share_one_run_state(wrap):
    seen, kept = [], []
    algorithm, options = DRFA(m=2, local=LOCAL), {"rounds": 5, "evaluate_every": 2, "averaged": True}
    result = run(
        algorithm,
        wrap(federation()),
        callbacks=[seen.append],
        keep=lambda progress, stopping: kept.append(progress),
        **options,
    )
    for one, other in zip(seen[1:-1], kept, strict=True):
        assert all(getattr(one, name) is getattr(other, name) for name in RunState._fields if name != "seconds")
        assert one.seconds <= other.seconds
    assert [[row.round for row in progress.rows] for progress in seen] == [
        [0], [0], [0, 2], [0, 2], [0, 2, 4], [0, 2, 4, 5],
    ]  # fmt: skip
    assert all(progress.ledger == progress.row.ledger for progress in seen if progress.row is not None)
    ledgers = [progress.ledger["messages"] for progress in seen]
    assert ledgers == sorted(set(ledgers))
    assert {progress.rounds for progress in seen} == {5}
    assert [progress.info is None for progress in seen] == [True, *[False] * 5]
    end = result.end
    assert (end.round, end.rows, end.state, end.average) == (5, result.history.rows, result.state, result.average)
    assert end.state is seen[-1].state
    again = []
    run(algorithm, wrap(federation()), callbacks=[again.append], start=kept[1], **options)
    assert (again[0].round, again[0].info, again[0].rounds) == (2, None, 5)
    assert again[0].row is kept[1].row


def test_tables_are_stored_in_the_folder_of_the_run(tmp_path):
    f = federation()
    assert first(DRDM(m=2), f).state.h.folder is None
    assert first(DRDM(m=2), f, table_dir=str(tmp_path)).state.h.folder == str(tmp_path)
    assert run(DRDM(m=2, local=LOCAL), f, rounds=1, table_dir=str(tmp_path)).state.h.folder == str(tmp_path)
    f.table_dir = str(tmp_path)
    assert run(DRDM(m=2, local=LOCAL), f, rounds=1, averaged=True).state.h.folder == str(tmp_path)
    assert run(Protected(DRDM(m=2, local=LOCAL)), f, rounds=1).state.inner.h.folder == str(tmp_path)


@pytest.mark.parametrize("returned", ["average", "last"])
def test_result_is_loaded_into_a_module(returned):
    f, module = federation(), task_of(seed=5).model
    result = run(FedAvg(local=LocalSGD(steps=1, lr=0.1)), f, rounds=2, returned=returned)
    result.write_into(module)
    written = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert torch.equal(written, result.state.w) == (returned == "last")
    assert torch.equal(written, result.model)


@pytest.mark.parametrize(("layer", "quoted"), [
    (torch.nn.Linear(2, 5), ("1.weight", "(5, 2)", "(3, 4)")),
    (torch.nn.Linear(14, 1), ("1.weight", "(1, 14)", "(3, 4)")),
    (torch.nn.Linear(4, 3, bias=False), ("1.bias", "absent", "(3,)")),
    (torch.nn.Sequential(torch.nn.Linear(4, 3)), ("1.weight", "absent", "(3, 4)")),
], ids=["smaller", "same number", "no bias", "other names"])  # fmt: skip
def test_result_is_not_written_into_another_module(layer, quoted):
    module = torch.nn.Sequential(torch.nn.Flatten(), layer)
    result = run(FedAvg(m=2, local=LOCAL), federation(), rounds=1)
    before = [p.detach().clone() for p in module.parameters()]
    with refused("wrong-shape", "module", *quoted):
        result.write_into(module)
    assert all(map(torch.equal, before, module.parameters()))


@pytest.mark.long
def test_result_is_written_into_a_compiled_module_in_place():
    inner, layer = (torch.nn.Linear(4, 3) for _ in range(2))
    modules = [
        torch.compile(torch.nn.Sequential(torch.nn.Flatten(), inner), backend="eager"),
        torch.nn.Sequential(torch.nn.Flatten(), torch.compile(layer, backend="eager")),
    ]
    result = run(FedAvg(m=2, local=LOCAL), federation(), rounds=1)
    for module, own in zip(modules, (inner, layer), strict=True):
        result.write_into(module.to(result.model.dtype))
        assert torch.equal(torch.cat([own.weight.flatten(), own.bias]), result.model)


def test_personal_model_is_written_by_the_number_of_its_client():
    f, module = federation(), task_of(seed=5).model
    result = run(LocalOnly(local=LOCAL), f, rounds=2)
    result.write_into(module, client=1)
    written = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert torch.equal(written, result.personal[torch.tensor([1])][0])
    assert f.evaluate(written).score[1] == result.evaluation.score[1]
    with refused("missing-option", "client"):
        result.write_into(module)
    for number in (-1, f.n, 0.5, True):
        with refused("out-of-range", "client", str(number)):
            result.write_into(module, client=number)
    with refused("no-personal-models", "client"):
        run(FedAvg(m=2, local=LOCAL), f, rounds=1).write_into(module, client=1)
    own = result._replace(personal=OwnModels(result.model, None, None))
    for number in (None, 1):
        with refused("unsupported-combination", "client"):
            own.write_into(module, client=number)


def test_data_warnings_are_emitted_once_per_federation():
    fed = federation()
    for codes in (True, False):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(FedAvg(m=2, local=LOCAL), fed, rounds=1)
        assert any(getattr(w.message, "code", "") == "few-test-rows" for w in caught) == codes


def test_history_of_a_run():
    result = run(DRFA(m=2, local=LocalSGD(steps=1, lr=0.1)), federation(), rounds=3)
    rows = result.history.rows
    assert all(b.ledger["bytes_up"] > a.ledger["bytes_up"] for a, b in itertools.pairwise(rows))
    assert all(b.seconds >= a.seconds for a, b in itertools.pairwise(rows))
    assert torch.equal(rows[-1].lam, result.state.lam)
    assert torch.equal(rows[-1].lam, result.lam)
    assert rows[-1].metrics == Metrics.of(result.evaluation)
    assert rows[-1].last_metrics == Metrics.of(result.last)
    assert rows[-1].metrics != rows[-1].last_metrics
    assert rows[0].metrics == rows[0].last_metrics
    assert set(rows[0].ledger.values()) == {0}


def test_real_divergence_names_the_round():
    local = LocalSGD(steps=5, lr=1e3, weight_decay=10)
    with refused("diverged", None, "DRFA", "lr", kind=DivergedError):
        run(DRFA(m=3, local=local), federation(), rounds=40)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        pytest.param("FedAvg", "lr", marks=pytest.mark.long),
        ("DRFA", "lr or gamma"),
        pytest.param("ScaffPD", "lr or server_lr or sigma", marks=pytest.mark.long),
    ],
)
def test_divergence_names_the_relevant_step_sizes(name, remedy):
    local = LocalSGD(steps=5, lr=1e3, weight_decay=10)
    with refused("diverged", kind=DivergedError) as caught:
        run(ALGORITHMS[name](m=3, local=local), federation(), rounds=40)
    assert str(caught.value).endswith(f" {remedy}")


@pytest.mark.parametrize("make", [DRFA, DRDM])
@pytest.mark.parametrize(
    "bad", [{"gamma": -0.1}, {"gamma": math.nan}, {"dual_batch": 0}, {"dual_batch": -3}, {"dual_batch": 1.5}], ids=str
)
def test_impossible_hyperparameters_are_refused(make, bad):
    with refused("out-of-range", next(iter(bad))):
        make(m=2, **bad)


@pytest.mark.parametrize("mu", [0, -1, math.nan, math.inf])
def test_impossible_mu_is_refused(mu):
    with refused("out-of-range", "mu"):
        DRDM(m=2, mu=mu)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_initial_state(name):
    f = federation()
    algorithm = make(name)
    state = algorithm.init(f)
    assert torch.equal(state.w, f.w0)
    uniform = torch.full((6,), 1 / 6, dtype=torch.float64)
    expected = f.shares if getattr(algorithm, "by_samples", False) else uniform
    if hasattr(algorithm, "by_samples") or ambiguity_of(algorithm) is not None:
        torch.testing.assert_close(mixture_of(algorithm, state, f), expected, rtol=0, atol=1e-15)
    assert (lam_of(state) is not None) == (ambiguity_of(algorithm) is not None)
    assert "average" not in state._fields
    if name == "DRDM":
        assert state.h.shape == (6, 15)
        assert not state.h.clients.numel()
        assert not state.c.any()


def test_initial_model_cannot_be_changed_in_place():
    fed = Simulation(ClientData.from_arrays([(torch.eye(4), torch.arange(4) % 2)] * 2), Task(torch.nn.Linear(4, 2)))
    before = fed.w0
    fed.w0.add_(1)
    torch.nn.utils.vector_to_parameters(fed.w0, (module := torch.nn.Linear(4, 2)).parameters())
    with torch.no_grad():
        module.weight.add_(1)
    assert torch.equal(fed.w0, before)

    class InPlace:
        local = LOCAL

        def init(self, fed):
            return Counted(fed.w0, torch.full((fed.n,), 1 / fed.n))

        def round(self, state, fed, key):
            state.w.add_(1)
            return state, Info(Cohort(torch.arange(2), torch.ones(2).double()), torch.arange(2))

    with refused("user-code-failed", "InPlace", "state.w"):
        run(InPlace(), fed, rounds=1)
    assert torch.equal(fed.w0, before)


def trained_in(module, w):
    """Write a model into a module, and take a large gradient step."""
    torch.nn.utils.vector_to_parameters(w, module.parameters())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(5.0)


@pytest.mark.parametrize("returned", ["best", "average", "last"])
def test_callback_may_change_its_model(returned):
    def change(progress):
        trained_in(torch.nn.Linear(4, 3), progress.model)

    options = {"rounds": 3, "returned": returned}
    fed, plain = federation(), run(FedAvg(m=2, local=LOCAL), federation(), **options)
    result = run(FedAvg(m=2, local=LOCAL), fed, callbacks=[change], **options)
    assert torch.equal(result.model, plain.model)
    assert torch.equal(fed.evaluate(result.model).loss, result.evaluation.loss)
    before = result.end.model
    result.model.zero_()
    assert torch.equal(result.end.model, before)


@pytest.mark.parametrize("change", [
    lambda progress: progress.state.w.zero_(),
    lambda progress: progress.state.lam.mul_(2),
    lambda progress: progress.decaying.w.zero_(),
    lambda progress: trained_in(torch.nn.Linear(4, 3), progress.state.w),
], ids=["w", "lam", "average", "module"])  # fmt: skip
def test_callback_that_changes_the_state_in_place_is_refused(change):
    def callback(progress):
        change(progress)

    with refused("user-code-failed", "callbacks", "callback", "clone"):
        run(DRFA(m=2, local=LOCAL), federation(), rounds=3, callbacks=[callback])


def test_state_that_is_not_finite_is_not_taken_for_changed():
    algorithm = returning(lambda state, info: (state, info._replace(average=state.w * math.nan)))
    assert run(algorithm, fed(), rounds=1, averaged=True, callbacks=[lambda progress: None]).rounds == 1


@functools.cache
def four_rounds():
    options = {"algorithm": FedAvg(m=2, local=LOCAL), "fed": federation(), "rounds": 4, "seed": 0}
    return options, run(**options)


@pytest.mark.parametrize(("other", "field", "quoted"), [
    ({"algorithm": DRFA(m=2, local=LOCAL)}, "algorithm", ("FedAvg", "DRFA")),
    ({"algorithm": FedAvg(m=1, local=LOCAL)}, "algorithm.m", ("2", "1")),
    ({"seed": 1}, "seed", ("0", "1")),
    ({"returned": "last"}, "returned", ("last",)),
    ({"fed": federation((5, 3, 4, 6))}, "clients", ("4",)),
    ({"fed": federation(tuple(2 * size for size in SIZES), seed=1)}, "model", ()),
    ({"rounds": 2}, "rounds", ("4", "2")),
], ids=["algorithm", "m", "seed", "returned", "clients", "model", "rounds"])  # fmt: skip
@pytest.mark.parametrize("store", [lambda result: result.end, lambda result: pickle.loads(pickle.dumps(result.end))])
def test_start_of_another_run_is_refused(other, field, quoted, store):
    options, result = four_rounds()
    with refused("out-of-range" if field == "rounds" else "other-run", field, *quoted):
        run(**options | other, start=store(result))


def test_start_may_have_more_rounds():
    options = {"algorithm": DRFA(m=2, local=LOCAL), "fed": federation()}
    again = run(**options, rounds=5, start=run(**options, rounds=2).end)
    assert torch.equal(again.model, run(**options, rounds=5).model)


def test_table_of_clients_has_their_names_and_every_metric():
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    data = ClientData.from_arrays({"north": (x, (x[:, 0] > 0).long()), "south": (x + 1, (x[:, 1] > 0).long())})
    torch.manual_seed(0)
    task = Task(torch.nn.Linear(4, 2), score="log_loss", metrics=("accuracy",))
    result = run(LocalOnly(local=LOCAL), Simulation(data, task), rounds=2)
    table = result.to_clients()
    assert table.columns.tolist() == ["client", "log_loss", "loss", "samples", "lambda", "accuracy"]
    assert table["client"].tolist() == assess(result).to_frame()["client"].tolist() == ["north", "south"]
    assert table["samples"].tolist() == [len(rows) for rows in data.test]
    for i, rows in enumerate(data.test):
        result.write_into(task.model, client=table["client"][i])
        with torch.no_grad():
            outputs, targets = task.model(data.test_inputs[rows]), data.test_targets[rows]
        assert table["accuracy"][i] == pytest.approx(float((outputs.argmax(1) == targets).double().mean()))
        assert table["log_loss"][i] == pytest.approx(
            float(torch.nn.functional.cross_entropy(outputs, targets)), rel=1e-5
        )
    with refused("unknown-name", "client", "nort", "north"):
        result.write_into(task.model, client="nort")
