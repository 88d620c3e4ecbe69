"""Test LocalOnly, Pooled and FineTuned against the same training done by hand."""

from __future__ import annotations

import pytest
import torch
from tests.support.marks import crossed, long_except
from tests.support.refusals import refused
from torch import nn

import drfl
from drfl.core.key import Key
from drfl.federation.federation import WrappedFederation
from drfl.resilience import Protected
from drfl.training.checkpoint import Checkpoints, resume_point
from drfl.training.run_state import first

LOCAL = drfl.LocalSGD(steps=4, lr=0.3, batch=8)
ENGINES = [drfl.Loop(), drfl.Stacked(), drfl.Threads()]


def clients():
    """Make four clients of different sizes whose labels follow different rules."""
    draw, made = torch.Generator().manual_seed(7), {}
    for i in range(4):
        x = torch.randn(40 + 10 * i, 4, generator=draw)
        made[f"c{i}"] = (x, (x[:, i] > 0).long())
    return drfl.ClientData.from_arrays(made, test_fraction=0.3)


def simulation(data=None, engine=None, **options):
    with Key(2).torch_scope():
        return drfl.Simulation(data or clients(), drfl.Task(nn.Linear(4, 2)), engine=engine, **options)


def of_one(data, i):
    """Return a federation of client i alone."""
    return drfl.ClientData(
        data.inputs,
        data.targets,
        (data.train[i],),
        data.test_inputs,
        data.test_targets,
        (data.test[i],),
        (data.names[i],),
    )


@pytest.mark.parametrize(("engine", "returned"), crossed(ENGINES, ["average", "last"]))
def test_local_only_equals_fedavg_at_each_client_alone(engine, returned):
    data = clients()
    found = drfl.run(drfl.LocalOnly(local=LOCAL), simulation(data, engine), rounds=3, returned=returned)
    for i in range(data.n):
        one = simulation(of_one(data, i), engine, first=i)
        alone = drfl.run(drfl.FedAvg(local=LOCAL), one, rounds=3, returned=returned)
        assert float(found.evaluation.score[i]) == float(alone.evaluation.score[0])
        assert float(found.evaluation.loss[i]) == pytest.approx(float(alone.evaluation.loss[0]), rel=1e-6)
    ledger = found.history.last.ledger
    assert (ledger["bytes_up"], ledger["bytes_down"], ledger["gradient_evaluations"]) == (0, 0, 3 * 4 * 4 * 8)


class Late(WrappedFederation):
    """Client 3 answers from the fourth round on."""

    def ask(self, request):
        if request.kind == "train" and request.key.round < 4 and 3 in request.cohort:
            return request.empty_reply()
        return super().ask(request)


def test_averages_of_local_only_count_the_rounds_in_which_a_client_answered():
    def states(fed, rounds):
        return drfl.run(drfl.LocalOnly(local=LOCAL), fed, rounds=rounds, check_data=False).state

    late, full, client = states(Late(simulation()), 5), states(simulation(), 5), torch.tensor([3])
    assert late.rounds.tolist() == [5, 5, 5, 2]
    assert torch.equal(late.average.dense()[:3], full.average.dense()[:3])
    first = states(Late(simulation()), 4)
    torch.testing.assert_close(first.average[client], first.models[client])
    expected = first.models[client] + 9 / 10 * (late.models[client] - first.models[client])
    torch.testing.assert_close(late.average[client], expected)


def test_pooled_equals_fedavg_at_one_client_with_all_rows():
    data = clients()
    whole = drfl.ClientData(
        data.inputs,
        data.targets,
        (torch.cat(data.train),),
        data.test_inputs,
        data.test_targets,
        (data.test[0],),
        ("all",),
    )
    union = simulation(data).pooled()
    assert (union.n, union.name_of(0), union.names_of(torch.arange(1))) == (1, "client 0", "client 0")  # not "c0"
    found = drfl.run(drfl.Pooled(local=LOCAL), simulation(data), rounds=6)
    assert torch.equal(found.model, drfl.run(drfl.FedAvg(local=LOCAL), simulation(whole), rounds=6).model)
    assert found.evaluation.score.shape == (4,)
    assert found.history.last.ledger["bytes_up"] == 0
    assert found.history.last.ledger["gradient_evaluations"] == 6 * 4 * 8


