"""Make the tables in docs/results/defaults.md, and table.md, from the stored rows of promise.py.

`make pages` writes them into the page.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.tables import markdown

from drfl.assessment.seeds import holm

RESULTS = Path(__file__).parent / "results" / "promise"
CALLED = {"ScaffPD": "SCAFF-PD", "DualDRDM": "dual DRDM"}
"""Algorithms whose name on the page differs."""

ENOUGH = 200
"""Number of test rows of the smallest client from which the spread over seeds has a target."""

Row = dict[str, str]


def rows_of(name: str) -> list[Row]:
    """The rows of a stored part; none if it has not been run."""
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def jobs() -> list[Row]:
    """The jobs, in the suite's order."""
    return rows_of("jobs")


def own(rows: Sequence[Row], **of: str) -> list[Row]:
    """The rows with these values, by seed."""
    return sorted((row for row in rows if of.items() <= row.items()), key=lambda row: int(row["seed"]))


def column(rows: Sequence[Row], name: str) -> list[float]:
    """The values of a column in the finished runs."""
    return [float(row[name]) for row in rows if row[name]]


def spread(rows: Sequence[Row], name: str = "worst_percent") -> str:
    """Mean ± std over seeds, with the number of runs that diverged."""
    values = column(rows, name)
    if not values:
        return "diverged" if rows else "–"
    text = f"{statistics.fmean(values):.1f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.1f}"
    return text + (f" ({len(rows) - len(values)} diverged)" if len(values) < len(rows) else "")


def pairs(name: str, ours: Sequence[Row], theirs: Sequence[Row]) -> list[tuple[float, float]]:
    """The values of a column at the seeds at which both runs finished."""
    found = {row["seed"]: float(row[name]) for row in theirs if row[name]}
    return [(float(row[name]), found[row["seed"]]) for row in ours if row[name] and row["seed"] in found]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """A mean and the half-width of its 95 % t-interval."""
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return statistics.fmean(values), float(half)


def suite() -> str:
    """Table of the jobs."""
    head = ["job", "what makes clients differ", "half", "clients", "cohort", "training rows", "test rows"]
    rows = [
        [job["job"], job["kind"], "chosen on" if job["chosen"] == "1" else "reported", job["clients"], job["cohort"],
         *(f"{int(job[f'{part}_least']):,} to {int(job[f'{part}_most']):,}" for part in ("train", "test"))]
        for job in jobs()
    ]  # fmt: skip
    return markdown(head, rows, text=3)


def accuracies(part: str, name: str, without: Collection[str] = ()) -> str:
    """Table of a column for every job and algorithm, with a row per job."""
    rows = rows_of(part)
    there = {row["algorithm"] for row in rows}
    known = dict.fromkeys(row["algorithm"] for row in rows_of("defaults"))
    names = [name for name in known if name in there and name not in without]
    lines = [
        [job["job"], *(spread(own(rows, job=job["job"], algorithm=algorithm), name) for algorithm in names)]
        for job in jobs() if own(rows, job=job["job"])
    ]  # fmt: skip
    return markdown(["job", *(CALLED.get(algorithm, algorithm) for algorithm in names)], lines)


def worst_defaults(without: Collection[str] = ()) -> str:
    """Table of the worst client with the defaults."""
    return accuracies("defaults", "worst_percent", without)


def average_defaults(without: Collection[str] = ()) -> str:
    """Table of the average client with the defaults."""
    return accuracies("defaults", "avg_percent", without)


def worst_tuned(without: Collection[str] = ()) -> str:
    """Table of the worst client with tuned step sizes."""
    return accuracies("tuned", "worst_percent", without)


def against_fedavg(job: str, name: str) -> str:
    """Paired difference of a loss from FedAvg's over its mean, in percent, and the upper end of the 95 % interval."""
    rows = rows_of("defaults")
    both = pairs(name, *(own(rows, job=job, algorithm=algorithm) for algorithm in ("DualDRDM", "FedAvg")))
    if len(both) < 2:
        return "–"
    mean, half = interval([a - b for a, b in both])
    level = statistics.fmean(b for _, b in both) / 100
    return f"{mean / level:+.1f} ({(mean + half) / level:+.1f})"


def over_saddle(job: str, algorithm: str = "DualDRDM") -> str:
    """Largest training objective over the bounds of the saddle value, in percent above them: mean over seeds."""
    bounds = {row["job"]: (float(row["lower"]), float(row["upper"])) for row in rows_of("saddle")}
    found = column(own(rows_of("defaults"), job=job, algorithm=algorithm), "train_worst")
    if job not in bounds or not found:
        return "–"
    low, high = (100 * (statistics.fmean(found) / bound - 1) for bound in reversed(bounds[job]))
    return f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"


