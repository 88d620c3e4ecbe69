"""Test local steps with a custom loss: engines agree, and the task's loss gives FedAvg."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from tests.support.marks import long_except
from tests.support.problems import federation, pools, task_of
from tests.support.refusals import quotes, refused
from torch import nn

import drfl
from drfl.algorithms import ClientSide, FedAvg, PersonalClientSide
from drfl.core.key import Key
from drfl.engine import Auto, Loop, Simulation, Stacked, Threads
from drfl.federation.federation import SCALAR_BYTES
from drfl.federation.local_method import LocalMethod, unflatten
from drfl.optim.local import LocalSGD
from drfl.optim.local_optimizers import SAM, Adam
from drfl.task.task import Task

LOCALS = {
    "plain": LocalSGD(steps=3, lr=0.1, batch=8),
    "everything": LocalSGD(epochs=2, lr=0.1, batch=8, momentum=0.6, weight_decay=0.1, radius=1.0),
    "full batches": LocalSGD(steps=3, lr=0.05, batch=None, optimizer=Adam()),
    "sam": LocalSGD(steps=2, lr=0.1, batch=8, optimizer=SAM(0.1)),
}
KEY = Key(3).fold("round", 1)
EVERYBODY = torch.arange(6)


def two_layers(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, classes))


@dataclass(frozen=True)
class Everything(PersonalClientSide):
    """A method with all features: state, private head, prepared tensors, a message, features and views."""

    pull: float = 0.3
    trained: ClassVar[tuple[str, ...]] = ("scale",)

    def state(self, model):
        return {"scale": torch.ones(model.width, dtype=model.vector.dtype), "rounds": model.vector.new_zeros(())}

    def private(self, model):
        return model.head

    def prepare(self, model, data, context):
        return {"centre": data.features(model).mean(0)}

    def loss(self, model, batch, context):
        features, outputs = model.features(batch.inputs)
        with torch.no_grad():
            target = context.received(batch.view(1))
        away = ((features - context["centre"]) * context.state["scale"]).square().sum(1)
        return (
            batch.mean(model.losses(outputs, batch.targets) + self.pull * away) + 0.1 * (outputs - target).abs().sum()
        )

    def trains(self, model, step, steps):
        return (*model.head, "scale") if step <= steps // 2 else model.names

    def remember(self, model, data, context):
        return {"rounds": context.state["rounds"] + 1}

    def message_shapes(self, model):
        return {"mean": (model.width,), "rows": ()}

    def message(self, model, data, context):
        return {"mean": data.features(model).mean(0), "rows": torch.tensor(len(data.targets))}

    def shared(self, model):
        return {"mean": model.vector.new_zeros(model.width)}

    def merge(self, shared, messages, weights):
        assert messages["rows"].shape == weights.shape
        return {"mean": weights @ messages["mean"]}


@pytest.mark.parametrize("name", long_except(["plain", "full batches"], LOCALS))
def test_loss_of_the_task_gives_fedavg(name):
    runs = [
        drfl.run(kind(m=4, local=LOCALS[name]), federation(model=two_layers, engine=engine), rounds=2, averaged=True)
        for kind, engine in ((FedAvg, Loop()), (ClientSide, Loop()), (ClientSide, Stacked()), (ClientSide, Auto()))
    ]
    for run in runs[1:]:
        torch.testing.assert_close(run.state.w, runs[0].state.w, rtol=0, atol=1e-12)
        torch.testing.assert_close(run.average.w, runs[0].average.w, rtol=0, atol=1e-12)
        assert run.history.last.ledger == runs[0].history.last.ledger


@pytest.mark.parametrize("name", long_except(["everything", "sam"], LOCALS))
def test_engines_agree_on_a_method_with_all_features(name):
    ends = []
    for engine in (Loop(), Stacked(), Threads(2)):
        fed = federation(model=two_layers, engine=engine)
        ends.append(drfl.run(Everything(m=4, local=LOCALS[name]), fed, rounds=2).state)
    for end in ends[1:]:
        for part in ("w", "shared"):
            torch.testing.assert_close(getattr(end, part), getattr(ends[0], part), rtol=0, atol=1e-11)
        torch.testing.assert_close(end.store.dense(), ends[0].store.dense(), rtol=0, atol=1e-11)
    store = ends[0].store.dense()
    # 1, the head (3 × 5 and 3), scale (5), rounds
    assert store.shape == (6, 1 + 18 + 5 + 1)
    assert set(store[:, -1].tolist()) <= {0.0, 1.0, 2.0}
    assert store[:, -1].sum() == 2 * 4


@pytest.mark.parametrize("engine", [Loop(), Stacked()], ids=["loop", "stacked"])
def test_model_and_trained_state_take_the_steps_of_a_single_model(engine):
    fed = federation(engine=engine)
    for local in (LOCALS["sam"], LocalSGD(steps=3, lr=0.3, batch=8, radius=0.5)):
        algorithm, up = drfl.Ditto(m=6, local=local, lam=0.0), fed.train(EVERYBODY, fed.w0, local, KEY.fold("sgd"))
        state, _ = algorithm.round(algorithm.init(fed), fed, KEY)
        expected = FedAvg(m=6, local=local).round(FedAvg().init(fed), fed, KEY)[0].w
        torch.testing.assert_close(state.w, expected, rtol=0, atol=1e-12)
        # Without a pull, Ditto's second model takes the same steps as the first one.
        torch.testing.assert_close(state.store.dense()[:, 1:], up.w, rtol=0, atol=1e-12)
        if local.radius is not None:
            assert bool((up.w.norm(dim=1) > 0.5 - 1e-9).any())


def test_private_parameters_and_states_stay_at_the_client():
    fed = federation(model=two_layers)
    algorithm = Everything(m=6, local=LOCALS["plain"])
    state = algorithm.init(fed)
    before = fed.ledger.totals()
    after, _ = algorithm.round(state, fed, KEY)
    head = fed.layout_of(algorithm).private
    assert torch.equal(after.w[head], fed.w0[head])
    assert not torch.equal(after.w[~head], fed.w0[~head])
    cost = {name: value - before[name] for name, value in fed.ledger.totals().items()}
    assert cost["bytes_down"] == 6 * 8 * (int((~head).sum()) + 5)  # the body and the shared mean
    assert cost["bytes_up"] == 6 * 8 * (int((~head).sum()) + 5 + 1)
    assert cost["gradient_evaluations"] == sum(min(8, n) * 3 for n in (1, 2, 31, 32, 33, 180))
    models = algorithm.personal(after, after.w, fed, KEY).dense()
    assert torch.equal(models[:, ~head], after.w[~head].expand(6, -1))
    assert torch.equal(models[:, head], after.store.dense()[:, 1:19])


def test_clients_can_start_from_their_own_models():
    for engine in (Loop(), Stacked()):
        fed = federation(engine=engine)
        start = fed.w0 + 0.1 * EVERYBODY[:, None]
        up = fed.train(EVERYBODY, fed.w0, LOCALS["plain"], KEY, prox=0.5, start=start, snapshot=2)
        for i in range(6):
            # From its start model, with the pull towards w written as a shift.
            alone = fed.train(
                EVERYBODY[i : i + 1], start[i], LOCALS["plain"], KEY, prox=0.5, shift=0.5 * (start[i] - fed.w0)[None],
                snapshot=2,
            )  # fmt: skip
            torch.testing.assert_close(up.w[i], alone.w[0], rtol=0, atol=1e-12)
            torch.testing.assert_close(up.snapshot[i], alone.snapshot[0], rtol=0, atol=1e-12)


class Tensors(LocalMethod):
    def loss(self, model, batch, context):
        return batch.loss(model) + (context["common"] * context["mine"] * model.vector).sum()


def test_shared_and_per_client_tensors():
    fed = federation()
    common, mine = torch.rand(15, dtype=torch.float64), torch.rand(6, 15, dtype=torch.float64)
    up = fed.train_with(
        Tensors(), EVERYBODY, fed.w0, LOCALS["plain"], KEY, context={"common": common}, per_client={"mine": mine}
    )
    expected = fed.train(EVERYBODY, fed.w0, LOCALS["plain"], KEY, shift=common * mine)
    torch.testing.assert_close(up.w, expected.w, rtol=0, atol=1e-12)
    vector = 8 * 15
    assert fed.ledger.bytes_down == 6 * vector * (3 + 2)


class Branching(ClientSide):
    def loss(self, model, batch, context):
        outputs = model(batch.inputs)
        return batch.mean(model.losses(outputs, batch.targets)) * (2.0 if float(outputs.detach().sum()) > 1e9 else 1.0)


def test_unvectorisable_loss_runs_sequentially_and_is_logged_once(caplog):
    data, task = pools(), task_of()
    with caplog.at_level(logging.WARNING, "drfl"):
        end = drfl.run(Branching(local=LOCALS["plain"]), Simulation(data, task, engine=Stacked()), rounds=3)
    assert [record.msg.code for record in caplog.records] == ["slow-method"]
    assert "PyTorch internals" not in caplog.text
    other = drfl.run(FedAvg(local=LOCALS["plain"]), Simulation(data, task, engine=Loop()), rounds=3)
    torch.testing.assert_close(end.state.w, other.state.w, rtol=0, atol=1e-12)


class Noisy(ClientSide):
    def loss(self, model, batch, context):
        return batch.mean(model.losses(model(batch.inputs + torch.randn_like(batch.inputs)), batch.targets))


class Scaled(ClientSide):
    def loss(self, model, batch, context):
        return batch.loss(model) * np.random.random()


@pytest.mark.parametrize(("kind", "library"), [(Noisy, "torch"), (Scaled, "NumPy")])
@pytest.mark.parametrize("engine", [Loop(), Stacked(), Threads(2)], ids=lambda engine: type(engine).__name__)
def test_loss_that_draws_from_a_global_generator_is_refused(kind, library, engine, caplog):
    quoted = (f"{kind.__name__}.loss", library)
    with caplog.at_level(logging.WARNING, "drfl"), refused("unsupported-model", "loss", *quoted):
        drfl.run(kind(local=LOCALS["plain"]), Simulation(pools(), task_of(), engine=engine), rounds=1)
    assert caplog.records == []


def test_augmented_views_differ_and_the_first_is_the_tasks():
    seen = []

    class Views(ClientSide):
        def loss(self, model, batch, context):
            seen.append([batch.view(i).detach().clone() for i in (0, 1, 2, 1)] + [batch.inputs.detach().clone()])
            return batch.loss(model)

    def noise(x, uniform):
        return x + uniform(*x.shape[1:]).to(x)

    local = LocalSGD(steps=1, lr=0.1, batch=8)
    data, task = pools(), task_of(augment=noise)
    ends = [drfl.run(kind(local=local), Simulation(data, task, engine=Loop()), rounds=1) for kind in (Views, FedAvg)]
    torch.testing.assert_close(ends[0].state.w, ends[1].state.w, rtol=0, atol=1e-12)
    first, second, third, again, inputs = seen[0]
    assert torch.equal(first, inputs)
    assert torch.equal(second, again)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


def test_ignored_targets_are_excluded():
    data = pools()
    targets = data.targets.clone()
    targets[::3] = -100
    from dataclasses import replace

    data = replace(data, targets=targets, train=data.train[2:], test=data.test[2:], names=data.names[2:])
    task = Task(task_of().model, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]).double()))
    for engine in (Loop(), Stacked()):
        ends = [
            drfl.run(kind(local=LOCALS["plain"]), Simulation(data, task, engine=engine), rounds=2)
            for kind in (FedAvg, ClientSide)
        ]
        torch.testing.assert_close(ends[0].state.w, ends[1].state.w, rtol=0, atol=1e-12)


def faulty(**functions):
    return type("Faulty", (ClientSide,), functions)(local=LOCALS["plain"])


def boom(self, *arguments):
    raise KeyError("gone")


@pytest.mark.parametrize(
    ("functions", "code", "field"),
    [
        ({"loss": lambda self, m, b, c: m(b.inputs)}, "wrong-shape", "loss"),
        ({"loss": lambda self, m, b, c: 1.0}, "wrong-shape", "loss"),
        ({"loss": boom}, "user-code-failed", "Faulty"),
        ({"prepare": boom}, "user-code-failed", "Faulty"),
        ({"private": lambda self, m: ["nowhere"]}, "unknown-name", "nowhere"),
        ({"private": lambda self, m: m.names[0]}, "wrong-type", "private"),
        ({"trained": "v"}, "wrong-type", "trained"),
        ({"trains": lambda self, m, s, n: m.names[0]}, "wrong-type", "trains"),
        ({"trained": ("nothing",)}, "unknown-name", "nothing"),
        ({"trains": lambda self, m, s, n: ["nothing"]}, "unknown-name", "nothing"),
        ({"state": lambda self, m: {"n": torch.tensor(1)}}, "wrong-type", "n"),
        (
            {"state": lambda self, m: {"n": m.vector.sum()}, "remember": lambda self, m, d, c: {"n": m.vector}},
            "wrong-shape", "n",
        ),
        ({"message_shapes": lambda self, m: {"n": (2,)}}, "incomplete-method", "message"),
        ({"loss": lambda self, m, b, c: b.loss(m).detach()}, "no-gradient", "loss"),
        ({"loss": lambda self, m, b, c: m.vector.new_zeros(())}, "no-gradient", "loss"),
        ({"trains": boom}, "user-code-failed", "Faulty"),
        ({"state": boom}, "user-code-failed", "Faulty"),
        ({"private": boom}, "user-code-failed", "Faulty"),
        ({"shared": boom}, "user-code-failed", "Faulty"),
        ({"shared": lambda self, m: {"n": m.vector}, "merge": boom}, "user-code-failed", "Faulty"),
        (
            {
                "message": lambda self, m, d, c: {}, "message_shapes": lambda self, m: {"n": (2,)},
                "shared": lambda self, m: {"n": m.vector}, "merge": boom,
            },
            "wrong-shape", "n",
        ),
    ],
)  # fmt: skip
def test_faulty_method_is_named(functions, code, field):
    for engine in (Loop(), Stacked()):
        with refused(code, field):
            drfl.run(faulty(**functions), federation(engine=engine), rounds=1)


@pytest.mark.parametrize("engine", [Loop(), Stacked()])
@pytest.mark.parametrize(
    ("loss", "known"),
    [
        (lambda self, m, b, c: b.loss(m) + c["protos"].sum(), "prototypes"),
        (lambda self, m, b, c: b.loss(m) + c.state["protos"].sum(), "none"),
    ],
)
def test_missing_tensor_is_named_with_the_existing_ones(loss, known, engine, caplog):
    functions = {"loss": loss, "shared": lambda self, m: {"prototypes": m.vector.new_zeros(2)}}
    with caplog.at_level(logging.WARNING, "drfl"), refused("user-code-failed", "Faulty", "protos", known) as caught:
        drfl.run(faulty(**functions), federation(engine=engine), rounds=1)
    assert quotes(str(caught.value), "test_client_steps.py", str(loss.__code__.co_firstlineno))
    assert not caplog.records, "that the loss cannot be vectorised is not the reason"


def test_steps_without_trained_parameters_need_no_gradient():
    functions = {"trains": lambda self, m, s, n: (), "loss": lambda self, m, b, c: m.vector.new_zeros(())}
    for engine in (Loop(), Stacked()):
        fed = federation(engine=engine)
        assert torch.equal(drfl.run(faulty(**functions), fed, rounds=1).state.w, fed.w0)


def test_model_without_a_last_linear_layer_has_no_features():
    class Wide(ClientSide):
        def shared(self, model):
            return {"x": torch.zeros(model.classes)}

    with refused("unsupported-model", "model"):
        drfl.run(Wide(), federation(model=lambda s, c: nn.Sequential(nn.Linear(4, c), nn.GroupNorm(1, c))), rounds=1)


def test_message_is_read_by_name():
    flat = torch.arange(12.0).reshape(2, 6)
    parts = unflatten(flat, {"a": (2, 2), "b": (), "c": (1,)})
    assert {name: tuple(part.shape) for name, part in parts.items()} == {"a": (2, 2, 2), "b": (2,), "c": (2, 1)}
    assert parts["b"].tolist() == [4.0, 10.0]
    assert SCALAR_BYTES == 8
