"""Test models with dictionary or tuple inputs against plain torch loops, in every engine."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest
import torch
from tests.support.engines import ALL_ENGINES, same
from tests.support.marks import crossed
from tests.support.objectives import LR, same_as_plain_loops
from tests.support.refusals import refused
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import drfl
from drfl.engine.batches import draw
from drfl.experiments.execution import shared_tensors
from drfl.optim.local import LocalSGD

pytestmark = pytest.mark.usefixtures("ray", "global_generator_untouched")

SIZES = {"a": 9, "b": 33, "c": 12}
WORDS, LENGTH = 20, 6


class Encoder(nn.Module):
    """A transformer over the words that are not masked."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask):
        h = self.layer(self.words(input_ids), src_key_padding_mask=attention_mask == 0)
        mask = attention_mask[..., None].to(h.dtype)
        return self.out((h * mask).sum(1) / mask.sum(1))


class Mixed(nn.Module):
    """Real numbers (2, 2), a level and a truth value."""

    def __init__(self):
        super().__init__()
        self.level, self.out = nn.Embedding(4, 3), nn.Linear(8, 3)

    def forward(self, x, level, flag):
        level = torch.where(flag[..., None], self.level(level), 0)
        return self.out(torch.tanh(torch.cat([x.flatten(1), level, flag[..., None].to(x.dtype)], -1)))


def text(n, generator):
    ids = torch.randint(1, WORDS, (n, LENGTH), generator=generator)
    mask = (torch.arange(LENGTH) < torch.randint(1, LENGTH + 1, (n, 1), generator=generator)).long()
    return {"attention_mask": mask, "input_ids": ids * mask}, ids[:, 0] % 3


def mixed(n, generator):
    x = torch.randn(n, 2, 2, generator=generator, dtype=torch.float64)
    level = torch.randint(0, 4, (n,), generator=generator)
    return (x, level, torch.rand(n, generator=generator) < 0.5), (level + (x[:, 0, 0] > 0)) % 3


KINDS = {"text": (Encoder, text), "mixed": (Mixed, mixed)}
every_kind = pytest.mark.parametrize("kind", KINDS)


