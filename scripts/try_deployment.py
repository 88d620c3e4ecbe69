"""Run every test of ``docs/results/deployments.md`` on a real deployment on this machine.

    scripts/try_deployment.sh [--quick [--record]] [--keep]
                              [--only same,cold,killed,faults,quorum,servers,refusals,members,large]

The SuperLink and the SuperNodes are separate processes that use TLS and node authentication on loopback. The sites are
the four heart-disease hospitals. --quick runs scripts/try_story.py; with --record or --only, it uses two of the
hospitals and two rounds of one algorithm. Without --quick the script writes evidence/results/deployment. It exits with
1 if a test fails, and leaves no process running.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import try_story
from trial_folder import Trial, kept, wait_for

import drfl
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.engine import Simulation
from drfl.experiments.config.wrap import wrap_algorithm
from drfl.experiments.run.artifacts import versions
from drfl.flower.messages import ModelRecipe
from drfl.flower.settings import DeployedConfig
from drfl.flower.site_data import load_site
from drfl.flower.site_task import task_of
from drfl.resilience import Replayed, read_replies

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "results" / "deployment"
HOSPITALS = {"cleveland": "Cleveland", "hungary": "Hungary", "switzerland": "Switzerland", "va": "VA Long Beach"}
ALGORITHMS = ("FedAvg", "DRFA", "ScaffPD", "DRDM", "DualDRDM")
JOB = {"model": "linear", "engine": "loop", "lr": 0.05, "seed": 0, "standardise": False}
UNBOUNDED = "nothing limits the influence of a single site"
"""Start of a warning that every run here prints because its server.toml has no limits; it is not part of an event."""
TOLERANCE = 1e-6
BYTES = 0.05
"""Largest relative difference between measured bytes and the ledger, for a large model."""
REASONS = ("Failed", "certificate", "CERTIFICATE", "rror", "egister", "SSL", "disconnected", "refused", "allowed")
"""Words of lines that explain why a node was rejected."""

VERSIONS = {**versions(), "flwr": importlib.metadata.version("flwr")}

Rows = list[dict[str, object]]


class Simulated(NamedTuple):
    """The result of a run in this process: the names of the model's parameters, the model (d,) and λ (N,)."""

    names: tuple[str, ...]
    w: torch.Tensor
    lam: torch.Tensor


def simulated(trial: Trial, job: dict[str, object], replies: Path | None = None) -> Simulated:
    """Run the same job in this process on the sites' files, with only the listed replies."""
    config = DeployedConfig.model_validate(job)
    parts = [load_site(trial.folder / "sites" / name / "site.toml") for name in trial.sites]
    train = {
        name: (part.inputs[part.train[0]], part.targets[part.train[0]])
        for name, part in zip(trial.sites, parts, strict=True)
    }
    test = {
        name: (p.test_inputs[p.test[0]], p.test_targets[p.test[0]]) for name, p in zip(trial.sites, parts, strict=True)
    }
    data = ClientData.from_arrays(train, test)
    with Key(config.seed).fold("model").torch_scope():
        task = task_of(ModelRecipe(config.model, config.loss, config.dtype, 2), tuple(data.inputs.shape[1:]))
    inner = config.build_algorithm(config.algorithm, data.n)
    if replies is not None:
        inner = Replayed(inner, read_replies(replies))
    algorithm = wrap_algorithm(config, inner, None, None, task)
    fed = Simulation(data, task, engine=config.engine)
    found = drfl.run(algorithm, fed, rounds=config.rounds, seed=config.seed)
    return Simulated(tuple(task.layout.views(found.model)), found.model, found.lam)


