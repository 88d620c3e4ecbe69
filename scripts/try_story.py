"""The story of a deployment on this machine: from four messy tables to predictions at the sites, and the next model.

    scripts/try_deployment.sh --quick

SuperLink and SuperNodes are processes of their own and speak TLS with node authentication on loopback. Every command is
one that the documentation names. Ends with 1 if something is not as it should be. Nothing is left running.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import tomli_w
import torch
from trial_folder import BIN, Trial
from trial_messy import NAMES, write_tables

import drfl
from drfl.core.audit_log import read
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.data.model_store import ModelStore
from drfl.engine import Simulation
from drfl.experiments.config.wrap import wrap_algorithm
from drfl.flower.messages import Model
from drfl.flower.settings import DeployedConfig
from drfl.flower.site_data import load_site
from drfl.flower.site_task import task_of

JOB = {
    "algorithm": "DRDM", "model": "linear", "engine": "loop", "rounds": 2, "lr": 0.05, "seed": 0, "dtype": "float64",
    "metrics": ["auc"],
}  # fmt: skip
TOLERANCE = 1e-6


def drfl_command(*arguments: object, code: int = 0) -> str:
    """Run a command of drfl, and return what it printed; another exit code than ``code`` ends the story."""
    found = subprocess.run([BIN / "drfl", *map(str, arguments)], capture_output=True, text=True)
    if found.returncode != code:
        raise SystemExit(
            f"drfl {arguments[0]} {arguments[1]} ended with {found.returncode}\n{found.stdout}{found.stderr}"
        )
    return found.stdout


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print a step of the story with the seconds that it took."""
    start = time.monotonic()
    yield
    print(f"{time.monotonic() - start:5.1f} s  {what}", flush=True)


def check(is_right: bool, what: str) -> None:
    """End the story unless something is as it should be."""
    if not is_right:
        raise SystemExit(f"not as it should be: {what}")


def set_job(trial: Trial, out: str, **changes: object) -> None:
    """Write the next job into server.toml, and nothing else."""
    path = trial.folder / "server.toml"
    path.write_text(tomli_w.dumps({**tomllib.loads(path.read_text()), "out": out, "job": {**JOB, **changes}}))


def train(trial: Trial, out: str, **changes: object) -> Path:
    """Train with ``drfl deploy run``, check that all sites received the model, and return the run's folder."""
    set_job(trial, out, **changes)
    code, told = trial.run()
    check(code == 0, f"drfl deploy run ended with {code}\n{told}")
    outcome = json.loads((trial.folder / out / "delivery.json").read_text())["sites"]
    check(set(outcome.values()) == {"received"} and len(outcome) == len(trial.sites), f"delivery: {outcome}")
    return trial.folder / out


def simulated_outputs(trial: Trial, name: str) -> np.ndarray:
    """Return the log-odds for the test rows of a site, from the same training in this process."""
    config = DeployedConfig.model_validate(JOB)
    parts = {site: load_site(trial.folder / "sites" / site / "site.toml") for site in trial.sites}
    pick = {
        site: [
            (part.inputs[part.train[0]], part.targets[part.train[0]]),
            (part.test_inputs[part.test[0]], part.test_targets[part.test[0]]),
        ]
        for site, part in parts.items()
    }
    schema = parts[name].schema
    train, test = ({site: pair[i] for site, pair in pick.items()} for i in range(2))
    data = ClientData.from_arrays(train, test, dtype=torch.float64, schema=schema).standardised()
    with Key(config.seed).fold("model").torch_scope():
        task = task_of(Model(config.model, config.loss, config.dtype, 2), tuple(data.inputs.shape[1:]))
    algorithm = wrap_algorithm(config, config.build_algorithm(config.algorithm, data.n), None, None, task)
    found = drfl.run(algorithm, Simulation(data, task, engine=config.engine), rounds=config.rounds, seed=config.seed)
    task.layout.load(task.model, found.model)
    rows = data.test_inputs[data.test[data.names.index(name)]]
    with torch.no_grad():
        return task.model(rows).numpy()


def predictions(trial: Trial, tables: dict[str, Path], model: Path | None = None) -> dict[str, np.ndarray]:
    """Return the probability of the positive class for every row of every table: by the site's model, or by a file."""

    def predict(name: str) -> np.ndarray:
        place, schema = trial.folder / "sites" / name, trial.folder.parent / "schema.toml"
        loaded = drfl.load_model(place) if model is None else drfl.load_model(model, schema=schema)
        return loaded.predict_proba(frame_of(tables[name]))[:, 1]

    return {name: predict(name) for name in trial.sites}


