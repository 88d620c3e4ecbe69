"""Test that built archives contain the right files, and that wrong files are named."""

from __future__ import annotations

import sys
import tomllib

import pytest
from scripts import dist, dist_files, empty_venv
from scripts.empty_venv import CommandFailedError, EmptyVenv, last_word, outside, pins
from tests.support.scripts import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TABLE = "src/drfl/data/datasets/embedded/heart_disease.csv"


@pytest.fixture(scope="module")
def names():
    return dist.tracked()


@pytest.fixture(scope="module")
def archives(names, tmp_path_factory):
    return dist.build(names, tmp_path_factory.mktemp("made") / "out")


@pytest.mark.long
def test_built_archives_are_complete(archives, names):
    assert [path.name for path in archives] == [
        f"drfl-{PROJECT['version']}-py3-none-any.whl",
        f"drfl-{PROJECT['version']}.tar.gz",
    ]
    dist.check(*archives, names)


@pytest.mark.long
def test_missing_and_additional_files_are_named(archives, names):
    wheel, sdist = archives
    others = [name for name in names if name != "src/drfl/core/key.py"] + ["src/drfl/other.py"]
    assert dist_files.check_wheel(wheel, others, PROJECT) == [
        f"{wheel.name} lacks drfl/other.py",
        f"{wheel.name} has drfl/core/key.py, which has no place there",
    ]
    top = f"drfl-{PROJECT['version']}/src/drfl"
    assert dist_files.check_sdist(sdist, others, PROJECT) == [
        f"{sdist.name} lacks {top}/other.py",
        f"{sdist.name} has {top}/core/key.py, which has no place there",
    ]


@pytest.mark.long
def test_data_files_missing_from_git_are_detected(names, tmp_path):
    less = [name for name in names if name != TABLE]
    with pytest.raises(
        CommandFailedError, match=r"whl lacks drfl/data/datasets/embedded/heart_disease\.csv\n.*tar\.gz lacks"
    ):
        dist.check(*dist.build(less, tmp_path / "out"), less)


@pytest.mark.long
def test_missing_tracked_file_is_named(names, tmp_path):
    with pytest.raises(CommandFailedError, match=r"src/drfl/gone\.py"):
        dist.build([*names, "src/drfl/gone.py"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_earlier_builds_are_removed(names, tmp_path):
    (tmp_path / "drfl-0.0.1-py3-none-any.whl").touch()
    made = dist.build(names, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(made)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"requires-python": ">=3.12"}, "Requires-Python is >=3.11, not >=3.12"),
        ({"license": "MIT"}, "License-Expression is Apache-2.0, not MIT"),
        ({"dependencies": [*PROJECT["dependencies"], "attrs>=20"]}, "Requires-Dist lacks ('attrs', (), '>=20', '')"),
        ({"optional-dependencies": {}}, "Provides-Extra has dev, which has no place there"),
    ],
)
def test_metadata_match_the_project(archives, names, changed, line):
    wheel = archives[0]
    assert f"{wheel.name}: {line}" in dist_files.check_wheel(wheel, names, PROJECT | changed)


def test_large_archive_is_refused(archives, names, monkeypatch):
    monkeypatch.setattr(dist_files, "LIMIT", 1000)
    with pytest.raises(CommandFailedError, match=r"whl .*\b1,000\n.*gz "):
        dist.check(*archives, names)


def test_failures_are_one_line_errors(monkeypatch, capsys, archives, tmp_path):
    (tmp_path / "out").mkdir()

    def refused(archive):
        raise CommandFailedError(f"{archive.name} does not install")

    monkeypatch.setattr(dist, "build", lambda names, out: archives)
    monkeypatch.setattr(dist, "OUT", tmp_path / "out")
    monkeypatch.setattr(dist, "ROOT", archives[0].parent)
    monkeypatch.setattr(dist, "tracked", lambda: ["nothing"])
    assert dist.main([]) == 1
    assert capsys.readouterr().err.startswith("dist: the archives are not as they should be:")
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(dist, "check", lambda *_: None)
    monkeypatch.setattr(dist, "run", lambda *_: "1234567\n")
    monkeypatch.setattr(dist, "try_out", refused)
    assert dist.main([]) == 1
    assert capsys.readouterr().err == f"dist: {archives[0].name} does not install\n"
    assert dist.main(["--no-trial"]) == 0
    assert "of Python" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("WARNING: Retrying: NewConnectionError('...')\nERROR: No matching distribution", "is there a network?"),
        ("error: Failed to fetch: `https://index/simple/`\n  Caused by: dns error", "is there a network?"),
        ("Collecting drfl\nERROR: drfl has no such extra\nNotice: a new pip", "ERROR: drfl has no such extra"),
        ("ERROR: Cannot install drfl\nERROR: ResolutionImpossible: see the page", "ERROR: Cannot install drfl"),
        ("Traceback\n  File\nKeyError: 3\n", "KeyError: 3"),
        ("", "no reason given"),
    ],
)
def test_last_line_of_the_output_is_the_reason(output, line):
    assert last_word(output).endswith(line)


def test_environment_is_empty_and_does_not_see_the_checkout(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    env = EmptyVenv(tmp_path / "venv")
    for module in ("pip", "drfl", "torch"):
        with pytest.raises(CommandFailedError, match=f"No module named '{module}'"):
            env.run("python", "-c", f"import {module}", cwd=tmp_path)
    assert env.run("python", "-c", "import sys; print(sys.prefix)", cwd=tmp_path).strip() == str(tmp_path / "venv")


def test_uv_uses_the_wheel_folder_of_pip(monkeypatch):
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", "wheels")
    assert outside()["UV_FIND_LINKS"] == "wheels"
    monkeypatch.setenv("UV_FIND_LINKS", "others")
    assert outside()["UV_FIND_LINKS"] == "others"


def test_hanging_command_is_ended(monkeypatch, tmp_path):
    monkeypatch.setattr(empty_venv, "SECONDS", 0.2)
    with pytest.raises(CommandFailedError, match=r"0\.2 s"):
        empty_venv.run([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path)


def test_pins_have_no_hashes():
    lines = pins(ROOT / "constraints-torch.txt", ROOT / "constraints.txt").splitlines()
    assert lines[0].startswith("torch==")
    assert len(lines) > 30
    assert not [line for line in lines if "hash" in line or "\\" in line]
