"""Make the tables of docs/speed.md, docs/scale.md and docs/ambiguity.md from the stored results.

`make pages` writes them into the pages.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
Found = dict[str, Any]


def stored(name: str) -> Found:
    """A stored result."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], text: int = 1) -> str:
    """A Markdown table: so many columns to the left, as text is, the others to the right."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [head, ["---"] * text + ["---:"] * (len(head) - text), *escaped]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def paragraph(text: str, indent: str = "") -> str:
    """Text in lines as long as those of the code, wherever it was broken before; the indent is of all but the first.

    Code between backticks stays on one line, so that whoever looks for a command finds it.
    """
    whole = re.sub("`.*?`", lambda code: code[0].replace(" ", "\0"), " ".join(text.split()))
    fill = textwrap.TextWrapper(120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False).fill
    return fill(whole).replace("\0", " ")


def ms(seconds: float) -> str:
    """Milliseconds with three significant digits."""
    value = 1e3 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def peers(job: str, busy: str = "0") -> str:
    """Frameworks side by side, the fastest first, beside so many busy processes."""
    lines = stored("peers" if busy == "0" else "peers_loaded")["jobs"][job]["beside"][busy]
    own, rows = lines["drfl"]["median_s"], []
    for name, line in sorted(lines.items(), key=lambda pair: pair[1].get("median_s", float("inf"))):
        if "failed" in line:
            continue
        score = f"{100 * line['accuracy']:.1f} ± {100 * line['accuracy_std']:.1f}"
        cells = [ms(line["median_s"]), f"{line['median_s'] / own:.1f}", f"{line['peak_mib']:.0f}"]
        rows.append([name, line["setting"], *cells, f"{line['startup_s']:.1f}", score])
    head = ["framework", "workers × threads", "ms a round", "over drfl", "peak MiB", "start-up s", "accuracy %"]
    return markdown(head, rows)


def engines() -> str:
    """Engines, plain PyTorch and the floor."""
    found = stored("engines")
    names = list(found["jobs"]["linear"]["median_s"])
    rows = []
    for job, line in found["jobs"].items():
        cells = [*(ms(line["median_s"][name]) for name in names), ms(line["floor_s"])]
        rows.append([job, *cells, f"{line['plain_over_auto']:.1f}", f"{line['auto_over_floor']:.1f}"])
    return markdown(["ms a round", *names, "floor", "plain over auto", "auto over floor"], rows)


def auto() -> str:
    """The table behind the rule of ``Auto``."""
    found = stored("auto")
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


def algorithms() -> str:
    """Every algorithm's round over FedAvg's."""
    jobs = stored("algorithms")["jobs"]
    rows = [
        [
            name,
            *(cell for job in jobs.values() for cell in (ms(job[name]["median_s"]), f"{job[name]['over_fedavg']:.2f}")),
        ]
        for name in jobs["linear"]
    ]
    return markdown(["algorithm", *(cell for job in jobs for cell in (f"{job}, ms", "over FedAvg"))], rows)


def full_batch() -> str:
    """Losses and gradients of all data over one plain pass."""
    found = stored("full_batch")
    rows = []
    for job, line in found["jobs"].items():
        wall, cpu = line["wall"], line["cpu"]
        cells = [f"{line['rows']:,}"]
        for own, passed in (("losses", "forward"), ("gradients", "forward_backward")):
            ratio = f"{own}_over_{passed}"
            cells += [ms(wall[f"{passed}_s"]), ms(wall[f"{own}_s"]), f"{wall[ratio]:.2f} ({cpu[ratio]:.2f})"]
        rows.append([job, *cells])
    head = ["ms", "rows", "forward", "losses", "ratio (of CPU)", "forward, backward", "gradients", "ratio (of CPU)"]
    return markdown(head, rows)


def loaded() -> str:
    """Rounds beside busy processes, and how much slower drfl gets than plain PyTorch on one thread does."""
    found = stored("loaded")
    busy = sorted({row["busy"] for row in found["rows"]})
    times = {(row["job"], row["call"], row["busy"]): row for row in found["rows"]}
    rows = []
    for job, call in dict.fromkeys((row["job"], row["call"]) for row in found["rows"]):
        cells = [times.get((job, call, others)) for others in busy]
        shown = ["–" if cell is None else f"{cell['wall_ms']:.3g} ({cell['cpu_ms']:.3g})" for cell in cells]
        rows.append([f"{job}, {call}", *shown])
    head = ["ms a round (of CPU)", *(f"beside {others}" if others else "quiet" for others in busy)]
    ratios = "; ".join(f"{what} {ratio:.2f}" for what, ratio in found["slowdown"].items())
    run, default, test = (times["linear", call, 0]["wall_ms"] for call in ("run", "default", "test pass"))
    told = (
        f"drfl's slowdown as it comes over that of plain PyTorch on one thread: {ratios}. Quiet, a round of `drfl run` "
        f"takes {run - default:.1f} ms longer than the engine's, {(run - default) / test:.2f} plain test passes."
    )
    return f"{markdown(head, rows)}\n\n{paragraph(told)}"


def parallel() -> str:
    """Runs in processes."""
    found = stored("parallel")
    return paragraph(
        f"{found['seeds']} runs of {found['rounds']} rounds take {found['one_after_the_other_s']:.0f} s one after the "
        f"other and {found['at_once_s']:.0f} s in {found['jobs']} processes, {found['speed_up']:.2f} times as fast "
        f"({found['of_ideal']:.2f} of what {found['jobs']} cores could give), with {found['one_after_the_other_mib']} "
        f"and {found['at_once_mib']} MiB of memory. Load average before: {found['load_average_before']:.1f}."
    )


def overhead() -> str:
    """What a round spends on what."""
    found = stored("overhead")
    parts = ["compute", "server", "draw", "project", "log", "test"]
    rows = [
        [f"{name}, {job}", *(f"{line[f'{part}_ms']:.2f}" for part in parts), f"{100 * line['share']:.1f}"]
        for job, lines in found["jobs"].items()
        for name, line in lines.items()
    ]
    return markdown(["ms a round", *parts, "last four, %"], rows)


def precision() -> str:
    """Time and accuracy in both precisions, accuracy as means over seeds."""
    found, rows = stored("precision"), []
    for name in dict.fromkeys(row["algorithm"] for row in found["accuracy"]):
        cells = []
        for kind in ("full", "bf16"):
            mine = [row for row in found["accuracy"] if (row["algorithm"], row["precision"]) == (name, kind)]
            cells += [f"{100 * sum(row[key] for row in mine) / len(mine):.1f}" for key in ("avg", "worst")]
        rows.append([name, *cells])
    seconds = found["median_s"]
    said = paragraph(f"""
        The CNN's round takes {ms(seconds["bf16"])} ms instead of {ms(seconds["full"])}
        (`{found["command"]} --data-dir DIR`, where both are in the same run). Accuracy of the CNN after
        {found["rounds"]} rounds, means over {len({row["seed"] for row in found["accuracy"]})} seeds:
    """)
    head = ["accuracy %", "average, full", "worst, full", "average, bf16", "worst, bf16"]
    return f"{said}\n\n{markdown(head, rows)}"


def startup() -> str:
    """Seconds of fresh processes."""
    seconds = stored("startup")["seconds"]
    return markdown(["process", "s"], [[f"`{name}`", f"{s['median']:.2f}"] for name, s in seconds.items()])


def scaling() -> str:
    """What grows with what."""
    found = stored("scaling")
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


def million() -> str:
    """A million clients against a thousand, and sums that follow λ against those over all rows."""
    found = stored("million")

    def least(part: dict[str, Any], which: int, kind: str) -> float:
        return min(pair[which][kind] for pair in part["pairs"])

    names = list(found["clients"])
    parts = [found["clients"][name] for name in names]
    lines = {
        "ms a round, N = 1,000": [ms(least(p, 0, "round_s")) for p in parts],
        "ms a round, N = 1,000,000": [ms(least(p, 1, "round_s")) for p in parts],
        "ratio": [f"{p['ratio']:.2f}" for p in parts],
        "an evaluation at N = 1,000,000, s": [f"{least(p, 1, 'evaluate_s'):.2f}" for p in parts],
        "peak memory with it, MiB": [f"{least(p, 1, 'peak_evaluated_mib'):.0f}" for p in parts],
    }
    sums = [
        [name, ms(least(p, 0, "round_s")), ms(least(p, 1, "round_s")), f"{p['ratio']:.0f}"]
        for name, p in found["sums"].items()
    ]
    load = ", ".join(f"{one[0]:.1f}" for one in found["load_averages"])
    first = markdown(["", *names], [[name, *cells] for name, cells in lines.items()])
    second = markdown(["100,000 rows in a file", "sums follow λ, ms", "all rows read, ms", "ratio"], sums)
    said = f"The fastest of {len(parts[0]['pairs'])} processes each. Load averages before and after: {load}"
    return f"{first}\n\n{second}\n\n{said}, on {found['device']}."


OPERATIONS = ("project", "prox", "worst_case")


def ray() -> str:
    """Cells, runs and messages on Ray nodes of one CPU."""
    found = stored("ray_cluster")
    rows = [
        [f"40 cells, {where}, {count}", f"{row['whole_s']:.0f} s", f"{row['cells_s']:.0f} s"]
        for row in found["cells"]
        for where, count in [row["setting"]]
    ]
    cells = markdown(["", "in all", "once the cluster stands"], rows)
    places = dict.fromkeys(tuple(row["setting"][1:3]) for row in found["run"])
    times = {tuple(row["setting"][:3]): row["round_ms"] for row in found["run"]}
    runs = markdown(
        ["ms a round of DRFA", *(f"{where}, {count}" for where, count in places)],
        [[model, *(f"{times[model, *place]:.3g}" for place in places)] for model in ("linear", "cnn")],
    )
    load = f"Measured on {found['device']}, with a load of {found['load_before'][0]:.1f} of other things before."
    return f"{cells}\n\n{runs}\n\n{paragraph(_ray_told(found))}\n\n{paragraph(load)}"


def _ray_told(found: Found) -> str:
    one, lost, many = found["message"][0], found["lost"][0], found["many"][0]
    return (
        f"A report of losses takes {one['ray_losses_ms']:.1f} ms by a worker, {one['plain_losses_ms']:.1f} ms without "
        f"Ray; 1,000 linear models, 31 MB, {one['ray_31_mb_of_models_ms']:.0f} ms by one worker and "
        f"{one['plain_31_mb_of_models_ms']:.0f} ms without. With N = 100,000 and a CNN of {many['d']:,} parameters a "
        f"round with 5,000 clients of one step takes {many['round_s']:.0f} s on two workers; their models would be "
        f"{many['models_mib']:,} MiB, the program's peak is {many['driver_peak_mib']:,} MiB. A machine of four that "
        f"is lost in round 5 of 10 costs {lost['lost_s'] - lost['whole_s']:.0f} s and no bit of the result, which is "
        f"{lost['from_plain']:.0e} from the plain run's."
    )


def many_machines() -> str:
    """What a round of 10⁶ clients on 100 machines would take, by the formula of the page."""
    found = stored("ray_cluster")
    times = {tuple(row["setting"][:3]): row for row in found["run"]}
    one, two = (row["ray_losses_ms"] / 1e3 for row in found["message"])
    message = two - one  # what a second worker adds: messages are under way together
    draw, machines, workers, steps, batch, speed = found["many"][0]["draw_s"] / 5_000, 100, 1_600, 10, 32, 1.25e9
    rows = []
    for model in ("linear", "cnn"):
        row = times[model, "plain", 1]
        work, d = row["round_ms"] / 1e3 / 20, row["d"]
        for m in (10_000, 1_000_000):
            fixed = m * work / workers + m * draw + 2 * workers * message
            sent = [(4 * d * machines + 8 * m * steps * batch + 8 * d * count) / speed for count in (workers, m)]
            parts = (m * work / workers, m * draw, 2 * workers * message, fixed + sent[0], fixed + sent[1])
            rows.append([f"{model}, m = {m:,}", *(f"{part:.3g}" for part in parts)])
    head = ["s a round of DRFA", "local work", "draws", "messages", "in all, sums", "in all, models"]
    told = (
        f"With c, q and o as measured above, {workers:,} cores, 10 Gbit/s, τ = {steps} and B = {batch}. The program "
        "alone draws, here one step of eight samples a client: that would be what to divide next."
    )
    return f"{markdown(head, rows)}\n\n{paragraph(told)}"


def ambiguity() -> str:
    """Milliseconds of the ambiguity sets' operations, the slowest of all inputs."""
    found = stored("ambiguity")
    largest = max(row["n"] for row in found["rows"])
    seconds: dict[tuple[str, str], float] = {}
    for row in found["rows"]:
        if row["n"] == largest:
            key = row["set"], row["operation"]
            seconds[key] = max(row["median_s"], seconds.get(key, 0.0))
    names = dict.fromkeys(name for name, _ in seconds)
    rows = [[f"`{name}`", *(f"{1e3 * seconds[name, one]:.1f}" for one in OPERATIONS)] for name in names]
    (name, operation), slowest = max(seconds.items(), key=lambda pair: pair[1])
    said = f"The slowest is {operation} of `{name}`, {1e3 * slowest:.1f} ms."
    return f"{markdown(['set', *OPERATIONS], rows)}\n\n{said}"


BLOCKS: dict[str, Callable[[], str]] = {
    "speed.peers-linear": lambda: peers("linear"),
    "speed.peers-cnn": lambda: peers("cnn"),
    "speed.peers-linear-loaded": lambda: peers("linear", "2"),
    "speed.peers-cnn-loaded": lambda: peers("cnn", "2"),
    "speed.engines": engines,
    "speed.auto": auto,
    "speed.loaded": loaded,
    "speed.parallel": parallel,
    "speed.overhead": overhead,
    "speed.algorithms": algorithms,
    "speed.full-batch": full_batch,
    "speed.precision": precision,
    "speed.startup": startup,
    "scale.numbers": scaling,
    "scale.ray": ray,
    "scale.machines": many_machines,
    "scale.million": million,
    "ambiguity.times": ambiguity,
}
"""Page and block → what stands there."""
