"""Make the tables of docs/results/speed.md, docs/results/scale.md and docs/ambiguity.md from the stored results.

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
    """Read a stored result."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], text: int = 1) -> str:
    """Format a Markdown table whose first columns are text and aligned to the left."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [head, ["---"] * text + ["---:"] * (len(head) - text), *escaped]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def paragraph(text: str, indent: str = "") -> str:
    """Wrap text to the line length of the code; the indent applies to all lines but the first.

    Code between backticks stays on one line, so that a search for a command finds it.
    """
    whole = re.sub("`.*?`", lambda code: code[0].replace(" ", "\0"), " ".join(text.split()))
    fill = textwrap.TextWrapper(120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False).fill
    return fill(whole).replace("\0", " ")


def ms(seconds: float) -> str:
    """Format seconds as milliseconds with three significant digits."""
    value = 1e3 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def peers(job: str, busy: str = "0") -> str:
    """Compare frameworks, the fastest first, beside this number of busy processes."""
    lines = stored("peers" if busy == "0" else "peers_loaded")["jobs"][job]["beside"][busy]
    own, rows = lines["drfl"]["median_s"], []
    for name, line in sorted(lines.items(), key=lambda pair: pair[1].get("median_s", float("inf"))):
        if "failed" in line:
            continue
        score = f"{100 * line['accuracy']:.1f} ± {100 * line['accuracy_std']:.1f}"
        cells = [ms(line["median_s"]), f"{line['median_s'] / own:.1f}", f"{line['peak_mib']:.0f}"]
        rows.append([name, line["setting"], *cells, f"{line['startup_s']:.1f}", score])
    head = [
        "framework",
        "workers × threads",
        "ms per round",
        "relative to drfl",
        "peak MiB",
        "start-up, s",
        "accuracy, %",
    ]
    return markdown(head, rows)


def engines() -> str:
    """Compare engines, plain PyTorch and the floor."""
    jobs = stored("engines")["jobs"]
    rows = {name: [ms(line["median_s"][name]) for line in jobs.values()] for name in jobs["linear"]["median_s"]}
    rows["floor"] = [ms(line["floor_s"]) for line in jobs.values()]
    rows["plain / auto"] = [f"{line['plain_over_auto']:.1f}" for line in jobs.values()]
    rows["auto / floor"] = [f"{line['auto_over_floor']:.1f}" for line in jobs.values()]
    return markdown(["ms per round", *jobs], [[name, *cells] for name, cells in rows.items()])


def people() -> str:
    """Compare drfl with plain PyTorch and pfl-research for the models that people use."""
    rows = []
    for name, found in stored("models")["models"].items():
        quiet, loaded, pfl = found["beside_0"], found.get("beside_2"), found.get("pfl", {})
        times, (ratio, low, high) = quiet["median_s"], quiet["best_plain_over_auto"]
        rows.append(
            [
                f"{name} ({found['m']}, {found['steps']}, {found['batch']})",
                ms(quiet["floor_s"]),
                ms(times["auto"]),
                ms(min(times["plain"], times["plain, one thread"])),
                f"{ratio:.2f} ({low:.2f}–{high:.2f})",
                "–" if loaded is None else f"{loaded['best_plain_over_auto'][0]:.2f}",
                f"{pfl['over_auto']:.2f}" if "over_auto" in pfl else "–",
            ]
        )
    head = ["model (m, τ, B)", "floor, ms", "drfl, ms", "plain, ms", "plain / drfl", "busy: plain / drfl", "pfl / drfl"]
    return markdown(head, rows)


def people_engines() -> str:
    """Compare the engines, dual DRDM and memory for the same models."""
    rows = []
    for name, found in stored("models")["models"].items():
        times, peak = found["beside_0"]["median_s"], found["peak_mib"]
        engines = [ms(times[engine]) if engine in times else "–" for engine in ("loop", "stacked", "threads")]
        memory = [f"{peak[call]:.0f}" for call in ("auto", "plain")]
        rows.append([name, *engines, ms(times["dual DRDM, auto"]), *memory])
    head = ["model", "loop, ms", "stacked, ms", "threads, ms", "dual DRDM, ms", "drfl, MiB", "plain, MiB"]
    return markdown(head, rows)


def auto() -> str:
    """Compare the choices of ``Auto`` with both engines."""
    found = stored("auto")
    rows = [
        [
            r["model"],
            str(r["m"]),
            str(r["batch"]),
            "–" if r["stacked"] is None else ms(r["stacked"]),
            ms(r["threads"]),
            r["auto"],
            f"{r['over_fastest']:.2f}",
        ]
        for r in found["rows"]
    ]
    return markdown(["model", "m", "B", "stacked ms", "threads ms", "chosen by auto", "relative to the fastest"], rows)


def algorithms() -> str:
    """Compare a round of every algorithm with FedAvg's."""
    jobs = stored("algorithms")["jobs"]
    rows = [
        [
            name,
            *(cell for job in jobs.values() for cell in (ms(job[name]["median_s"]), f"{job[name]['over_fedavg']:.2f}")),
        ]
        for name in jobs["linear"]
    ]
    return markdown(["algorithm", *(cell for job in jobs for cell in (f"{job}, ms", "relative to FedAvg"))], rows)


