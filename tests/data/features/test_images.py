"""Test features on disk: reused if intact, recomputed if damaged, and not stored if the folder cannot be written."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import save_file

from drfl.data.features import images
from drfl.data.features.images import digest, load_or_make

ROWS = {"inputs": 5, "test_inputs": 2}


class Maker:
    """Make features and count the calls."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self):
        self.times += 1
        return {name: torch.arange(3.0 * n).view(n, 3) for name, n in ROWS.items()}


@pytest.fixture
def make():
    return Maker()


def same(found):
    return all(found[name].equal(value) for name, value in Maker()().items())


def test_features_are_computed_once(tmp_path, make, lines):
    path = tmp_path / "new" / "features.safetensors"
    assert all(same(load_or_make(path, ROWS, make, lines.append)) for _ in range(3))
    assert make.times == 1
    assert [file.name for file in path.parent.iterdir()] == ["features.safetensors"]
    assert lines == []
    (path.parent / "other").touch()
    assert path.stat().st_mode == (path.parent / "other").stat().st_mode


def damaged(path, how):
    content = path.read_bytes()
    if how == "flipped":
        path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    elif how == "rows":
        save_file({name: torch.zeros(n + 1, 3) for name, n in ROWS.items()}, path)
    elif how == "names":
        save_file({"other": torch.zeros(5, 3)}, path)
    elif how == "no_digest":
        save_file(Maker()(), path)
    else:
        path.write_bytes({"cut": content[:-1], "empty": b"", "text": b"no features", "long": content + b"x"}[how])


@pytest.mark.parametrize("how", ["flipped", "rows", "names", "no_digest", "cut", "empty", "text", "long"])
def test_damaged_file_is_recomputed(how, tmp_path, make, lines):
    path = tmp_path / "features.safetensors"
    load_or_make(path, ROWS, make, lines.append)
    whole = path.read_bytes()
    damaged(path, how)
    assert same(load_or_make(path, ROWS, make, lines.append))
    assert make.times == 2
    assert path.read_bytes() == whole


def test_unwritable_cache_is_skipped(make, lines):
    path = images.Path("/proc/nowhere/features.safetensors")  # no user, including root, can create files under /proc
    assert same(load_or_make(path, ROWS, make, lines.append))
    assert len(lines) == 1
    assert lines[0].startswith("cannot store the features in '/proc/nowhere'")


def test_full_disk_is_tolerated(tmp_path, make, lines, monkeypatch):
    def full(tensors, path, metadata):
        with open(path, "wb") as file:
            file.write(b"half")
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(images, "save_file", full)
    assert same(load_or_make(tmp_path / "features.safetensors", ROWS, make, lines.append))
    assert "No space left on device" in lines[0]
    assert list(tmp_path.iterdir()) == []


TENSORS = st.lists(st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=6), min_size=1, max_size=3)


@pytest.mark.long
@given(a=TENSORS, b=TENSORS, labels=st.tuples(st.integers(0, 2), st.sampled_from(["entk", "penultimate"])))
def test_digest_distinguishes_contents(a, b, labels):
    x, y = ([torch.tensor(values) for values in lists] for lists in (a, b))
    assert (digest(x, *labels) == digest(y, *labels)) == (repr(a) == repr(b))
    assert digest(x, *labels) != digest(x, labels[0] + 1, labels[1])
    assert digest(x) == digest([value.clone() for value in x])


def test_digest_includes_shape_and_type(monkeypatch):
    x = torch.arange(12.0)
    found = {digest([x]), digest([x.view(3, 4)]), digest([x[:6], x[6:]]), digest([x.view(torch.int32)])}
    assert len(found) == 4
    whole = digest([x])
    monkeypatch.setattr(images, "ROWS", 7)
    assert digest([x]) == whole
