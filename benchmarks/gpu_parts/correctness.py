"""Compare the device with the CPU, for algorithms, engines and models in pairwise combinations.

The reference is the loop engine on the CPU. Three rounds of both are compared after each round: the distance of the two
global models relative to how far the model has moved since the start, and the reported losses. A round in which λ drew
another cohort ends the comparison, except in float64, where both must draw the same.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast
from unittest import mock

import torch
from jobs import script
from torch import Tensor, nn

import drfl
from drfl import ALGORITHMS, Algorithm, Checkpoints, LocalSGD, Simulation, State, Task
from drfl.core.errors import DrflError, InputError
from drfl.engine import Auto, Engine, Loop, Stacked, Threads, stacked
from drfl.optim.local_optimizers import SAM, Adam
from gpu_parts.networks import NETWORKS, small_clients, small_task
from gpu_parts.pairs import Case, all_pairs, pairs_of
from gpu_parts.report import Report

ENGINES: Mapping[str, Engine] = {"auto": Auto(), "stacked": Stacked(), "loop": Loop(), "threads": Threads()}
LOCALS = {
    "plain": LocalSGD(steps=3, lr=0.05, batch=8),
    "momentum": LocalSGD(steps=3, lr=0.05, batch=8, momentum=0.5, weight_decay=0.01),
    "full batch": LocalSGD(steps=3, lr=0.05, batch=None),
    "radius": LocalSGD(steps=3, lr=0.05, batch=8, radius=2.0),
    "sam": LocalSGD(steps=3, lr=0.05, batch=8, optimizer=SAM()),
    "adam": LocalSGD(steps=3, lr=0.002, batch=8, optimizer=Adam()),
}
SUMS = ("DRDM", "DualDRDM", "FedDyn", "FedNova", "QFedAvg", "AFL", "SCAFFOLD", "ScaffPD")
"""Algorithms that use updates as sums of gradients, so that they refuse SAM and Adam."""
UNBOUNDED = ("FedNova", "SCAFFOLD", "ScaffPD")
"""Algorithms that also refuse a radius."""
FACTORS = {
    "algorithm": list(ALGORITHMS),
    "engine": list(ENGINES),
    "model": list(NETWORKS),
    "type": ["float64", "float32", "bf16"],
    "graphs": ["on", "off"],
    "local": list(LOCALS),
}
TOLERANCES = {"float64": 1e-9, "float32": 1e-3, "bf16": 0.3}
"""Largest relative distances. Sums in another order cost float32 about 1e-6 per step, and a ReLU near 0 more; bfloat16
has eight significant bits, so its rounding is a few per cent of an update, and more in Adam's first steps."""

ROUNDS, M = script.sized((3, 4), (1, 3))
Round = tuple[Tensor, Tensor, Tensor | None]
"""The cohort, the model and the reported losses."""


def allowed(case: Mapping[str, str]) -> bool:
    """Return whether drfl accepts a combination; :func:`refusals` tries others."""
    local, algorithm = case.get("local"), case.get("algorithm")
    return not ((local in ("sam", "adam") and algorithm in SUMS) or (local == "radius" and algorithm in UNBOUNDED))


@contextmanager
def graphs(on: bool) -> Iterator[None]:
    """Run the local steps with CUDA graphs, or call by call."""
    replay = stacked.replay

    def without(task, name, function, arguments, make, *rest):  # noqa: ANN001, ANN002, ANN202
        return function if make is stacked.capture else replay(task, name, function, arguments, make, *rest)

    with mock.patch.object(stacked, "replay", replay if on else without):
        yield


def simulation(case: Mapping[str, str], device: str, engine: Engine) -> Simulation:
    """Return the clients of a case."""
    dtype = torch.float64 if case["type"] == "float64" else torch.float32
    precision = "bf16" if case["type"] == "bf16" else "full"
    data, task = small_clients(case["model"], dtype), small_task(case["model"], dtype)
    return Simulation(data, task, engine=engine, device=device, precision=precision)


def algorithm_of(case: Mapping[str, str]) -> Algorithm[State]:
    """Return the algorithm of a case."""
    cls, local = ALGORITHMS[case["algorithm"]], LOCALS[case["local"]]
    known = {field.name for field in dataclasses.fields(cls)}
    if case["algorithm"] == "AFL":  # takes one step per round
        local = dataclasses.replace(local, steps=1)
    return cls(**{key: value for key, value in {"m": M, "local": local}.items() if key in known})


