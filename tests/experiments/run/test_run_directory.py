"""Test overwriting and clearing: only files that the manifest lists and drfl names are removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.support.refusals import refused

from drfl.core.errors import DivergedError
from drfl.experiments.run.manifest import KINDS, Manifest, read_manifest
from drfl.experiments.run.run_directory import check_free, claim_folder, default_directory, fill_folder


def fill(path, text="mine", names=("summary.json", "plan.csv"), **options):
    with claim_folder(path, "plan", **options) as claim:
        with fill_folder(claim) as stage:
            for name in names:
                (stage / name).write_text(text)
        claim.finished = True
    return claim.directory


def checkpointed(path, **options):
    """Make a run that was stopped after a checkpoint."""
    with claim_folder(path, **options) as claim:
        (claim.checkpoints / "config.toml").write_text("rounds = 1")
        (claim.checkpoints / "round-00000001").mkdir()
        for name in ("state.safetensors", "run.json", "SHA256SUMS"):
            (claim.checkpoints / "round-00000001" / name).write_text("x")
    return claim.directory


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_folder_is_created_with_parents_and_a_manifest(tmp_path):
    assert fill(tmp_path / "a/b/c") == tmp_path / "a/b/c"
    assert names(tmp_path / "a/b") == ["c", "c/manifest.json", "c/plan.csv", "c/summary.json"]
    content = json.loads((tmp_path / "a/b/c/manifest.json").read_text())
    assert (content["kind"], content["format"], content["files"]) == ("plan", 1, ["plan.csv", "summary.json"])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, DivergedError])
def test_failure_leaves_no_folder(error, tmp_path):
    def fail():
        with claim_folder(tmp_path / "a/b/c", "plan") as claim, fill_folder(claim) as stage:
            (stage / "plan.csv").write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert names(tmp_path) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises(error), claim_folder(tmp_path / "empty", "plan"):
        raise error
    assert names(tmp_path) == ["empty"]


def test_failure_keeps_foreign_files_in_parents(tmp_path):
    def fail():
        with claim_folder(tmp_path / "runs/a"):
            fill(tmp_path / "runs/b")
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["b"]


def test_overwriting_replaces_listed_files_and_reports_kept_ones(tmp_path):
    fill(tmp_path / "a", "old", ("summary.json", "plan.csv", "heatmap.png"))
    (tmp_path / "a/notes.txt").write_text("mine")
    (tmp_path / "a/sub").mkdir()
    (tmp_path / "a/sub/plan.csv").write_text("mine")
    told = []
    fill(tmp_path / "a", "new", overwrite=True, warn=told.append)
    assert names(tmp_path / "a") == ["manifest.json", "notes.txt", "plan.csv", "sub", "sub/plan.csv", "summary.json"]
    assert (tmp_path / "a/plan.csv").read_text() == "new"
    assert (tmp_path / "a/sub/plan.csv").read_text() == "mine"
    assert len(told) == 1
    assert all(part in told[0] for part in (str(tmp_path / "a"), "notes.txt, sub"))


def test_old_results_stay_until_new_ones_exist(tmp_path):
    fill(tmp_path / "a", "old")
    with pytest.raises(ValueError, match="x"), claim_folder(tmp_path / "a", "plan", overwrite=True):
        raise ValueError("x")
    assert (tmp_path / "a/plan.csv").read_text() == "old"
    assert names(tmp_path / "a") == ["manifest.json", "plan.csv", "summary.json"]
    fill(tmp_path / "a", "new", overwrite=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_folder_without_a_manifest_is_foreign(overwrite, tmp_path):
    project = tmp_path / "project"
    (project / "checkpoint/round-00000001").mkdir(parents=True)
    for name in ("checkpoint/best.pt", "checkpoint/round-00000001/run.json", "summary.json", "thesis.tex"):
        (project / name).write_text("precious")
    before = names(project)
    for attempt in (check_free, fill):
        with refused("foreign-folder", str(project)):
            attempt(project, *(("plan",) if attempt is check_free else ()), overwrite=overwrite)
    assert names(project) == before
    assert {path.read_text() for path in project.rglob("*") if path.is_file()} == {"precious"}


def test_folder_of_another_kind_is_unchanged(tmp_path):
    fill(tmp_path / "a")
    with refused("foreign-folder", str(tmp_path / "a"), "plan", "run"), claim_folder(tmp_path / "a", overwrite=True):
        pytest.fail("it was taken")
    assert names(tmp_path / "a") == ["manifest.json", "plan.csv", "summary.json"]


def forged(folder, **content):
    folder.mkdir()
    whole = {"kind": "run", "format": 1, "drfl": "0", "files": [], "cells": [], **content}
    (folder / "manifest.json").write_text(json.dumps(whole))


@pytest.mark.parametrize(
    "content",
    [
        {"files": ["../precious"]},
        {"files": ["/etc/passwd"]},
        {"files": ["sub"]},
        {"files": ["sub/precious"]},
        {"files": ["precious"]},
        {"files": [".."]},
        {"files": ["history.csv/../../precious"]},
        {"files": ["history.csv\n"]},
        {"cells": ["DRDM-seed0"]},
        {"kind": "comparison", "cells": ["../DRDM-seed0"]},
        {"kind": "comparison", "cells": ["sub"]},
        {"kind": "search", "files": ["../x.toml"]},
        {"kind": "project"},
        {"format": 2},
        {"files": "history.csv"},
        {"more": 1},
    ],
    ids=str,
)
def test_forged_manifest_does_not_allow_overwriting(content, tmp_path):
    (tmp_path / "precious").write_text("mine")
    forged(tmp_path / "a", **content)
    (tmp_path / "a/sub").mkdir()
    for name in ("a/sub/precious", "a/precious", "a/history.csv"):
        (tmp_path / name).write_text("mine")
    before = names(tmp_path)
    with refused("foreign-folder", str(tmp_path / "a/manifest.json"), "manifest.json"):
        fill(tmp_path / "a", overwrite=True)
    assert names(tmp_path) == before


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "\0"])
def test_damaged_manifest_is_a_one_line_error(text, tmp_path):
    (tmp_path / "manifest.json").write_text(text)
    with refused("foreign-folder" if text == "[]" else "damaged-file", str(tmp_path / "manifest.json")):
        read_manifest(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_lists_its_own_file_names(kind, tmp_path):
    cells = ("DRDM-seed0",) if kind == "comparison" else ()
    manifest = Manifest.new(kind, KINDS[kind].fixed, cells)
    manifest.write(tmp_path)
    assert read_manifest(tmp_path) == manifest


def outside(tmp_path):
    """Make a foreign folder whose content looks like drfl's."""
    folder = tmp_path / "outside"
    (folder / "round-00000001").mkdir(parents=True)
    for name in ("lock", "config.toml", "round-00000001/run.json", "precious"):
        (folder / name).write_text("mine")
    return folder


