"""Test drfl's algorithms as Flower strategies."""

import re
import sys
import textwrap
from types import SimpleNamespace

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from tests.support.marks import long_beyond
from tests.support.refusals import quotes, refused

import drfl
from drfl.core.key import Key
from drfl.flower import strategy as module
from drfl.flower.client_app import identity, reply
from drfl.flower.in_process import InProcessGrid
from drfl.flower.strategy import DrflStrategy
from drfl.optim.local import LocalSGD
from drfl.resilience import Protected
from drfl.task.models import MODELS
from drfl.task.task import Task
from drfl.training.history import columns_of

from .conftest import arrays, grid_of, simulation, site

LOCAL = LocalSGD(steps=3, lr=0.1, batch=8)
OWN = {"local": LOCAL, "dual_batch": 8}
OPTIONS = ("min_available_nodes", "wait", "seed", "engine", "table_dir")


def strategy_of(algorithm):
    """Return a function that makes strategies of an algorithm."""

    def make(**given):
        own = {name: value for name, value in given.items() if name not in OPTIONS}
        return DrflStrategy(algorithm(**own), **{name: given[name] for name in OPTIONS if name in given})

    return make


AFLStrategy, DRDMStrategy, DRFAStrategy = map(strategy_of, (drfl.AFL, drfl.DRDM, drfl.DRFA))
KINDS = {
    "DRDM": (drfl.DRDM, {"m": 3, **OWN}),
    "DualDRDM": (drfl.DualDRDM, {"m": 3, **OWN}),
    "DRFA": (drfl.DRFA, {"m": 3, **OWN}),
    "ScaffPD": (drfl.ScaffPD, OWN),
    "AFL": (drfl.AFL, OWN),
}
ALL = {"min_available_nodes": 4, "engine": "loop", "wait": 0.0}


def net(dtype=torch.float32):
    with Key(0).fold("model").torch_scope():
        return MODELS["linear"]((6,), 3).to(dtype)


def initial(dtype=torch.float32):
    return ArrayRecord(net(dtype).state_dict())


def grid_with_own_model(names="dbca", dtype=torch.float32):
    return grid_of(names, load=lambda context: site(context.node_config["name"], task=Task(net(dtype))))


def flattened(record):
    return torch.cat([torch.tensor(array.numpy()).flatten() for array in record.values()])


@pytest.mark.parametrize("name", long_beyond(2, KINDS))
def test_model_and_lambda_equal_the_simulation(name):
    algorithm, parameters = KINDS[name]
    found = DrflStrategy(algorithm(**parameters), **ALL, seed=3).start(grid_with_own_model(), initial(), num_rounds=3)
    expected = drfl.run(algorithm(**parameters), simulation(), rounds=3, seed=3)
    assert torch.equal(flattened(found.arrays), expected.state.w)
    assert len(set(expected.lam.tolist())) > 1
    for row in expected.history.rows:
        told = found.evaluate_metrics_clientapp[row.round]
        assert told["lambda"] == row.lam.tolist()
        assert [told[key] for key in columns_of("accuracy")] == pytest.approx(list(row.metrics), abs=1e-6)
    assert set(found.evaluate_metrics_clientapp) == set(range(4))


@pytest.mark.long
def test_reported_losses_are_in_the_metrics():
    found = DRFAStrategy(m=3, **OWN, **ALL).start(grid_with_own_model(), initial(), num_rounds=2)
    seen = []
    expected = drfl.DRFA(m=3, **OWN)
    drfl.run(expected, simulation(), rounds=2, callbacks=[lambda step: seen.append(step.info)])
    assert set(found.train_metrics_clientapp) == {1, 2}
    for told, info in zip(found.train_metrics_clientapp.values(), seen[1:], strict=True):
        assert told["answered"] == len(info.answered)
        assert told["avg_loss"] == float(info.losses.values.mean())
        assert told["worst_loss"] == float(info.losses.values.max())


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.long)])
def test_arrays_keep_names_shapes_and_types(dtype):
    before = initial(dtype)
    found = DRDMStrategy(m=2, **OWN, **ALL).start(grid_with_own_model(dtype=dtype), before, num_rounds=1)
    assert [(n, a.shape, a.dtype) for n, a in found.arrays.items()] == [
        (n, a.shape, a.dtype) for n, a in before.items()
    ]
    net(dtype).load_state_dict(found.arrays.to_torch_state_dict())
    assert not torch.equal(flattened(found.arrays), flattened(before))


