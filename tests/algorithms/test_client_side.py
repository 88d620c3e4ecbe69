"""Client-side methods in every command: run, compare, tune, resume, and a deployment of three sites."""

from __future__ import annotations

import json

import pytest
import torch
from tests.support import hidden
from tests.support.refusals import refused

import drfl
from drfl.algorithms import CLIENT_SIDE, PersonalClientSide
from drfl.cli import app
from drfl.core.key import Key
from drfl.engine import Loop, Simulation
from drfl.experiments.config.hyperparameters import defaults_of
from drfl.federation.local_method import OwnModels
from drfl.optim.local import LocalSGD
from drfl.resilience import Protected
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


def simulation():
    return Simulation(hidden.data(), Task(hidden.model()), engine=Loop())


def made(name, **options):
    return CLIENT_SIDE[name](m=4, local=LOCAL, **options)


@pytest.mark.parametrize("name", NAMES)
def test_a_stopped_run_goes_on_with_the_same_bits(name, tmp_path):
    whole = drfl.run(made(name), simulation(), rounds=5, seed=3)
    keep = Checkpoints(tmp_path, every=1)
    drfl.run(made(name), simulation(), rounds=2, seed=3, checkpoints=keep)
    again = drfl.run(made(name), simulation(), rounds=5, seed=3, checkpoints=Checkpoints(tmp_path, every=1))
    assert torch.equal(whole.model, again.model)
    assert torch.equal(whole.state.w, again.state.w)
    assert whole.history.to_csv() == again.history.to_csv()
    if whole.state.store is not None:
        assert torch.equal(whole.state.store.dense(), again.state.store.dense())


@pytest.mark.parametrize("name", [name for name in NAMES if issubclass(CLIENT_SIDE[name], PersonalClientSide)])
def test_each_client_is_tested_with_its_own_model(name):
    fed = simulation()
    result = drfl.run(made(name), fed, rounds=4, returned="last")
    models = result.personal.dense()
    for i in range(fed.n):
        alone = fed.evaluate(models[i])
        assert result.evaluation.loss[i] == pytest.approx(float(alone.loss[i]))
        assert result.evaluation.score[i] == alone.score[i]
    assert len({tuple(model.tolist()) for model in models}) == fed.n


@pytest.mark.parametrize("name", NAMES)
def test_with_guards_nothing_changes_while_all_replies_are_valid(name):
    plain, guarded = (drfl.run(a, simulation(), rounds=3) for a in (made(name), Protected(made(name))))
    assert torch.equal(plain.state.w, guarded.state.w)
    assert plain.evaluation.loss.tolist() == guarded.evaluation.loss.tolist()


def test_a_comparison_of_all_of_them_in_other_processes(tmp_path):
    algorithms = {"FedAvg": drfl.FedAvg(m=4, local=LOCAL), **{name: made(name) for name in NAMES}}
    options = {"seeds": 2, "rounds": 3, "out": tmp_path / "all"}
    comparison = drfl.compare(algorithms, hidden.data(), Task(hidden.model()), jobs=2, **options)
    rows = comparison.to_frame().set_index(["algorithm", "seed"])
    assert len(rows) == 2 * len(algorithms)
    alone = drfl.run(made("Ditto"), simulation(), rounds=3, seed=1)
    worst = rows.loc[("Ditto", 1), "worst_accuracy"]
    assert worst == pytest.approx(float(alone.evaluation.score.min()), abs=1e-6)
    # The model and the rows of a run that is not personalised are FedAvg's; Ditto's tests differ.
    assert rows.loc[("FedAvg", 1), "avg_loss"] != rows.loc[("Ditto", 1), "avg_loss"]


@pytest.mark.parametrize("name", NAMES)
def test_the_command_runs_them_with_their_options(name, tmp_path, capsys):
    out = tmp_path / name
    arguments = ["run", "--algorithm", name, "--dataset", "digits", "--model", "mlp", "--clients", "4", "--rounds", "2"]
    own = {k: v for k, v in defaults_of(name).items() if k in ("lam", "mu", "tau", "beta", "body_steps", "temperature")}
    for option, value in own.items():
        arguments += ["--param", f"{name}.{option}={value}"]
    assert app.call([*arguments, "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["algorithm"] == name
    assert (out / "summary.json").exists()


def test_a_class_in_a_file_of_ones_own(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(OWN_FILE)
    monkeypatch.chdir(tmp_path)
    arguments = ["run", "--algorithm", "mine.py:Shrinking", "--dataset", "digits", "--clients", "4", "--rounds", "2"]
    assert app.call([*arguments, "--param", "strength=0.5", "--out", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == 2
    compare = ["compare", "--algorithms", "FedAvg,mine.py:Shrinking", "--dataset", "digits", "--clients", "4"]
    assert app.call([*compare, "--rounds", "2", "--seeds", "2", "--out", "both"]) == 0
    tune = ["tune", "--algorithms", "mine.py:Shrinking", "--dataset", "digits", "--clients", "4", "--rounds", "2"]
    assert app.call([*tune, "--trials", "2", "--out", "tuned"]) == 0


def test_the_model_must_suit_the_method():
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
    ],
)
def test_options_out_of_range(name, options, field):
    with refused("out-of-range", field):
        made(name, **options)


def test_a_federation_that_does_not_know_the_model_refuses_own_models():
    fed = drfl.testing.QuadraticFederation(torch.eye(2)[None], torch.ones(1, 2), torch.zeros(1))
    with refused("unsupported-combination", "algorithm"):
        drfl.run(made("Ditto"), fed, rounds=1)
    models = OwnModels(fed.w0, made("Ditto"), None)
    with refused("simulation-only"):
        fed.evaluate_each(fed.own_models(models))
    assert Key(0) == Key(0)