def same(trial: Trial, algorithms: tuple[str, ...], rounds: int, prefix: str = "run-") -> Rows:
    """Run each algorithm deployed and simulated; return the differences and the cost of a round."""
    found: Rows = []
    for name in algorithms:
        out, job = f"{prefix}{name}", {**JOB, "algorithm": name, "rounds": rounds}
        trial.job(out, **job)
        start = time.monotonic()
        code, told = trial.run()
        seconds = time.monotonic() - start
        if code:
            raise SystemExit(f"{name}: drfl deploy run ended with {code}\n{told}")
        there = simulated(trial, job)
        w, lam = kept(trial.folder / out, there.names)
        row = {
            "algorithm": name,
            "rounds": rounds,
            "max |w - w_sim|": float((w - there.w).abs().max()),
            "max |lambda - lambda_sim|": float((lam - there.lam).abs().max()),
            "seconds a round": round(seconds / rounds, 1),
            **costs(trial, out),
        }
        found.append(row)
        print(row, flush=True)
        if len(algorithms) > 1:
            store("same", found)
        if max(row["max |w - w_sim|"], row["max |lambda - lambda_sim|"]) > TOLERANCE:
            raise SystemExit(f"{name}: the deployed run is not the simulated one")
    return found


def cold(trial: Trial) -> Rows:
    """Time a round in which every message loads everything again."""
    trial.restart_sites(prefork=False)
    found = same(trial, ("FedAvg",), 5, "cold-")
    trial.restart_sites(prefork=True)
    return found


def costs(trial: Trial, out: str) -> dict[str, object]:
    """Return messages, bytes and time from the run's folder and from Flower."""
    folder, flower = trial.folder / out, trial.last_run()
    seen = json.loads((folder / "traffic.json").read_text())
    ledger = json.loads((folder / "summary.json").read_text())["ledger"]
    traffic, apps = flower["network-traffic"], flower["compute-time"]["clientapp-seconds"]
    exchanges, answers = seen["exchanges"], seen["answers"]
    return {
        "exchanges": exchanges,
        "seconds an exchange": round(seen["seconds"] / exchanges, 2),
        "site's process, seconds a message": round(apps / (answers + len(trial.sites)), 2),  # + its name
        "site's work, seconds a message": round(seen["site_seconds"] / answers, 3),
        "bytes down": seen["bytes_down"], "of these for training": seen["bytes_down"] - seen["test_bytes_down"],
        "ledger's bytes down": ledger["bytes_down"], "Flower's bytes down": traffic["outbound-bytes"],
        "bytes up": seen["bytes_up"], "of these from training": seen["bytes_up"] - seen["test_bytes_up"],
        "ledger's bytes up": ledger["bytes_up"], "Flower's bytes up": traffic["inbound-bytes"],
    }  # fmt: skip


def event(rows: Rows, what: str, must: tuple[str, ...], play: Callable[[], str]) -> None:
    """Trigger an event and store its outcome, which must contain all these texts, and its duration."""
    start = time.monotonic()
    outcome = play()
    rows.append({"event": what, "what happened": outcome, "seconds": round(time.monotonic() - start)})
    print(rows[-1], flush=True)
    missing = [text for text in must if text not in outcome]
    if missing:
        raise SystemExit(f"{what}: it does not say '{missing[0]}'")


def followed(trial: Trial, out: str, rounds: int, timeout: float = 60.0) -> Callable[[Callable[[], None]], str]:
    """Start a run, call a function after round 1, and return the outcome."""

    def play(interfere: Callable[[], None]) -> str:
        trial.job(out, timeout=timeout, **JOB, algorithm="DRDM", rounds=rounds)
        code, log = trial.run_with(interfere, rounds)
        said = [x.split(" WARNING ")[-1] for x in log.splitlines() if " WARNING " in x or x.startswith("drfl: ")]
        events = [line for line in dict.fromkeys(said) if not line.startswith(UNBOUNDED)]
        told = "; ".join(events[:3]) or "no warning"
        return f"the run {'ended well' if code == 0 else f'ended with {code}'}; {told}"

    return play


def killed(trial: Trial) -> Rows:
    """Kill a site during a round, and start it again."""
    rows: Rows = []
    play = followed(trial, "f-kill", 4, timeout=300.0)
    what = "SIGKILL of a SuperNode in mid-round, started again (timeout 300 s)"
    event(rows, what, ("ended well", "asked again"), lambda: play(lambda: trial.restart_site(trial.sites[0])))
    return rows


