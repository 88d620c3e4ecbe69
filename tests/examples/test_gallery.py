"""Test the gallery: scripts draw their pictures, shortened and whole, and the page shows the files of the folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys

import matplotlib as mpl
import pytest
from matplotlib import pyplot
from tests.support.scripts import ROOT, script

GALLERY = ROOT / "examples" / "gallery"
PAGE = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
SCRIPTS = sorted(path for path in GALLERY.glob("*.py") if path.name != "draw.py")
SHORT = {"ROUNDS": 2, "EVERY": 2, "SEEDS": 2, "POINTS": 2}

each = pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)


@pytest.fixture(autouse=True)
def _without_a_screen():
    before = mpl.get_backend()
    pyplot.switch_backend("Agg")
    yield
    pyplot.close("all")
    pyplot.switch_backend(before)


def is_picture(path):
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000


@pytest.mark.long
@each
def test_shortened_script_draws_its_picture(path, tmp_path):
    module = script(str(path.relative_to(ROOT)))
    for name in SHORT.keys() & vars(module).keys():
        setattr(module, name, SHORT[name])
    module.draw(tmp_path / "picture.png")
    assert is_picture(tmp_path / "picture.png")


@pytest.mark.long
def test_whole_script_draws_its_picture(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    subprocess.run([sys.executable, GALLERY / "who_is_worst.py"], cwd=tmp_path, env=environment, check=True)
    assert [found.name for found in tmp_path.iterdir()] == ["who_is_worst.png"]
    assert is_picture(tmp_path / "who_is_worst.png")


@each
def test_script_draws_into_this_folder_or_the_named_file(path):
    end = f'if __name__ == "__main__":\n    draw(sys.argv[1] if len(sys.argv) > 1 else "{path.stem}.png")\n'
    assert path.read_text(encoding="utf-8").endswith(end)


@each
def test_script_is_short(path):
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and line[0] not in '"#']
    assert 15 <= len(lines) <= 45


def test_page_shows_each_of_the_eight_scripts_once():
    names = [path.stem for path in SCRIPTS]
    assert len(names) == 8
    assert sorted(re.findall(r'^--8<-- "examples/gallery/(\w+)\.py"$', PAGE, flags=re.MULTILINE)) == names
    assert sorted(re.findall(r"^!\[[^]]+\]\(\.\./examples/gallery/(\w+)\.png\)$", PAGE, flags=re.MULTILINE)) == names
    assert sorted(re.findall(r"\(\.\./examples/gallery/(\w+)\.py\)", PAGE)) == names


def test_stored_pictures_belong_to_the_scripts():
    record = json.loads((GALLERY / "pictures.json").read_text(encoding="utf-8"))["pictures"]
    assert sorted(record) == sorted(path.stem for path in GALLERY.glob("*.png")) == [path.stem for path in SCRIPTS]
    for path in SCRIPTS:
        assert is_picture(path.with_suffix(".png")), path.stem
        assert path.with_suffix(".png").stat().st_size < 60_000, path.stem
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert record[path.stem]["sha256"] == digest, f"draw it anew: {record[path.stem]['command']} {path.stem}"
