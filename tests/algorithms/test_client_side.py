"""Test client-side methods in every command: run, compare, tune, resume, and a deployment of three sites."""

from __future__ import annotations

import copy
import json
import logging
from dataclasses import dataclass

import pytest
import torch
from tests.support import hidden
from tests.support.engines import ENGINES
from tests.support.marks import crossed, long_except
from tests.support.refusals import logged, refused

import drfl
from drfl.algorithms import CLIENT_SIDE, PersonalClientSide
from drfl.cli import app
from drfl.core.key import Key
from drfl.engine import Loop, Simulation, Stacked, Threads
from drfl.experiments.config.hyperparameters import defaults_of
from drfl.federation.local_method import OwnModels
from drfl.optim.local import LocalSGD
from drfl.resilience import Protected
from drfl.resilience.failures import UnreliableFederation
from drfl.task.models import with_federated_batch_norm
from drfl.task.task import Task
from drfl.training.checkpoint import Checkpoints

LOCAL = LocalSGD(steps=4, lr=0.1, batch=4)
NAMES = list(CLIENT_SIDE)
OWN_FILE = """
from dataclasses import dataclass

from drfl import ClientSide


@dataclass(frozen=True)
class Shrinking(ClientSide):
    strength: float = 0.1

    def loss(self, model, batch, context):
        return batch.loss(model) + self.strength * (model.vector**2).sum()
"""


BATCH_NORM = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3)).double()
MODEL = with_federated_batch_norm(BATCH_NORM)
"""A model for all methods, including FedBN."""

TWICE = torch.nn.Sequential(*BATCH_NORM, BATCH_NORM[1])
"""A model that uses one BatchNorm layer in two places."""


def simulation():
    return Simulation(hidden.data(), Task(MODEL), engine=Loop())


def made(name, **options):
    return CLIENT_SIDE[name](m=4, local=LOCAL, **options)


@pytest.mark.parametrize("name", long_except(["MIME", "FedRep"], NAMES))
def test_resumed_run_has_the_same_bits(name, tmp_path):
    whole = drfl.run(made(name), simulation(), rounds=3, seed=3)
    keep = Checkpoints(tmp_path, every=1)
    drfl.run(made(name), simulation(), rounds=2, seed=3, checkpoints=keep)
    again = drfl.run(made(name), simulation(), rounds=3, seed=3, checkpoints=Checkpoints(tmp_path, every=1))
    assert torch.equal(whole.model, again.model)
    assert torch.equal(whole.state.w, again.state.w)
    assert whole.history.to_csv() == again.history.to_csv()
    if whole.state.store is not None:
        assert torch.equal(whole.state.store.dense(), again.state.store.dense())


@pytest.mark.parametrize("name", [name for name in NAMES if issubclass(CLIENT_SIDE[name], PersonalClientSide)])
def test_each_client_is_tested_with_its_own_model(name):
    fed = simulation()
    result = drfl.run(made(name), fed, rounds=2, returned="last")
    models = result.personal.dense()
    for i in range(fed.n):
        alone = fed.evaluate(models[i])
        assert result.evaluation.loss[i] == pytest.approx(float(alone.loss[i]))
        assert result.evaluation.score[i] == alone.score[i]
    assert len({tuple(model.tolist()) for model in models}) == fed.n


@pytest.mark.parametrize("name", long_except(["MIME", "FedBN"], NAMES))
def test_guards_do_not_change_a_run_with_valid_replies(name):
    plain, guarded = (drfl.run(a, simulation(), rounds=2) for a in (made(name), Protected(made(name))))
    assert torch.equal(plain.state.w, guarded.state.w)
    assert plain.evaluation.loss.tolist() == guarded.evaluation.loss.tolist()


@pytest.mark.long
def test_comparison_of_all_methods_in_worker_processes(tmp_path):
    algorithms = {"FedAvg": drfl.FedAvg(m=4, local=LOCAL), **{name: made(name) for name in NAMES}}
    options = {"seeds": 2, "rounds": 3, "out": tmp_path / "all"}
    comparison = drfl.compare(algorithms, hidden.data(), Task(MODEL), jobs=2, **options)
    rows = comparison.to_frame().set_index(["algorithm", "seed"])
    assert len(rows) == 2 * len(algorithms)
    alone = drfl.run(made("Ditto"), simulation(), rounds=3, seed=1)
    worst = rows.loc[("Ditto", 1), "worst_accuracy"]
    assert worst == pytest.approx(float(alone.evaluation.score.min()), abs=1e-6)
    # The model and the rows of a run that is not personalised are FedAvg's; Ditto's tests differ.
    assert rows.loc[("FedAvg", 1), "avg_loss"] != rows.loc[("Ditto", 1), "avg_loss"]


