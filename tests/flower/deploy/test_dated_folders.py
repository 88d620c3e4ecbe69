"""Test that every run of a deployment has its own folder, and that an unfinished run is resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.refusals import logged, refused

from drfl.core.files import sha256_of
from drfl.data import ClientData
from drfl.data.model_file import read_model_file
from drfl.experiments.run.manifest import Manifest, is_finished
from drfl.flower import server_app
from drfl.flower.deploy import dated_folders
from drfl.flower.deploy.paths import DeploymentFolder
from drfl.flower.session import read_resolved
from drfl.flower.site import Site

from ..conftest import clients, grid_of
from ..test_server_app import Dying, settings


def dated(folder, **job):
    """Write the settings of a deployment with dated run folders."""
    path = settings(folder, **job)
    path.write_text(path.read_text().replace('out = "run"', 'out = "runs/DATE"'))
    return path


@pytest.mark.long
def test_finished_run_is_followed_by_a_new_one(tmp_path):
    path = dated(tmp_path)
    first, second = (server_app.serve(grid_of(), path) for _ in range(2))
    assert first.parent == second.parent == tmp_path / "runs"
    assert first.name < second.name
    assert is_finished(first)
    assert is_finished(second)
    assert (first / "history.csv").read_bytes() == (second / "history.csv").read_bytes()
    assert DeploymentFolder(tmp_path).summary() == second / "summary.json"


@pytest.mark.long
def test_unfinished_run_resumes_in_its_folder(tmp_path):
    path = dated(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        server_app.serve(grid_of(grid=Dying), path)
    (begun,) = (tmp_path / "runs").iterdir()
    assert not is_finished(begun)
    assert server_app.serve(grid_of(), path) == begun
    again = server_app.serve(grid_of(), path)
    assert again != begun
    for name in ("history.csv", "lambda.csv"):
        assert (begun / name).read_bytes() == (again / name).read_bytes()


@pytest.mark.long
def test_next_run_starts_from_the_newest_model(tmp_path, caplog):
    path = dated(tmp_path)
    first = server_app.serve(grid_of(), path)
    path.write_text(path.read_text().replace("[job]", '[job]\ninit_from = "runs/DATE/model.safetensors"'))
    second = server_app.serve(grid_of(), path)
    about = read_model_file(second / "model.safetensors").about
    assert about["training"]["init_from"] == sha256_of(first / "model.safetensors")
    assert about["training"]["test_rows"]
    assert ("seen-test-rows", "init_from") not in logged(caplog)
    # One site's rows have changed, so its test rows may be former training rows.
    train, test = clients()
    train["a"] = tuple(values[1:] for values in train["a"])
    sites = {name: Site(name, ClientData.from_arrays({name: train[name]}, {name: test[name]})) for name in "abcd"}
    third = server_app.serve(grid_of(load=lambda context: sites[context.node_config["name"]]), path)
    assert ("seen-test-rows", "init_from") in logged(caplog)
    assert "test_rows" not in read_model_file(third / "model.safetensors").about["training"]


def ended(folder, failure=None):
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "summary.json").write_text(json.dumps({"stopped": "rounds", "failure": failure}))
    Manifest(kind="run", drfl="0").write(folder)
    return folder / "model.safetensors"


def test_model_of_a_diverged_or_unfinished_run_is_neither_delivered_nor_a_start(tmp_path):
    path = dated(tmp_path)
    path.write_text(path.read_text().replace("[job]", '[job]\ninit_from = "runs/DATE/model.safetensors"'))
    with refused("no-model"):
        DeploymentFolder(tmp_path).newest_model()
    diverged = ended(tmp_path / "runs/20250101T000000.000001", "the loss rose")
    with refused("no-model"):
        DeploymentFolder(tmp_path).newest_model()
    assert read_resolved(path).job.init_from == tmp_path / "runs/DATE/model.safetensors"
    with refused("file-not-found"):
        server_app.serve(grid_of(), path)
    sound = ended(tmp_path / "runs/20250101T000000.000000")
    # The server was killed while it wrote the results, or before it deleted the checkpoints.
    for number, missing in enumerate(("summary.json", "manifest.json", "checkpoint")):
        unfinished = ended(tmp_path / f"runs/20250101T000000.00001{number}").parent
        if missing == "checkpoint":
            (unfinished / "checkpoint").mkdir()
            (unfinished / "checkpoint/config.toml").touch()
        else:
            (unfinished / missing).unlink()
    assert DeploymentFolder(tmp_path).newest_model() == sound
    assert read_resolved(path).job.init_from == sound
    # A file that the operator names is used in any case.
    path.write_text(path.read_text().replace("runs/DATE/model", f"{diverged.parent.relative_to(tmp_path)}/model"))
    assert read_resolved(path).job.init_from == diverged


@pytest.mark.parametrize("out", ["runs/DATE", "a-DATE-b/x", "DATE"])
def test_folder_names_with_date(tmp_path, out):
    path = Path(out)
    assert dated_folders.run_folders(tmp_path, path) == []
    assert dated_folders.newest_run(tmp_path, path) == tmp_path / out
    new = dated_folders.folder_to_fill(tmp_path, path)
    assert "DATE" not in str(new.relative_to(tmp_path))
    old = tmp_path / out.replace("DATE", "20250101T000000.000000")
    for folder in (new, old, tmp_path / out.replace("DATE", "other")):
        folder.mkdir(parents=True)
    assert dated_folders.run_folders(tmp_path, path) == [old, new]
    # an empty folder belongs to a run that has just started
    assert dated_folders.folder_to_fill(tmp_path, path) == new


def test_results_may_be_outside_the_deployment(tmp_path):
    root, results = tmp_path / "fl", tmp_path / "results"
    root.mkdir()
    path = dated(root)
    path.write_text(path.read_text().replace('"runs/DATE"', f'"{results}/DATE"'))
    folder = DeploymentFolder(root)
    assert read_resolved(path).out.parent == results
    assert folder.summary() == results / "DATE/summary.json"
    model = ended(results / "20250101T000000.000000")
    assert folder.newest_model() == model
    out = server_app.serve(grid_of(), path)
    assert out.parent == results
    assert is_finished(out)
    assert folder.newest_model() == out / "model.safetensors"


def test_single_folder_without_date(tmp_path):
    assert dated_folders.folder_to_fill(tmp_path, Path("run")) == tmp_path / "run"
    assert dated_folders.newest_run(tmp_path, Path("run/model.safetensors")) == tmp_path / "run/model.safetensors"
