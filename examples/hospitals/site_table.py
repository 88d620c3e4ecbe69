"""What the sites are served with, as a row each and as tables of mean ± std over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from scoring import Scores

from drfl.experiments.measures import Interval
from drfl.experiments.runner import Spread

BASELINE = "no model"


class Site(NamedTuple):
    """How well one run's model does at one site.

    Args:
        model: its name.
        algorithm: row of the table.
        seed: of the run.
        site: its name.
        patients: for testing.
        ill: how many of them are.
        scores: on them.
        train_loss: mean cross-entropy over the site's training patients, without the penalty; NaN without a model.
        test_loss: the same over the test patients.
        lam: the site's share of λ after the last round.
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
    """A measure: its name, the value of a site, what the worst of several is, and how numbers are written."""

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
    """A row of sites.csv; what is not defined stays empty."""
    values = (*site.scores, site.train_loss, site.test_loss, site.lam)
    return [*site[:6], *("" if math.isnan(value) else f"{value:.6f}" for value in values)]


def table(sites: Sequence[Site]) -> str:
    """All tables of all models, as Markdown: worst site and average of every measure, then every measure by site."""
    parts = []
    for model in dict.fromkeys(site.model for site in sites):
        own = [site for site in sites if site.model == model]
        by_site = [_by_site(shown, own) for shown in (*MEASURES, *DETAILS)]
        parts += [f"## {model}\n", _ends(own), *by_site]
    return "\n".join(parts)


PAIRS = (("FedAvg", "LocalOnly"), ("FedAvg", "Pooled"), ("FineTuned", "FedAvg"))
"""Joining against staying alone, against giving the records away, and what tuning at the end adds."""

DIFFERENCES = ("model", "pair", "site", "measure", "seeds", "difference", "half_width")


def differences(sites: Sequence[Site]) -> list[list[object]]:
    """Rows of differences.csv: the mean over seeds of one algorithm's measure minus another's, and its 95 % t-interval.

    The pairs are of one seed: the same partition and initial model. Seeds share no noise but the test patients, all of
    the site; each interval stands for itself.
    """
    rows = []
    for model in dict.fromkeys(site.model for site in sites):
        by = _grouped([site for site in sites if site.model == model])
        names = list(dict.fromkeys(site.site for site in sites))
        for first, second in PAIRS:
            for shown in MEASURES:
                for name, *both in zip(names, _values(shown, by[first]), _values(shown, by[second]), strict=True):
                    if all(map(_defined, both)):
                        found = Interval.of([a - b for a, b in zip(*both, strict=True)])
                        numbers = (found.n, f"{found.mean:.6f}", f"{found.half:.6f}")
                        rows.append([model, f"{first} − {second}", name, shown.name.removesuffix(" %"), *numbers])
    return rows


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
    """By row of the table."""
    names = dict.fromkeys(site.algorithm for site in sites)
    return {name: [site for site in sites if site.algorithm == name] for name in names}


def _values(shown: Shown, sites: Sequence[Site]) -> list[list[float]]:
    """A row a site, a value a seed."""
    names = dict.fromkeys(site.site for site in sites)
    return [[shown.value(site) for site in sites if site.site == name] for name in names]


def _worst_and_average(shown: Shown, values: Sequence[Sequence[float]]) -> list[str]:
    """Over the sites where it is defined, first for every seed; then mean and std over the seeds."""
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
