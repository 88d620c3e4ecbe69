"""Test that every engine refuses unsuitable models with the same reason, and that no row changes."""

from __future__ import annotations

import logging
import random
import re
import threading
import types
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.support.marks import long_beyond
from tests.support.refusals import quotes, refused
from torch import nn
from torch.nn import functional

import drfl
from drfl.core.global_rng import changed_generators, global_states
from drfl.engine import Auto, Loop, RayWorkers, Stacked, Threads, auto
from drfl.engine.base import PooledData
from drfl.task.model_checks import without_compilation

LOCAL = drfl.LocalSGD(steps=2, lr=0.1, batch=8)


class Of(nn.Module):
    """A linear layer ``l`` inside the test's forward pass."""

    def __init__(self, forward, **parts):
        super().__init__()
        self.l, self.calls, self.formula = nn.Linear(4, 2), 0, forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.formula(self, x)


def counting():
    model = Of(lambda self, x: (self.count.add_(1), self.l(x))[1])
    model.register_buffer("count", torch.zeros(()))
    return model


def remembering(self, x):
    self.calls += 1
    return self.calls * self.l(x)


def rescaling(self, x):
    with torch.no_grad():
        self.l.weight.clamp_(-0.1, 0.1)
    return self.l(x)


def with_extra_state():
    class Extra(nn.Linear):
        def get_extra_state(self):
            return {"version": 1}

    return Extra(4, 2)


def with_sparse_buffer():
    model = Of(lambda self, x: self.l(x))
    model.register_buffer("graph", torch.eye(4).to_sparse())
    return model


def pairs(n=60):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, n, 4, generator=generator)
    return {name: (rows, (rows.sum(1) > 0).long()) for name, rows in zip("abc", x, strict=True)}


def seq(*layers):
    return nn.Sequential(*layers, nn.Linear(4, 2))


def halved_in_training(self, x):
    return self.l(x * 0.5 if self.training else x)


def captured(*layers):
    """A model whose lambda accesses a layer of the model, which a copy of the model does not copy."""
    model = Of(lambda self, x: self.act(self.body(x)), body=nn.Sequential(*layers))
    model.act = lambda x: model.l(x)
    return model


def listed():
    model = Of(lambda self, x: functional.linear(x, self.kept[0]) + self.l.bias)
    model.kept = [model.l.weight]
    return model