def tuned_minus_default(job: str) -> str:
    """The points that tuning gains, with their 95 % interval over seeds, and the chosen values."""
    ours = own(rows_of("defaults"), job=job, algorithm="DualDRDM")
    best = own(rows_of("tuned"), job=job, algorithm="DualDRDM")
    both = pairs("worst_percent", best, ours)
    if len(both) < 2:
        return "–"
    mean, half = interval([a - b for a, b in both])
    return f"{mean:+.1f} ± {half:.1f} (η × {best[0]['factor']}, γ {best[0]['gamma'] or 'built in'})"


def around(job: str) -> list[str]:
    """The points by which the worst client changes with other multiples of η, as means over seeds."""
    ours, rows = column(own(rows_of("defaults"), job=job, algorithm="DualDRDM"), "worst_percent"), rows_of("steps")
    cells = []
    for factor in ("0.25", "0.5", "2", "4"):
        theirs = own(rows, job=job, factor=factor)
        values = column(theirs, "worst_percent")
        if not values or not ours:
            cells.append("diverged" if theirs else "–")
            continue
        text = f"{statistics.fmean(values) - statistics.fmean(ours):+.1f}"
        cells.append(text + (f" ({len(theirs) - len(values)} diverged)" if len(values) < len(theirs) else ""))
    return cells


def targets() -> str:
    """Compare dual DRDM's defaults with FedAvg, the saddle value, tuning, and other step sizes."""
    compared = ["worst test loss against FedAvg's, %", "training", "over the saddle value, %"]
    head = ["job", *compared, "std over seeds", "tuned"]
    rows, steps = [], []
    for job in jobs():
        name = job["job"]
        values = column(own(rows_of("defaults"), job=name, algorithm="DualDRDM"), "worst_percent")
        if len(values) < 2:
            continue
        std = f"{statistics.stdev(values):.1f}" + ("" if int(job["test_least"]) >= ENOUGH else " *")
        losses = [against_fedavg(name, loss) for loss in ("worst_loss", "train_worst")]
        rows.append([name, *losses, over_saddle(name), std, tuned_minus_default(name)])
        steps.append([name, *around(name)])
    return f"{markdown(head, rows)}\n\n{markdown(['job', 'η/4', 'η/2', '2η', '4η'], steps)}"


def behind(means: dict[str, dict[str, float]]) -> list[str]:
    """How far each alternative is behind the best one of a job: mean over the jobs, and maximum.

    Args:
        means: alternative → job → mean, without jobs in which all runs diverged.
    """
    best = {job: max(found.get(job, 0.0) for found in means.values()) for found in means.values() for job in found}
    cells = []
    for found in means.values():
        gaps = {job: best[job] - mean for job, mean in found.items()}
        most = max(gaps, key=lambda job: gaps[job])
        missing = "".join(f", diverged on {job}" for job in best if job not in found)
        cells.append(f"{statistics.fmean(gaps.values()):.1f}, at most {gaps[most]:.1f} ({most}){missing}")
    return cells


def returned() -> str:
    """How far the average, the last iterate and the better one by training loss are behind the best of the three."""
    rows, lines = rows_of("defaults"), []
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
        means: dict[str, dict[str, float]] = {"average": {}, "last": {}, "best": {}}
        for job in jobs():
            ended = [row for row in own(rows, job=job["job"], algorithm=algorithm) if row["worst_percent"]]
            if not ended:
                continue
            worst = {"average": column(ended, "worst_percent"), "last": column(ended, "last_worst_percent")}
            losses = zip(column(ended, "train_worst"), column(ended, "last_train_worst"), strict=True)
            pick = ["last" if last < average else "average" for average, last in losses]
            worst["best"] = [worst[name][i] for i, name in enumerate(pick)]
            for name, values in worst.items():
                means[name][job["job"]] = statistics.fmean(values)
        lines.append([CALLED.get(algorithm, algorithm), *behind(means)])
    return markdown(["", "average", "last", "best"], lines)


def alternatives(rows: Sequence[Row], of: Callable[[Row], str], name: str) -> dict[str, dict[str, float]]:
    """Alternative → job → mean over seeds of a column, for :func:`behind`."""
    means: dict[str, dict[str, float]] = {}
    for row in rows:
        means.setdefault(of(row), {})
    for alternative, found in means.items():
        for job in dict.fromkeys(row["job"] for row in rows):
            values = column([row for row in rows if row["job"] == job and of(row) == alternative], name)
            if values:
                found[job] = statistics.fmean(values)
    return means


