"""Test that losses with ignored targets give the same results behind a grid as in a simulation."""

import math
from functools import partial

import pytest
import torch
from tests.support.marks import long_beyond
from tests.support.refusals import refused
from torch import nn

import drfl
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.engine import Loop
from drfl.flower.client_app import Site, client_app, identity
from drfl.flower.deployed_federation import FlowerFederation
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import ModelRecipe, SiteIdentity
from drfl.flower.nodes import NameRoster, gather_members
from drfl.flower.records import read
from drfl.flower.transport import Deadline
from drfl.optim.local import LocalSGD
from drfl.task.models import MODELS
from drfl.task.task import Task

NAMES = "abcd"
LOCAL = LocalSGD(steps=3, lr=0.1, batch=4)
NAMED = ModelRecipe("linear", "cross-entropy", "float64", 3, "loop", ("accuracy", "log_loss", "auc"))
OWN = ModelRecipe("", "", "float64", 0, "loop", ("accuracy", "log_loss", "f1"))
LABELS = ModelRecipe("linear", "binary-cross-entropy", "float64", 3, "loop", ("accuracy", "log_loss", "auc"))


def arrays(n, seed, ignored, shape=()):
    """Make the arrays of client ``seed``; the share of ignored targets grows with it."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *shape, 6, generator=draw, dtype=torch.float64)
    y = (x.sum(-1) + torch.randn(n, *shape, generator=draw)).abs().long() % 3
    y[torch.rand(n, *shape, generator=draw) < 0.2 * (seed % 5)] = ignored
    y.view(n, -1)[:3, 0] = torch.arange(3)
    return x, y


def labelled(n, seed):
    """Make three labels per row; the share of unknown ones grows with the seed."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=draw, dtype=torch.float64)
    y = (x[:, :3] > 0).double()
    y[torch.rand(n, 3, generator=draw) < 0.2 * (seed % 5)] = math.nan
    return x, y


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(x).transpose(1, 2)


def own_task():
    with Key(0).fold("model").torch_scope():
        return Task(Tagger().double(), nn.CrossEntropyLoss(ignore_index=7), metrics=("log_loss", "f1"))


def named_task():
    with Key(0).fold("model").torch_scope():
        return Task(MODELS["linear"]((6,), 3).double(), metrics=("log_loss", "auc"))


def label_task():
    with Key(0).fold("model").torch_scope():
        model = MODELS["linear"]((6,), 3).double()
    return Task(model, nn.BCEWithLogitsLoss(), metrics=("log_loss", "auc"))


TASKS = {"own": (own_task, OWN), "named": (named_task, NAMED), "labels": (label_task, LABELS)}


def both(kind):
    """Return the clients as a simulation, and behind a grid."""
    own = kind == "own"
    make = labelled if kind == "labels" else partial(arrays, ignored=7 if own else -100, shape=(5,) if own else ())
    train = {name: make(30 - seed, seed) for seed, name in enumerate(NAMES)}
    test = {name: make(15, 10 + seed) for seed, name in enumerate(NAMES)}
    of_kind, model = TASKS[kind]
    task = of_kind()
    simulation = drfl.Simulation(ClientData.from_arrays(train, test, dtype=None), task, engine=Loop())
    sites = {
        name: Site(
            name,
            ClientData.from_arrays({name: train[name]}, {name: test[name]}, dtype=None),
            own_task() if own else None,
        )
        for name in NAMES
    }
    app = client_app(lambda context: sites[context.node_config["name"]])
    grid, roster = InProcessGrid(app, [{"name": name} for name in NAMES]), NameRoster(NAMES)
    members = {client: member.identity for client, member in gather_members(grid, roster, 1.0, 5.0).items()}
    return simulation, FlowerFederation(grid, roster, members, model, task.w0, Deadline(5.0))


@pytest.mark.long
@pytest.mark.parametrize("kind", long_beyond(1, ["labels", "own", "named"]))
@pytest.mark.parametrize(
    "algorithm", [drfl.DRFA(m=3, local=LOCAL, dual_batch=2), drfl.ScaffPD(local=LOCAL)], ids=["DRFA", "ScaffPD"]
)
def test_all_numbers_equal_the_simulation(kind, algorithm):
    a, b = (drfl.run(algorithm, fed, rounds=4) for fed in both(kind))
    assert torch.equal(a.model, b.model)
    assert torch.equal(a.lam, b.lam)
    torch.testing.assert_close(a.evaluation.score, b.evaluation.score, rtol=1e-12, atol=1e-12)
    assert torch.equal(a.evaluation.samples, b.evaluation.samples)
    torch.testing.assert_close(a.evaluation.loss, b.evaluation.loss, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(a.evaluation.sums, b.evaluation.sums, rtol=1e-12, atol=1e-12, equal_nan=True)
    for mine, other in zip(a.evaluation.others, b.evaluation.others, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)
    assert a.history.last.ledger == b.history.last.ledger


def test_reports_on_few_rows_equal_the_simulation():
    simulation, fed = both("named")
    for seed in range(8):
        for ask in ("losses", "gradients"):
            a, b = (getattr(one, ask)(torch.arange(4), one.w0, Key(seed), batch=1) for one in (simulation, fed))
            for mine, other in zip(a, b, strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)
            assert (b[-1] > 0).all()
    assert simulation.ledger == fed.ledger


def about(site):
    return read(identity(site), SiteIdentity)


def test_description_of_a_site_covers_counted_targets():
    x, y = torch.zeros(6, 2), torch.tensor([0, 1, 1, 255, 255, 255])
    data = ClientData.from_arrays({"a": (x, y)}, {"a": (x, y)})
    told = about(Site("a", data, Task(nn.Linear(2, 2), nn.CrossEntropyLoss(ignore_index=255))))
    assert (told.classes, told.train, told.test, told.majority) == (2, 6, 3, pytest.approx(2 / 3))
    assert about(Site("a", data)).classes == 256
    pairs = {"a": labelled(20, 4)}, {"a": labelled(30, 4)}
    known = [int((~y.isnan()).any(1).sum()) for _, y in (pair["a"] for pair in pairs)]
    told = about(Site("a", ClientData.from_arrays(*pairs)))
    assert [told.train, told.test] == known != [20, 30]
    with refused("no-rows", "a"):
        identity(Site("a", ClientData.from_arrays({"a": (x, y)}, {"a": (x, 0 * y - 100)})))
    with refused("out-of-range", "targets"):
        identity(Site("a", ClientData.from_arrays({"a": (x, y - 1)})))
