"""Deploy the four hospitals on this machine, and compare the result with the simulation.

    python examples/hospitals/deployment.py [--rounds 5] [--models linear,mlp] [--seed 0] [--out DIR]

The script writes every hospital's file, starts a SuperLink and four SuperNodes with TLS and keys, and runs linear.toml
and mlp.toml there and in this process. It prints accuracy, AUC and calibration of the deployed models at every site,
and writes deployed.md, deployed.csv and deployed.json. It exits with 1 if a model, λ, a score or an end of an interval
of `drfl assess` differs from the simulation by more than 1e-6. Finally it stops all processes. A round takes one or two
exchanges of some seconds.
"""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from prepare import prepare
from simulate import HERE, MODELS, config_of, served
from site_table import COLUMNS, Site, cells, table
from torch import Tensor

import drfl
from drfl.assessment.clients import Assessment
from drfl.core.csv_cells import csv_text
from drfl.core.errors import DrflError
from drfl.data import load
from drfl.experiments.config.build import Job, build
from drfl.experiments.config.config import Config
from drfl.experiments.config.run_settings import engine_of
from drfl.experiments.run.artifacts import versions
from drfl.flower.settings import SIMULATION_KEYS
from drfl.training.loop import Result, run

sys.path.append(str(HERE.parents[1] / "scripts"))
from trial_folder import Trial, kept

ALGORITHMS = ("FedAvg", "DRFA", "ScaffPD", "DualDRDM")
ENGINE = "loop"
"""This engine sums in the same order for one site and for four."""
TOLERANCE = 1e-6


class Run(NamedTuple):
    """The results of a deployed run and their differences from the simulation.

    Args:
        model: Name of the model.
        algorithm: Name of the algorithm.
        sites: Scores of the deployed model at every site.
        apart: Largest differences of model, λ, scores and intervals, by name.
        seconds: Duration of all exchanges.
        exchanges: Number of exchanges.
    """

    model: str
    algorithm: str
    sites: list[Site]
    apart: dict[str, float]
    seconds: float
    exchanges: int


def configured(model: str, algorithm: str, seed: int, rounds: int) -> Config:
    """Return the simulation's configuration, with the engine of both."""
    changes = {"engine": engine_of(ENGINE), "evaluate_every": rounds}
    return config_of(model, algorithm, seed, rounds).model_copy(update=changes)


def job_of(config: Config) -> dict[str, object]:
    """Return the ``[job]`` of server.toml: the configuration without the data, which are standardised at the sites."""
    plain = config.model_dump(
        mode="json", exclude_unset=True, exclude_none=True, exclude={*SIMULATION_KEYS, "algorithms"}
    )
    own = {config.algorithm: config.algorithms[config.algorithm]}
    return {**plain, "standardise": False, "algorithms": own}


def simulated(job: Job) -> Result:
    """Run the simulation."""
    settings = job.settings
    return run(
        job.algorithm,
        job.fed,
        rounds=settings.rounds,
        seed=settings.seed,
        evaluate_every=settings.rounds,
        returned=settings.returned,
    )


def deployed(trial: Trial, config: Config) -> Run:
    """Run a configuration on the trial's sites, and compare with the simulation.

    Raises:
        SystemExit: If the run failed.
    """
    out = f"{config.model}-{config.algorithm}"
    trial.job(out, **job_of(config))
    code, told = trial.run()
    if code:
        raise SystemExit(f"{out}: drfl deploy run ended with {code}\n{told}")
    job = build(config)
    here = kept(trial.folder / out, job.task.layout.views(job.task.w0))
    result = simulated(job)
    there = result.model, result.lam
    sites = [served(job, config.algorithm, *found) for found in (here, there)]
    scores = [torch.tensor([site.scores for site in own]).nan_to_num() for own in sites]
    found = [ends(drfl.assess(trial.folder / out)), ends(drfl.assess(result))]
    pairs = {"model": (here[0], there[0]), "λ": (here[1], there[1]), "scores": scores, "intervals": found}
    apart = {name: float((a - b).abs().max()) for name, (a, b) in pairs.items()}
    traffic = json.loads((trial.folder / out / "traffic.json").read_text())
    return Run(config.model, config.algorithm, sites[0], apart, traffic["seconds"], traffic["exchanges"])


def ends(found: Assessment) -> Tensor:
    """Return the ends of all intervals, those of the clients and that of the worst client."""
    return torch.tensor([*found.low, *found.high, found.worst.low, found.worst.high])


def differences(runs: list[Run]) -> str:
    """Format the differences between deployed and simulated runs as Markdown."""
    names = list(runs[0].apart)
    header = ["largest difference in", *names, "exchanges", "seconds an exchange"]
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    for one in runs:
        numbers = [f"{one.apart[name]:.0e}" if one.apart[name] else "0" for name in names]
        lines.append(
            [f"{one.model}, {one.algorithm}", *numbers, str(one.exchanges), f"{one.seconds / one.exchanges:.1f}"]
        )
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def write(runs: list[Run], about: dict[str, object], out: Path) -> str:
    """Store the results and return the page."""
    sites = [site for one in runs for site in one.sites]
    page = f"{differences(runs)}\n{table(sites)}"
    rows = [{"model": r.model, "algorithm": r.algorithm, "apart": r.apart, "seconds": r.seconds} for r in runs]
    out.mkdir(parents=True, exist_ok=True)
    (out / "deployed.md").write_text(page, encoding="utf-8")
    (out / "deployed.csv").write_text(csv_text(COLUMNS, map(cells, sites)), encoding="utf-8")
    text = json.dumps({**about, "runs": rows}, indent=2, ensure_ascii=False) + "\n"
    (out / "deployed.json").write_text(text, encoding="utf-8")
    return page


def everything(models: list[str], rounds: int, seed: int, place: Path) -> list[Run]:
    """Start four sites, and run all models and algorithms there."""
    names = prepare(place / "data", seed)
    sites = {name.split()[0].lower(): place / "data" / f"{name}.npz" for name in names}
    runs = []
    with Trial(place / "deployment", sites) as trial:
        for model in models:
            for algorithm in ALGORITHMS:
                runs.append(deployed(trial, configured(model, algorithm, seed, rounds)))
                print(f"{model}, {algorithm}: {runs[-1].apart}", flush=True)
    return runs


def main() -> None:
    """Deploy, compare, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    models = options.models.split(",")
    if options.rounds < 1 or set(models) - set(MODELS):
        parser.error(f"--rounds must be at least 1, and --models from {', '.join(MODELS)}")
    torch.set_num_threads(1)
    logging.getLogger("drfl.resilience").setLevel(logging.ERROR)  # see simulate.py
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all processes are stopped
    place = Path(tempfile.mkdtemp(prefix="drfl-hospitals-"))
    try:
        load("heart-disease")
        runs = everything(models, options.rounds, options.seed, place)
    except DrflError as error:
        parser.error(str(error))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    command = shlex.join(["python", "examples/hospitals/deployment.py", *sys.argv[1:]])
    about = {
        "command": command,
        "rounds": options.rounds,
        "seed": options.seed,
        "engine": ENGINE,
        "versions": versions(),
    }
    print(write(runs, about, options.out))
    if max(x for one in runs for x in one.apart.values()) > TOLERANCE:
        raise SystemExit("a deployed run differs from the simulation")


if __name__ == "__main__":
    main()