REFUSED = {
    "a lambda with self": (lambda: captured(nn.Linear(4, 4)), "'l."),
    "a lambda with self and dropout": (lambda: captured(nn.Linear(4, 4), nn.Dropout(0.2)), "lambda"),
    "a parameter in a list": (listed, "'l.weight'"),
    "a layer in a list": (lambda: Of(lambda self, x: self.l(self.kept[0](x)), kept=[nn.Linear(4, 4)]), "(4"),
    "in place, a layer": (lambda: seq(nn.Flatten(), nn.ReLU(inplace=True)), "1 (ReLU)"),
    "in place, a function": (lambda: Of(lambda self, x: self.l(functional.relu(x, inplace=True))), "in place"),
    "in place, a method": (lambda: Of(lambda self, x: self.l(x.clamp_(min=0))), "the model (Of)"),
    "in place, by data": (lambda: Of(lambda self, x: (x.data.mul_(2), self.l(x))[1]), "in place"),
    "in place, an index": (lambda: Of(lambda self, x: (x[:, 0].zero_(), self.l(x))[1]), "in place"),
    "a buffer": (counting, "'count'"),
    "spectral norm": (lambda: seq(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))), "weight.0._u"),
    "a weight": (lambda: Of(rescaling), "'l.weight'"),
    "memory": (lambda: Of(remembering), "again"),
    "noise": (lambda: seq(nn.Linear(4, 4), Of(lambda self, x: x + torch.randn_like(x))), "1 (Of)"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)), "0 (LazyLinear)"),
    "lazy buffers": (lambda: seq(nn.Linear(4, 4), nn.LazyBatchNorm1d()), "1 (LazyBatchNorm1d)"),
    "statistics": (lambda: seq(nn.InstanceNorm1d(4, track_running_stats=True)), "track_running_stats=False"),
    "complex": (lambda: Of(lambda self, x: self.l(x), c=nn.Parameter(torch.ones(2) * 1j)), "complex64"),
    "meta": (lambda: nn.Linear(4, 2, device="meta"), "meta"),
    "two devices": (lambda: seq(nn.Linear(4, 4, device="meta")), "meta"),
    "two modes": (lambda: Of(halved_in_training), "eval() mode"),
    "probabilities in tests": (lambda: Of(lambda s, x: s.l(x) if s.training else s.l(x).softmax(1)), "eval() mode"),
    "a tuple": (lambda: Of(lambda self, x: (self.l(x), x)), "tuple of 2"),
    "a dict": (lambda: Of(lambda self, x: {"logits": self.l(x)}), "'logits'"),
    "nothing": (lambda: Of(lambda self, x: None), "NoneType"),
    "complex outputs": (lambda: Of(lambda self, x: self.l(x) * 1j), "complex64"),
    "one row": (lambda: Of(lambda self, x: self.l(x).squeeze()), "squeeze"),
    "the mean of a batch": (lambda: Of(lambda self, x: self.l(x - x.mean(0))), "GroupNorm"),
    "a branch": (lambda: Of(lambda self, x: self.l(x) * (2 if x.abs().max() > 3 else 1)), "torch.where"),
    "a branch on the size": (lambda: Of(lambda self, x: self.l(x) * (2 if len(x) > 40 else 1)), "GroupNorm"),
    "torch.where of the batch": (lambda: Of(lambda self, x: self.l(x) * torch.where(x.max() > 2.9, 2, 1)), "GroupNorm"),
    "detached": (lambda: Of(lambda self, x: self.l(x).detach()), "detach()"),
    "numpy": (lambda: Of(lambda self, x: torch.from_numpy(self.l(x).detach().numpy())), "numpy()"),
    "extra state": (with_extra_state, "'_extra_state'"),
    "a sparse buffer": (with_sparse_buffer, "'graph'"),
    "script": (lambda: torch.jit.script(nn.Linear(4, 2)), "torch.jit"),
    "data parallel": (lambda: nn.DataParallel(nn.Linear(4, 2)), "model.module"),
}


@pytest.mark.filterwarnings("ignore")  # of torch, on torch.jit and lazy layers
@pytest.mark.parametrize("kind", REFUSED)
def test_reason_is_named_and_rows_are_unchanged(kind):
    make, named = REFUSED[kind]
    data = drfl.ClientData.from_arrays(pairs())
    before = data.inputs.clone()
    with drfl.Key(0).torch_scope(), refused("unsupported-model", "model") as caught:
        drfl.Simulation(data, drfl.Task(make()))
    assert named in str(caught.value)
    assert torch.equal(data.inputs, before)


@pytest.mark.parametrize(
    "engine", [Loop(), Stacked(), Threads(2), Auto(), RayWorkers()], ids=lambda engine: type(engine).__name__
)
def test_in_place_layers_are_refused_by_every_engine(engine):
    data = drfl.ClientData.from_arrays(pairs())
    before = data.inputs.clone()
    with refused("unsupported-model", "model"):
        drfl.Simulation(data, drfl.Task(seq(nn.ReLU(inplace=True))), engine=engine)
    assert torch.equal(data.inputs, before)


def test_rare_row_that_decides_a_branch_is_found():
    rows = pairs(4000)
    rows["b"][0][777, 1] = 50.0
    task = drfl.Task(Of(lambda self, x: self.l(x) * (2 if x.abs().max() > 20 else 1)))
    with refused("unsupported-model", "model"):
        drfl.Simulation(drfl.ClientData.from_arrays(rows), task)


