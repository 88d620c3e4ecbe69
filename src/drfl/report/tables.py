"""Tables of a report."""

from __future__ import annotations

import html
import json
import math
import shlex
import statistics
from collections.abc import Callable, Iterable, Sequence

from drfl.report.groups import Group
from drfl.report.read_run import RunRecord, number, table

NOTHING = "\u2013"
THIN = "\u202f"  # narrow no-break space, between a number and its unit


def esc(value: object, limit: int = 200) -> str:
    """Text from outside, safe in HTML and in plotly labels (plotly reads some tags and decodes entities).

    Control characters become spaces; what is longer than ``limit`` characters is cut.
    """
    clean = "".join(c if c.isprintable() else " " for c in str(value))
    return html.escape(clean if len(clean) <= limit else clean[: limit - 1] + "…")


def percent(values: Sequence[float], digits: int = 1) -> str:
    """Fractions as "87.9 ± 0.4" in percent: mean ± sample standard deviation; one value has no ±.

    A dash where a value is not finite: the mean of the others would hide the run that failed.
    """
    return spread([100 * value for value in values], digits)


def spread(values: Sequence[float], digits: int) -> str:
    """Values as "mean ± sample standard deviation"; one value has no ±; a dash where one is not finite."""
    if not values or not all(math.isfinite(value) for value in values):
        return NOTHING
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def scientific(values: Sequence[float]) -> str:
    """Values as "mean ± sample standard deviation" to four and two significant digits, as `spread`."""
    if not values or not all(math.isfinite(value) for value in values):
        return NOTHING
    mean = f"{statistics.fmean(values):.4g}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2g}"


def size(count: float) -> str:
    """Bytes with a decimal prefix: "1.25 GB"; a dash if not finite."""
    if not math.isfinite(count):
        return NOTHING
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    power = 0
    while count >= 999.5 and power < len(units) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.3g}{THIN}{units[power]}"


def count(value: float) -> str:
    """A count with thin spaces between thousands; a dash if not finite."""
    return f"{value:,.0f}".replace(",", THIN) if math.isfinite(value) else NOTHING


def duration(seconds: float) -> str:
    """Wall time: "42 s", "3 min 20 s", "2 h 5 min"; a dash if not finite."""
    if not math.isfinite(seconds):
        return NOTHING
    if seconds < 60:
        return f"{seconds:.3g}{THIN}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{THIN}min {rest}{THIN}s"
    return f"{minutes // 60}{THIN}h {minutes % 60}{THIN}min"


def mean(values: Iterable[float]) -> float:
    """The mean; NaN without values or where one is NaN."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else math.nan


def listing(words: Sequence[str]) -> str:
    """Words as "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def plural(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: "1 round", "3 rounds"."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


METRICS = (
    ("avg_accuracy", "Average", max),
    ("worst_accuracy", "Worst client", max),
    ("std_accuracy", "Std over clients", min),
    ("worst20_accuracy", f"Worst 20{THIN}%", max),
)
TABLE_ROWS = 1000


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """A table that scrolls sideways on its own when narrow.

    Args:
        caption: said above the table.
        head: the columns' titles.
        rows: cells; the first of a row is its heading.
        words: how many columns, from the left, hold words; the others hold numbers, flush right.
    """

    def css(column: int) -> str:
        return "" if column < words else ' class="n"'

    titles = "".join(f'<th scope="col"{css(i)}>{title}</th>' for i, title in enumerate(head))
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f"<td{css(i)}>{cell}</td>" for i, cell in enumerate(row[1:], start=1))
        + "</tr>\n"
        for row in rows
    )
    return (
        f'<p class="caption">{caption}</p><div class="scroll" tabindex="0" role="region" aria-label="{caption}"><table>'
        f"<thead><tr>{titles}</tr></thead><tbody>\n{body}</tbody></table></div>"
    )


def swatch(group: Group) -> str:
    """A short piece of the algorithm's line."""
    dashes = {"solid": "", "dash": "6 3", "dot": "2 2", "dashdot": "6 2 2 2"}[group.dash]
    return (
        '<svg class="swatch" width="22" height="8" aria-hidden="true"><line x1="1" x2="21" y1="4" y2="4" '
        f'stroke="{group.colour}" stroke-width="3" stroke-dasharray="{dashes}"/></svg>'
    )


def summary_table(groups: Sequence[Group]) -> str:
    """A row per algorithm: accuracies in percent, mean ± std over seeds, the best in bold, and what it cost."""
    shown = {metric: _bold_best(groups, metric, best) for metric, _, best in METRICS}
    rows = [
        [
            f"{swatch(group)}{esc(group.label)}",
            *(shown[metric][i] for metric, _, _ in METRICS),
            size(mean(run.ledger("bytes_up") for run in group.runs)),
            size(mean(run.ledger("bytes_down") for run in group.runs)),
            str(len(group.runs)),
        ]
        for i, group in enumerate(groups)
    ]
    many = max(len(group.runs) for group in groups) > 1
    caption = "Test accuracy of the final model over clients, in percent" + (
        "; mean ± sample standard deviation over seeds" if many else ""
    )
    head = ["Algorithm", *(title for _, title, _ in METRICS), "Sent up", "Sent down", "Seeds"]
    return html_table(caption, head, rows)