def faults(trial: Trial) -> Rows:
    """Run with a site that raises, hangs, or sends NaN or a wrong shape."""
    rows: Rows = []
    site = trial.folder / "sites" / trial.sites[-1]
    shutil.copy(ROOT / "scripts" / "trial_site.py", site / "trial_site.py")
    trial.site(trial.sites[-1], data={"loader": "trial_site:load"}, timeout=10.0)

    for mode, what, reason in (
        ("raise", "a client that raises", "the disk of this site is broken"),
        ("hang", "a client that hangs (watchdog 10 s)", "10 s"),
        ("nan", "a client that sends NaN", "NaN"),
        ("shape", "a client that sends a wrong shape", "wrong shape"),
    ):
        play = followed(trial, f"f-{mode}", 3)
        spoil = partial(_write, site / "mode", mode)
        event(rows, what, ("ended well", reason), partial(play, spoil))
        _write(site / "mode", "")
    return rows


def quorum(trial: Trial) -> Rows:
    """Suspend a site after the first round; with a quorum, the run does not wait for it."""
    rows: Rows = []
    site = trial.folder / "sites" / trial.sites[-1]
    shutil.copy(ROOT / "scripts" / "trial_site.py", site / "trial_site.py")
    for algorithm in ("DRDM", "ScaffPD"):
        trial.site(trial.sites[-1], data={"loader": "trial_site:load"}, timeout=300.0)
        _write(site / "mode", "")
        job = {**JOB, "algorithm": algorithm, "rounds": 4, "cohort": 4, "min_replies": 3}

        def play(job: dict[str, object] = job, out: str = f"run-quorum-{algorithm}") -> str:
            trial.job(out, timeout=300.0, grace=5.0, **job)
            run = trial.submit()
            wait_for(lambda: trial.log_has("round 1 of 4") or run.poll() is not None, "round 1", 240)
            _write(site / "mode", "hang")
            code = run.wait(900)
            _write(site / "mode", "")
            (site / "data.npz").touch()
            trial.site(trial.sites[-1], data={"npz": "data.npz"})
            there = simulated(trial, job, trial.folder / out / "replies.csv")
            w, _ = kept(trial.folder / out, there.names)
            seen = json.loads((trial.folder / out / "traffic.json").read_text())
            apart = float((w - there.w).abs().max())
            asleep = seen["sites"][trial.sites[-1]]
            return (
                f"exit code {code}; {seen['exchanges']} exchanges in {seen['seconds']:.0f} s, it was silent in "
                f"{asleep['silent']} and left out of {asleep['left_out']}; {apart:g} from the simulation that plays "
                "replies.csv"
            )

        what = f"{algorithm}: a site falls asleep (quorum 3 of 4, grace 5 s, timeout 300 s)"
        event(rows, what, ("exit code 0", "; 0 from the simulation"), play)
        trial.restart_sites(prefork=True)
    return rows


def servers(trial: Trial) -> Rows:
    """Kill the server's program, and then the SuperLink with all its programs; finished rounds are kept."""
    rows: Rows = []
    for out, what, kill in (
        ("f-server", "SIGKILL of the server program", trial.kill_server_program),
        ("f-link", "SIGKILL of the SuperLink, started again", trial.restart_link),
    ):
        event(rows, what, ("ended with 1",), partial(followed(trial, out, 4), kill))
        trial.wait_online()
        resume = partial(resumed, trial, out, {**JOB, "algorithm": "DRDM", "rounds": 4})
        event(rows, "drfl deploy run after it", ("exit code 0", "resuming after round", "at most"), resume)
    return rows


