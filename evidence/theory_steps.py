"""Measure the cost of the theorems' step sizes, on the job of digits_certificate.toml.

    python evidence/theory_steps.py [--smoke]

The job runs with the step sizes of the theorems and with those of the file. Each run has T local steps, exact
gradients, full participation and weight decay μ_x; drfl.theory computes L and L_λx from the data. The script writes
results/theory_steps/table.md and summary.json.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch

import script
from drfl.algorithms import theory
from drfl.ambiguity import ChiSquare
from drfl.experiments.config.build import build
from drfl.experiments.config.config import load_config
from drfl.experiments.config.ready_run import Job
from drfl.experiments.run.artifacts import versions
from drfl.federation.algorithm import Algorithm, core_of
from drfl.training.loop import run

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "theory_steps"
T, RHO = script.sized(10_000, 40), 0.1


def job_of(name: str) -> Job:
    return build(load_config(HERE / "digits_certificate.toml", {}).for_algorithm(name, 0))


def constants(job: Job) -> tuple[float, float, float]:
    """L, L_λx and μ_x; weight decay adds to L."""
    clients = [job.data.inputs[rows].flatten(1) for rows in job.data.train]
    mu = job.algorithm.local.weight_decay
    smooth = max(theory.linear_smoothness(x, theory.CROSS_ENTROPY) for x in clients) + mu
    return smooth, theory.linear_coupling(clients, theory.CROSS_ENTROPY_SLOPE), mu


def prescribed(name: str, smooth: float, coupling: float, mu: float, n: int) -> tuple[Mapping[str, object], int, str]:
    """Hyperparameters including the local solver, the number of rounds, and the description of a row."""
    if name == "ScaffPD":
        first = next(theory.scaffpd_accelerated(smooth, coupling, mu))
        rates = theory.scaffpd_local(first.tau, smooth, 5)
        said = f"J = 5, η_ℓ = {rates.lr:.2g}, η_g = {rates.server_lr:.3g}, σ_0 = {first.sigma:.2g}, μ' = {mu / 4:.2g}"
        values = {"sigma": first.sigma, "mu": mu / 4, "server_lr": rates.server_lr, "steps": 5, "lr": rates.lr}
        return values, T // 5, said
    if name == "ScaffPD, χ²":
        always = theory.scaffpd_constant(smooth, coupling, mu, ChiSquare(RHO).strong_convexity(n))
        rates = theory.scaffpd_local(always.tau, smooth, 5)
        said = f"J = 5, η_ℓ = {rates.lr:.2g}, η_g = {rates.server_lr:.3g}, σ = {always.sigma:.2g}"
        said += f", 1 − θ = {1 - always.theta:.2g}"
        values = {"sigma": always.sigma, "theta": always.theta, "server_lr": rates.server_lr, "steps": 5}
        return values | {"lr": rates.lr}, T // 5, said
    steps = theory.drfa(T, n, smooth)
    values = {"steps": steps.tau, "lr": steps.eta, "gamma": steps.gamma}
    said = f"τ = {steps.tau}, η = {steps.eta:.2g}, γ = {steps.gamma:.2g}"
    if name == "DRDM":
        values["mu"] = theory.drdm(T, n, n, smooth).mu
        said += f", μ = {values['mu']:.3g}"
    return values, steps.rounds, said


def with_values(algorithm: Algorithm, values: Mapping[str, object]) -> Algorithm:
    """Replace parameters of the algorithm inside all wrappers."""
    core = core_of(algorithm)
    inner = {k: v for k, v in values.items() if k in ("steps", "lr")}
    outer = {k: v for k, v in values.items() if k not in inner}
    return dataclasses.replace(core, local=dataclasses.replace(core.local, **inner), **outer)


def gaps(job: Job, algorithm: Algorithm, rounds: int) -> tuple[str, str]:
    """The gaps of the last and of the averaged iterate."""
    options = {"evaluate_every": rounds, "returned": "last", "averaged": True}
    result = run(algorithm, job.fed, rounds=rounds, certify=job.certify, **options)
    return f"{result.history.last.certificate.gap:.2g}", f"{result.averaged_certificate.gap:.2g}"


def main() -> None:
    options = script.parser(__doc__, RESULTS).parse_args()
    torch.set_num_threads(1)
    rows, found = [], constants(job_of("DRFA"))
    for name in ("DRFA", "DRDM", "ScaffPD", "ScaffPD, χ²"):
        job = job_of(name.split(",")[0])
        values, rounds, said = prescribed(name, *found, job.data.n)
        chosen = {"ambiguity": ChiSquare(RHO)} if "χ²" in name else {}
        rows.append([name, said, rounds, *gaps(job, with_values(job.algorithm, values | chosen), rounds)])
        rows.append([name, "as in the file", T // 5, *gaps(job, with_values(job.algorithm, chosen), T // 5)])
        print(*rows[-2], *rows[-1], sep=" | ", flush=True)
    lines = [["algorithm", "step sizes", "rounds", "gap, last", "gap, averaged"], ["---"] * 5, *rows]
    table = "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"
    about = dict(zip(("L", "L_lx", "mu_x"), (round(value, 6) for value in found), strict=True))
    about |= {"T": T, "rho": RHO, "seed": 0, "versions": versions()}
    script.store(options.out, {"table.md": table, "summary.json": about})


if __name__ == "__main__":
    main()