def test_failing_layer_is_named_with_its_place_in_the_code():
    task = drfl.Task(nn.Sequential(nn.Unflatten(1, (2, 2)), nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 2)))
    data = drfl.ClientData.from_arrays(pairs())
    with refused("model-data-mismatch", "model") as caught:
        drfl.Simulation(data, task)
    assert "2 (Linear)" in str(caught.value)
    assert "LSTM" in str(caught.value)
    with refused("model-data-mismatch", "model") as caught:
        drfl.Simulation(data, drfl.Task(Of(lambda self, x: self.l(x.squeeze(0).unflatten(1, (4, 1))[..., 0]))))
    assert quotes(str(caught.value), "1 inputs")
    with refused("model-data-mismatch", "model") as caught:
        drfl.Simulation(data, drfl.Task(Of(lambda self, x: self.l(x)[{}["a"]])))
    assert re.search(r"test_model_checks\.py, line \d+", str(caught.value))
    assert "KeyError" in str(caught.value)


def test_place_is_named_in_a_folder_called_drfl():
    own: dict[str, types.FunctionType] = {}
    exec(compile("def forward(self, x):\n    return self.l(x)[{}['a']]\n", "/home/me/drfl/torch/own.py", "exec"), own)
    with refused("model-data-mismatch", "model") as caught:
        drfl.Simulation(drfl.ClientData.from_arrays(pairs()), drfl.Task(Of(own["forward"])))
    assert "own.py, line 2" in str(caught.value)


def per_row(self, x):
    return torch.stack([self.l(row) * (2 if row.max() > 2 else 1) for row in x])


def to_the_longest(self, x):
    n = max(1, int((x != 0).sum(1).max()))
    return functional.linear(x[:, :n], self.l.weight[:, :n], self.l.bias)


@pytest.mark.parametrize("forward", [per_row, to_the_longest])
def test_per_sample_branch_works_or_is_a_one_line_error(forward, caplog):
    data, found = drfl.ClientData.from_arrays(pairs()), []
    for engine in (Loop(), Threads(2), None):
        with drfl.Key(0).torch_scope():
            task = drfl.Task(Of(forward))
        with caplog.at_level(logging.WARNING, "drfl.engine"):
            result = drfl.run(drfl.FedAvg(m=3, local=LOCAL), drfl.Simulation(data, task, engine=engine), rounds=2)
        found.append(result)
    assert [record.msg.code for record in caplog.records] == ["slow-model"]
    for other in found[1:]:
        torch.testing.assert_close(other.model, found[0].model)
        torch.testing.assert_close(other.evaluation.loss, found[0].evaluation.loss)
    for engine in (Stacked(), RayWorkers(engine=Stacked())):
        with refused("unsupported-model", "model"):
            drfl.Simulation(data, drfl.Task(Of(forward)), engine=engine)


class Locked(nn.Linear):
    """A layer that cannot be copied."""

    def __init__(self):
        super().__init__(4, 2)
        self.lock = threading.Lock()


def test_uncopyable_model_is_refused_if_copies_are_needed():
    data = drfl.ClientData.from_arrays(pairs())
    for engine in (Threads(2), Auto(), RayWorkers()):
        with refused("unsupported-model", "model"):
            drfl.Simulation(data, drfl.Task(Locked()), engine=engine)
    with refused("not-picklable", "model"):
        drfl.Simulation(data, drfl.Task(Locked()), engine=RayWorkers(engine=Loop()))
    drfl.run(drfl.FedAvg(m=3, local=LOCAL), drfl.Simulation(data, drfl.Task(Locked()), engine=Loop()), rounds=1)


def test_in_place_loss_or_augmentation_is_refused():
    def shifted(outputs, targets):
        return functional.cross_entropy(outputs.sub_(1), targets, reduction="none")

    data = drfl.ClientData.from_arrays(pairs())
    before = data.targets.clone()
    with refused("unsupported-model", "loss"):
        drfl.Simulation(data, drfl.Task(nn.Linear(4, 2), shifted))
    with refused("unsupported-model", "augment"):
        drfl.Simulation(data, drfl.Task(nn.Linear(4, 2), augment=lambda x, uniform: x.mul_(0.5)))
    with refused("unsupported-model", "loss"):
        drfl.Simulation(
            data, drfl.Task(nn.Linear(4, 2), lambda o, y: functional.cross_entropy(o, y.mul_(1), reduction="none"))
        )
    assert torch.equal(data.targets, before)


