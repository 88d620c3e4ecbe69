"""Small stand-ins for the data sets that are too large to make."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from drfl.data import locate, write_idx

STEMS = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


@pytest.fixture
def shared():
    """The folder of real data beside the repository."""
    folder = Path(__file__).parents[3] / "shared" / "data"
    if not (folder / "mnist").is_dir():
        pytest.skip("the real data of ../shared/data are not here")
    return folder


@pytest.fixture
def bare_machine(tmp_path, monkeypatch):
    """A machine without data sets whose home is a temporary folder, which is returned."""
    home = tmp_path / "home"
    home.mkdir()
    for variable in ("DRFL_DATA", "TORCH_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("DRFL_MIRROR", "http://127.0.0.1:9")  # nobody answers there
    monkeypatch.chdir(home)
    monkeypatch.setattr(locate, "SYSTEM_DATA", home / "system")
    return home


def write_tiny(folder, *, style=str, train=20, test=10):
    """Writes four IDX files of 4x4 images; `style` changes a stem into a file name."""
    for k, stem in enumerate(STEMS):
        n = train if k < 2 else test
        labels = np.arange(n, dtype=np.uint8) % 10
        array = labels if k % 2 else np.repeat(labels, 16).reshape(n, 4, 4) * 25
        write_idx(folder / style(stem), array)
    return folder