def full_batch() -> str:
    """Compare losses and gradients of all data with one plain pass."""
    jobs = stored("full_batch")["jobs"]
    rows = [["rows", *(f"{line['rows']:,}" for line in jobs.values())]]
    for own, passed in (("losses", "forward"), ("gradients", "forward_backward")):
        name, ratio = passed.replace("_", " and "), f"{own}_over_{passed}"
        rows += [
            [f"PyTorch's {name} pass, ms", *(ms(line["wall"][f"{passed}_s"]) for line in jobs.values())],
            [f"drfl's {own}, ms", *(ms(line["wall"][f"{own}_s"]) for line in jobs.values())],
            ["ratio", *(f"{line['wall'][ratio]:.2f} ({line['cpu'][ratio]:.2f})" for line in jobs.values())],
        ]
    return markdown(["", *jobs], rows)


def loaded() -> str:
    """Compare rounds on a quiet machine and beside busy processes, for drfl and plain PyTorch."""
    found = stored("loaded")
    busy = sorted({row["busy"] for row in found["rows"]})
    times = {(row["job"], row["call"], row["busy"]): row for row in found["rows"]}
    rows = []
    for job, call in dict.fromkeys((row["job"], row["call"]) for row in found["rows"]):
        cells = [times.get((job, call, others)) for others in busy]
        shown = ["–" if cell is None else f"{cell['wall_ms']:.3g} ({cell['cpu_ms']:.3g})" for cell in cells]
        rows.append([f"{job}, {call}", *shown])
    head = ["ms per round (processor)", *(f"beside {others}" if others else "quiet" for others in busy)]
    ratios = "; ".join(f"{what} {ratio:.2f}" for what, ratio in found["slowdown"].items())
    run, default, test = (times["linear", call, 0]["wall_ms"] for call in ("run", "default", "test pass"))
    told = (
        f"Slowdown of drfl's default divided by that of plain PyTorch on one thread: {ratios}. On a quiet machine, a "
        f"round of `drfl run` takes {run - default:.1f} ms longer than a round of the engine, which is "
        f"{(run - default) / test:.2f} times a plain test pass."
    )
    return f"{markdown(head, rows)}\n\n{paragraph(told)}"


def parallel() -> str:
    """Compare runs in parallel processes with runs one after another."""
    found = stored("parallel")
    return paragraph(
        f"{found['seeds']} runs of {found['rounds']} rounds take {found['one_after_the_other_s']:.0f} s one after the "
        f"other and {found['at_once_s']:.0f} s in {found['jobs']} processes. That is {found['speed_up']:.2f} times as "
        f"fast, {found['of_ideal']:.2f} of the ideal with {found['jobs']} cores. With two rounds per run, the same "
        f"commands take {found['fixed_one_after_the_other_s']:.1f} s and {found['fixed_at_once_s']:.1f} s: start-up, "
        f"data, results and report, which more rounds do not prolong. The rest is "
        f"{found['speed_up_of_the_rest']:.2f} times as fast. Memory grows from {found['one_after_the_other_mib']} to "
        f"{found['at_once_mib']} MiB. The load average before was "
        f"{found['load_average_before']:.1f}."
    )


def safeguard() -> str:
    """The cost of the checks of the returned model."""
    rows = []
    for job, found in stored("safeguard")["jobs"].items():
        for name, cost in found.items():
            if isinstance(cost, dict):
                time, least, most, sent = (f"{cost[key]:.2f}" for key in ("time_ratio", "least", "most", "bytes_ratio"))
                rows.append([job, name, time, f"{least} to {most}", sent])
    return markdown(["job", "algorithm", "time", "range", "bytes"], rows, text=2)