@pytest.mark.parametrize(
    "augment", [lambda x: x, nn.Dropout(), lambda x, uniform: x.undefined], ids=["one", "two", "x"]
)
def test_failing_augmentation_is_named(augment):
    with refused("user-code-failed", "augment"):
        drfl.Simulation(drfl.ClientData.from_arrays(pairs()), drfl.Task(nn.Linear(4, 2), augment=augment))


def test_model_in_eval_mode_has_one_mode_and_is_tested_as_in_torch():
    data = drfl.ClientData.from_arrays(pairs())
    model = Of(halved_in_training).eval()
    fed = drfl.Simulation(data, drfl.Task(model))
    with torch.no_grad():
        expected = [functional.cross_entropy(model(data.test_inputs[r]), data.test_targets[r]) for r in data.test]
    torch.testing.assert_close(fed.evaluate(fed.w0).loss, torch.stack(expected).double())
    assert not model.training
    fed = drfl.Simulation(data, drfl.Task(Of(lambda self, x: self.l(x))))
    assert fed._given.model.training


def in_place(outputs, targets):
    return float(outputs.sub_(outputs.logsumexp(1, keepdim=True)).exp_().max(1).values.mean())


def by_numpy(outputs, targets):
    values = outputs.numpy()
    values -= values.max()
    return values.mean()


def changing_targets(outputs, targets):
    targets.mul_(2)
    return 0.0


def of_many_rows(outputs, targets):
    assert len(outputs) > 10**6
    return 0.0


@pytest.mark.parametrize("metric", [in_place, by_numpy, changing_targets])
def test_metric_of_all_rows_must_not_change_its_arguments(metric):
    data = drfl.ClientData.from_arrays(pairs())
    with refused("unsupported-metric", metric.__name__):
        drfl.Simulation(data, drfl.Task(nn.Linear(4, 2), metrics=(metric, "log_loss")))
    each = drfl.Metric("each", lambda o, y: o.sub_(1)[:, 0], per_sample=True)
    with refused("unsupported-metric", "each"):
        drfl.Simulation(data, drfl.Task(nn.Linear(4, 2), metrics=(each,)))


def test_metric_that_is_undefined_on_few_rows_is_accepted():
    drfl.Simulation(drfl.ClientData.from_arrays(pairs()), drfl.Task(nn.Linear(4, 2), metrics=(of_many_rows,)))


def noisy(outputs):
    return outputs + torch.randn_like(outputs)


def maybe_flipped(x, uniform):
    return x.flip(1) if np.random.random() < 0.01 else x


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"augment": lambda x, uniform: x + torch.randn_like(x)}, "augment"),
        ({"augment": lambda x, uniform: x * random.random()}, "augment"),
        ({"augment": maybe_flipped}, "augment"),
        ({"loss": lambda o, y: functional.cross_entropy(noisy(o), y, reduction="none")}, "loss"),
        ({"loss": drfl.BatchLoss(lambda o, y: functional.cross_entropy(noisy(o), y))}, "loss"),
    ],
    ids=["torch", "Python", "a rare draw of NumPy", "loss", "loss of a batch"],
)
def test_draws_from_global_generators_are_refused(options, field):
    with refused("unsupported-model", field) as caught:
        drfl.Simulation(drfl.ClientData.from_arrays(pairs()), drfl.Task(nn.Linear(4, 2), **options))
    assert "global generator" in str(caught.value)


def test_check_for_draws_changes_no_global_generator():
    task, states = drfl.Task(nn.Linear(4, 2), augment=lambda x, uniform: x + uniform(4)), global_states()
    drfl.Simulation(drfl.ClientData.from_arrays(pairs()), task)
    assert changed_generators(states) == []