@pytest.mark.parametrize("link", ["checkpoint", "checkpoint/round-00000001", "checkpoint/round-00000001/run.json"])
@pytest.mark.parametrize("how", ["overwrite", "resume"])
def test_link_in_the_checkpoints_is_refused(link, how, tmp_path):
    run, folder = checkpointed(tmp_path / "a"), outside(tmp_path)
    target = {"checkpoint": folder, "checkpoint/round-00000001": folder / "round-00000001"}.get(
        link, folder / "precious"
    )
    os.rename(run / link, tmp_path / "aside")
    (run / link).symlink_to(target)
    before = names(tmp_path)
    with refused("link-in-the-way", str(run / link)), claim_folder(run, **{how: True}):
        pytest.fail("it was taken")
    assert names(tmp_path) == before
    assert {path.read_text() for path in folder.rglob("*") if path.is_file()} == {"mine"}


def test_cell_that_is_a_link_is_refused(tmp_path):
    run = checkpointed(tmp_path / "elsewhere")
    forged(tmp_path / "a", kind="comparison", cells=["DRDM-seed0"])
    (tmp_path / "a/DRDM-seed0").symlink_to(run)
    before = names(tmp_path)
    with (
        refused("link-in-the-way", str(tmp_path / "a/DRDM-seed0"), "DRDM-seed0"),
        claim_folder(tmp_path / "a", "comparison", overwrite=True),
    ):
        pytest.fail("it was taken")
    assert names(tmp_path) == before