CHOSEN = {"rule": "free", "rate": "0.1", "kappa": "0.2"}
"""drfl's defaults, in the rows of promise/rules.py."""


def rules() -> str:
    """Compare rules for the dual step with the best one of each job, for s = 8 and reports centred as in drfl."""
    head = {"size": "a/(N·ℓ)", "spread": "a/(N·spread)", "free": "a/√Σ‖v − v̄‖²", "relative": "a/√(NΣ‖v − v̄‖²)"}
    rows = [row for row in rows_of("rules") if row["kappa"] == CHOSEN["kappa"]]
    lines, names = [], []
    for algorithm in ("DRFA", "DualDRDM", "ScaffPD"):
        asked = [row for row in rows if row["algorithm"] == algorithm]
        asked = [row for row in asked if row["centred"] == str(algorithm == "DualDRDM")]
        found = alternatives(asked, lambda row: f"{head[row['rule']]}, a = {row['rate']}", "s8")
        names = [CALLED.get(algorithm, algorithm), *names]
        lines.append(behind(found))
        titles = list(found)
    return markdown(["dual step", *reversed(names)], [[t, *cells] for t, *cells in zip(titles, *lines, strict=True)])


def windows() -> str:
    """Compare the last iterate and averages with several s with the best one of each job, for drfl's dual rule."""
    lines, windows = [], ("last", "s1", "s3", "s8", "s15", "s30")
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows_of("rules")):
        rows = own(rows_of("rules"), algorithm=algorithm, **CHOSEN, centred=str(algorithm == "DualDRDM"))
        means = {window: alternatives(rows, lambda row: "", window)[""] for window in windows}
        lines.append([CALLED.get(algorithm, algorithm), *behind(means)])
    return markdown(["", "last", *(f"s = {window[1:]}" for window in windows[1:])], lines)


def kappas() -> str:
    """Compare values of κ in μ = κ/(ητ) with the best one of each job, for s = 8."""
    lines, titles = [], []
    for algorithm in ("FedDyn", "DRDM", "DualDRDM"):
        rows = own(rows_of("rules"), algorithm=algorithm, rule="free", rate="0.1")
        rows = [row for row in rows if row["centred"] == str(algorithm == "DualDRDM")]
        found = alternatives(sorted(rows, key=lambda row: float(row["kappa"])), lambda row: row["kappa"], "s8")
        titles = list(found)
        lines.append([CALLED.get(algorithm, algorithm), *behind(found)])
    return markdown(["", *(f"κ = {title}" for title in titles)], lines)


def saddles(without: Collection[str] = ()) -> str:
    """Table of the distance from every algorithm's largest training objective to the saddle value."""
    names = [name for name in dict.fromkeys(row["algorithm"] for row in rows_of("defaults")) if name not in without]
    head = ["job", "saddle value", *(CALLED.get(name, name) for name in names)]
    rows = [
        [row["job"], f"{float(row['lower']):.4f} to {float(row['upper']):.4f}",
         *(over_saddle(row["job"], name) for name in names)]
        for row in rows_of("saddle")
    ]  # fmt: skip
    return markdown(head, rows)


def changes(job: str) -> dict[str, tuple[float, float]]:
    """The change of the largest training objective by the safeguard: mean and half-width of the 95 % interval."""
    before, after = rows_of("defaults"), rows_of("safeguard")
    found = {}
    for name in dict.fromkeys(row["algorithm"] for row in own(after, job=job)):
        both = pairs("train_worst", *(own(rows, job=job, algorithm=name) for rows in (after, before)))
        if len(both) > 1:
            found[name] = interval([a - b for a, b in both])
    return found


def excesses(job: str) -> dict[str, float]:
    """Largest training objective above the upper bound of the saddle value, in percent of it: mean over seeds."""
    upper = next((float(row["upper"]) for row in rows_of("saddle") if row["job"] == job), None)
    rows = own(rows_of("safeguard"), job=job)
    if upper is None:
        return {}
    names = dict.fromkeys(row["algorithm"] for row in rows)
    means = {name: statistics.fmean(column(own(rows, algorithm=name), "train_worst")) for name in names}
    return {name: 100 * (mean / upper - 1) for name, mean in means.items()}


