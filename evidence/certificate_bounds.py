"""Measure how tight the bound from one gradient is, and how many exchanges the search on the pooled data takes.

    python evidence/certificate_bounds.py [--smoke]

The script runs ScaffPD on the job of digits_certificate.toml at seed 0; each search starts from the end of the previous
one. It writes results/digits_certificate/bounds.csv.
"""

from __future__ import annotations

from pathlib import Path

import torch

import script
from drfl.core.csv_cells import csv_text
from drfl.core.key import Key
from drfl.experiments.config.build import build
from drfl.experiments.config.config import load_config
from drfl.testing import Recording
from drfl.training.certificate import Certifier, OneGradient

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "digits_certificate"
ROUNDS = script.sized((0, 20, 100, 200, 300, 400), (0, 1))


def main() -> None:
    options = script.parser(__doc__, RESULTS).parse_args()
    torch.set_num_threads(1)
    job = build(load_config(HERE / "digits_certificate.toml", {}).for_algorithm("ScaffPD", 0))
    fed, algorithm, local = Recording(job.fed), job.algorithm, job.algorithm.local
    pooled, one, point, rows = Certifier(job.task), Certifier(job.task, OneGradient()), None, []
    state = algorithm.init(fed)
    for r in range(max(ROUNDS) + 1):
        if r in ROUNDS:
            fed.take()
            exact, point = pooled(fed, state.w, state.lam, local=local, start=point)
            exchanges = len(fed.of("gradients"))
            loose, _ = one(fed, state.w, state.lam, local=local)
            rows.append([r, f"{exact.primal:.9f}", f"{exact.gap:.3e}", f"{loose.gap:.3e}", exchanges])
            print(*rows[-1], flush=True)
        state, _ = algorithm.round(state, fed, Key(0).fold("round", r + 1))
    header = ("round", "primal", "gap_pooled", "gap_one_gradient", "exchanges_pooled")
    script.store(options.out, {"bounds.csv": csv_text(header, rows)})


if __name__ == "__main__":
    main()