def frame_of(path: Path) -> pd.DataFrame:
    """Read a table as a data scientist at the hospital would."""
    options = {"south": {"sep": ";", "decimal": ","}, "east": {"encoding": "cp1252"}, "west": {"sep": "\t"}}
    return pd.read_csv(path, **options.get(path.stem, {}), keep_default_na=False, na_values=[""])


def apart(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """Return the largest difference of two predictions."""
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def tell(place: Path) -> None:
    """Play the whole story in a folder."""
    tables = write_tables(place)
    tables = {name: tables[name] for name in NAMES[:4]}
    schema = place / "schema.toml"
    with step("describe one table, and check all with its schema"):
        excluded = ("--drop", "note", "--drop", "old_score")
        drfl_command("data", "describe", tables["north"], "--target", "sick", *excluded, "--out", schema)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda path: drfl_command("data", "check", path, "--schema", schema), tables.values()))
    with step("write the deployment, start SuperLink and four SuperNodes, check that all are online"):
        trial = Trial(place / "deployment", tables, timeout=120.0, dtype="float64")
        for name, path in tables.items():
            shutil.copy(schema, trial.folder / "sites" / name)
            trial.site(name, data={"csv": f"data{path.suffix}", "schema": "schema.toml"})
        # One hospital has scores of its own.
        trial.site("north", policy={"score_column": "old_score"})
        trial.__enter__()
    try:
        with step("train for two rounds; every site receives the model"):
            first = train(trial, "run-1")
            sent = read(trial.folder / "sites/north/audit.jsonl").records
            check(any(line.get("what") == "delivery" for line in sent), "the audit log of a site records the delivery")
        with step("predict at each site, at the server and in a simulation"):
            at_sites, at_server = predictions(trial, tables), predictions(trial, tables, first / "model.safetensors")
            check(
                apart(at_sites, at_server) <= TOLERANCE,
                f"predictions of sites and server: {apart(at_sites, at_server)}",
            )
            part = load_site(trial.folder / "sites/north/site.toml")
            rows = part.test[0].numpy()
            outputs = simulated_outputs(trial, "north")
            there = 1 / (1 + np.exp(outputs[:, 0] - outputs[:, 1]))
            far = float(np.abs(at_sites["north"][rows] - there).max())
            check(far <= TOLERANCE, f"predictions of the site and the simulation differ by {far}")
            print(
                f"         largest difference: {apart(at_sites, at_server):.0e} to the server, {far:.0e} to the simulation"
            )
        with step("train the next model; each site keeps the previous one"):
            second = train(trial, "run-2", seed=1, select="worst")
            check(apart(predictions(trial, tables), at_sites) > TOLERANCE, "the sites use the new model")
        with step("roll back at one site, and return"):
            print(drfl_command("model", "rollback", trial.folder / "sites/west").strip())
            check(apart({"west": predictions(trial, tables)["west"]}, {"west": at_sites["west"]}) == 0, "rollback")
            drfl_command("model", "rollback", trial.folder / "sites/west")
            current = ModelStore(trial.folder / "sites/west/models").current().read_bytes()
            check(current == (second / "model.safetensors").read_bytes(), "the new model is current again")
        with step("evaluate the old and the new model at all sites, row by row"):
            models = [run / "model.safetensors" for run in (first, second)]
            results = json.loads(trial.drfl("evaluate", trial.folder, *models, "--json").stdout)
            check(not results["missing"] and len(results["models"]) == 3, f"evaluation: {results}")
            rows_of_run = {site["site"]: site for site in results["models"][0]["sites"]}
            clients = pd.read_csv(first / "clients.csv").set_index("client")
            for name, site in rows_of_run.items():
                check(abs(clients["accuracy"][name] - site["accuracy"]) < TOLERANCE, f"accuracy at {name}")
                check(abs(clients["accuracy_low"][name] - site["low"]) < TOLERANCE, f"interval at {name}")
        with step("check the audit logs, and write one report of both runs"):
            logs = [trial.folder / "audit.jsonl", *(trial.folder / "sites" / n / "audit.jsonl" for n in trial.sites)]
            drfl_command("deploy", "audit", *logs)
            drfl_command("report", first, second, "--out", place / "report.html")
            check((place / "report.html").stat().st_size > 10_000, "the report")
    finally:
        trial.__exit__(None, None, None)


def main() -> None:
    """Tell the story, and remove its folder."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    place, start = Path(tempfile.mkdtemp(prefix="drfl-story-")), time.monotonic()
    try:
        tell(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(f"all as it should be, after {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
