"""Run the commands of the how-to pages as written, at a small size, in a folder with the named files."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from tests.support.marks import long_except
from tests.support.scripts import ROOT

from drfl.cli.app import call
from drfl.data.model_store import ModelStore

TRIED_ELSEWHERE = {
    "drfl deploy": "scripts/try_deployment.py and scripts/try_security.py, with real processes",
    "drfl energy": "tests/pages/test_energy_page.py",
    "drfl reproduce": "tests/papers",
    "drfl compare job.toml --seeds 40 --ray": "tests/experiments, on a cluster of this machine",
    "drfl tune job.toml --ray": "tests/tuning, on a cluster of this machine",
    "drfl run --dataset hf:flwrlabs/femnist": "tests/data/tables/test_hugging_face.py, with rows of its shape",
}
"""Beginnings of commands that start servers, need machines or take long → where they are tested."""
NOT_HERE = ("adult", "shakespeare", "fashion-mnist", "kmnist-t10k")
"""Data sets whose files a machine without a network lacks."""
PROGRAMS = {"drfl", "head", "make", "openssl", "pip", "pytest", "python", "ray", "sh"}
SMALL = {
    "run": ["--rounds", "2"],
    "compare": ["--rounds", "2", "--seeds", "2"],
    "tune": ["--trials", "2", "--seeds", "1", "--rounds", "2"],
}
MINE = """
from dataclasses import dataclass

import torch

import drfl


@dataclass(frozen=True)
class FedAvgM(drfl.FedAvg):
    beta: float = 0.9

    @staticmethod
    def space(trial):
        return {"beta": trial.suggest_float("beta", 0, 0.9)}


def net(shape, classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))


def margin(outputs, targets):
    return torch.nn.functional.multi_margin_loss(outputs, targets, reduction="none")


def wider(trial):
    return {"beta": trial.suggest_float("beta", 0, 0.99)}