def sweep() -> str:
    """Compare a sweep with a loop of runs."""
    found = stored("sweep")
    seconds = found["seconds"]
    return paragraph(
        f"A sweep of {found['runs']} runs takes {seconds['sweep']:.0f} s in {found['jobs']} processes. The loop takes "
        f"{seconds['loop_per_run']:.1f} s per run, {found['factor']:.0f} times as long in all."
    )


def server() -> str:
    """Show the seconds of the server's arithmetic in a round."""
    rows = [[name, f"{row['wall_s']:.2f}", f"{row['cpu_s']:.2f}"] for name, row in stored("server")["rows"].items()]
    return markdown(["algorithm", "seconds", "seconds of the processor"], rows)


def overhead() -> str:
    """Divide the time of a round into its parts."""
    jobs = stored("overhead")["jobs"]
    lines = {f"{name}, {job}": line for job, found in jobs.items() for name, line in found.items()}
    parts = ["compute", "server", "draw", "project", "log", "test"]
    rows = [[part, *(f"{line[f'{part}_ms']:.2f}" for line in lines.values())] for part in parts]
    rows.append(["last four, %", *(f"{100 * line['share']:.1f}" for line in lines.values())])
    return markdown(["ms per round", *lines], rows)


def precision() -> str:
    """Compare time and accuracy of both precisions, accuracy as means over seeds."""
    found, rows = stored("precision"), []
    for name in dict.fromkeys(row["algorithm"] for row in found["accuracy"]):
        cells = []
        for kind in ("full", "bf16"):
            mine = [row for row in found["accuracy"] if (row["algorithm"], row["precision"]) == (name, kind)]
            cells += [f"{100 * sum(row[key] for row in mine) / len(mine):.1f}" for key in ("avg", "worst")]
        rows.append([name, *cells])
    seconds = found["median_s"]
    said = paragraph(f"""
        A round of the CNN takes {ms(seconds["bf16"])} ms in bfloat16 and {ms(seconds["full"])} ms in full precision
        (`{found["command"]} --data-dir DIR`, both in one run,
        [stored](../../benchmarks/results/precision.json)). The table has the accuracy of the CNN after
        {found["rounds"]} rounds, as means over {len({row["seed"] for row in found["accuracy"]})} seeds:
    """)
    head = ["accuracy %", "average, full", "worst, full", "average, bf16", "worst, bf16"]
    return f"{said}\n\n{markdown(head, rows)}"


def startup() -> str:
    """Show the seconds of new processes."""
    seconds = stored("startup")["seconds"]
    return markdown(["process", "s"], [[f"`{name}`", f"{s['median']:.2f}"] for name, s in seconds.items()])


def scaling() -> str:
    """Show how time and memory grow with clients, cohort, steps and parameters."""
    found = stored("scaling")
    names = list(found["clients"]["ratio_100000_to_1000"])
    rows = {(r["algorithm"], r["clients"]): r for r in found["clients"]["rows"]}
    widest = {r["algorithm"]: r for r in found["width"]["rows"]}
    full = {(r["algorithm"], r["on_disk"]): r for r in found["full"]["rows"] if r["clients"] == 100000}

    def of_full(kind: str, show: Callable[[float], str], *, on_disk: bool) -> list[str]:
        return [show(full[n, on_disk][kind]) if (n, on_disk) in full else "–" for n in names]

    lines = {
        "ms per round, N = 1,000": [ms(rows[n, 1000]["round_s"]) for n in names],
        "ms per round, N = 100,000": [ms(rows[n, 100000]["round_s"]) for n in names],
        "ratio of the two": [f"{found['clients']['ratio_100000_to_1000'][n]:.2f}" for n in names],
        "peak memory at N = 100,000, MiB": [f"{rows[n, 100000]['peak_mib']:.0f}" for n in names],
        "the same, all rows written, in a file: ms": of_full("round_s", ms, on_disk=True),
        "peak memory, MiB": of_full("peak_mib", "{:.0f}".format, on_disk=True),
        "all rows written, in memory: peak, MiB": of_full("peak_mib", "{:.0f}".format, on_disk=False),
        "slope of time against N, log–log": [f"{found['clients']['slopes'][n]:.2f}" for n in names],
        "against m": [f"{found['cohort']['slopes'][n]:.2f}" for n in names],
        "against τ": [f"{found['steps']['slopes'][n]:.2f}" for n in names],
        "s per round, d = 11.1 million, τ = 2": [f"{widest[n]['round_s']:.1f}" for n in names],
        "cohort buffers at the peak": [f"{widest[n]['cohort_buffers']:.1f}" for n in names],
    }
    return markdown(["", *names], [[name, *cells] for name, cells in lines.items()])