def resumed(trial: Trial, out: str, undisturbed: dict[str, object]) -> str:
    """Resume a run; return its outcome and the difference from an undisturbed simulation."""
    code, told = trial.run()
    there = simulated(trial, undisturbed)
    w, _ = kept(trial.folder / out, there.names)
    equal = float((w - there.w).abs().max())
    line = next((x.split(" WARNING ")[-1] for x in told.splitlines() if "going on" in x), "from the beginning")
    near = "at most" if equal <= TOLERANCE else "more than"
    return f"exit code {code}; {line}; {near} {TOLERANCE:.0e} ({equal:.0e}) from the undisturbed simulation"


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def refusals(trial: Trial) -> Rows:
    """Try to connect nodes that must be rejected."""
    rows: Rows = []
    name = trial.sites[0]
    stranger = trial.folder / "sites" / "stranger"
    shutil.copytree(trial.folder / "sites" / name, stranger, ignore=shutil.ignore_patterns("flwr"))

    def refused(*arguments: str) -> str:
        program = trial.start("stranger", stranger / "start-supernode.sh", *arguments)
        wait_for(lambda: program.poll() is not None, "the refusal", 120)
        told = (trial.folder / "stranger.log").read_text(errors="replace").strip().splitlines()
        trial.programs.pop("stranger")
        (trial.folder / "stranger.log").unlink()
        reasons = [line.strip() for line in told if any(word in line for word in REASONS)]
        return f"exit code {program.returncode}: {reasons[-1] if reasons else told[-1]}"

    def new_key() -> None:
        for old in ("key", "key.pub"):
            (stranger / old).unlink()
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", stranger / "key"], check=True)

    new_key()
    event(rows, "a node with a key that nobody registered", ("exit code 1",), lambda: refused("--max-retries", "1"))
    authority = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384", "-nodes"]
    subprocess.run(
        [*authority, "-keyout", "/dev/null", "-out", stranger / "ca.crt", "-days", "2", "-subj", "/CN=other"],
        check=True,
        capture_output=True,
    )
    event(rows, "a node that trusts another CA", ("exit code 1",), lambda: refused("--max-retries", "1"))
    script = (stranger / "start-supernode.sh").read_text()
    plain = script.replace('--root-certificates "$here/ca.crt" --auth-supernode-private-key "$here/key"', "--insecure")
    (stranger / "start-supernode.sh").write_text(plain)
    event(rows, "plain HTTP against TLS", ("exit code 1",), lambda: refused("--max-retries", "1"))
    return rows


def members(trial: Trial) -> Rows:
    """Add a site between two runs, revoke its key, and remove it."""
    rows: Rows = []
    new, log = "fifth", trial.folder / "fifth.log"

    def ran(out: str) -> str:
        trial.job(out, **JOB, algorithm="DualDRDM", rounds=1)
        code, told = trial.run()
        if code:
            return f"the run ended with {code}: {told.strip().splitlines()[-1]}"
        header, first, *_ = (trial.folder / out / "lambda.csv").read_text().splitlines()
        return f"a run of {', '.join(header.split(',')[1:])} ended well, from lambda {first.split(',')[1]}"

    def joins() -> str:
        for _ in range(2):  # repeating the command is safe
            trial.drfl("add-site", trial.folder, new, "--rows", "1000")
        shutil.copy(trial.folder / "sites" / trial.sites[0] / "data.npz", trial.folder / "sites" / new / "data.npz")
        missing, told = trial.drfl("run", trial.folder, "--wait", "5", check=False), ""
        told = next((x for x in missing.stdout.splitlines() if "waiting up to" in x), "no word")
        trial.sites.append(new)
        trial.start_site(new)
        trial.wait_online()
        return f"{told.split(' WARNING ')[-1]}; then {ran('run-joined')}"

    def loses_its_key() -> str:
        trial.drfl("revoke", trial.folder, new)
        program = trial.programs.pop(new)
        wait_for(lambda: program.poll() is not None, "the end of its SuperNode", 180)
        told = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        state = trial.drfl("status", trial.folder).stdout
        return f"its SuperNode: {told[-1]}; its status: {'key revoked' if 'key revoked' in state else state}"

    def leaves() -> str:
        for _ in range(2):
            trial.drfl("remove-site", trial.folder, new)
        trial.sites.remove(new)
        return ran("run-left")

    event(rows, "drfl deploy add-site, and a run", (new, "ended well", "waiting up to"), joins)
    event(rows, "drfl deploy revoke", ("2004", "revoked"), loses_its_key)
    event(rows, "drfl deploy remove-site, and a run", ("ended well",), leaves)
    return rows