"""


def blocks(page: Path) -> list[list[str]]:
    """Return the lines of each block of commands."""
    found = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [block.replace("\\\n", " ").splitlines() for block in found]


def commands(page: Path) -> list[list[str]]:
    """Return the lines that call drfl, without comments, block by block."""
    lines = blocks(page)
    found = [[line.split(" #")[0].strip() for line in block if line.startswith("drfl ")] for block in lines]
    return [block for block in found if block]


COMMANDS = {page.stem: found for page in sorted((ROOT / "docs").glob("*.md")) if (found := commands(page))}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write the tables of the pages, a job, and own code."""
    import numpy as np
    import pandas as pd

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRFL_MIRROR", "http://127.0.0.1:9/")  # an address without a server
    monkeypatch.setenv("DRFL_DATA", str(tmp_path / "nothing"))
    Path("hospitals").mkdir()
    tables = []
    for number, name in enumerate(("north", "south", "west")):
        ages = [20 + (7 * i + number) % 60 for i in range(60)]
        table = pd.DataFrame({"age": ages, "dose": [(i * i) % 11 for i in range(60)]})
        tables.append(table.assign(ill=(table["age"] + table["dose"] > 50).astype(int)))
        tables[-1].to_csv(f"hospitals/{name}.csv", index=False)
    whole = pd.concat([table.assign(hospital=name) for table, name in zip(tables, "nsw", strict=True)])
    whole.assign(patient=range(len(whole))).to_csv("all.csv", index=False)
    stages = {"ward": whole["hospital"], "stage": [("I", "II", "IV")[i % 3] for i in range(len(whole))]}
    visits = whole.assign(patient_id=[i // 2 for i in range(len(whole))], **stages)
    visits.to_csv("visits.csv", index=False)
    Path("houses").mkdir()
    for name, table in zip(("city", "coast"), tables[:2], strict=True):
        table.assign(price=2000 * table.pop("age")).to_csv(f"houses/{name}.csv", index=False)
    tables[0].rename(columns={"ill": "sick"}).to_csv("data.csv", index=False)
    tables[0].drop(columns="ill").to_csv("patients.csv", index=False)
    Path("big").mkdir()
    np.save("big/inputs.npy", whole[["age", "dose"]].to_numpy(np.float32))
    for name in ("ill", "hospital"):
        np.save(f"big/{name}.npy", whole[name].to_numpy(None if name == "ill" else str))
    written_by_leaf()
    Path("scratch").mkdir()
    Path("mine.py").write_text(MINE)
    Path("job.toml").write_text('dataset = "digits"\nclients = 5\nrounds = 2\n')
    return tmp_path


def written_by_leaf() -> None:
    """Write the files of LEAF's scripts: of its synthetic data, and of its Shakespeare data."""
    users = ("f_00", "f_01")
    numbers = {"x": [[(7 * i + j) % 5 - 2.0 for j in range(3)] for i in range(20)], "y": [i % 2 for i in range(20)]}
    text = "to be or not to be, that is the question: " * 4
    letters = {"x": [text[i : i + 80] for i in range(20)], "y": [text[i + 80] for i in range(20)]}
    for name, rows in (("synthetic", numbers), ("shakespeare", letters)):
        folder = Path("leaf/data") / name / "data"
        folder.mkdir(parents=True)
        content = {"users": users, "num_samples": [20, 20], "user_data": dict.fromkeys(users, rows)}
        (folder / "all_data.json").write_text(json.dumps(content))


def saved_by_datasets() -> None:
    """Return the folder that `save_to_disk` of Hugging Face's datasets writes."""
    import datasets
    import pandas as pd

    datasets.Dataset.from_pandas(pd.read_csv("all.csv").drop(columns="patient")).save_to_disk("wards")


def received_by_a_site() -> None:
    """Turn this folder into that of a site that has received two models."""
    assert call(["data", "describe", "data.csv", "--target", "sick", "--out", "agreed.toml"]) == 0
    job = ["--data", "data.csv", "--schema", "agreed.toml", "--clients", "2", *SMALL["run"]]
    for seed in ("1", "2"):
        assert call(["run", *job, "--seed", seed, "--out", f"trained/{seed}"]) == 0
        signed = f"2026-11-0{seed}T10:00:00.000+00:00"
        ModelStore(Path("models")).add(Path(f"trained/{seed}/model.safetensors").read_bytes(), signed)
    Path("site.toml").write_text('name = "hungary"\n[data]\ncsv = "data.csv"\nschema = "schema.toml"\n')


@pytest.mark.parametrize("page", long_except(["uncertainty"], COMMANDS))
@pytest.mark.long
def test_commands_run_as_written(page, folder, capsys, monkeypatch):
    if page == "other-formats":
        saved_by_datasets()
    if page == "deploy":
        received_by_a_site()
    if page in ("report", "runs", "uncertainty"):
        out = ["--out", "runs/demo" if page == "uncertainty" else "runs/hospitals"]
        assert call(["compare", "--algorithms", "DRFA,DualDRDM", "--clients", "4", *SMALL["compare"], *out]) == 0
    for block in COMMANDS[page]:
        monkeypatch.chdir(folder)
        for line in block:
            if not any(line.startswith(known) for known in TRIED_ELSEWHERE):
                runs_as_written(line, folder, capsys, monkeypatch)


def runs_as_written(line, folder, capsys, monkeypatch):
    for part in line.split(" && "):
        words = shlex.split(part.replace("/scratch", str(folder / "scratch")))
        if words[0] == "cd":
            monkeypatch.chdir(words[1])
            continue
        code = call([*words[1:], *SMALL.get(words[1], [])])
        told = capsys.readouterr()
        if any(name in words for name in NOT_HERE):  # the options are valid, and only the data are missing
            assert code == 2, line
            assert call([*words[1:], *SMALL.get(words[1], []), "--json"]) == 2
            missing = ("download-failed", "dataset-not-found", "folder-not-found")
            assert json.loads(capsys.readouterr().out)["error"]["code"] in missing
        else:
            assert code == 0, (line, told.err)


@pytest.mark.parametrize("page", ["README.md", "docs", "examples"])
def test_every_line_of_a_block_is_one_command(page):
    place = ROOT / page
    for path in [place] if place.is_file() else sorted(place.rglob("*.md")):
        for line in (line.strip() for block in blocks(path) for line in block if line.strip()):
            program, *others = line.split(" #")[0].split()
            assert program in PROGRAMS or program.endswith((".sh", "/drfl")), (path, line)
            assert "drfl" not in others, (path, line)  # a second command means a lost line break
            assert " drfl " not in line.partition(" #")[2], (path, line)


def test_commands_tested_elsewhere_are_on_a_page():
    lines = [line for blocks in COMMANDS.values() for block in blocks for line in block]
    for known in TRIED_ELSEWHERE:
        assert any(line.startswith(known) for line in lines), known
