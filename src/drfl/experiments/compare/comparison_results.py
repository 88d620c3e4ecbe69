"""The results of a comparison: tables, files and the report."""

from __future__ import annotations

import html
import io
import math
import pprint
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from drfl.core.csv_cells import csv_text, unescape_formula
from drfl.core.csv_files import read_csv, read_results
from drfl.core.errors import Notice
from drfl.core.run_end import (
    DAGGER,
    DOUBLE_DAGGER,
    SECTION,
    add_marks,
    late_rollbacks,
    legends,
    untrained_notices,
    untrained_runs,
)
from drfl.core.user_code import label_of
from drfl.data.warm_start import has_unseen_tests, start_notices
from drfl.experiments.assess.predicted_records import predictions_file
from drfl.experiments.compare.outcomes import (
    Outcome,
    Spread,
    best_algorithms,
    equal_worst,
    failure_text,
    first_intervals,
    gaps,
    spreads,
)
from drfl.experiments.config.about_run import AboutRun, comparison_toml, run_config
from drfl.experiments.config.as_published import LABEL
from drfl.experiments.config.run_settings import RunSettings
from drfl.experiments.run.artifacts import json_text, versions
from drfl.experiments.run.manifest import PREDICTIONS
from drfl.experiments.run.measures import column
from drfl.task.measure import NOTHING, Measure, undefined_note, undefined_share
from drfl.task.metrics import ACCURACY
from drfl.training.history import (
    CERTIFICATE_COLUMNS,
    DIGITS,
    GAP_DIGITS,
    Metrics,
    certificate_cells,
    columns_of,
    other_columns,
    undefined_notices,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from drfl.assessment.scope import Redrawn
    from drfl.report.read_run import FailedRun, RunRecord


def cell_name(algorithm: str, seed: int) -> str:
    """Return the name of a run's sub-folder."""
    return f"{label_of(algorithm)}-seed{seed}"


class Bold(NamedTuple):
    """The best value of a column of :func:`table`."""

    text: str


LATEX_SIGNS = str.maketrans({
    "%": r"\%", "_": r"\_", "±": r"$\pm$", "–": "--",
    DAGGER: r"$\dagger$", DOUBLE_DAGGER: r"$\ddagger$", SECTION: r"\S{}",
})  # fmt: skip
"""The signs of drfl's own headings and cells in LaTeX."""

LATEX = LATEX_SIGNS | str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$",
})  # fmt: skip


def latex(text: str) -> str:
    """Escape a text for LaTeX."""
    return text.translate(LATEX)


def markdown(text: str) -> str:
    """Escape a text for a cell of a Markdown table."""
    return text.replace("|", r"\|").replace("<", "&lt;")


def _escaped(cell: str | Bold, escape: Callable[[str], str], bold: str) -> str:
    return bold.format(escape(cell.text)) if isinstance(cell, Bold) else escape(cell)


class Predicted(NamedTuple):
    """Predictions of another tool at a seed: the outcome that a run with them would have, and its record."""

    outcome: Outcome
    record: RunRecord


class Summary(dict[str, object]):
    """A summary of results: a mapping that prints with one entry per line."""

    def __repr__(self) -> str:
        return pprint.pformat(dict(self), width=120, sort_dicts=False)