def test_loss_that_mixes_samples_is_named_instead_of_the_model():
    data = drfl.ClientData.from_arrays(pairs())
    with refused("unsupported-model", "loss"):
        drfl.Simulation(data, drfl.Task(nn.Linear(4, 2), lambda o, y: (o - o.mean(0)).square().sum(1)))


def numbers(make, engine=None):
    """Return the model (d,) that is trained on texts."""
    generator = torch.Generator().manual_seed(0)
    texts = {name: (torch.randint(0, 10, (40, 5), generator=generator), torch.arange(40) % 2) for name in "abc"}
    with drfl.Key(0).torch_scope():
        task = drfl.Task(make())
    fed = drfl.Simulation(drfl.ClientData.from_arrays(texts), task, engine=engine)
    return drfl.run(drfl.FedAvg(m=3, local=LOCAL), fed, rounds=2).model


class Words(nn.Module):
    """The mean of an embedding of texts."""

    def __init__(self, **options):
        super().__init__()
        self.embedding, self.out = nn.Embedding(10, 4, **options), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.embedding(x).mean(1))


def test_sparse_embedding_equals_a_dense_one(engine):
    model = Words(sparse=True)
    assert torch.equal(numbers(lambda: Words(sparse=True), engine), numbers(Words, engine))
    drfl.Task(model)
    assert model.embedding.sparse


def test_sparse_gradient_of_a_function_is_refused():
    class Sparse(Words):
        def forward(self, x):
            return self.out(functional.embedding(x, self.embedding.weight, sparse=True).mean(1))

    with refused("unsupported-model", "model") as caught:
        numbers(Sparse)
    assert "'embedding.weight'" in str(caught.value)
    with refused("unsupported-model", "model"):
        numbers(lambda: Words(max_norm=0.5))


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


@pytest.mark.long
@pytest.mark.parametrize(
    "wrapped",
    [
        lambda: torch.compile(seq(nn.Linear(4, 4)), backend="eager"),
        lambda: seq(torch.compile(nn.Linear(4, 4), backend="eager")),
        lambda: compiled_in_place(seq(nn.Linear(4, 4))),
    ],
)
def test_compiled_models_train_as_the_inner_modules(wrapped, engine):
    data, found = drfl.ClientData.from_arrays(pairs()), []
    for make in (wrapped, lambda: seq(nn.Linear(4, 4))):
        with drfl.Key(0).torch_scope():
            task = drfl.Task(make())
        assert list(task.model.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
        assert all(layer._compiled_call_impl is None for layer in task.model.modules())
        fed = drfl.Simulation(data, task, engine=engine)
        found.append(drfl.run(drfl.FedAvg(m=3, local=LOCAL), fed, rounds=1).model)
    assert torch.equal(*found)
    model = nn.Linear(4, 2)
    assert without_compilation(model) is model


def test_compiled_layer_in_two_places_is_replaced_in_both():
    compiled = torch.compile(nn.Linear(4, 4), backend="eager")
    assert [type(layer) for layer in without_compilation(nn.Sequential(compiled, compiled))] == [nn.Linear] * 2


def hooked():
    model = seq(nn.Linear(4, 4))
    model[0].register_forward_hook(lambda layer, inputs, outputs: 2 * outputs)
    return model


def tied():
    model = Of(lambda self, x: self.l(self.other(x) @ self.l.weight), other=nn.Linear(4, 2))
    model.other.weight = model.l.weight
    return model


VALID = {
    "tied": tied,
    "frozen layer in a list": lambda: Of(lambda s, x: s.l(s.kept[0](x)), kept=[nn.Linear(4, 4).requires_grad_(False)]),
    "double": lambda: seq(nn.Linear(4, 4), nn.Dropout(0.2)).double(),
    "in place": lambda: seq(nn.Linear(4, 4), nn.ReLU(inplace=True)),
    "hooked": hooked,
    "weight norm": lambda: seq(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))),
    "old weight norm": lambda: seq(nn.utils.weight_norm(nn.Linear(4, 4))),
    "spectral norm": lambda: seq(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))).eval(),
    "batch norm": lambda: seq(nn.BatchNorm1d(4)).eval(),
    "bfloat16": lambda: seq(nn.Linear(4, 4)).bfloat16(),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("model", long_beyond(2, VALID.values(), VALID))
