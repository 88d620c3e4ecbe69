"""The tables of docs/speed.md and docs/scale.md from the stored results.

    python benchmarks/tables.py

Prints them; tests/pages/test_speed_page.py holds the pages to them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
Found = dict[str, Any]


def stored(name: str) -> Found:
    """A stored result."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, the first column left, the others right."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def ms(seconds: float) -> str:
    """Milliseconds with three significant digits."""
    value = 1e3 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def peers(found: Found, job: str) -> str:
    """Frameworks side by side, the fastest first."""
    lines = found["jobs"][job]["summary"]
    own, rows = lines["drfl"]["median_s"], []
    for name, line in sorted(lines.items(), key=lambda pair: pair[1].get("median_s", float("inf"))):
        if "failed" in line:
            continue
        score = f"{100 * line['accuracy']:.1f} ± {100 * line['accuracy_std']:.1f}"
        cells = [ms(line["median_s"]), f"{line['median_s'] / own:.1f}", f"{line['peak_mib']:.0f}"]
        rows.append([name, line["setting"], *cells, f"{line['startup_s']:.1f}", score])
    head = ["framework", "workers × threads", "ms a round", "over drfl", "peak MiB", "start-up s", "accuracy %"]
    return markdown(head, rows)


def engines(found: Found) -> str:
    """Engines, plain PyTorch and the floor."""
    names = list(found["jobs"]["linear"]["median_s"])
    rows = []
    for job, line in found["jobs"].items():
        cells = [*(ms(line["median_s"][name]) for name in names), ms(line["floor_s"])]
        rows.append([job, *cells, f"{line['plain_over_auto']:.1f}", f"{line['auto_over_floor']:.1f}"])
    return markdown(["ms a round", *names, "floor", "plain over auto", "auto over floor"], rows)


def auto(found: Found) -> str:
    """The table behind the rule of ``Auto``."""
    rows = [
        [
            r["model"],
            str(r["m"]),
            str(r["batch"]),
            ms(r["stacked"]),
            ms(r["threads"]),
            r["auto"],
            f"{r['over_fastest']:.2f}",
        ]
        for r in found["rows"]
    ]
    return markdown(["model", "m", "B", "stacked ms", "threads ms", "auto takes", "over the fastest"], rows)


def algorithms(found: Found) -> str:
    """Every algorithm's round over FedAvg's."""
    jobs = found["jobs"]
    rows = [
        [
            name,
            *(cell for job in jobs.values() for cell in (ms(job[name]["median_s"]), f"{job[name]['over_fedavg']:.2f}")),
        ]
        for name in jobs["linear"]
    ]
    return markdown(["algorithm", *(cell for job in jobs for cell in (f"{job}, ms", "over FedAvg"))], rows)


def overhead(found: Found) -> str:
    """What a round spends on what."""
    parts = ["compute", "server", "draw", "project", "log", "test"]
    rows = [
        [f"{name}, {job}", *(f"{line[f'{part}_ms']:.2f}" for part in parts), f"{100 * line['share']:.1f}"]
        for job, lines in found["jobs"].items()
        for name, line in lines.items()
    ]
    return markdown(["ms a round", *parts, "last four, %"], rows)


def precision(found: Found) -> str:
    """Accuracy in both precisions, means over seeds."""
    rows = []
    for name in dict.fromkeys(row["algorithm"] for row in found["accuracy"]):
        cells = []
        for kind in ("full", "bf16"):
            mine = [row for row in found["accuracy"] if (row["algorithm"], row["precision"]) == (name, kind)]
            cells += [f"{100 * sum(row[key] for row in mine) / len(mine):.1f}" for key in ("avg", "worst")]
        rows.append([name, *cells])
    head = ["accuracy %", "average, full", "worst, full", "average, bf16", "worst, bf16"]
    return markdown(head, rows)


def startup(found: Found) -> str:
    """Seconds of fresh processes."""
    return markdown(["process", "s"], [[f"`{name}`", f"{s['median']:.2f}"] for name, s in found["seconds"].items()])


def scaling(found: Found) -> str:
    """What grows with what."""
    names = list(found["clients"]["ratio_100000_to_1000"])
    rows = {(r["algorithm"], r["clients"]): r for r in found["clients"]["rows"]}
    widest = {r["algorithm"]: r for r in found["width"]["rows"]}
    full = {(r["algorithm"], r["on_disk"]): r for r in found["full"]["rows"] if r["clients"] == 100000}

    def of_full(kind: str, show: Callable[[float], str], *, on_disk: bool) -> list[str]:
        return [show(full[n, on_disk][kind]) if (n, on_disk) in full else "–" for n in names]

    lines = {
        "ms a round, N = 1,000": [ms(rows[n, 1000]["round_s"]) for n in names],
        "ms a round, N = 100,000": [ms(rows[n, 100000]["round_s"]) for n in names],
        "ratio of the two": [f"{found['clients']['ratio_100000_to_1000'][n]:.2f}" for n in names],
        "peak memory at N = 100,000, MiB": [f"{rows[n, 100000]['peak_mib']:.0f}" for n in names],
        "the same, all rows written, in a file: ms": of_full("round_s", ms, on_disk=True),
        "peak memory, MiB": of_full("peak_mib", "{:.0f}".format, on_disk=True),
        "all rows written, in memory: peak, MiB": of_full("peak_mib", "{:.0f}".format, on_disk=False),
        "slope of time against N, log–log": [f"{found['clients']['slopes'][n]:.2f}" for n in names],
        "against m": [f"{found['cohort']['slopes'][n]:.2f}" for n in names],
        "against τ": [f"{found['steps']['slopes'][n]:.2f}" for n in names],
        "s a round, d = 11.1 million, τ = 2": [f"{widest[n]['round_s']:.1f}" for n in names],
        "cohort buffers at its peak": [f"{widest[n]['cohort_buffers']:.1f}" for n in names],
    }
    return markdown(["", *names], [[name, *cells] for name, cells in lines.items()])


TABLES: dict[str, list[Callable[[Found], str]]] = {
    "peers": [lambda found: peers(found, "linear"), lambda found: peers(found, "cnn")],
    "engines": [engines],
    "auto": [auto],
    "algorithms": [algorithms],
    "overhead": [overhead],
    "precision": [precision],
    "startup": [startup],
    "scaling": [scaling],
}
"""The tables of each stored result."""


def main() -> None:
    """Print all tables that there are results for."""
    for name, made in TABLES.items():
        if (RESULTS / f"{name}.json").exists():
            print(f"\n{name}", *(f"\n{table(stored(name))}" for table in made), sep="\n")


if __name__ == "__main__":
    main()