def test_linked_result_is_replaced_and_not_followed(tmp_path):
    fill(tmp_path / "a", names=("summary.json", "plan.csv", "plan.md"))
    (tmp_path / "precious").write_text("mine")
    for name in ("plan.csv", "plan.md"):
        (tmp_path / "a" / name).unlink()
        (tmp_path / "a" / name).symlink_to(tmp_path / "precious")
    fill(tmp_path / "a", "new", overwrite=True)
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (tmp_path / "a/plan.csv").is_symlink()
    assert (tmp_path / "a/plan.md").is_symlink(), "a link that is not written again is not drfl's"


def test_foreign_files_in_the_checkpoint_folder_stay(tmp_path):
    run = checkpointed(tmp_path / "a")
    for name in ("checkpoint/mine.txt", "checkpoint/round-00000001/mine.txt", "checkpoint/mine/run.json"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("mine")
    with claim_folder(run, overwrite=True) as claim:
        assert not (run / "checkpoint/round-00000001/run.json").exists()
        claim.finished = True
    assert [name for name in names(run) if (run / name).is_file()] == [
        "checkpoint/mine.txt",
        "checkpoint/mine/run.json",
        "checkpoint/round-00000001/mine.txt",
        "manifest.json",
    ]


def test_foreign_file_is_not_overwritten(tmp_path):
    fill(tmp_path / "a", names=("summary.json",))
    (tmp_path / "a/plan.csv").write_text("mine")
    with refused("foreign-file", str(tmp_path / "a/plan.csv"), "plan.csv"):
        fill(tmp_path / "a", overwrite=True)
    assert (tmp_path / "a/plan.csv").read_text() == "mine"
    (tmp_path / "a/plan.csv").unlink()

    def beside():
        with claim_folder(tmp_path / "a", "plan", overwrite=True) as claim, fill_folder(claim) as stage:
            (tmp_path / "a/plan.csv").write_text("mine")
            (stage / "plan.csv").write_text("new")

    with refused("foreign-file", str(tmp_path / "a/plan.csv")):
        beside()
    assert (tmp_path / "a/plan.csv").read_text() == "mine"


def test_output_folder_can_be_a_link(tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "a").symlink_to(tmp_path / "scratch")
    for text in ("old", "new"):
        fill(tmp_path / "a", text, overwrite=text == "new")
        assert (tmp_path / "scratch/plan.csv").read_text() == text
    assert (tmp_path / "a").is_symlink()
    assert names(tmp_path / "scratch") == ["manifest.json", "plan.csv", "summary.json"]


def test_folder_claimed_by_a_killed_process_is_recognised(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / f"a/.manifest.json.{32 * 'a'}.part").write_text("{")
    check_free(tmp_path / "a", "plan")
    fill(tmp_path / "a")
    assert names(tmp_path / "a") == ["manifest.json", "plan.csv", "summary.json"]


HOLD = """
import sys
from pathlib import Path
from drfl.experiments.run.run_directory import claim_folder
with claim_folder(Path(sys.argv[1]), "plan"):
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.long
def test_second_process_is_refused(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "a")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        for how in ("overwrite", "resume"):
            with refused("folder-in-use", str(tmp_path / "a")):
                fill(tmp_path / "a", **{how: True})
        process.communicate("go on\n", timeout=60)
    assert names(tmp_path) == []


def test_unwritable_place_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with refused("cannot-write", str(tmp_path / "file/a")):
        fill(tmp_path / "file/a")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere/x")
    with refused("cannot-write", str(tmp_path / "link")):
        fill(tmp_path / "link")
    assert names(tmp_path) == ["file", "link"]


def test_default_names_are_numbered(tmp_path):
    found = [fill(tmp_path / "run", numbered=True).name for _ in range(3)]
    assert found == ["run", "run-2", "run-3"]
    (tmp_path / "run-4").symlink_to(tmp_path / "nowhere")
    assert default_directory(tmp_path, "run") == tmp_path / "run-5"