def safeguard() -> str:
    """Table of the changes by the safeguard that checks the returned model, and of the targets with it."""
    head = [
        "job", "above the start", "lowest change", "highest change", "dual DRDM − FedAvg, worst test loss",
        "p (Holm)", "over the saddle value, %",
    ]  # fmt: skip
    rows = rows_of("safeguard")
    names = [job["job"] for job in jobs() if len(own(rows, job=job["job"], algorithm="FedAvg")) > 1]
    losses = {
        name: [
            a - b for a, b in pairs("worst_loss", *(own(rows, job=name, algorithm=a) for a in ("DualDRDM", "FedAvg")))
        ]
        for name in names
    }  # fmt: skip
    names = [name for name in names if len(losses[name]) > 1]
    tested = [name for name in names if len(losses[name]) >= 5]
    p = dict(zip(tested, holm([stats.ttest_1samp(losses[name], 0).pvalue for name in tested]), strict=True))
    lines = []
    for name in names:
        ended = [row for row in own(rows, job=name) if row["train_worst"]]
        above = sum(float(row["train_worst"]) > float(row["start_train_worst"]) for row in ended)
        changed = changes(name)
        lines_of = {
            a: f"{mean:+.3f} ± {half:.3f}, {CALLED.get(a, a)}" if abs(mean) >= 5e-4 else "none"
            for a, (mean, half) in changed.items()
        }
        least, most = (end(changed, key=lambda a: changed[a][0]) for end in (min, max))
        mean, half = interval(losses[name])
        excess = excesses(name)
        over = "–"
        if excess:
            best = min(excess, key=lambda a: excess[a])
            over = f"{excess['DualDRDM']:.1f}; {CALLED.get(best, best)} {excess[best]:.1f}"
        corrected = f"{p[name]:.2g}" if name in p else "–"
        cells = [f"{above} of {len(ended)}", lines_of[least], lines_of[most], f"{mean:+.3f} ± {half:.3f}"]
        lines.append([name, *cells, corrected, over])
    return markdown(head, lines)


def oscillating() -> str:
    """Table of the papers' runs that oscillate, with the earlier and the present safeguard, in percent."""
    path = RESULTS.parent / "oscillating_runs/runs.csv"
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in rows:
        found.setdefault((row["job"], row["setting"], row["method"]), {})[row["safeguard"]] = row
    lines = []
    for (job, setting, method), pair in found.items():
        if len(pair) < 2:
            continue
        cells = []
        for name in ("avg_accuracy", "worst20_accuracy"):
            cells += [f"{100 * float(pair[rule][name]):.1f}" for rule in ("start", "best")]
        lines.append([f"{job}, {setting}", method, *cells, pair["best"]["rollbacks"]])
    head = ["run", "method", "average, start", "average, best", "worst 20 %, start", "worst 20 %, best", "roll-backs"]
    return markdown(head, lines, text=2)


SAME_ROWS = "Jobs with the same test rows at each seed, all seeds:"
"""Title above the tables of table.md of fit_jobs.py that the page omits."""


def fits() -> str:
    """Tables of `drfl fit` compared with other models on later seeds, and of other rules, see fit_jobs.py."""
    paragraphs = (RESULTS.parent / "fit_jobs/table.md").read_text(encoding="utf-8").strip().split("\n\n")
    return "\n\n".join(paragraphs[2 : paragraphs.index(SAME_ROWS)])


def text() -> str:
    """All stored results as Markdown."""
    parts = {
        "jobs": suite, "worst client, defaults": worst_defaults, "average, defaults": average_defaults,
        "worst client, tuned": worst_tuned, "dual DRDM": targets, "above the saddle value, %": saddles,
        "the safeguard": safeguard,
    }  # fmt: skip
    return "\n\n".join(f"## {title}\n\n{part()}" for title, part in parts.items()) + "\n"


BLOCKS: dict[str, Callable[[], str]] = {
    "defaults.jobs": suite,
    # The pages have tables of at most seven columns; table.md has all algorithms.
    "defaults.worst": lambda: worst_defaults(("AFL",)),
    "defaults.average": lambda: average_defaults(("AFL",)),
    "defaults.targets": targets,
    "defaults.saddle": lambda: saddles(("FedAvg", "SCAFFOLD")),
    "defaults.safeguard": safeguard,
    "defaults.returned": returned,
    "defaults.rules": rules,
    "defaults.windows": windows,
    "defaults.kappas": kappas,
    "defaults.tuned": lambda: worst_tuned(("AFL",)),
    "defaults.oscillating": oscillating,
    "fit.jobs": fits,
}
"""Page and block → function that writes it."""