def test_server_evaluation_is_called_as_in_flower():
    rounds, models = [], []

    def evaluate(server_round, record):
        rounds.append(server_round)
        models.append(flattened(record))
        return MetricRecord({"norm": float(models[-1].norm())}) if server_round != 1 else None

    found = DRDMStrategy(m=2, **OWN, **ALL).start(grid_with_own_model(), initial(), 3, evaluate_fn=evaluate)
    assert rounds == [0, 1, 2, 3]
    assert torch.equal(models[0], flattened(initial()))
    assert torch.equal(models[-1], flattened(found.arrays))
    assert {r: m["norm"] for r, m in found.evaluate_metrics_serverapp.items()} == {
        r: float(models[r].norm()) for r in (0, 2, 3)
    }


@pytest.mark.long
def test_zero_rounds_give_the_initial_model():
    found = DRDMStrategy(m=2, **ALL).start(grid_with_own_model(), initial(), num_rounds=0)
    assert torch.equal(flattened(found.arrays), flattened(initial()))
    assert found.train_metrics_clientapp == {}


@pytest.mark.long
def test_site_that_returns_as_another_node_continues():
    grid = grid_with_own_model("dbcaa")
    first, second = (node for node, context in grid.contexts.items() if context.node_config["name"] == "a")
    grid.offline = {second}

    def swap(server_round, record):
        if server_round == 2:
            grid.offline = {first}

    found = DRDMStrategy(m=3, **OWN, **ALL).start(grid, initial(), num_rounds=4, timeout=5.0, evaluate_fn=swap)
    expected = drfl.run(drfl.DRDM(m=3, **OWN), simulation(), rounds=4)
    assert grid.count[second] > 2
    assert torch.equal(flattened(found.arrays), expected.state.w)


def test_custom_handlers_work():
    app = ClientApp()

    @app.train()
    def train(message, context):
        return reply(message, context, site(context.node_config["name"], task=Task(net())))

    @app.evaluate()
    def evaluate(message, context):
        return reply(message, context, site(context.node_config["name"], task=Task(net())))

    @app.query("identity")
    def who(message, context):
        return Message(identity(site(context.node_config["name"])), reply_to=message)

    grid = InProcessGrid(app, [{"name": name} for name in "ab"])
    found = AFLStrategy(wait=0.0, engine="loop").start(grid, initial(), num_rounds=1)
    assert len(found.evaluate_metrics_clientapp[1]["lambda"]) == 2


@pytest.mark.parametrize("options", [{"m": 2, "min_available_nodes": 4}, {"m": 4}])
def test_too_few_nodes_are_a_one_line_error(options):
    with refused("sites-missing", None, "0 s", "3", "4") as error:
        DRDMStrategy(wait=0.0, **options).start(grid_with_own_model("abc"), initial())
    assert "\n" not in str(error.value)


def test_strategy_waits_for_nodes(monkeypatch):
    grid = grid_with_own_model()
    grid.offline = {1, 2}
    monkeypatch.setattr("drfl.flower.nodes.time.sleep", lambda seconds: grid.offline.clear())
    found = AFLStrategy(min_available_nodes=4).start(grid, initial(), num_rounds=0)
    assert len(found.evaluate_metrics_clientapp[0]["lambda"]) == 4


def test_client_app_without_identity_is_named(caplog):
    with refused("sites-missing", None, '@app.query("identity")'):
        AFLStrategy(wait=0.0).start(InProcessGrid(ClientApp(), [{}, {}]), initial())
    assert len({record.getMessage() for record in caplog.records if quotes(record.getMessage(), "node")}) == 2


def test_two_sites_of_one_name_are_refused():
    with refused("duplicate-name", "a"):
        AFLStrategy(wait=0.0).start(grid_with_own_model("aba"), initial(), timeout=1.0)


SHORT = ArrayRecord({"w": next(iter(initial().values()))})


@pytest.mark.parametrize("wrong", [initial(torch.float64), SHORT], ids=["type", "d"])
def test_model_that_differs_from_the_sites_is_refused(wrong, caplog):
    with refused("site-untested", "a"):
        AFLStrategy(wait=0.0).start(grid_with_own_model("ab"), wrong)
    assert re.search(r"\d+ parameters in torch\.float", caplog.text)


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (
            ArrayRecord(torch.nn.BatchNorm1d(3).state_dict()),
            ("wrong-type", "initial_arrays", "'torch.float32', 'torch.int64'", "GroupNorm"),
        ),
        (ArrayRecord({}), ("wrong-type", "initial_arrays", "no arrays")),
    ],
    ids=["buffers", "none"],
)
def test_arrays_that_are_not_parameters_are_refused(record, error):
    with refused(*error):
        AFLStrategy().start(grid_with_own_model(), record)