def test_valid_models_are_accepted(model, engine):
    fed = drfl.Simulation(drfl.ClientData.from_arrays(pairs()), drfl.Task(model()), engine=engine)
    drfl.run(drfl.FedAvg(m=3, local=LOCAL), fed, rounds=1)


def test_auto_checks_stackability_on_cuda_too(monkeypatch):
    there = PooledData(drfl.Task(nn.Linear(4, 2)), SimpleNamespace(is_cuda=True), torch.zeros(1))  # pyright: ignore
    for stackable, engine in ((True, Stacked()), (False, Stacked(clients=1))):
        monkeypatch.setattr(auto, "stackable", lambda problem, found=stackable: found)
        assert auto.choice(there, 2, 8) == engine


def test_one_dimensional_outputs_with_a_custom_score(engine):
    def within(outputs, targets):
        return ((outputs - targets).abs() < 1).float()

    generator = torch.Generator().manual_seed(0)
    rows = {name: (x := torch.randn(40, 4, generator=generator), x.sum(1)) for name in "ab"}
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    score = drfl.Metric("within", within, rows=drfl.Rows.BINARY)
    task = drfl.Task(model, nn.MSELoss(), score, ("mae", drfl.Metric("whole", within)))
    fed = drfl.Simulation(drfl.ClientData.from_arrays(rows), task, engine=engine)
    found = fed.evaluate(fed.w0)
    outputs = model(fed.data.test_inputs).detach()
    expected = [float(within(outputs[i], fed.data.test_targets[i]).mean()) for i in fed.data.test]
    assert found.score.tolist() == pytest.approx(expected)
    assert found.others[1].tolist() == pytest.approx(expected)


def test_tensor_that_a_forward_pass_makes_may_require_a_gradient():
    model = Of(lambda self, x: self.l(x + x.new_zeros(4).requires_grad_()))
    fed = drfl.Simulation(drfl.ClientData.from_arrays(pairs()), drfl.Task(model), engine=Loop())
    drfl.run(drfl.FedAvg(m=3, local=LOCAL), fed, rounds=1)


class Centres(nn.Module):
    """A loss with parameters."""

    def __init__(self, *, trained):
        super().__init__()
        self.centres = nn.Parameter(torch.zeros(2, 2), requires_grad=trained)

    def forward(self, outputs, y):
        return functional.cross_entropy(outputs + self.centres[y], y, reduction="none")


def test_trainable_tensor_of_the_loss_is_refused():
    data, loss = drfl.ClientData.from_arrays(pairs()), Centres(trained=True)
    for given in (loss, lambda o, y: loss(o, y), drfl.BatchLoss(lambda o, y: loss(o, y).mean())):
        with refused("unsupported-loss", "loss", "(2, 2)"):
            drfl.Simulation(data, drfl.Task(nn.Linear(4, 2), given))
    drfl.Simulation(data, drfl.Task(nn.Linear(4, 2), Centres(trained=False)))


def test_simulations_in_two_threads_may_share_a_task():
    """Both calls meet inside the forward pass, while the layers hold the parameters of the call."""
    meeting, inside = threading.Barrier(2, timeout=20), threading.Event()

    def forward(self, x):
        if inside.is_set():
            meeting.wait()
            outputs = self.l(x)
            meeting.wait()
            return outputs
        return self.l(x)

    task = drfl.Task(Of(forward))
    feds = [drfl.Simulation(drfl.ClientData.from_arrays(pairs()), task, engine=Loop()) for _ in range(2)]
    vectors = [fed.w0 + k for k, fed in enumerate(feds)]
    expected = [fed.evaluate(w).loss for fed, w in zip(feds, vectors, strict=True)]
    found = {}

    def test(k):
        found[k] = feds[k].evaluate(vectors[k]).loss

    inside.set()
    threads = [threading.Thread(target=test, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[k], expected[k]) for k in range(2))