@dataclass(frozen=True, eq=False)
class Comparison:
    """The comparison of several algorithms at several seeds.

    Args:
        settings: The settings of the runs; the seed varies.
        algorithms: The labels of the algorithms, as their outcomes have them.
        seeds: The seeds.
        about: The description of a run of each algorithm.
        measures: The metrics, the score first.
        clients: N.
        outcomes: The runs that have ended, in the order of the design.
        directory: The folder of the runs and the report; None if no files were kept.
        warnings: Warnings about the data, at the first seed.
        histories: The runs' histories, if no folder holds them; see :meth:`to_histories`.
        client_rows: The runs' clients, if no folder holds them; see :meth:`to_clients`.
        folders: The runs' folders by algorithm and seed, if they are not in ``directory``.
        predicted: Predictions of other tools on the same test rows, as runs.
    """

    settings: RunSettings
    algorithms: tuple[str, ...]
    seeds: tuple[int, ...]
    about: tuple[AboutRun, ...]
    measures: tuple[Measure, ...]
    clients: int
    outcomes: tuple[Outcome, ...]
    directory: Path | None = None
    warnings: tuple[str, ...] = ()
    histories: pd.DataFrame | None = None
    client_rows: pd.DataFrame | None = None
    folders: Mapping[tuple[str, int], Path] | None = None
    predicted: tuple[Predicted, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether all runs have ended."""
        return len(self.outcomes) == len(self.algorithms) * len(self.seeds)

    @property
    def rows(self) -> tuple[Outcome, ...]:
        """The outcomes, and those of predictions, as tables show them."""
        return (*self.outcomes, *(predicted.outcome for predicted in self.predicted))

    @property
    def folder(self) -> Path:
        """The :attr:`directory` of a comparison that has one."""
        assert self.directory is not None
        return self.directory

    def folder_of(self, outcome: Outcome) -> Path:
        """Return the folder of a run."""
        if self.folders is not None:
            return self.folders[outcome.algorithm, outcome.seed]
        return self.folder / cell_name(outcome.algorithm, outcome.seed)

    @cached_property
    def records(self) -> list[RunRecord]:
        """The runs that did not fail, as reports read them from their folders."""
        from drfl.report import load_run

        runs = [load_run(self.folder_of(outcome)) for outcome in self.outcomes if not outcome.failed]
        return [*runs, *(predicted.record for predicted in self.predicted)]

    @property
    def failed_runs(self) -> list[FailedRun]:
        """The runs that failed, for reports."""
        from drfl.report import FailedRun

        about, failed = dict(zip(self.algorithms, self.about, strict=True)), (o for o in self.outcomes if o.failed)
        return [
            FailedRun(label_of(own.algorithm), str(o.seed), o.stopped, run_config(own))
            for o, own in ((outcome, about[outcome.algorithm]) for outcome in failed)
        ]

    @property
    def notices(self) -> list[Notice]:
        """Warnings about initial models that may have seen test rows, runs that returned the initial model, models that
        were set back late, and metrics that are undefined at some clients.
        """
        ended = [outcome.undefined for outcome in self.outcomes if outcome.metrics is not None]
        late = [o for o in self.outcomes if o.marks.is_late and not o.marks.is_untrained]
        rollbacks = late_rollbacks([f"{o.algorithm} seed {o.seed} ({o.marks.rounds_text})" for o in late])
        undefined = undefined_notices(self.measures, ended, self.clients)
        seen = {o.seed: o.start for o in self.outcomes if not has_unseen_tests(o.start)}
        # The notices are about one initial model: preferably one that may have seen test rows.
        starts = [*seen.values(), *(o.start for o in self.outcomes if o.start is not None)]
        started = start_notices(next(iter(starts), None), list(seen))
        return [*started, *untrained_notices(self.untrained), *rollbacks, *undefined]

    @property
    def untrained(self) -> dict[str, str]:
        """Algorithm → which of its runs returned the initial model, see :func:`drfl.core.run_end.untrained_runs`."""
        return untrained_runs((o.algorithm, str(o.seed), o.marks) for o in self.outcomes)

    @property
    def legends(self) -> list[str]:
        """A line for each sign behind the algorithms in :func:`table`."""
        return legends((o.algorithm, str(o.seed), o.marks) for o in self.outcomes)

    def marked(self, algorithm: str) -> str:
        """Return an algorithm's name with the signs of its runs, which :attr:`legends` explain."""
        return add_marks(algorithm, (o.marks for o in self.rows if o.algorithm == algorithm))

    def undefined(self, measure: str, *algorithms: str) -> list[int]:
        """Return the number of clients at which a metric is undefined, for each run of these algorithms, or of all."""
        ended = (o for o in self.rows if o.metrics is not None and (not algorithms or o.algorithm in algorithms))
        return [len(outcome.undefined.get(measure, ())) for outcome in ended]

    def to_frame(self) -> pd.DataFrame:
        """Return a row per run: algorithm, seed, rounds, how it ended and the metrics, as in compare.csv."""
        import pandas as pd

        # Read the CSV text, so that the frame has the digits of compare.csv. A name may be "nan" or "007".
        missing = {name: ["", "nan"] for name in _columns(self) if name not in ("algorithm", "stopped", "stopped_on")}
        frame = pd.read_csv(
            io.StringIO(csv_text(_columns(self), _rows(self))), dtype={"algorithm": str}, keep_default_na=False,
            na_values=missing,
        )  # fmt: skip
        frame["algorithm"] = frame["algorithm"].map(unescape_formula)
        return frame.astype({"stopped": str, "stopped_on": object}).fillna({"stopped_on": ""})

    def to_markdown(self) -> str:
        """Return the table of table.md: mean ± std over seeds in percent, the best in bold."""
        head, rows = table(self)
        rule = ["---", *["---:"] * (len(head) - 1)]
        texts = ([_escaped(cell, markdown, "**{}**") for cell in cells] for cells in (head, *rows))
        lines = [f"| {' | '.join(cells)} |\n" for cells in (next(texts), rule, *texts)]
        return "".join(lines) + "".join(f"\n{markdown(legend)}\n" for legend in self.legends)

    def to_latex(self, columns: Sequence[str] | Mapping[str, str] | None = None, *, target: str | None = None) -> str:
        """Return the same table as a LaTeX tabular in the style of booktabs.

        Args:
            columns: Columns of :meth:`to_frame` that are statistics over clients, such as "worst_accuracy", or a
                mapping of such columns to headings; None = those of the table. An interval stays with the worst client.
            target: A target such as "worst_accuracy=0.8", whose rounds are the last column, see :meth:`costs_to`.

        Raises:
            InputError: If a column does not exist, or the target is invalid.
        """
        shown: Mapping[str, str] | None = columns if isinstance(columns, Mapping) or columns is None else None
        if shown is None and columns is not None:
            shown = {name: column(name, self.measures).label for name in columns}
        for name in shown or ():
            column(name, self.measures)
        head, rows = table(self, shown)
        if target is not None:
            costs, texts = self.costs_to(target), dict[str, str]()
            numbers = costs[["reached", "seeds", "rounds", "rounds_high"]].to_numpy(float).tolist()
            for name, (reached, seeds, rounds, high) in zip(costs.index, numbers, strict=True):
                half = "" if math.isnan(high) else f" ± {high - rounds:.1f}"
                # A mean over the runs that reached the target would flatter the algorithm.
                texts[name] = f"{rounds:.1f}{half}" if reached == seeds else f"{reached:.0f} of {seeds:.0f}"
            head = [*head, f"rounds to {target.strip()}"]
            names = spreads(self.rows, self.measures[0].name)
            rows = [[*row, texts.get(name, NOTHING)] for name, row in zip(names, rows, strict=True)]
        # Headings may be the user's LaTeX, such as $\tau$.
        texts = (
            [text.translate(LATEX_SIGNS) for text in head],
            *([_escaped(c, latex, "\\textbf{{{}}}") for c in row] for row in rows),
        )
        lines = [" & ".join(cells) + r" \\" for cells in texts]
        body = "\n".join((r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"))
        for legend in self.legends:
            body += f"\n\\multicolumn{{{len(head)}}}{{l}}{{{latex(legend)}}} \\\\"
        return f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}\n{body}\n\\end{{tabular}}\n"

    def costs_to(self, target: str) -> pd.DataFrame:
        """Return the cost at which each algorithm reaches a target for the first time.

        Only evaluated rounds count, so ``evaluate_every`` limits the precision.

        Args:
            target: A column of :meth:`to_frame` and its level, such as "worst_accuracy=0.8" or "avg_loss=0.5".

        Returns:
            A row per algorithm: the number of runs that reach it, the number of seeds, and the mean of rounds, bytes,
            gradients and seconds with its 95 % t-interval over seeds; NaN unless all runs reach it.

        Raises:
            InputError: If the text is not a target.
        """
        from drfl.experiments.compare.costs import costs_to_target, parse_target

        metric, level = parse_target(target, self.measures)
        cells = [(o.algorithm, o.seed) for o in self.outcomes]
        return costs_to_target(self.to_histories(), cells, metric, level, self.measures)

    def to_histories(self) -> pd.DataFrame:
        """Return a row per run and evaluated round: algorithm, seed, the columns of history.csv, and seconds."""
        return read_runs(self, "history.csv") if self.histories is None else self.histories

    def to_clients(self) -> pd.DataFrame:
        """Return a row per run and client: algorithm, seed and the columns of clients.csv, such as client and auc."""
        import pandas as pd

        if self.client_rows is not None:
            return self.client_rows
        frames, score = [read_runs(self, "clients.csv")], self.measures[0].name
        for outcome, record in self.predicted:
            clients = record.clients.rename(columns={"score": score})
            clients.insert(0, "seed", outcome.seed)
            clients.insert(0, "algorithm", outcome.algorithm)
            frames.append(clients)
        return pd.concat(frames, ignore_index=True) if self.predicted else frames[0]

    def differences(self, against: str | None = None, column: str | None = None) -> pd.DataFrame:
        """Compare the algorithms with one of them, paired over seeds.

        The column ``scope`` names the parts that the seeds redraw; a difference holds only for these. Its error does
        not include that of the test rows, unlike the gain of :func:`drfl.assess_gain`.

        Args:
            against: The algorithm with which the others are compared; None = the first one.
            column: The column of :meth:`to_frame` that is compared, such as "avg_accuracy"; None = the worst client's
                score.

        Returns:
            A row for each other algorithm: the number of seeds at which both have finished; the mean difference with
                its 95 % t-interval, in the column's unit; the p-value of the paired t-test, Holm-corrected over the
                rows, NaN below five seeds; a verdict, see :func:`drfl.assessment.seeds.verdict`; the share of clients
                at which the metric is undefined, such as "2 of 45"; which models are compared, such as "own, global"
                if each client is tested with its own model only in this row's algorithm; and the scope, see
                :class:`drfl.assessment.scope.Redrawn`. If an algorithm has runs that failed, returned the initial model
                or were stopped by test rows, it is not compared over the other seeds, and the verdict states the
                reason.

        Raises:
            InputError: If there is no such algorithm or column.
        """
        from drfl.experiments.compare.paired_differences import differences

        names = (*self.algorithms, *dict.fromkeys(p.outcome.algorithm for p in self.predicted))
        first, of = against or names[0], column or f"worst_{self.measures[0].name}"
        table = differences(self.to_frame(), names, self.measures, first, of)
        counts = [self.undefined(of.partition("_")[2], first, name) for name in table.index]
        shares = [undefined_share(own, [self.clients]) for own in counts]
        kind = {o.algorithm: "own" if o.personal else "global" for o in self.outcomes if not o.failed}
        models = [", ".join(kind.get(side, "unknown") for side in (name, first)) for name in table.index]
        return table.assign(undefined=shares, models=models, scope=self.redrawn().words)

    def redrawn(self) -> Redrawn:
        """Return the parts that the seeds redraw: the test rows, the initial model, both or neither."""
        from drfl.assessment.scope import Redrawn

        # Failed runs record neither test rows nor an initial model.
        ended = (outcome for outcome in self.outcomes if not outcome.failed)
        return Redrawn.of(list({o.seed: (o.test_rows or None, o.initial_model or None) for o in ended}.values()))

    def plot(self, *shown: str, x: str = "rounds") -> Figure:
        """Plot curves of the algorithms, see :func:`drfl.training.plots.plot_histories`.

        Args:
            shown: "worst", "worst20", "avg", "best20" or "std", or the name of such a column, such as
                "worst_accuracy", a panel each; by default "worst" and "avg".
            x: The cost on the x axis: "rounds", "bytes", "gradients" or "seconds".
        """
        from drfl.report.groups import OWN_MODELS
        from drfl.training.plots import plot_histories

        score = self.measures[0]
        note = undefined_note(self.undefined(score.name), [self.clients])
        own = {o.algorithm: f"{o.algorithm} ({OWN_MODELS})" for o in self.outcomes if o.personal}
        histories = self.to_histories().replace({"algorithm": own})
        return plot_histories(histories, score, shown or ("worst", "avg"), note, x)

    def __repr__(self) -> str:
        failed = sum(outcome.failed for outcome in self.outcomes)
        ended = f"{len(self.outcomes) - failed} of {len(self.algorithms) * len(self.seeds)} runs"
        ended += f", {failed} failed" if failed else ""
        where = "" if self.directory is None else f" in {self.directory}"
        return f"<Comparison of {', '.join(self.algorithms)}: {ended}{where}>"

    def _repr_html_(self) -> str:
        head, rows = table(self)
        cells = [
            "".join(f"<{tag}>{_escaped(cell, html.escape, '<b>{}</b>')}</{tag}>" for cell in line)
            for tag, line in [("th", head), *(("td", r) for r in rows)]
        ]
        legend = "<br>".join(map(html.escape, self.legends))
        return f"<table>{''.join(f'<tr>{line}</tr>' for line in cells)}</table>{legend}"

    def summary(self) -> Summary:
        """Return everything as one mapping: the job, mean and std of each metric, versions."""
        gap, common = gaps(self.outcomes), self.about[0]
        about = dict(zip(self.algorithms, self.about, strict=True))
        algorithms: dict[str, object] = {}
        for name, row in spreads(self.rows, self.measures[0].name).items():
            runs = [outcome for outcome in self.outcomes if outcome.algorithm == name]
            ended = [outcome for outcome in runs if not outcome.failed]
            algorithms[name] = {
                "parameters": dict(about[name].parameters) if name in about else {},
                "own_models": any(o.personal for o in runs),
                "runs": len(ended),
                "diverged": sum(o.stopped == "diverged" for o in runs),
                "refused": sum(o.stopped == "refused" for o in runs),
                "rounds_to_target": [o.rounds for o in runs if o.stopped == "target"],
                "rollbacks": [o.rollbacks for o in ended],
                "effective_rounds": [o.marks.effective_rounds for o in ended],
                "untrained": sum(o.marks.is_untrained for o in runs),
                "stopped_on_test": sum(o.stopped_on == "test" for o in runs),
                **{metric: spread.rounded(DIGITS) for metric, spread in row.items()},
                **({"gap": gap[name].rounded(GAP_DIGITS)} if name in gap else {}),
                "undefined": {m.name: counts for m in self.measures if any(counts := self.undefined(m.name, name))},
            }
        content = {
            "dataset": common.label,
            "partition": common.partition,
            "clients": self.clients,
            "model": common.settings.get("model"),
            "rounds": self.settings.rounds,
            "until": self.settings.until,
            "seeds": list(self.seeds),
            "measures": [m.name for m in self.measures],
            "warnings": [*self.warnings, *self.notices],
            "device": self.settings.device,
            "dtype": common.settings.get("dtype"),
            "algorithms": algorithms,
            "versions": versions(),
        }
        return Summary(content)


def read_runs(comparison: Comparison, name: str) -> pd.DataFrame:
    """Return a CSV file of all runs of a comparison in one table, see :meth:`Comparison.to_histories`."""
    import pandas as pd

    frames = [pd.DataFrame(columns=["algorithm", "seed"])]
    for outcome in sorted(comparison.outcomes, key=lambda o: (comparison.algorithms.index(o.algorithm), o.seed)):
        file = comparison.folder_of(outcome) / name
        if file.exists():  # a failed run has none
            run = read_results(file, "client", follow=False)
            timing = file.with_name("timing.csv")
            if name == "history.csv" and timing.exists():
                run["seconds"] = read_csv(timing, follow=False)["seconds"]
            run.insert(0, "seed", outcome.seed)
            run.insert(0, "algorithm", outcome.algorithm)
            frames.append(run)
    return pd.concat(frames[1:] or frames, ignore_index=True)


def write_comparison(comparison: Comparison, folder: Path, identity: Mapping[str, object]) -> None:
    """Write config.toml, summary.json, compare.csv, outcomes.json, table.md, report.html and the tested predictions.

    ``folder`` is temporary: the comparison's own folder holds the finished runs, and its name is the report's title.
    """
    from drfl.report import document, write_html

    outcomes = [outcome._asdict() for outcome in comparison.outcomes]
    texts = {
        "config.toml": comparison_toml(comparison.about),
        "summary.json": json_text(comparison.summary(), indent=2) + "\n",
        "compare.csv": csv_text(_columns(comparison), _rows(comparison)),
        "outcomes.json": json_text({"identity": identity, "outcomes": outcomes}) + "\n",
        "table.md": comparison.to_markdown(),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    if comparison.predicted:
        content = predictions_file([predicted.record for predicted in comparison.predicted])
        (folder / PREDICTIONS).write_bytes(content)
    if comparison.records:
        title = comparison.folder.name
        write_html(document(comparison.records, title, comparison.failed_runs), folder / "report.html")


def verdict_lines(comparison: Comparison) -> list[str]:
    """Return the report's sentences on which algorithm has the best worst client; none for one algorithm."""
    from drfl.report.groups import group_runs, lost_algorithms
    from drfl.report.summary_text import takeaways

    failed = comparison.failed_runs
    groups = group_runs(comparison.records, failed)
    return [f"{line.start} {line.text}" for line in takeaways(groups, lost_algorithms(groups, failed))]


def table(comparison: Comparison, shown: Mapping[str, str] | None = None) -> tuple[list[str], list[list[str | Bold]]]:
    """Return head and rows of a table of average, worst and std, as mean ± std over seeds.

    The column after the worst client has the interval of its true score at the lowest seed, for one model on one test
    set (see :func:`drfl.assessment.worst.worst_score`). The column "if equal" has the mean worst accuracy expected if
    all clients were equally good (see :mod:`drfl.assessment.equal_clients`). If a metric is undefined at some clients,
    which no statistic includes, a column shows their share. Algorithms may carry signs, see
    :func:`drfl.core.run_end.add_marks`. An algorithm with a failed run comes last and has no means. One with a run that
    returned the initial model has means, but is never the best.

    Args:
        comparison: The comparison.
        shown: Column → heading; None = those of the score and of the other metrics. A table with the score also has the
            certificates.

    Returns:
        Headings and rows. The best value of a column is :class:`Bold`. References such as Pooled are never the best. If
        there are global models and clients' own models, each kind with several algorithms has its best.
    """
    measures = comparison.measures
    if shown is None:
        shown = score_columns(measures[0]) | columns_beside(measures[1:])
    # Algorithms with a failed run come last, without means.
    known, worst = spreads(comparison.rows, measures[0].name), f"worst_{measures[0].name}"
    # Global models compete with each other, and clients' own models with each other. References show the cost of
    # federation, so they do not compete. The only algorithm of its kind has no rival.
    kinds: dict[bool, dict[str, dict[str, Spread]]] = {}
    untrained = comparison.untrained
    for outcome in comparison.rows:
        if not outcome.reference and not outcome.failed and outcome.algorithm not in untrained:
            kinds.setdefault(outcome.personal, {})[outcome.algorithm] = known[outcome.algorithm]
    rivals = [kind for kind in kinds.values() if len(kinds) == 1 or len(kind) > 1]
    winners = {name: {best for kind in rivals for best in best_algorithms(kind, name, measures)} for name in shown}
    # The columns after that of a worst client: heading → algorithm → cell.
    beside: dict[str, dict[str, dict[str, str]]] = {}
    for measure in measures:
        counts = {name: comparison.undefined(measure.name, name) for name in known}
        shares = {name: undefined_share(of_runs, [comparison.clients]) for name, of_runs in counts.items()}
        heading = UNDEFINED if measure == measures[0] else f"{measure.words} {UNDEFINED}"
        beside[f"worst_{measure.name}"] = {heading: shares} if any(map(any, counts.values())) else {}
    if worst in shown:
        # These columns show the uncertainty of the worst client.
        sure, score, intervals = {}, measures[0], first_intervals(comparison.rows)
        if intervals is not None:
            digits, head = score.digits - 1, "95 %" if len(comparison.seeds) == 1 else f"95 %, seed {intervals[0]}"
            sure[head] = {
                name: f"{score.scale * low:.{digits}f}–{score.scale * high:.{digits}f}"
                for name, (low, high) in intervals[1].items()
            }
        equal = equal_worst(comparison.rows) if score.name == ACCURACY.name else {}
        if equal:
            sure["if equal %"] = {name: f"{100 * value:.1f}" for name, value in equal.items()}
        beside[worst] = sure | beside[worst]
    gap = gaps(comparison.outcomes) if comparison.settings.certificate is not None and worst in shown else None
    rows: list[list[str | Bold]] = []
    for name, row in known.items():
        cells: list[str | Bold] = [comparison.marked(name)]
        for i, of in enumerate(shown):
            text = failure_text(comparison.outcomes, name) if i == 0 else NOTHING
            if of in row:
                look = column(of, measures)
                text = row[of].text(f".{look.digits}f", f".{look.digits}f", scale=look.scale)
            cells.append(Bold(text) if name in winners[of] else text)
            cells += [texts.get(name, NOTHING) if row else NOTHING for texts in beside.get(of, {}).values()]
        if gap is not None:
            cells.append(gap[name].text(".3g", ".2g") if name in gap else NOTHING)
        rows.append(cells)
    heads = [text for of, head in shown.items() for text in (head, *beside.get(of, ()))]
    first = f"algorithm, {LABEL}" if comparison.settings.as_published else "algorithm"
    return [first, *heads, *([] if gap is None else ["gap"])], rows


def score_columns(score: Measure, *, fifth: bool = False) -> dict[str, str]:
    """Return the columns of the score with their headings; with ``fifth`` also the worst fifth of the clients."""
    plain = score.name == ACCURACY.name
    of = [score.unit] if plain else [score.words, score.unit]
    headings = {f"{what}_{score.name}": " ".join((word, *of)).rstrip() for what, word in WORDS.items()}
    headings[f"std_{score.name}"] = "std"
    return headings | ({f"worst20_{score.name}": f"worst 20 {score.unit}" if plain else "worst fifth"} if fifth else {})


def columns_beside(others: Sequence[Measure]) -> dict[str, str]:
    """Return the columns of the metrics beside the score with their headings."""
    return {f"{what}_{m.name}": f"{word} {m.words} {m.unit}".rstrip() for m in others for what, word in WORDS.items()}


WORDS = {"avg": "average", "worst": "worst"}

UNDEFINED = "undefined"
"""The heading of the share of clients at which a metric is undefined, see :func:`drfl.task.measure.undefined_share`."""


def _columns(comparison: Comparison) -> list[str]:
    extra = [] if comparison.settings.certificate is None else CERTIFICATE_COLUMNS
    score, others = comparison.measures[0].name, other_columns(comparison.measures)
    names = columns_of(score)
    worst = (f"worst_{score}_low", f"worst_{score}_high")
    undefined = (f"undefined_{measure.name}" for measure in comparison.measures)
    head = ("algorithm", "seed", "rounds", "rollbacks", "effective_rounds", "stopped", "stopped_on")
    return [*head, *names, *worst, f"equal_worst_{score}", *others, *undefined, *extra]


def _rows(comparison: Comparison) -> Iterator[list[object]]:
    certified = comparison.settings.certificate is not None
    measures = [measure.name for measure in comparison.measures]
    for outcome in comparison.rows:
        others = other_columns(comparison.measures)
        values = ["" for _ in (*Metrics._fields, "low", "high", "equal", *others, *measures)]
        if outcome.metrics is not None:
            equal = math.nan if outcome.equal is None else outcome.equal.worst
            ends = outcome.worst_interval or (math.nan, math.nan)
            values = [f"{value:.{DIGITS}f}" for value in (*outcome.metrics, *ends, equal, *outcome.others.values())]
            values += [str(len(outcome.undefined.get(name, ()))) for name in measures]
        if certified:
            values += certificate_cells(outcome.certificate) if outcome.metrics is not None else ["", "", ""]
        how = outcome.rounds, outcome.rollbacks, outcome.marks.effective_rounds, outcome.stopped, outcome.stopped_on
        yield [outcome.algorithm, outcome.seed, *how, *values]