def million() -> str:
    """Compare a million clients with a thousand, and updated sums with reading all rows."""
    found = stored("million")

    def least(part: dict[str, Any], which: int, kind: str) -> float:
        return min(pair[which][kind] for pair in part["pairs"])

    names = list(found["clients"])
    parts = [found["clients"][name] for name in names]
    lines = {
        "ms per round, N = 1,000": [ms(least(p, 0, "round_s")) for p in parts],
        "ms per round, N = 1,000,000": [ms(least(p, 1, "round_s")) for p in parts],
        "ratio": [f"{p['ratio']:.2f}" for p in parts],
        "evaluation at N = 1,000,000, s": [f"{least(p, 1, 'evaluate_s'):.2f}" for p in parts],
        "peak memory with it, MiB": [f"{least(p, 1, 'peak_evaluated_mib'):.0f}" for p in parts],
    }
    sums = [
        [name, ms(least(p, 0, "round_s")), ms(least(p, 1, "round_s")), f"{p['ratio']:.0f}"]
        for name, p in found["sums"].items()
    ]
    load = ", ".join(f"{one[0]:.1f}" for one in found["load_averages"])
    first = markdown(["", *names], [[name, *cells] for name, cells in lines.items()])
    second = markdown(["100,000 rows in a file", "updated sums, ms", "all rows read, ms", "ratio"], sums)
    said = f"Each time is the fastest of {len(parts[0]['pairs'])} processes. Load averages before and after: {load}"
    return f"{first}\n\n{second}\n\n{said}, on {found['device']}."


OPERATIONS = ("project", "prox", "worst_case")


def ray() -> str:
    """Show cells, runs and messages on Ray nodes of one CPU."""
    found = stored("ray_cluster")
    rows = [
        [f"40 cells, {where}, {count}", f"{row['whole_s']:.0f} s", f"{row['cells_s']:.0f} s"]
        for row in found["cells"]
        for where, count in [row["setting"]]
    ]
    cells = markdown(["", "total", "without the start of the cluster"], rows)
    places = dict.fromkeys(tuple(row["setting"][1:3]) for row in found["run"])
    times = {tuple(row["setting"][:3]): row["round_ms"] for row in found["run"]}
    runs = markdown(
        ["ms per round of DRFA", *(f"{where}, {count}" for where, count in places)],
        [[model, *(f"{times[model, *place]:.3g}" for place in places)] for model in ("linear", "cnn")],
    )
    load = f"Measured on {found['device']}. The load average before was {found['load_before'][0]:.1f}."
    return f"{cells}\n\n{runs}\n\n{paragraph(_ray_summary(found))}\n\n{paragraph(load)}"


def _ray_summary(found: Found) -> str:
    one, lost, many = found["message"][0], found["lost"][0], found["many"][0]
    return (
        f"A request for losses takes {one['ray_losses_ms']:.1f} ms with a worker and {one['plain_losses_ms']:.1f} ms "
        f"without Ray. Sending 1,000 linear models, 31 MB, takes {one['ray_31_mb_of_models_ms']:.0f} ms with one "
        f"worker and {one['plain_31_mb_of_models_ms']:.0f} ms without. With N = 100,000 and a CNN of {many['d']:,} "
        f"parameters, a round of 5,000 clients with one step each takes {many['round_s']:.0f} s on two workers. Their "
        f"models would need {many['models_mib']:,} MiB; the calling program's peak is {many['driver_peak_mib']:,} MiB. "
        f"The loss of one of four machines in round 5 of 10 costs {lost['lost_s'] - lost['whole_s']:.0f} s. The result "
        f"is bitwise that of the run without the loss, and differs by {lost['from_plain']:.0e} from a run without Ray."
    )


def many_machines() -> str:
    """Calculate a round of 10⁶ clients on 100 machines by the formula of the page."""
    found = stored("ray_cluster")
    times = {tuple(row["setting"][:3]): row for row in found["run"]}
    one, two = (row["ray_losses_ms"] / 1e3 for row in found["message"])
    message = two - one  # the time that a second worker adds, as messages overlap
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
    head = ["s per round of DRFA", "local work", "draws", "messages", "total, sums", "total, models"]
    told = (
        f"The numbers are for c, q and o as measured above, {workers:,} cores, 10 Gbit/s, τ = {steps} and B = {batch}. "
        "The calling program makes all draws, here for one step of eight samples per client."
    )
    return f"{markdown(head, rows)}\n\n{paragraph(told)}"


