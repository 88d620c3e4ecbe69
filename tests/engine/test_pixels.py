"""Test that pools of images are read as bytes, and that the rows have the same bits."""

from __future__ import annotations

import pytest
import torch

from drfl.engine import pixels
from drfl.engine.pixels import gatherer, pixels_of


@pytest.fixture(autouse=True)
def small_caches(monkeypatch):
    monkeypatch.setattr(pixels, "CACHED", 0)
    monkeypatch.setattr(pixels, "CHUNK", 12)


@pytest.fixture
def pool():
    return torch.arange(256).to(torch.uint8).repeat(3).view(64, 3, 2, 2).float() / 255


@pytest.mark.parametrize("index", [[0], [63, 0, 7, 7], list(range(64))])
def test_rows_from_bytes_have_the_same_bits(pool, index):
    index, gather = torch.tensor(index), gatherer(pool)
    assert pixels_of(pool) is not None
    for _ in range(2):  # the second call reuses the buffer of bytes
        out = torch.full((len(index), 3, 2, 2), torch.nan)
        gather(index, out)
        assert torch.equal(out, pool[index])


@pytest.mark.parametrize("value", [0.5, -1 / 255, 256 / 255, torch.nan, torch.inf, 1 / 255 + 1e-9])
@pytest.mark.parametrize("at", [0, -1])
def test_pool_with_other_values_is_read_unchanged(pool, value, at):
    pool.view(-1)[at] = value
    assert pixels_of(pool) is None
    out = torch.empty(64, 3, 2, 2)
    gatherer(pool)(torch.arange(64), out)
    assert torch.equal(out.nan_to_num(7), pool.nan_to_num(7))


def test_other_types_are_read_unchanged(pool):
    assert pixels_of(pool.double()) is None
    assert pixels_of((pool * 255).long()) is None


@pytest.mark.parametrize("bound", ["CACHED", "LARGEST"])
def test_small_and_very_large_pools_are_read_unchanged(pool, bound, monkeypatch):
    monkeypatch.setattr(pixels, bound, pool.numel() * 4)
    assert pixels_of(pool) is None


def test_pool_is_inspected_once_and_after_a_change(pool, monkeypatch):
    first = pixels_of(pool)
    assert pixels_of(pool) is first
    pool[0] = 1.0
    second = pixels_of(pool)
    assert second is not None
    assert int(second[0].min()) == 255
    monkeypatch.setattr(pixels, "CACHED", None)  # so that another inspection would raise
    assert pixels_of(pool) is second
