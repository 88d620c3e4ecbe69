"""Measure time per round and memory against the number of clients N, cohort m, parameters d and local steps τ.

    python benchmarks/scaling.py [--only clients,full,cohort,width,steps] [--rounds 15] [--folder DIR] [--smoke]

Every setting runs in its own process, so that its peak resident memory is its own; the samples are in a file mapped
into memory, in DIR. Times are medians over the rounds after three warm-up rounds, or over two rounds after one if d is
large. The script prints tables and writes results/scaling.json.

Cohort buffers are m·d numbers of the model's type: the amount by which the peak of the first rounds exceeds the peak
before them, minus that of a run with m = 1. Slopes are least squares on log–log axes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from jobs import RESULTS, script, store

from drfl import DRDM, DRFA, SCAFFOLD, DualDRDM, FedAvg, Key, LocalSGD, ScaffPD, Simplex, Simulation, Task
from drfl.algorithms import weighted_sum
from drfl.algorithms.drdm import DualDRDMState
from drfl.algorithms.scaffpd import ScaffPDState
from drfl.algorithms.weighted_sum import WeightedRows, WeightedSum
from drfl.data import ClientData
from drfl.federation.algorithm import Algorithm, State
from drfl.federation.client_table import ClientTable

MORE = {"FedAvg": FedAvg, "SCAFFOLD": SCAFFOLD, "DRDM": DRDM, "DualDRDM": DualDRDM, "DRFA": DRFA, "ScaffPD": ScaffPD}
ALGORITHMS = script.sized(("FedAvg", "SCAFFOLD", "DRDM", "DualDRDM"), ("DualDRDM",))
FEATURES, CLASSES, SAMPLES = 784, 10, 40
POOL = script.sized(20_000, 1000)
"""Samples in the file; clients share them if there are too few."""

FEW, MANY = script.sized((1_000, 100_000), (10, 20))
CLIENTS = script.sized([100, FEW, 10_000, MANY], [FEW, MANY])
COHORTS = script.sized([5, 10, 20, 50, 100], [2, 4])
WIDTHS = script.sized([0, 128, 1_024, 4_096, 14_000], [8])
"""Units of the hidden layer; 0 = the linear model with 7,850 parameters. 14,000 units have 11.1 million."""

STEPS = script.sized([1, 5, 10, 20, 50], [1, 2])
BASE = {"algorithm": "FedAvg", "clients": FEW, "cohort": script.sized(20, 3), "width": 0, "steps": 10}
BASE |= {"filled": False, "on_disk": False, "floor": 0.0, "follow": True}
"""``floor`` is N times the floor of λ; ``follow`` is whether sums weighted by λ are updated or read all rows."""


def make_pool(folder: Path) -> None:
    """Write the samples once and in pieces, (POOL, 784) float32, and return them with their labels."""
    inputs = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (POOL, FEATURES))
    rng = np.random.default_rng(0)
    for start in range(0, POOL, 1000):
        inputs[start : start + 1000] = rng.random((1000, FEATURES), dtype=np.float32)
    np.save(folder / "y.npy", rng.integers(0, CLASSES, POOL))


def make_data(folder: Path, clients: int) -> ClientData:
    """Create clients with 40 training and 2 test samples each, drawn from the pool."""
    x = torch.from_numpy(np.load(folder / "x.npy", mmap_mode="c"))
    y = torch.from_numpy(np.load(folder / "y.npy"))
    rows = torch.from_numpy(np.random.default_rng(1).integers(0, POOL, (clients, SAMPLES + 2)))
    train, test = rows[:, :SAMPLES].contiguous().unbind(), rows[:, SAMPLES:].contiguous().unbind()
    return ClientData(x, y, train, x, y, test, tuple(f"client-{i}" for i in range(clients)))


def make_model(width: int) -> torch.nn.Module:
    """Create a linear model, or one with a hidden layer."""
    with Key(0).fold("model").torch_scope():
        if not width:
            return torch.nn.Linear(FEATURES, CLASSES)
        layers = torch.nn.Linear(FEATURES, width), torch.nn.ReLU(), torch.nn.Linear(width, CLASSES)
        return torch.nn.Sequential(*layers)


def algorithm_of(setting: dict) -> Algorithm:
    """Return the algorithm of a setting."""
    local = LocalSGD(steps=setting["steps"], lr=0.01, batch=32)
    lam = {"ambiguity": Simplex(setting["floor"] / setting["clients"])} if setting["floor"] else {}
    return MORE[setting["algorithm"]](m=setting["cohort"], local=local, **lam)


def filled(state: State) -> State:
    """Return the state after every client has taken part: all rows of its table have small numbers."""
    if isinstance(state, ScaffPDState):
        reports, losses = filled(state.reports), torch.linspace(2.2, 2.4, len(state.lam), dtype=torch.float64)
        c = followed(state, state.reports.c, reports.c, losses)
        reports = reports._replace(losses=losses, seen=torch.ones_like(reports.seen))
        return state._replace(reports=reports, c=c)
    name, table = next((name, part) for name, part in state._asdict().items() if isinstance(part, ClientTable))
    empty = table
    for clients in torch.arange(table.n).split(1000):
        rows = (torch.full(table.shape[1:], 1e-6 * (i % 7)) for i in clients.tolist())
        table = table.put(clients, rows)
    sums = {"c": followed(state, empty, table)} if isinstance(state, DualDRDMState) else {}
    return state._replace(**{name: table}, **sums)


def followed(
    state: DualDRDMState | ScaffPDState, empty: ClientTable, table: ClientTable, along: torch.Tensor | None = None
) -> WeightedSum | None:
    """Return the sums of a state whose table was empty, over the rows of another one."""
    before, now = WeightedRows(empty, state.lam, along), WeightedRows(table, state.lam, along)
    return state.c and state.c.after(before, now, table.clients, state.lam)


def memory(field: str) -> float:
    """Return the MiB of a field of /proc/self/status, such as VmHWM, the peak of resident memory."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) / 1024