GPU_MODELS = {
    "linear": "linear, 3×32×32",
    "cnn": "DRDM's CNN, 3×32×32",
    "cnn-28": "DRDM's CNN, 1×28×28",
    "lstm": "LSTM, 20 tokens",
    "resnet18": "ResNet-18, 3×32×32",
}


def gpu_agreement() -> str:
    """Show how far a CUDA device is from the CPU, by type."""
    rows = [row for row in stored("gpu/correctness")["rows"] if row["check"] == "pairs"]
    cells = []
    for kind, allowed in (("float64", "1e-9"), ("float32", "1e-3"), ("bf16", "0.3")):
        compared = [row for row in rows if row["type"] == kind and "distance" in row]
        largest = max(row["distance"] for row in compared)
        refused = sum(row["type"] == kind and "refused" in row for row in rows)
        cells.append([kind, str(len(compared)), str(refused), f"{largest:.1e}", allowed])
    return markdown(["type", "compared", "refused as documented", "largest distance", "allowed"], cells)


def gpu_rounds() -> str:
    """Compare rounds of drfl on a CUDA device with plain PyTorch and pfl-research."""
    measured = [row for row in stored("gpu/speed")["rows"] if row["check"] == "engine" and "median_ms" in row]
    own = {(row["model"], row["engine"], row["precision"], row["graphs"]): row["median_ms"] for row in measured}
    others = {(row["model"], row["framework"]): row.get("median_ms") for row in stored("gpu/rivals")["rows"]}
    rows = []
    for name, label in GPU_MODELS.items():
        time = own[name, "auto", "full", True]
        bf16 = own.get((name, "auto", "bf16", True))
        rivals = [others.get((name, framework)) for framework in ("plain PyTorch", "pfl")]
        cells = ["–" if value is None else ms(value / 1e3) for value in (time, bf16, *rivals)]
        ratios = ["–" if value is None else f"{value / time:.1f}" for value in rivals]
        rows.append([label, *cells, *ratios])
    head = ["model", "drfl, ms", "bf16, ms", "plain, ms", "pfl, ms", "plain / drfl", "pfl / drfl"]
    return markdown(head, rows)


def gpu_algorithms() -> str:
    """Show what a round consists of on a CUDA device."""
    rows = []
    for row in stored("gpu/speed")["rows"]:
        if row["check"] == "algorithm":
            seen = row["profile"]
            cells = [f"{100 * seen['share_in_kernels']:.0f}", f"{seen['launches']:.0f}"]
            cells += [f"{seen['synchronisations']:.0f}", str(row["captures"])]
            rows.append([row["algorithm"], row["model"], ms(row["median_ms"] / 1e3), *cells])
    head = ["algorithm", "model", "ms per round", "% in kernels", "launches", "synchronisations", "graphs captured"]
    return markdown(head, rows, text=2)


def gpu_cohorts() -> str:
    """Show time and memory of cohorts of several sizes on a CUDA device."""
    found = [row for row in stored("gpu/speed")["rows"] if row["check"] == "cohort" and "median_ms" in row]
    rows = [[str(row["m"]), ms(row["median_ms"] / 1e3), str(row["peak_mib"])] for row in found]
    return markdown(["clients per round", "ms per round", "peak MiB"], rows, text=0)


def gpu_table() -> str:
    """Show the methods of DRDM's Table 1 on a CUDA device."""
    rows = []
    for row in stored("gpu/table")["rows"]:
        scores = [f"{100 * row[name]:.1f}" for name in ("worst_accuracy", "avg_accuracy")]
        rows.append([row["method"], f"{row['seconds']:.1f}", *scores])
    return markdown(["method", "seconds", "worst accuracy, %", "mean accuracy, %"], rows)


def ambiguity() -> str:
    """Show the milliseconds of the ambiguity sets' operations on the slowest input."""
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
    "speed.gpu-agreement": gpu_agreement,
    "speed.gpu-rounds": gpu_rounds,
    "speed.gpu-algorithms": gpu_algorithms,
    "speed.gpu-cohorts": gpu_cohorts,
    "speed.gpu-table": gpu_table,
    "speed.models": people,
    "speed.models-engines": people_engines,
    "speed.auto": auto,
    "speed.loaded": loaded,
    "speed.parallel": parallel,
    "speed.safeguard": safeguard,
    "speed.sweep": sweep,
    "speed.server": server,
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
"""Page and block → function that writes it."""