@pytest.mark.parametrize("kind", ["train_config", pytest.param("evaluate_config", marks=pytest.mark.long)])
def test_unused_config_is_refused(kind):
    with refused("unused-option", "train_config"):
        AFLStrategy().start(grid_with_own_model(), initial(), **{kind: ConfigRecord({"lr": 0.1})})
    assert AFLStrategy(wait=0.0).start(grid_with_own_model(), initial(), 0, **{kind: ConfigRecord()})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"engine": "lop"}, ("unknown-name", "engine", "'loop'")),
        ({"min_available_nodes": 0}, ("out-of-range", "min_available_nodes")),
        ({"wait": -1}, ("out-of-range", "wait")),
        ({"seed": 0.5}, ("out-of-range", "seed")),
        ({"gamma": -1.0}, ("out-of-range", "gamma")),
    ],
)
def test_wrong_options_are_refused(options, error):
    with refused(*error):
        AFLStrategy(**options)


def test_averaged_solution_is_not_supported():
    with pytest.raises(TypeError, match="averaged"):
        AFLStrategy(averaged=True)


@pytest.mark.long
def test_tables_can_be_in_files(tmp_path):
    with refused("not-a-folder", "table_dir"):
        DRDMStrategy(m=3, **OWN, **ALL, table_dir=str(tmp_path / "no")).start(grid_with_own_model(), initial())
    found = [
        DRDMStrategy(m=3, **OWN, **ALL, table_dir=folder).start(grid_with_own_model(), initial(), num_rounds=2)
        for folder in (None, str(tmp_path))
    ]
    assert torch.equal(*(flattened(one.arrays) for one in found))


def test_separate_steps_of_a_round_are_refused():
    strategy, grid = AFLStrategy(), grid_with_own_model()
    for call in (
        lambda: strategy.configure_train(1, initial(), ConfigRecord(), grid),
        lambda: strategy.aggregate_train(1, []),
        lambda: strategy.configure_evaluate(1, initial(), ConfigRecord(), grid),
        lambda: strategy.aggregate_evaluate(1, []),
    ):
        with refused("unsupported-combination", None, "start()"):
            call()


def test_summary_names_algorithm_and_parameters(monkeypatch):
    lines = []
    monkeypatch.setattr("drfl.flower.strategy.log", lambda level, text, *values: lines.append(text % values))
    DRDMStrategy(m=7, mu=0.25, seed=9).summary()
    text = "\n".join(lines)
    for part in ("DRDM", "m: 7", "mu: 0.25", "local: LocalSGD", "seed: 9"):
        assert part in text


def test_protection_is_applied_unless_the_algorithm_has_one(monkeypatch):
    own, ran = Protected(drfl.DRFA(m=2), norm=3.0), []

    def noted(algorithm, fed, **options):
        ran.append(algorithm)
        return drfl.run(algorithm, fed, **options)

    monkeypatch.setattr("drfl.flower.strategy.run", noted)
    for algorithm in (own, own.algorithm):
        DrflStrategy(algorithm, wait=0.0, min_available_nodes=4).start(grid_with_own_model(), initial(), num_rounds=0)
    assert ran == [own, Protected(own.algorithm, names=("a", "b", "c", "d"))]


@pytest.mark.long
def test_docstring_example_runs(monkeypatch, capsys):
    server, client = (part.partition("\n\nThe sites' end")[0] for part in module.__doc__.split(".py``::\n\n")[1:])
    told = {"Net": lambda: torch.nn.Linear(6, 3), "load_data": lambda name: (arrays(20, int(name[-1])), arrays(9, 5))}
    monkeypatch.setitem(sys.modules, "my_app", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "my_app.task", SimpleNamespace(**told))
    at_server, at_sites = {}, {}
    exec(textwrap.dedent(server), at_server)
    exec(textwrap.dedent(client), at_sites)
    grid = InProcessGrid(at_sites["app"], [{"partition-id": i} for i in range(4)])
    at_server["app"](grid, Context(1, 0, {}, RecordDict(), {}))
    assert "'worst_accuracy'" in capsys.readouterr().out