def measure(setting: dict) -> dict[str, float]:
    """Measure one setting in this process."""
    torch.set_num_threads(setting["threads"])
    weighted_sum.FEW = weighted_sum.FEW if setting["follow"] else setting["clients"]
    start = time.perf_counter()
    data = make_data(Path(setting["folder"]), setting["clients"])
    built = time.perf_counter() - start
    fed, algorithm = Simulation(data, Task(make_model(setting["width"]))), algorithm_of(setting)
    fed.table_dir = setting["folder"] if setting["on_disk"] else None
    before, state, times = memory("VmHWM"), algorithm.init(fed), []
    state = filled(state) if setting["filled"] else state
    for r in range(setting["warm"] + setting["rounds"]):
        start = time.perf_counter()
        state, _ = algorithm.round(state, fed, Key(0).fold("round", r))
        times.append(time.perf_counter() - start)
    peak, start = memory("VmHWM"), time.perf_counter()
    fed.evaluate(state.w)
    return {
        "evaluate_s": round(time.perf_counter() - start, 4),
        "d": fed.w0.numel(),
        "build_s": round(built, 3),
        "round_s": round(statistics.median(times[setting["warm"] :]), 6),
        "before_mib": round(before, 1),
        "peak_mib": round(peak, 1),
        "peak_evaluated_mib": round(memory("VmHWM"), 1),
        "resident_mib": round(memory("VmRSS"), 1),
        "of_it_files_mib": round(memory("RssFile"), 1),
    }


def in_a_process(setting: dict) -> dict[str, float]:
    """Measure one setting in a new process."""
    found = json.loads(script.again(__file__, main, ["--one", json.dumps(setting)]).splitlines()[-1])
    shown = {name: setting[name] for name in BASE}
    print(
        " ".join(map(str, shown.values())), f"{1e3 * found['round_s']:.2f} ms, peak {found['peak_mib']} MiB", flush=True
    )
    return {**shown, **found}


def slope(xs: list[float], ys: list[float]) -> float:
    """Fit the exponent of y ~ x^slope by least squares."""
    return round(float(np.polyfit(np.log(xs), np.log(ys), 1)[0]), 3)


def swept(axis: str, values: list[int], common: dict) -> dict[str, object]:
    """Measure all algorithms along one axis, and the slopes of the times."""
    rows, slopes = [], {}
    for name in ALGORITHMS:
        found = [in_a_process({**common, "algorithm": name, axis: value}) for value in values]
        slopes[name] = slope(values, [row["round_s"] for row in found])
        rows += found
    return {"rows": rows, "slopes": slopes}


def along_clients(common: dict) -> dict[str, object]:
    """Measure N from 10² to 10⁵, and how much slower the round of the largest N is than that of N = 1,000."""
    found = swept("clients", CLIENTS, common)
    times = {(row["algorithm"], row["clients"]): row["round_s"] for row in found["rows"]}
    ratios = {name: round(times[name, MANY] / times[name, FEW], 3) for name in ALGORITHMS}
    return {**found, "ratio_100000_to_1000": ratios}


def with_full_tables(common: dict) -> dict[str, object]:
    """Measure N = 10⁵ after every client has taken part, with rows in memory and in a file, and N = 1,000."""
    rows = []
    for name in (name for name in ALGORITHMS if name != "FedAvg"):
        for clients, on_disk in script.sized(tuple(itertools.product((FEW, MANY), (False, True))), ((MANY, True),)):
            setting = {**common, "algorithm": name, "clients": clients, "filled": True, "on_disk": on_disk}
            rows.append(in_a_process(setting))
    return {"rows": rows}


def along_widths(common: dict) -> dict[str, object]:
    """Measure d up to 11 million: time, and the peak in cohort buffers above that of a cohort of one.

    N = m, so that the table has only one cohort's rows.
    """
    rows = []
    for name in ALGORITHMS:
        for width in WIDTHS:
            few = {"rounds": 2, "warm": 1} if width >= 1_024 else {}
            setting = {**common, **few, "algorithm": name, "width": width, "clients": common["cohort"], "steps": 2}
            one, row = in_a_process({**setting, "cohort": 1}), in_a_process(setting)
            grown = row["peak_mib"] - one["peak_mib"]
            vector = row["d"] * 4 / 2**20
            rows.append({**row, "cohort_buffers": round(grown / ((setting["cohort"] - 1) * vector), 2)})
    return {"rows": rows}


def main() -> None:
    """Measure the selected parts."""
    sweeps: dict[str, Callable[[dict], dict[str, object]]] = {
        "clients": along_clients,
        "full": with_full_tables,
        "cohort": lambda common: swept("cohort", COHORTS, common),
        "width": along_widths,
        "steps": lambda common: swept("steps", STEPS, common),
    }
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--only", default=",".join(sweeps), help="parts; stores nothing unless all are named")
    parser.add_argument("--rounds", type=int, default=script.sized(15, 1))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(json.loads(options.one))))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        make_pool(Path(folder))
        common = {**BASE, "folder": folder, "rounds": options.rounds, "warm": 3, "threads": options.threads}
        found = {name: sweeps[name](common) for name in options.only.split(",")}
    about = {"rounds": options.rounds, "threads": options.threads, "base": BASE}
    for name, part in found.items():
        print(name, {key: value for key, value in part.items() if key != "rows"})
    if len(found) < len(sweeps):
        print("not stored: only a part was measured")
        return
    store(options.out, "scaling", "python benchmarks/scaling.py", {**about, **found})


if __name__ == "__main__":
    main()
