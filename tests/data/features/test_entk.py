"""Test that eNTK features are gradients: against autograd by hand, and as a linearisation."""

from __future__ import annotations

import pytest
import torch
from tests.support.marks import crossed
from tests.support.refusals import refused

from drfl.core.key import Key
from drfl.data.features import entk as module
from drfl.data.features import sample_gradients
from drfl.data.features.entk import Coordinates, choose, entk

from .conftest import pictures, small_cnn, small_lite, small_resnet

NETWORKS = [
    small_cnn(dtype=torch.float64),
    small_resnet(dtype=torch.float64),
    small_resnet("group", dtype=torch.float64),
    small_lite(dtype=torch.float64),
]
IDS = ["cnn", "batch", "group", "lite"]


def by_hand(backbone, images, direction):
    """Return the gradients (n, d) with respect to all parameters, image by image."""
    rows = []
    parameters = [p.clone().requires_grad_() for p in backbone.model.parameters()]
    names = [name for name, _ in backbone.model.named_parameters()]
    for image in images:
        x = backbone.prepare(image[None], None)
        out = torch.func.functional_call(backbone.model, dict(zip(names, parameters, strict=True)), (x,))
        gradients = torch.autograd.grad(out[0] @ direction, parameters)
        rows.append(torch.cat([g.flatten() for g in gradients]))
    return torch.stack(rows)


def places(backbone, coordinates):
    """Return the positions of the kept coordinates among all parameters."""
    found, start = [], 0
    for name, p in backbone.model.named_parameters():
        if name in coordinates.kept:
            found.append(coordinates.kept[name] + start)
        start += p.numel()
    return torch.cat(found)


@pytest.mark.parametrize(
    ("backbone", "large"), crossed(dict(zip(IDS, NETWORKS, strict=True)), {"small": False, "large": True})
)
def test_features_equal_autograd_gradients(backbone, large, monkeypatch):
    x = pictures(9).inputs
    chosen = choose(backbone, x, 200, Key(0))
    assert chosen.count == 200
    assert chosen.direction.norm().item() == pytest.approx(1)
    if large:
        monkeypatch.setattr(module, "LARGE", 1)
    found = entk(backbone, x, chosen)
    assert found.shape == (9, 200)
    torch.testing.assert_close(found, by_hand(backbone, x, chosen.direction)[:, places(backbone, chosen)])


@pytest.mark.parametrize("backbone", NETWORKS, ids=IDS)
def test_features_are_the_linearised_network(backbone):
    data = pictures(12)
    chosen = choose(backbone, data.inputs, 10**6, Key(1))
    rng = torch.Generator().manual_seed(0)
    delta = torch.randn(chosen.count, generator=rng, dtype=torch.float64)
    x = backbone.prepare(data.test_inputs, None)

    def output(step):
        parameters = {
            name: p.clone(memory_format=torch.contiguous_format) for name, p in backbone.model.named_parameters()
        }
        start = 0
        for name, kept in chosen.kept.items():
            parameters[name].view(-1)[kept] += step * delta[start : start + len(kept)]
            start += len(kept)
        return torch.func.functional_call(backbone.model, parameters, (x,)) @ chosen.direction

    slope = (output(1e-7) - output(-1e-7)) / 2e-7
    torch.testing.assert_close(entk(backbone, data.test_inputs, chosen) @ delta, slope, rtol=1e-5, atol=1e-5)
    assert slope.abs().max() > 1e-2


@pytest.mark.long
@pytest.mark.parametrize("backbone", NETWORKS, ids=IDS)
def test_every_coordinate_of_a_large_network_can_be_chosen(backbone, monkeypatch):
    x = pictures(3, shape=(1, 8, 8)).inputs
    x = x if backbone.quarter else torch.nn.functional.interpolate(x, (33, 40))  # sides whose padding is uneven
    kept = {name: torch.arange(p.numel()) for name, p in backbone.model.named_parameters()}
    every = Coordinates(torch.tensor([0.6, 0.0, -0.8], dtype=torch.float64), kept)
    monkeypatch.setattr(module, "LARGE", 1)
    monkeypatch.setattr(sample_gradients, "ROOM", 2**16)  # process a convolution's coordinates in parts
    torch.testing.assert_close(entk(backbone, x, every), by_hand(backbone, x, every.direction))