def clients(kind, sizes=SIZES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {name: KINDS[kind][1](n, generator) for name, n in sizes.items()}


def setting(kind):
    """Return the pairs of arrays, the data and the task, in float64."""
    train, test = clients(kind), clients(kind, dict.fromkeys(SIZES, 10), 1)
    with drfl.Key(0).torch_scope():
        model = KINDS[kind][0]().double()
    return train, test, drfl.ClientData.from_arrays(train, test, dtype=None), drfl.Task(model)


def loss_on(task, pair, rows=slice(None)):
    """Return a client's loss on rows as a function of the model, with plain torch."""
    x, y = pair

    def loss(w):
        parameters = task.layout.views(w)
        if isinstance(x, dict):
            outputs = functional_call(task.model, parameters, (), {name: each[rows] for name, each in x.items()})
        else:
            outputs = functional_call(task.model, parameters, tuple(each[rows] for each in x))
        return functional.cross_entropy(outputs, y[rows])

    return loss


@pytest.mark.parametrize(("engine", "kind"), crossed(list(ALL_ENGINES), list(KINDS)))
def test_rounds_match_plain_torch_loops(kind, engine):
    train, test, data, task = setting(kind)
    fed = drfl.Simulation(data, task, engine=ALL_ENGINES[engine])
    w = same_as_plain_loops(fed, [loss_on(task, pair) for pair in train.values()])
    same(fed.evaluate(w).loss, torch.stack([loss_on(task, pair)(w) for pair in test.values()]))


@pytest.mark.parametrize(("engine", "kind"), crossed(list(ALL_ENGINES), list(KINDS)))
def test_minibatches_of_clients_of_unequal_size(kind, engine):
    train, _, data, task = setting(kind)
    fed, key, cohort = drfl.Simulation(data, task, engine=ALL_ENGINES[engine]), drfl.Key(3), torch.arange(3)
    replies = fed.train(cohort, task.w0, LocalSGD(steps=3, lr=LR, batch=10), key)
    starts = [0, 9, 42]
    for i, pair in enumerate(train.values()):
        u = task.w0
        for rows, _ in draw(fed._rows, cohort[i : i + 1], 3, 10, key).of_client(0, 3):
            objective, v = loss_on(task, pair, rows - starts[i]), u.clone().requires_grad_()
            u = u - LR * torch.autograd.grad(objective(v), v)[0]
        same(replies.w[i], u)


@pytest.mark.long
@every_kind
def test_validation_types_comparison_and_predictions(kind, tmp_path, monkeypatch):
    """Cover validation rows, float64, a resumed comparison (of text in two processes), and predictions of the file."""
    _, test, data, task = setting(kind)
    held = data.with_validation(0.3)
    assert held.fields == data.fields
    assert held.to(dtype=torch.float32).inputs.dtype == (torch.int64 if kind == "text" else torch.float32)
    with drfl.Key(1).torch_scope():
        single, trained = dataclasses.replace(task, model=KINDS[kind][0]()), KINDS[kind][0]()
    options = {"rounds": 3, "seeds": 1, "progress": None, "data": held, "task": single}
    pair = {"FedAvg": drfl.FedAvg(m=2), "DualDRDM": drfl.DualDRDM(m=2)}
    one = drfl.compare(pair, **options, out=tmp_path / "one")
    drfl.compare({"FedAvg": pair["FedAvg"]}, **options, out=tmp_path / "two")
    monkeypatch.setattr(shared_tensors, "LARGE", 1)  # so that worker processes memory-map the pools
    two = drfl.compare(pair, **options, out=tmp_path / "two", jobs=2 if kind == "text" else 1, resume=True)
    for name in pair:
        files = [tmp_path / f"{folder}/{name}-seed0/model.safetensors" for folder in ("one", "two")]
        assert files[0].read_bytes() == files[1].read_bytes()
    pd.testing.assert_frame_equal(one.to_frame(), two.to_frame())
    model = drfl.load_model(tmp_path / "two/DualDRDM-seed0/model.safetensors", trained)
    x, y = test["b"]
    assert model.classes_.tolist() == [0, 1, 2]
    found = model.predict(x)
    real = {
        name: v.float() if v.is_floating_point() else v for name, v in (x.items() if kind == "text" else enumerate(x))
    }
    with torch.no_grad():
        outputs = trained(**real) if kind == "text" else trained(*real.values())
    assert found.tolist() == outputs.argmax(1).tolist()
    assert model.predict_proba(x).shape == (10, 3)
    with refused("wrong-shape", "inputs"):
        model.predict(y)
    with refused("unsupported-model", "model"):
        model.to_onnx(tmp_path / "model.onnx")
    if kind == "text":  # equal rows with another meaning
        other = dataclasses.replace(held, fields=dataclasses.replace(held.fields, kinds=("bool", "integer")))
        with refused("other-run", "data"):
            drfl.compare(pair, **options | {"data": other}, out=tmp_path / "two", resume=True)


@pytest.mark.long
@every_kind
def test_run_resumes_from_its_checkpoint(kind, tmp_path):
    _, _, data, task = setting(kind)
    algorithm, fed = drfl.DualDRDM(m=2), drfl.Simulation(data, task)
    checkpoints = drfl.Checkpoints(tmp_path / "run", every=1)
    drfl.run(algorithm, fed, rounds=2, checkpoints=checkpoints)
    resumed = drfl.run(algorithm, drfl.Simulation(data, task), rounds=4, checkpoints=checkpoints)
    assert torch.equal(resumed.model, drfl.run(algorithm, fed, rounds=4).model)


def test_model_with_other_fields_is_refused_by_name():
    _, _, data, _ = setting("text")
    with refused("model-data-mismatch", "model", "attention_mask"):
        drfl.Simulation(data, setting("mixed")[-1])
    with refused("unsupported-data", "standardise", "attention_mask"):
        data.standardised()


def test_torch_layer_with_two_input_tensors(tmp_path):
    """The model file does not describe it, because descriptions cover only modules with one input tensor."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(30, 3, generator=generator), torch.randn(30, 2, generator=generator))
    data = drfl.ClientData.from_arrays({"a": (x, (x[0][:, 0] > 0).long()), "b": (x, (x[1][:, 0] > 0).long())})
    options = {"rounds": 2, "seeds": 1, "progress": None, "out": tmp_path / "r"}
    with drfl.Key(0).torch_scope():
        model = nn.Bilinear(3, 2, 2)
    drfl.compare({"FedAvg": drfl.FedAvg(m=2)}, data, drfl.Task(model), **options)
    path = tmp_path / "r/FedAvg-seed0/model.safetensors"
    with refused("untrusted-code", "module"):
        drfl.load_model(path).predict(x)
    assert drfl.load_model(path, model).predict(x).shape == (30,)