def _bold_best(groups: Sequence[Group], metric: str, best: Callable[[list[float]], float]) -> list[str]:
    """(groups,) the metric's cells; what is shown alike is bold alike."""
    cells = [percent(group.finals(metric)) for group in groups]
    means = [round(100 * mean(group.finals(metric)), 1) for group in groups]
    finite = [value for value in means if math.isfinite(value)]
    if len(groups) == 1 or not finite:
        return cells
    top = best(finite)
    return [f"<strong>{cell}</strong>" if value == top else cell for cell, value in zip(cells, means, strict=True)]


def certificate_table(groups: Sequence[Group]) -> str:
    """A row per algorithm: both sides of the final duality gap, mean ± std over seeds."""
    rows = [
        [
            f"{swatch(group)}{esc(group.label)}",
            *(scientific(group.finals(name)) for name in ("primal", "lower", "gap", "gradient_norm")),
            "yes" if all(run.proven for run in group.runs) else "no",
        ]
        for group in groups
    ]
    head = ["Algorithm", "Worst case over Λ", "Lower bound", "Gap", "Gradient norm", "Proven"]
    return html_table("Certificate of the final (w, λ), on training data", head, rows)


def client_table(run: RunRecord) -> str:
    """Every client of a run, worst first."""
    clients = run.clients.sort_values("accuracy", kind="stable").head(TABLE_ROWS)
    rows = [
        [esc(name, 60), percent([accuracy]), spread([loss], 3), count(test), count(train), percent([lam], 2)]
        for name, accuracy, loss, test, train, lam in zip(
            clients["client"],
            *(clients[c].astype(float) for c in ("accuracy", "loss", "samples", "train_samples", "lambda")),
            strict=True,
        )
    ]
    head = ["Client", "Accuracy (%)", "Loss", "Test samples", "Training samples", "λ (%)"]
    caption = "Clients of the final model, worst first"
    if len(run.clients) > TABLE_ROWS:
        caption = f"The {TABLE_ROWS} worst of {len(run.clients)} clients; clients.csv has them all"
    return html_table(caption, head, rows)


def runs_table(groups: Sequence[Group]) -> str:
    """A row per run: how it ended."""
    rows = [
        [
            esc(run.label),
            esc(group.label),
            esc(run.seed, 24),
            count(number(run.summary, "rounds")),
            percent([run.final("avg_accuracy")]),
            percent([run.final("worst_accuracy")]),
            spread([run.final("worst_loss")], 3),
            esc(run.summary.get("device", NOTHING), 40),
            duration(number(run.summary, "wall_seconds")),
        ]
        for group in groups
        for run in group.runs
    ]
    head = ["Run", "Algorithm", "Seed", "Rounds", "Average (%)", "Worst (%)", "Worst loss", "Device", "Time"]
    return html_table("Runs", head, rows, words=2)


def ledger_table(groups: Sequence[Group]) -> str:
    """A row per run: what it cost."""
    rows = [
        [
            esc(run.label),
            size(run.ledger("bytes_up")),
            size(run.ledger("bytes_down")),
            *(count(run.ledger(name)) for name in ("messages", "gradient_evaluations", "loss_evaluations")),
        ]
        for group in groups
        for run in group.runs
    ]
    head = ["Run", "Sent up", "Sent down", "Messages", "Gradient evaluations", "Loss evaluations"]
    return html_table("Communication and computation, whole run", head, rows)


def versions_table(groups: Sequence[Group]) -> str:
    """The versions of the software; several where runs differ."""
    found: dict[str, list[str]] = {}
    for group in groups:
        for run in group.runs:
            for name, version in table(run.summary, "versions").items():
                seen = found.setdefault(name, [])
                if str(version) not in seen:
                    seen.append(str(version))
    if not found:
        return "<p>The runs do not say.</p>"
    return html_table("Versions", ["Software", "Version"], [[esc(n), esc(", ".join(v))] for n, v in found.items()], 2)


def configurations(groups: Sequence[Group]) -> str:
    """The configuration of each algorithm's first run, and how to repeat it."""
    parts = []
    for group in groups:
        run = group.runs[0]
        if not run.config:
            parts.append(f"<h3>{esc(group.label)}</h3><p>No configuration was kept.</p>")
            continue
        command = f"drfl run {shlex.quote(f'{run.label}/config.toml')}"
        others = " <code>--seed</code> sets another seed." if len(group.runs) > 1 else ""
        parts.append(
            f"<h3>{esc(group.label)}</h3>"
            f"<p>Seed {esc(run.seed, 24)}; from the folder that holds <code>{esc(run.label)}</code>, "
            f"this command repeats the run:{others}</p>"
            f"<pre><code>{esc(command, 2000)}</code></pre>"
            f'<pre tabindex="0"><code>{_toml(run.config)}</code></pre>'
        )
    return "\n".join(parts)


def _toml(config: dict[str, object]) -> str:
    """The configuration as TOML; as JSON if it was built by hand and holds what TOML cannot."""
    import tomli_w

    try:
        lines = tomli_w.dumps(config)
    except (TypeError, ValueError):
        lines = json.dumps(config, indent=2, default=str, ensure_ascii=False)
    return "\n".join(esc(line, 2000) for line in lines.splitlines())