def test_fine_tuned_equals_fedavg_plus_local_steps():
    fed, algorithm = simulation(), drfl.FineTuned(local=LOCAL, fine_steps=3)
    found, plain = (drfl.run(a, simulation(), rounds=6) for a in (algorithm, drfl.FedAvg(local=LOCAL)))
    assert torch.equal(found.model, plain.model)
    assert found.history.last.ledger == plain.history.last.ledger
    tuned = fed.train(torch.arange(4), found.model, drfl.LocalSGD(3, 0.3, 8), Key(0).fold("personal").fold("sgd"))
    expected = [float(fed.evaluate(w).score[i]) for i, w in enumerate(tuned.w)]
    assert found.evaluation.score.tolist() == expected
    assert found.evaluation.score.min() > plain.evaluation.score.min()  # labels follow a different rule at every client


@pytest.mark.long
@pytest.mark.parametrize(
    "algorithm",
    long_except(
        ["FineTuned"],
        [drfl.LocalOnly(local=LOCAL), drfl.FineTuned(local=LOCAL), drfl.Pooled(local=LOCAL)],
        ["LocalOnly", "FineTuned", "Pooled"],
    ),
)
def test_baselines_resume_and_select_as_uninterrupted_runs(algorithm, tmp_path):
    data, options = clients().with_validation(0.3), {"rounds": 9, "select": "loss"}
    whole = drfl.run(algorithm, simulation(data), **options)
    stop = [lambda step: step.round == 5]
    drfl.run(algorithm, simulation(data), keep=Checkpoints(tmp_path, dict, every=1), callbacks=stop, **options)
    fed = simulation(data)
    point = resume_point(tmp_path, algorithm, fed, fresh=first(algorithm, fed, validates=True))
    assert point is not None
    again = drfl.run(algorithm, fed, start=point.progress, **options)
    assert again.history.to_csv() == whole.history.to_csv()
    assert again.selection == whole.selection
    assert torch.equal(again.evaluation.score, whole.evaluation.score)
    chosen = next(r for r in whole.history.rows if r.round == whole.selection.round)  # pyright: ignore
    assert chosen.validation is not None
    assert chosen.validation.worst_loss == pytest.approx(whole.selection.value)  # pyright: ignore


@pytest.mark.long
def test_baselines_find_a_step_size_and_work_inside_wrappers():
    for algorithm in (drfl.LocalOnly(), drfl.FineTuned(), drfl.Pooled()):
        found = drfl.run(Protected(algorithm), simulation(), rounds=8)
        assert found.step_size is not None
        # These clients conflict, so roll-backs may halve the determined step size.
        halvings = int(found.step_size.lowered)
        assert float(found.step_size.eta) == pytest.approx(1 / float(found.step_size.curvature) / 2**halvings)
    assert found.evaluation.score.shape == (4,)


def test_baselines_refuse_a_federation_that_is_not_simulated():
    class Elsewhere(drfl.Federation):
        def __init__(self):
            inside = simulation()
            self.n, self.shares, self.w0, self.ledger, self.inside = 4, inside.shares, inside.w0, inside.ledger, inside

        def ask(self, request):
            return self.inside.ask(request)

        def evaluate(self, w):
            return self.inside.evaluate(w)

    with refused("simulation-only", None, "Pooled"):
        drfl.run(drfl.Pooled(local=LOCAL), Elsewhere(), rounds=1)
    with refused("simulation-only", None, "LocalOnly", "FineTuned"):
        drfl.run(drfl.LocalOnly(local=LOCAL), Elsewhere(), rounds=1)
    with refused("out-of-range", "fine_steps"):
        drfl.FineTuned(fine_steps=0)


def rare_column():
    """Make four regressions. The first has a column that is large in a few rows and 0 in all others."""
    draw, made = torch.Generator().manual_seed(3), {}
    for i in range(4):
        x = torch.randn(300, 4, generator=draw)
        x[:, 3] = 0
        if i == 0:
            x[:6, 3] = 30.0
        made[f"c{i}"] = (x, x[:, 0] + 0.1 * torch.randn(300, generator=draw))
    return drfl.ClientData.from_arrays(made, test_fraction=0.3)


def test_client_that_diverges_alone_is_rolled_back():
    # Most minibatches lack the rare rows, so the curvature at the start does not show the column.
    data, local = rare_column(), drfl.LocalSGD(steps=10, batch=20)
    fed = drfl.Simulation(data, drfl.Task(nn.Linear(4, 1), loss=nn.MSELoss(reduction="none")))
    found = drfl.run(Protected(drfl.LocalOnly(local=local)), fed, rounds=30)
    assert found.rollbacks > 0
    assert bool((found.evaluation.loss < 0.2).all())
    assert (found.history.last.ledger["bytes_up"], found.history.last.ledger["messages"]) == (0, 0)