@pytest.mark.parametrize("name", long_except(["Ditto"], [name for name in NAMES if name != "FedBN"]))
def test_command_runs_each_method_with_its_options(name, tmp_path, capsys):
    out = tmp_path / name
    arguments = ["run", "--algorithm", name, "--dataset", "digits", "--model", "mlp", "--clients", "4", "--rounds", "2"]
    names = ("lam", "mu", "tau", "beta", "body_steps", "temperature", "beta2")
    own = {k: v for k, v in defaults_of(name).items() if k in names}
    for option, value in own.items():
        arguments += ["--param", f"{name}.{option}={value}"]
    assert app.call([*arguments, "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["algorithm"] == name
    assert (out / "summary.json").exists()


@pytest.mark.long
def test_method_from_a_users_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(OWN_FILE)
    monkeypatch.chdir(tmp_path)
    arguments = ["run", "--algorithm", "mine.py:Shrinking", "--dataset", "digits", "--clients", "4", "--rounds", "2"]
    assert app.call([*arguments, "--param", "strength=0.5", "--out", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == 2
    compare = ["compare", "--algorithms", "FedAvg,mine.py:Shrinking", "--dataset", "digits", "--clients", "4"]
    assert app.call([*compare, "--rounds", "2", "--seeds", "2", "--out", "both"]) == 0
    (tmp_path / "job.toml").write_text('dataset = "digits"\nclients = 4\nrounds = 2\n')
    tune = ["tune", "job.toml", "--algorithms", "mine.py:Shrinking", "--trials", "2", "--seeds", "1"]
    assert app.call([*tune, "--confirm-seeds", "0", "--out", "tuned"]) == 0


@dataclass(frozen=True)
class Prototypes(PersonalClientSide):
    """A method without shared parameters, like FedProto."""

    def private(self, model):
        return model.names

    def shared(self, model):
        return {"sums": model.vector.new_zeros(model.classes, model.width), "counts": torch.zeros(model.classes)}

    def message_shapes(self, model):
        return {name: tuple(value.shape) for name, value in self.shared(model).items()}

    def message(self, model, data, context):
        classes = torch.nn.functional.one_hot(data.targets, model.classes).double()
        return {"sums": classes.T @ data.features(model), "counts": classes.sum(0)}

    def merge(self, shared, messages, weights):
        return {name: value.sum(0) for name, value in messages.items()}


@pytest.mark.parametrize(
    ("algorithm", "numbers"),
    [
        # The model has 5·3 = 15 numbers, its BatchNorm layer 4·3 = 12, and its head 4·3 = 12.
        (drfl.FedAvg, 15 + 12 + 12),
        (drfl.Ditto, 15 + 12 + 12),
        (drfl.FedRep, 15 + 12),
        (drfl.FedBN, 15 + 12),
        (Prototypes, 3 * 3 + 3),  # no model, but a mean of 3 features and a count for each of 3 classes
    ],
)
def test_private_parameters_are_not_counted_as_traffic(algorithm, numbers):
    run = drfl.run(algorithm(m=4, local=LOCAL), simulation(), rounds=1, returned="last")
    ledger = run.history.last.ledger
    assert ledger["bytes_down"] == ledger["bytes_up"] == 4 * 8 * numbers
    if algorithm is not drfl.FedAvg:
        # A request that reaches no client counts the same.
        fed = simulation()
        nobody = UnreliableFederation(fed, unavailable=torch.ones(fed.n, dtype=torch.bool))
        made = algorithm(m=4, local=LOCAL)
        made.round(made.init(nobody), nobody, Key(0))
        assert (fed.ledger.bytes_down, fed.ledger.bytes_up) == (4 * 8 * numbers, 0)


def test_method_loss_is_named_if_drfl_determines_the_step_size(caplog):
    def penalised(**options):
        return type("Penalised", (drfl.ClientSide,), {"loss": lambda self, model, batch, context: batch.loss(model)})(
            m=4, **options
        )

    own = penalised()
    cases = [own, Protected(penalised()), own, penalised(local=LOCAL), Prototypes(m=4), drfl.Ditto(m=4)]
    # The second run of a class does not repeat the warning.
    for algorithm, named in zip(cases, (True, True, False, False, False, False), strict=True):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "drfl"):
            drfl.run(algorithm, simulation(), rounds=1)
        assert (("step-size-of-task-loss", "lr") in logged(caplog)) == named


def test_models_that_do_not_suit_the_method_are_refused():
    linear = Task(torch.nn.Linear(4, 3).double())
    with refused("unsupported-model", "model"):
        drfl.run(made("FedRep"), Simulation(hidden.data(), linear), rounds=1)
    with refused("unknown-name", "head", "2.weight"):
        drfl.run(made("FedRep", head="fc"), simulation(), rounds=1)
    named = drfl.run(made("FedRep", head="2"), simulation(), rounds=2)
    assert torch.equal(named.state.w, drfl.run(made("FedRep"), simulation(), rounds=2).state.w)
    data = hidden.data()
    from dataclasses import replace

    numbers = replace(data, targets=data.targets.double(), test_targets=data.test_targets.double())
    regression = Task(torch.nn.Linear(4, 1).double(), torch.nn.MSELoss())
    with refused("wrong-task", "algorithm"):
        drfl.run(made("FedLC"), Simulation(numbers, regression), rounds=1)


@pytest.mark.parametrize(
    ("name", "options", "field"),
    [
        ("Ditto", {"lam": -1.0}, "lam"),
        ("FedRep", {"body_steps": 0}, "body_steps"),
        ("FedLC", {"tau": -0.1}, "tau"),
        ("MIME", {"beta": 1.0}, "beta"),
        ("MOON", {"mu": -1.0}, "mu"),
        ("MOON", {"temperature": 0.0}, "temperature"),
        ("FGDROKLAdam", {"temperature": 0.0}, "temperature"),
        ("FGDROKLAdam", {"epsilon": 0.0}, "epsilon"),
        *(("FGDROKLAdam", {f"beta{j}": value}, f"beta{j}") for j in (1, 2, 3, 4) for value in (0.0, 1.1)),
    ],
)
def test_options_out_of_range_are_refused(name, options, field):
    with refused("out-of-range", field):
        made(name, **options)


def test_federation_without_the_model_refuses_own_models():
    fed = drfl.testing.QuadraticFederation(torch.eye(2).repeat(4, 1, 1), torch.ones(4, 2), torch.zeros(4))
    with refused("unsupported-combination", "algorithm"):
        drfl.run(made("Ditto"), fed, rounds=1)
    models = OwnModels(fed.w0, made("Ditto"), None)
    with refused("simulation-only"):
        fed.evaluate_each(fed.own_models(models))
    assert Key(0) == Key(0)


@pytest.mark.parametrize(("engine", "module"), crossed(ENGINES, {"one place": BATCH_NORM, "two places": TWICE}))
def test_fedbn_equals_torch_with_local_batch_norm(module, engine):
    """Compare two rounds with plain torch, in which every client keeps its BatchNorm layer."""
    fed = Simulation(hidden.data(), Task(with_federated_batch_norm(module)), engine=engine)
    local = LocalSGD(steps=3, lr=0.1, batch=None)
    result = drfl.run(CLIENT_SIDE["FedBN"](m=5, local=local), fed, rounds=2, returned="last")
    data, models = hidden.data(), [copy.deepcopy(module) for _ in range(fed.n)]
    for _ in range(2):
        for i, model in enumerate(models):
            solver = torch.optim.SGD(model.train().parameters(), lr=0.1)
            x, y = data.inputs[data.train[i]], data.targets[data.train[i]]
            for _ in range(3):
                solver.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                solver.step()
        with torch.no_grad():
            for key in ("0.weight", "0.bias", "2.weight", "2.bias"):
                mean = sum(p * model.state_dict()[key] for p, model in zip(fed.shares, models, strict=True))
                for model in models:
                    model.state_dict()[key].copy_(mean)
    for model, own in zip(models, result.personal.dense(), strict=True):
        module = with_federated_batch_norm(model)
        torch.testing.assert_close(own, drfl.Layout.of(module).flatten(module), rtol=0, atol=1e-12)


def test_running_statistics_are_averaged_without_fedbn_and_refused_with_drift_terms():
    a, b = (drfl.run(drfl.FedAvg(m=5, local=LOCAL), f, rounds=2) for f in (simulation(), simulation()))
    assert torch.equal(a.state.w, b.state.w)
    mean = drfl.Layout.of(MODEL).views(a.state.w)["1.running_mean"]
    assert mean.abs().min() > 0
    with refused("unsupported-combination", "model"):
        drfl.run(drfl.SCAFFOLD(m=5, local=LOCAL), simulation(), rounds=2)
    with refused("unsupported-model", "model"):
        drfl.run(made("FedBN"), Simulation(hidden.data(), Task(hidden.model())), rounds=1)


@pytest.mark.parametrize(
    ("name", "engine"),
    crossed(["FedBN", "FGDROKLAdam"], {"stacked": Stacked(), "threads": Threads(2)}),
)
def test_batch_norm_works_in_every_engine(engine, name):
    ends = [drfl.run(made(name), Simulation(hidden.data(), Task(MODEL), engine=e), rounds=2) for e in (Loop(), engine)]
    torch.testing.assert_close(ends[0].state.w, ends[1].state.w, rtol=0, atol=1e-12)
    torch.testing.assert_close(ends[0].state.store.dense(), ends[1].state.store.dense(), rtol=0, atol=1e-12)


def test_model_file_loads_into_torch_batch_norm_layers():
    module = copy.deepcopy(BATCH_NORM)
    module.load_state_dict(MODEL.state_dict(), strict=True)
    frozen = with_federated_batch_norm(copy.deepcopy(BATCH_NORM).eval())
    assert isinstance(frozen[1], torch.nn.BatchNorm1d)
    for layer in (torch.nn.BatchNorm1d(3, momentum=None), torch.nn.BatchNorm1d(3, track_running_stats=False)):
        with refused("unsupported-model", "model"):
            with_federated_batch_norm(torch.nn.Sequential(layer))
