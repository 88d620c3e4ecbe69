"""Test models that were not written for federated learning: BatchNorm, embeddings, frozen bases with adapters."""

from __future__ import annotations

import pytest
import torch
from tests.support.refusals import refused
from torch import Tensor, nn

import drfl
from drfl.task.models import without_batch_norm


def resnet_like():
    block = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, eps=1e-3), nn.ReLU())
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), block, nn.Flatten(), nn.Linear(96, 7), nn.BatchNorm1d(7), nn.Linear(7, 2)
    )


def texts(n=4, length=6, words=20):
    noise = torch.Generator().manual_seed(0)
    tokens = [torch.randint(0, words, (30, length), generator=noise) for _ in range(n)]
    return drfl.ClientData.from_arrays([(x, (x[:, 0] > words / 2).long()) for x in tokens])


class Words(nn.Module):
    def __init__(self, words=20):
        super().__init__()
        self.embedding, self.out = nn.Embedding(words, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.embedding(x).mean(1))


class LoRA(nn.Module):
    """Compute W x + B A x with W frozen."""

    def __init__(self, base: nn.Linear, rank: int):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(rank, base.in_features) / 10)
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.A.T @ self.B.T


def test_every_batch_norm_becomes_a_group_norm():
    model = resnet_like()
    with torch.no_grad():
        model[1].weight.uniform_()
    model[1].weight.requires_grad_(False)
    made = without_batch_norm(model)
    assert [type(layer) for layer in model.modules()].count(nn.BatchNorm2d) == 2  # the model itself is unchanged
    norms = {name: layer for name, layer in made.named_modules() if isinstance(layer, nn.GroupNorm)}
    assert {name: (g.num_groups, g.num_channels, g.eps) for name, g in norms.items()} == {
        "1": (2, 4, 1e-5),
        "2.1": (3, 6, 1e-3),
        "5": (1, 7, 1e-5),
    }
    assert torch.equal(made[1].weight, model[1].weight)
    assert not made[1].weight.requires_grad
    assert made(torch.randn(2, 1, 8, 8)).shape == (2, 2)
    drfl.Layout.of(made)
    assert isinstance(without_batch_norm(nn.BatchNorm3d(64)), nn.GroupNorm)
    assert without_batch_norm(nn.BatchNorm2d(64, affine=False)).weight is None
    with refused("unsupported-model", "model", "0 (LazyBatchNorm2d)"):
        without_batch_norm(nn.Sequential(nn.LazyBatchNorm2d()))
    with refused("out-of-range", "groups"):
        without_batch_norm(model, groups=0)


def test_batch_norm_in_two_places_is_replaced_in_both():
    norm = nn.BatchNorm1d(4)
    made = without_batch_norm(nn.Sequential(nn.Linear(3, 4), norm, nn.Linear(4, 4), norm))
    assert [type(layer) for layer in made] == [nn.Linear, nn.GroupNorm] * 2
    assert made[1].weight is made[3].weight
    drfl.Layout.of(made)


def test_refusal_names_the_remedy():
    with refused("unsupported-model", "model", "drfl.models.without_batch_norm(model)"):
        drfl.Layout.of(resnet_like())
    with refused("unsupported-model", "model", "without_batch_norm"):
        drfl.Layout.of(nn.BatchNorm1d(3, track_running_stats=False).eval())


def test_tokens_stay_integers_and_an_embedding_trains(engine):
    data = texts()
    assert data.inputs.dtype == torch.int64
    with drfl.Key(0).torch_scope():
        task = drfl.Task(Words())
    fed = drfl.Simulation(data, task, engine=engine)
    result = drfl.run(drfl.FedAvg(m=4, local=drfl.LocalSGD(lr=0.5)), fed, rounds=3)
    assert result.history.last.metrics.avg_loss < result.history.rows[0].metrics.avg_loss
    # the step size of an embedding can be determined, too
    assert drfl.run(drfl.FedAvg(m=4), fed, rounds=2).step_size is not None


def test_models_without_integer_support_get_floats():
    rows = [(torch.arange(40).reshape(10, 4) % 7, torch.arange(10) % 2)] * 3
    whole = drfl.Simulation(drfl.ClientData.from_arrays(rows), drfl.Task(nn.Linear(4, 2)))
    floats = drfl.ClientData.from_arrays([(x.float(), y) for x, y in rows])
    w = drfl.Simulation(floats, drfl.Task(nn.Linear(4, 2))).w0
    assert torch.equal(whole.evaluate(w).loss, drfl.Simulation(floats, drfl.Task(nn.Linear(4, 2))).evaluate(w).loss)
    assert drfl.ClientData.from_arrays(rows, standardise=True).inputs.is_floating_point()


def test_token_beyond_the_embedding_is_a_one_line_error():
    with refused("model-data-mismatch", "model") as caught:
        drfl.Simulation(texts(), drfl.Task(Words(3)))
    assert "embedding (Embedding)" in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_embedding_names_the_type_that_it_needs(dtype):
    rows = torch.arange(40).reshape(10, 4).remainder(7).to(dtype)
    with refused("model-data-mismatch", "model", "int64"):
        drfl.Simulation(drfl.ClientData.from_arrays([(rows, torch.arange(10) % 2)] * 3), drfl.Task(Words()))


@pytest.mark.parametrize("ragged", [[[1, 2, 3], [4, 5]], [torch.arange(3), torch.arange(2)]])
def test_texts_of_different_lengths_are_one_line_errors(ragged):
    with refused("wrong-shape", "a", "'a'", "2", "3"):
        drfl.ClientData.from_arrays({"a": (ragged, [0, 1])})


def test_augmenting_data_set_gives_a_warning():
    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, k):
            return torch.randn(3), k % 2

    with pytest.warns(drfl.DataWarning) as told:
        drfl.ClientData.from_datasets({"a": Noisy()})
    assert [(w.message.code, w.message.field) for w in told] == [("random-dataset", "a")]


def test_only_the_adapter_of_a_frozen_base_is_trained_and_sent(engine):
    noise = torch.Generator().manual_seed(0)
    inputs = [torch.randn(40, 30, generator=noise) for _ in range(3)]
    data = drfl.ClientData.from_arrays([(x, (x[:, 0] > 0).long()) for x in inputs])
    with drfl.Key(0).torch_scope():
        model = nn.Sequential(LoRA(nn.Linear(30, 20), 2), nn.ReLU(), LoRA(nn.Linear(20, 2), 1))
    base = [p.clone() for p in model.parameters() if not p.requires_grad]
    fed = drfl.Simulation(data, drfl.Task(model), engine=engine)
    assert fed.w0.numel() == 2 * 30 + 20 * 2 + 20 + 2
    result = drfl.run(drfl.DRFA(m=3, local=drfl.LocalSGD(lr=0.2)), fed, rounds=10)
    assert result.history.last.metrics.avg_loss < 0.9 * result.history.rows[0].metrics.avg_loss
    sent = result.history.rows[1].ledger["bytes_down"]
    assert sent < 3 * 4 * 4 * fed.w0.numel()  # a few vectors of the adapters' length for three clients, not the base
    result.write_into(model)
    assert all(
        torch.equal(p, q) for p, q in zip((p for p in model.parameters() if not p.requires_grad), base, strict=True)
    )
    assert model[0].B.abs().max() > 0