def test_key_alone_determines_the_features():
    backbone, x = small_cnn(), pictures(20).inputs
    first, same, other = (choose(backbone, x, 50, Key(seed)) for seed in (0, 0, 1))
    assert first.direction.equal(same.direction)
    assert places(backbone, first).equal(places(backbone, same))
    assert not first.direction.equal(other.direction)
    assert not places(backbone, first).equal(places(backbone, other))
    assert len(set(places(backbone, first).tolist())) == 50


def test_batch_size_does_not_matter(monkeypatch, lines):
    backbone, x = small_cnn(dtype=torch.float64), pictures(11).inputs
    chosen = choose(backbone, x, 100, Key(0))
    whole = entk(backbone, x, chosen)
    monkeypatch.setattr(module, "BYTES", 3 * 8 * sum(p.numel() for p in backbone.model.parameters()))
    monkeypatch.setattr(module, "EVERY", 0.0)
    again = choose(backbone, x, 100, Key(0))
    assert places(backbone, again).equal(places(backbone, chosen))
    torch.testing.assert_close(entk(backbone, x, chosen, log=lines.append), whole)
    monkeypatch.setattr(module, "LARGE", 1)
    torch.testing.assert_close(entk(backbone, x, chosen), whole)
    assert lines[-1] == "eNTK of small: 11 of 11 images"


def test_zero_coordinates_are_not_chosen():
    backbone, x = small_cnn(), pictures(30).inputs
    backbone.model[5].bias[:490] = -100.0  # dead units, which pass no gradient
    chosen = choose(backbone, x, 10**9, Key(0))
    values = entk(backbone, x, chosen)
    assert bool((values != 0).any(0).all())
    dead = {name: kept for name, kept in chosen.kept.items() if name.startswith("5.")}
    assert all(bool((kept >= 490 * (128 if name == "5.weight" else 1)).all()) for name, kept in dead.items())
    assert chosen.count < sum(p.numel() for p in backbone.model.parameters())


@pytest.mark.long
def test_coordinates_alive_on_one_image_are_not_chosen():
    backbone, x = small_cnn(), pictures(200).inputs * 0
    x[0] = 1  # all images but one are the same, and black
    chosen = choose(backbone, x, 10**9, Key(0))
    values = entk(backbone, x, chosen)
    assert int((values != 0).sum(0).min()) >= 200 // 64
    assert "0.weight" not in chosen.kept  # its gradient is 0 on black images


def test_network_with_zero_gradients_is_refused():
    backbone = small_cnn()
    for p in backbone.model.parameters():
        p.zero_()
    chosen = choose(backbone, pictures(5).inputs, 10, Key(0))
    assert set(chosen.kept) == {"7.bias"}
    only = Coordinates(torch.zeros(3), chosen.kept)
    assert entk(backbone, pictures(5).inputs, only).eq(0).all()


def test_no_usable_coordinate_is_an_error(monkeypatch):
    monkeypatch.setattr(module, "_alive", lambda *_: {"7.bias": torch.zeros(0, dtype=torch.int64)})
    with refused("unsupported-data", "backbone", "0"):
        choose(small_cnn(), pictures(5).inputs, 10, Key(0))


def test_images_are_resized_first():
    backbone, x = small_cnn(), pictures(6, shape=(1, 16, 16)).inputs
    chosen = choose(backbone, x, 20, Key(0), resize=8)
    ready = backbone.prepare(x, 8)
    torch.testing.assert_close(entk(backbone, x, chosen, resize=8), entk(backbone, ready, chosen))