def rounds_of(case: Mapping[str, str], device: str, engine: Engine) -> list[Round]:
    """Run a case and return its rounds, on the CPU."""
    found: list[Round] = []

    def record(progress: drfl.RunState) -> None:
        if progress.info is not None:
            losses = progress.info.losses
            cohort = progress.info.cohort.clients
            found.append((cohort, progress.state.w.cpu().clone(), None if losses is None else losses.values))

    fed = simulation(case, device, engine)
    drfl.run(algorithm_of(case), fed, rounds=ROUNDS, evaluate_every=ROUNDS, callbacks=[record], check_data=False)
    return found


def difference(case: Mapping[str, str], reference: list[Round], found: list[Round]) -> tuple[float, int]:
    """Return the largest relative distance, and how many rounds were compared."""
    start, worst, compared = small_task(case["model"], torch.float64).w0, 0.0, 0
    for (cohort, w, losses), (other_cohort, other, other_losses) in zip(reference, found, strict=True):
        if not torch.equal(cohort, other_cohort):
            if case["type"] == "float64":
                return float("inf"), compared
            break
        moved = (w.double() - start).norm().clamp(min=1e-12)
        worst = max(worst, float((other.double() - w.double()).norm() / moved))
        if losses is not None and other_losses is not None and len(losses):
            worst = max(worst, float((losses - other_losses).abs().max() / losses.abs().max()))
        compared += 1
    return (worst, compared) if compared else (float("inf"), 0)


def compare(case: Case, device: str) -> dict[str, object]:
    """Run a case on the device and on the CPU."""
    try:
        with graphs(case["graphs"] == "on"):
            found = rounds_of(case, device, ENGINES[case["engine"]])
    except InputError as error:
        # cuDNN's recurrent layers have no rule in vmap, so that explicit stacking is refused; Auto must not fail.
        fine = device != "cpu" and case["engine"] == "stacked" and case["model"] in ("lstm", "transformer")
        return {"ok": fine, "refused": f"{error.code}: {error}"}
    except Exception as error:  # run the other cases even if the device fails in this one
        return {"ok": False, "error": f"{type(error).__name__}: {error}"[:400]}
    distance, compared = difference(case, rounds_of(case, "cpu", Loop()), found)
    return {"ok": distance <= TOLERANCES[case["type"]], "distance": distance, "rounds": compared}


def measure(report: Report) -> None:
    """Run all checks, the most important first."""
    special(report)
    cases = all_pairs(FACTORS, allowed)
    failed, covered, wanted = 0, set(), set().union(*map(pairs_of, cases))
    for number, case in enumerate(cases[: script.sized(None, 5)]):
        if report.is_over:
            break
        result = compare(case, report.device)
        failed += not result["ok"]
        covered |= pairs_of(case)
        report.add(check="pairs", case=number, **case, **result)
    report.summarise(cases=len(cases), failed=failed, pairs=len(wanted), pairs_covered=len(covered))


def special(report: Report) -> None:
    """Check refusals, full memory, and equal bits of repeated and resumed runs."""
    for name, result in refusals(report.device).items():
        report.add(check="refusal", case=name, **result)
    report.add(check="out of memory", **out_of_memory(report.device))
    runs = [("lstm", "auto"), ("cnn", "auto"), ("groupnorm", "stacked"), ("transformer", "threads")]
    for model, engine in runs[: script.sized(None, 1)]:
        if report.is_over:
            return
        case = {**CASE, "model": model, "engine": engine}
        try:
            report.add(check="equal bits", model=model, engine=engine, **equal_bits(case, report.device))
        except Exception as error:  # reported like a failed comparison
            report.add(check="equal bits", model=model, engine=engine, ok=False, error=f"{error}"[:400])


CASE = {"algorithm": "DualDRDM", "model": "linear", "type": "float32", "graphs": "on", "local": "plain"}


