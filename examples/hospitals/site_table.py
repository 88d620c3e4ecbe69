"""Results per site, as rows and as tables of mean ± std over seeds."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scoring import Scores

from drfl.assessment.clients import Assessment, assess_clients
from drfl.assessment.seeds import holm_family, seed_difference, verdict
from drfl.experiments.compare.outcomes import Spread
from drfl.task.metrics import ACCURACY

BASELINE = "no model"


class Site(NamedTuple):
    """The result of one run at one site.

    Args:
        model: Name of the model.
        algorithm: Row of the table.
        seed: Seed of the run.
        site: Name of the site.
        patients: Number of test patients.
        ill: Number of ill test patients.
        scores: Scores on the test patients.
        train_loss: Mean cross-entropy over the site's training patients, without the penalty; NaN without a model.
        test_loss: Mean cross-entropy over the test patients.
        lam: The site's share of λ after the last round.
    """

    model: str
    algorithm: str
    seed: int
    site: str
    patients: int
    ill: int
    scores: Scores
    train_loss: float = math.nan
    test_loss: float = math.nan
    lam: float = math.nan


class Shown(NamedTuple):
    """A measure: its name, the value of a site, the function that selects the worst value, and the number format."""

    name: str
    value: Callable[[Site], float]
    worst: Callable[[Sequence[float]], float] | None
    digits: str = ".3f"
    scale: float = 1.0


MEASURES = (
    Shown("accuracy %", lambda site: site.scores.accuracy, min, ".1f", 100),
    Shown("AUC", lambda site: site.scores.auc, min),
    Shown("calibration error", lambda site: site.scores.ece, max),
    Shown("Brier score", lambda site: site.scores.brier, max),
)
DETAILS = (
    Shown("training loss", lambda site: site.train_loss, max),
    Shown("λ after the last round", lambda site: site.lam, None, ".2f"),
)

COLUMNS = (
    *("model", "algorithm", "seed", "site", "test_patients", "test_ill"),
    *("accuracy", "auc", "ece", "brier", "train_loss", "test_loss", "lambda"),
)


def cells(site: Site) -> list[object]:
    """Return a row of sites.csv, in which undefined values are empty."""
    values = (*site.scores, site.train_loss, site.test_loss, site.lam)
    return [*site[:6], *("" if math.isnan(value) else f"{value:.6f}" for value in values)]


def table(sites: Sequence[Site]) -> str:
    """Format all tables as Markdown: worst site and average of every measure, then every measure by site."""
    parts = []
    for model in dict.fromkeys(site.model for site in sites):
        own = [site for site in sites if site.model == model]
        by_site = [_by_site(shown, own) for shown in (*MEASURES, *DETAILS)]
        parts += [f"## {model}\n", _ends(own), _intervals(own), *by_site]
    return "\n".join(parts)


PAIRS = (("FedAvg", "LocalOnly"), ("FedAvg", "Pooled"), ("FineTuned", "FedAvg"))
"""Joining compared with training alone and with pooling the records, and the effect of fine-tuning."""

DIFFERENCES = ("model", "pair", "site", "measure", "seeds", "difference", "low", "high", "p", "p_holm", "shown")


def differences(sites: Sequence[Site]) -> list[list[object]]:
    """Return the rows of differences.csv: differences of two algorithms' measures, over seeds.

    A row has the mean difference, its 95 % t-interval, and the p-value of the paired t-test with Holm's correction over
    all rows of a model. Both runs of a pair have the same seed, partition and initial model.
    """
    rows = []
    for model in dict.fromkeys(site.model for site in sites):
        by = _grouped([site for site in sites if site.model == model])
        names, found = list(dict.fromkeys(site.site for site in sites)), []
        for (first, second), shown in itertools.product(PAIRS, MEASURES):
            for name, *both in zip(names, _values(shown, by[first]), _values(shown, by[second]), strict=True):
                if all(map(_defined, both)):
                    what = [model, f"{first} − {second}", name, shown.name.removesuffix(" %")]
                    found.append((what, seed_difference([a - b for a, b in zip(*both, strict=True)])))
        for (what, one), p in zip(found, holm_family([one for _, one in found]).tolist(), strict=True):
            numbers = (f"{x:.6f}" for x in (one.mean, one.low, one.high, one.p_t, p))
            less = what[3] in ("calibration error", "Brier score")
            rows.append([*what, one.n, *numbers, verdict(one, p, less_is_better=less)])
    return rows


INTERVALS = ("model", "algorithm", "seed", "site", "test_patients", "right", "low", "high", "could_be_worst")


def intervals(sites: Sequence[Site]) -> list[list[object]]:
    """Return the rows of intervals.csv: accuracies with 95 % intervals, simultaneous over the sites of one run."""
    rows = []
    for run in dict.fromkeys((site.model, site.algorithm, site.seed) for site in sites):
        own = [site for site in sites if (site.model, site.algorithm, site.seed) == run]
        found = _assessed(own)
        for site, low, high, could in zip(own, found.low, found.high, found.candidates, strict=True):
            right = round(site.scores.accuracy * site.patients)
            rows.append([*run, site.site, site.patients, right, f"{low:.6f}", f"{high:.6f}", could])
    return rows


def _assessed(sites: Sequence[Site]) -> Assessment:
    """Assess the accuracies of the sites of one run."""
    n = np.array([site.patients for site in sites])
    right = np.array([round(site.scores.accuracy * site.patients) for site in sites])
    names = [site.site for site in sites]
    return assess_clients(ACCURACY, names, np.stack([n, right, right], 1).astype(float), n)


def _intervals(sites: Sequence[Site]) -> str:
    """Format the first seed's accuracies with intervals; * marks a site that could be the worst."""
    seed, names = sites[0].seed, list(dict.fromkeys(site.site for site in sites))
    rows = {}
    for algorithm, own in _grouped([site for site in sites if site.seed == seed]).items():
        found = _assessed(own)
        cells = [
            f"{100 * value:.0f} ({100 * low:.0f}–{100 * high:.0f}){'*' * bool(could)}"
            for value, low, high, could in zip(found.values, found.low, found.high, found.candidates, strict=True)
        ]
        rows[algorithm] = [*cells, f"{100 * found.worst.low:.0f}–{100 * found.worst.high:.0f}"]
    return _markdown(f"accuracy %, seed {seed} (95 %)", [*names, "the worst, 95 %"], rows)


