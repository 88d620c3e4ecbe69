"""Test a deployment from end to end on this machine: from four messy tables to predictions and the next model.

    scripts/try_deployment.sh --quick
    .venv/bin/python scripts/try_story.py --long

With --long, a SuperNode, the server's program and the SuperLink are also killed during training. The training resumes,
and must end like an undisturbed one. `make test-all` runs the long version.

The SuperLink and the SuperNodes are separate processes that use TLS and node authentication on loopback. All commands
are documented ones. The script exits with 1 if a check fails, and leaves no process running.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from trial_folder import BIN, Trial
from trial_messy import NAMES, write_tables

import drfl
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.data.model_store import ModelStore
from drfl.engine import Simulation
from drfl.experiments.config.wrap import wrap_algorithm
from drfl.flower.messages import ModelRecipe
from drfl.flower.settings import DeployedConfig
from drfl.flower.site_data import load_site
from drfl.flower.site_task import task_of

JOB = {
    "algorithm": "FedAvg", "model": "linear", "engine": "loop", "rounds": 2, "lr": 0.05, "seed": 0, "dtype": "float64",
    "metrics": ["auc"],
}  # fmt: skip
TOLERANCE = 1e-6


def drfl_command(*arguments: object, code: int = 0) -> str:
    """Run a command of drfl and return its output; stop if the exit code is not ``code``."""
    found = subprocess.run([BIN / "drfl", *map(str, arguments)], capture_output=True, text=True)
    if found.returncode != code:
        raise SystemExit(
            f"drfl {arguments[0]} {arguments[1]} ended with {found.returncode}\n{found.stdout}{found.stderr}"
        )
    return found.stdout


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print a step with its duration in seconds."""
    start = time.monotonic()
    yield
    print(f"{time.monotonic() - start:5.1f} s  {what}", flush=True)


def check(is_right: bool, what: str) -> None:
    """Stop with an error unless a check is true."""
    if not is_right:
        raise SystemExit(f"not as it should be: {what}")


def train(trial: Trial, out: str, **changes: object) -> Path:
    """Train with ``drfl deploy run``, check that all sites received the model, and return the run's folder."""
    trial.job(out, timeout=120.0, **{**JOB, **changes})
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
        task = task_of(ModelRecipe(config.model, config.loss, config.dtype, 2), tuple(data.inputs.shape[1:]))
    algorithm = wrap_algorithm(config, config.build_algorithm(config.algorithm, data.n), None, None, task)
    found = drfl.run(algorithm, Simulation(data, task, engine=config.engine), rounds=config.rounds, seed=config.seed)
    task.layout.load(task.model, found.model)
    rows = data.test_inputs[data.test[data.names.index(name)]]
    with torch.no_grad():
        return task.model(rows).numpy()


def at_sites(trial: Trial) -> dict[str, np.ndarray]:
    """Predict at every site with ``drfl predict``, and return the probabilities of the positive class."""

    def predict(name: str) -> np.ndarray:
        site = trial.folder / "sites" / name
        (table,) = site.glob("data.*sv")
        drfl_command("predict", site, table, "--out", site / "predictions.csv", "--overwrite")
        return pd.read_csv(site / "predictions.csv")["probability_yes"].to_numpy()

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(trial.sites, pool.map(predict, trial.sites), strict=True))


def at_server(run: Path, tables: dict[str, Path]) -> dict[str, np.ndarray]:
    """Return the same predictions from a run's folder, in Python."""
    loaded = drfl.load_model(run)
    return {name: loaded.predict_proba(frame_of(path))[:, 1] for name, path in tables.items()}


def frame_of(path: Path) -> pd.DataFrame:
    """Read a table as a data scientist at the hospital would."""
    options = {"south": {"sep": ";", "decimal": ","}, "east": {"encoding": "cp1252"}, "west": {"sep": "\t"}}
    return pd.read_csv(path, **options.get(path.stem, {}), keep_default_na=False, na_values=[""])