def large(trial: Trial) -> Rows:
    """Run a few rounds with a model of 100 MB."""
    generator = np.random.default_rng(0)
    for name in trial.sites:
        x = generator.standard_normal((8, 97_656), dtype=np.float32)
        y = np.arange(8) % 2
        np.savez(
            trial.folder / "sites" / name / "large.npz", train_inputs=x, train_targets=y, test_inputs=x, test_targets=y
        )
        trial.site(name, data={"npz": "large.npz"}, timeout=300.0)
    rows: Rows = []
    for algorithm, rounds in (("FedAvg", 1), ("DRDM", 2)):
        out, job = f"run-large-{algorithm}", {**JOB, "lr": 0.001, "steps": 2, "classes": 256}
        trial.job(out, **job, algorithm=algorithm, rounds=rounds)
        start = time.monotonic()
        code, told = trial.run()
        if code:
            raise SystemExit(f"100 MB: drfl deploy run ended with {code}\n{told}")
        seconds = {"seconds": round(time.monotonic() - start), **costs(trial, out)}
        rows.append({"model": "linear, 97,656 × 256, 100 MB", "algorithm": algorithm, "rounds": rounds, **seconds})
        print(rows[-1], flush=True)
        for way in ("for training", "from training"):
            direction = "down" if way == "for training" else "up"
            real, booked = seconds[f"of these {way}"], seconds[f"ledger's bytes {direction}"]
            # The ledger counts DRDM's shifts, which are not sent because the sites store them.
            kept = algorithm == "DRDM" and way == "for training"
            if real > (1 + BYTES) * booked or (real < (1 - BYTES) * booked and not kept):
                raise SystemExit(f"100 MB: {real} bytes {direction}, and the ledger says {booked}")
    return rows


def store(part: str, rows: Rows, quick: bool = False) -> None:
    """Store the results of a part without changing those of the other parts."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / ("quick.json" if quick else "summary.json")
    before = json.loads(path.read_text()) if path.exists() else {}
    about = {
        "command": "scripts/try_deployment.sh" + " --quick --record" * quick,
        "device": f"cpu, {os.cpu_count()} cores, loopback",
        "versions": VERSIONS,
    }
    path.write_text(json.dumps({**before, **about, part: rows}, indent=1) + "\n")


PARTS: dict[str, Callable[[Trial], Rows]] = {
    "cold": cold, "killed": killed, "faults": faults, "quorum": quorum, "servers": servers, "refusals": refusals,
    "members": members, "large": large,
}  # fmt: skip


def main() -> None:
    """Run the selected parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", help="some of same, " + ", ".join(PARTS) + "; --quick without it: same")
    parser.add_argument("--record", action="store_true", help="with --quick: store its row, by Flower's version")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all processes are stopped
    only = (options.only or ",".join(["same", *([] if options.quick else PARTS)])).split(",")
    if unknown := set(only) - {"same", *PARTS}:
        parser.error(f"there is no part '{min(unknown)}': same, {', '.join(PARTS)}")
    if options.record and (not options.quick or only != ["same"]):
        parser.error("--record belongs to --quick without --only; without --quick everything is stored")
    if options.quick and not options.record and options.only is None:
        try_story.main(keep=options.keep)
        return
    place = Path(tempfile.mkdtemp(prefix="drfl-deployment-"))
    sys.path.insert(0, str(ROOT / "examples" / "hospitals"))
    from prepare import prepare  # pyright: ignore[reportMissingImports]

    prepare(place / "data", 0)
    chosen = list(HOSPITALS.items())[: 2 if options.quick else 4]
    sites = {name: place / "data" / f"{file}.npz" for name, file in chosen}
    try:
        with Trial(place / "deployment", sites, timeout=120.0) as trial:
            for part in only:
                if part == "same":
                    found = same(trial, ("DRDM",) if options.quick else ALGORITHMS, 2 if options.quick else 5)
                else:
                    found = PARTS[part](trial)
                if options.record:
                    store(f"flwr {VERSIONS['flwr']}", found, quick=True)
                elif not options.quick:
                    store(part, found)
    finally:
        if not options.keep:
            shutil.rmtree(place, ignore_errors=True)
    print("all as it should be")


if __name__ == "__main__":
    main()