def _ends(sites: Sequence[Site]) -> str:
    header = [f"{end} {shown.name}" for shown in MEASURES for end in ("worst", "average")]
    rows = {
        algorithm: [cell for shown in MEASURES for cell in _worst_and_average(shown, _values(shown, own))]
        for algorithm, own in _grouped(sites).items()
    }
    return _markdown("", header, rows)


def _by_site(shown: Shown, sites: Sequence[Site]) -> str:
    header = list(dict.fromkeys(site.site for site in sites))
    header += [] if shown.worst is None else ["worst", "average"]
    rows = {}
    for algorithm, own in _grouped(sites).items():
        values = _values(shown, own)
        if any(map(_defined, values)):
            rows[algorithm] = [_text(shown, row) for row in values] + _worst_and_average(shown, values)
    return _markdown(shown.name, header, rows)


def _grouped(sites: Sequence[Site]) -> dict[str, list[Site]]:
    """Group results by row of the table."""
    names = dict.fromkeys(site.algorithm for site in sites)
    return {name: [site for site in sites if site.algorithm == name] for name in names}


def _values(shown: Shown, sites: Sequence[Site]) -> list[list[float]]:
    """Return the values with a row per site and a column per seed."""
    names = dict.fromkeys(site.site for site in sites)
    return [[shown.value(site) for site in sites if site.site == name] for name in names]


def _worst_and_average(shown: Shown, values: Sequence[Sequence[float]]) -> list[str]:
    """Take worst and average over the sites with a value, for every seed, then mean and std over the seeds."""
    if shown.worst is None:
        return []
    seeds = list(zip(*filter(_defined, values), strict=True))
    return [_text(shown, [of(seed) for seed in seeds]) for of in (shown.worst, statistics.fmean)]


def _defined(values: Sequence[float]) -> bool:
    return not any(map(math.isnan, values))


def _text(shown: Shown, values: Sequence[float]) -> str:
    return Spread.of(values).text(shown.digits, shown.digits, shown.scale) if _defined(values) else "–"


def _markdown(corner: str, header: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    lines = [[corner, *header], ["---", *["---:"] * len(header)], *([name, *cells] for name, cells in rows.items())]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