def apart(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """Return the largest difference between two predictions."""
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def begin(place: Path, tables: dict[str, Path], schema: Path) -> Trial:
    """Write the deployment and its sites."""
    trial = Trial(place / "deployment", {name: tables[name] for name in NAMES[:4]}, timeout=120.0, dtype="float64")
    for name in trial.sites:
        give_table(trial, name, tables[name], schema)
    shutil.copy(schema, trial.folder)
    settings = trial.folder / "server.toml"
    settings.write_text('schema = "schema.toml"\n' + settings.read_text())
    # One hospital already has a risk score.
    trial.site("north", policy={"score_column": "old_score"})
    return trial


def join(trial: Trial, name: str, table: Path, schema: Path) -> None:
    """Add a site to the deployment, and start its SuperNode."""
    trial.drfl("add-site", trial.folder, name)
    give_table(trial, name, table, schema)
    trial.start_site(name)


def give_table(trial: Trial, name: str, table: Path, schema: Path) -> None:
    """Put a site's table and the schema into its folder."""
    shutil.copy(schema, trial.folder / "sites" / name)
    shutil.copy(table, trial.folder / "sites" / name / f"data{table.suffix}")
    trial.site(name, dtype="float64", data={"csv": f"data{table.suffix}", "schema": "schema.toml"})


def compare_predictions(trial: Trial, run: Path, tables: dict[str, Path]) -> dict[str, np.ndarray]:
    """Check that sites, server and simulation predict the same, and return the sites' predictions."""
    here = at_sites(trial)
    to_server = apart(here, at_server(run, {name: tables[name] for name in here}))
    (rows,) = load_site(trial.folder / "sites/north/site.toml").test
    outputs = simulated_outputs(trial, "north")
    simulated = 1 / (1 + np.exp(outputs[:, 0] - outputs[:, 1]))
    to_simulation = float(np.abs(here["north"][rows.numpy()] - simulated).max())
    print(f"         largest difference: {to_server:.0e} to the server, {to_simulation:.0e} to the simulation")
    check(max(to_server, to_simulation) <= TOLERANCE, "sites, server and simulation predict the same")
    return here


def roll_back(trial: Trial, old: dict[str, np.ndarray], run: Path) -> None:
    """Return to the old model at a site, and from there to the new one."""
    check(apart(at_sites(trial), {name: old.get(name, np.zeros(1)) for name in trial.sites}) > TOLERANCE, "new models")
    site = trial.folder / "sites/west"
    drfl_command("model", "rollback", site)
    (table,) = site.glob("data.*sv")
    drfl_command("predict", site, table, "--out", site / "predictions.csv", "--overwrite")
    back = pd.read_csv(site / "predictions.csv")["probability_yes"].to_numpy()
    check(bool((back == old["west"]).all()), "the old model predicts as before")
    drfl_command("model", "rollback", site)
    current = ModelStore(site / "models").current().read_bytes()
    check(current == (run / "model.safetensors").read_bytes(), "the new model is current again")


def evaluate(trial: Trial, first: Path, second: Path) -> None:
    """Test the old and the new model at all sites; the results of the old one must be those of its run."""
    results = json.loads(trial.drfl("evaluate", trial.folder, first, second, "--json").stdout)
    check(not results["missing"] and len(results["models"]) == 3, f"evaluation: {results['missing']}")
    sites = {site["site"]: site for site in results["models"][0]["sites"]}
    clients = pd.read_csv(first / "clients.csv").set_index("client")
    for name in clients.index:
        check(abs(clients["accuracy"][name] - sites[name]["accuracy"]) < TOLERANCE, f"accuracy at {name}")
    check(list(sites) == trial.sites, "the evaluation has all sites")
    check([site["site"] for site in results["models"][2]["sites"]] == ["north"], "the scores of one hospital")
    paired = pd.read_csv(Path(results["folder"]) / "paired.csv")
    counts = paired[["both", "only_model", "only_over", "neither"]].sum(axis=1)
    check(bool((counts == paired["site"].map({n: s["samples"] for n, s in sites.items()})).all()), "2×2 counts")


def disturb(trial: Trial) -> None:
    """Kill one program after another during a training, which must end like an undisturbed one."""
    job = {**JOB, "algorithm": "DRDM", "rounds": 3, "checkpoint_every": 1}
    train(trial, "undisturbed", **job)
    trial.job("disturbed", timeout=300.0, **job)

    def kill_two() -> None:
        # Both at once: if west was handling a message, the message is lost, and the round would end without west.
        trial.restart_site("west")
        trial.kill_server_program()

    for what, interfere, after in (
        ("a SuperNode and the server's program", kill_two, 1), ("the SuperLink", trial.restart_link, 2),
    ):  # fmt: skip
        code, told = trial.run_with(interfere, 3, after)
        check(code == 1, f"the run ended with {code} although {what} was killed\n{told}")
        trial.wait_online()
    code, told = trial.run()
    check(code == 0, f"the last part of the run ended with {code}\n{told}")
    for name in ("history.csv", "lambda.csv", "clients.csv"):
        one, other = (trial.folder / out / name for out in ("undisturbed", "disturbed"))
        check(one.read_bytes() == other.read_bytes(), f"{name} is that of the undisturbed run")
    one, other = (drfl.load_model(trial.folder / out).weights for out in ("undisturbed", "disturbed"))
    check(all(torch.equal(one[key], other[key]) for key in one), "the model is that of the undisturbed run")


def tell(place: Path, long: bool = False) -> None:
    """Run all steps in a folder."""
    tables, schema = write_tables(place), place / "schema.toml"
    with ExitStack() as stack:
        with step("describe one table, and check all with its schema"):
            excluded = ("--drop", "note", "--drop", "old_score")
            drfl_command("data", "describe", tables["north"], "--target", "sick", *excluded, "--out", schema)
            drfl_command("data", "check", *tables.values(), "--schema", schema)
        with step("write the deployment, start SuperLink and four SuperNodes, check that all are online"):
            trial = begin(place, tables, schema)
            # Registered before the start, which may fail after it has started programs.
            stack.callback(trial.__exit__, None, None, None)
            trial.__enter__()
        with step("train for two rounds; every site receives the model"):
            first = train(trial, "run-1")
        both = "predict at each site, at the server and in a simulation; meanwhile add a fifth site"
        with step(both), ThreadPoolExecutor(1) as pool:
            joining = pool.submit(join, trial, "late", tables["late"], schema)
            old = compare_predictions(trial, first, tables)
            joining.result()
            trial.sites.append("late")
            trial.wait_online()
        with step("train the next model from this one, selected by validation rows"):
            second = train(trial, "run-2", seed=1, select="worst", init_from="run-1")
        both = "evaluate both models at all sites; meanwhile predict with the new one, roll back, and return"
        with step(both), ThreadPoolExecutor(1) as pool:
            evaluation = pool.submit(evaluate, trial, first, second)  # it mostly waits for the sites
            roll_back(trial, old, second)
            evaluation.result()
        if long:
            with step("kill a SuperNode, the server's program and the SuperLink; resume; the same results"):
                disturb(trial)
        with step("remove a site; check the audit logs; write one report of both runs"):
            logs = [trial.folder / "audit.jsonl", *(trial.folder / "sites" / n / "audit.jsonl" for n in trial.sites)]
            with ThreadPoolExecutor(1) as pool:
                audit = pool.submit(drfl_command, "deploy", "audit", *logs)
                drfl_command("report", first, second, "--out", place / "report.html")
                audit.result()
            trial.drfl("remove-site", trial.folder, "south")
            check((place / "report.html").stat().st_size > 10_000, "the report")


def main(keep: bool = False, long: bool = False) -> None:
    """Run the test, and remove its folder unless ``keep`` is set."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all processes are stopped
    place, start = Path(tempfile.mkdtemp(prefix="drfl-story-")), time.monotonic()
    try:
        tell(place, long)
    finally:
        if keep:
            print(place)
        else:
            shutil.rmtree(place, ignore_errors=True)
    print(f"all as it should be, after {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="kill and restart processes")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    options = parser.parse_args()
    main(options.keep, options.long)