def equal_bits(case: Mapping[str, str], device: str) -> dict[str, object]:
    """Repeat a run, and interrupt and resume it: both must give the same bits."""

    def model(rounds: int, checkpoints: Checkpoints | None = None) -> Tensor:
        fed = simulation(case, device, ENGINES[case["engine"]])
        result = drfl.run(
            algorithm_of(case), fed, rounds=rounds, evaluate_every=2, checkpoints=checkpoints, check_data=False
        )
        return result.state.w.cpu()

    whole, again = model(4), model(4)
    with tempfile.TemporaryDirectory() as folder:
        model(2, Checkpoints(folder, every=1))
        resumed = model(4, Checkpoints(folder, every=1))
    repeats, resumes = torch.equal(whole, again), torch.equal(whole, resumed)
    return {"ok": repeats and resumes, "repeat": repeats, "resume": resumes}


class Doubling(torch.autograd.Function):
    """A function for which vmap has no rule."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        """Double."""
        return 2 * x

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:
        """Double."""
        return 2 * g


class NotStackable(nn.Module):
    """A linear model that ``vmap`` rejects."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = NETWORKS["linear"]()

    def forward(self, x: Tensor) -> Tensor:
        """Compute scores."""
        return cast("Tensor", Doubling.apply(self.linear(x)))


class Branching(NotStackable):
    """A linear model whose forward pass reads a value, so that it can be neither stacked nor captured."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute scores."""
        size = next(self.linear.parameters()).norm()
        return cast("Tensor", self.linear(x) / (size if float(size) > 1 else 1))


def refusals(device: str) -> dict[str, dict[str, object]]:
    """Try what must be refused, and in the last rows models that must run although they cannot be stacked."""
    data, task = small_clients("linear", torch.float32), small_task("linear", torch.float32)

    def double_bf16() -> object:
        case = {**CASE, "type": "float64"}
        return Simulation(
            small_clients(case["model"], torch.float64), small_task("linear", torch.float64), device=device,
            precision="bf16",
        )  # fmt: skip

    def tables() -> object:
        with tempfile.TemporaryDirectory() as folder:
            fed = Simulation(data, task, device=device)
            return drfl.run(algorithm_of(CASE), fed, rounds=1, table_dir=folder, check_data=False)

    odd, branching = Task(NotStackable()), Task(Branching())
    attempts = {
        "bf16 with float64": (double_bf16, "unsupported-combination"),
        "a device that does not exist": (lambda: Simulation(data, task, device="cuda:99"), "device-missing"),
        "stacking without a rule for vmap": (
            lambda: Simulation(data, odd, device=device, engine=Stacked()), "unsupported-model",
        ),
        "tables in files": (tables, None if device == "cpu" else "unsupported-combination"),
        "auto without a rule for vmap": (
            lambda: drfl.run(algorithm_of(CASE), Simulation(data, odd, device=device), rounds=1, check_data=False),
            None,
        ),
        "auto with a branch on a value": (
            lambda: drfl.run(
                algorithm_of(CASE), Simulation(data, branching, device=device), rounds=1, check_data=False
            ),
            None,
        ),
    }  # fmt: skip
    found: dict[str, dict[str, object]] = {}
    for name, (attempt, code) in attempts.items():
        try:
            attempt()
            found[name] = {"ok": code is None, "refused": None}
        except InputError as error:
            found[name] = {"ok": error.code == code, "refused": f"{error.code}: {error}"}
        except Exception as error:  # an exception other than drfl's errors is a fault
            found[name] = {"ok": False, "error": f"{type(error).__name__}: {error}"[:400]}
    return found


def out_of_memory(device: str) -> dict[str, object]:
    """Run on a sliver of the card's memory: drfl must end with its own error, in one line."""
    if device == "cpu":
        return {"ok": True, "skipped": "needs a CUDA device"}
    torch.cuda.empty_cache()
    reserved, total = torch.cuda.memory_reserved(), torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((reserved + 2**27) / total)
    try:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.Linear(4096, 10))
        fed = Simulation(small_clients("linear", torch.float32), Task(model), device=device, engine=Stacked())
        drfl.run(algorithm_of(CASE), fed, rounds=1, check_data=False)
    except DrflError as error:
        return {"ok": error.code == "out-of-memory" and "\n" not in str(error), "error": str(error)}
    except Exception as error:  # a traceback, which is the fault that this looks for
        return {"ok": False, "error": f"{type(error).__name__}: {error}"[:400]}
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
    return {"ok": False, "error": "did not run out of memory"}
