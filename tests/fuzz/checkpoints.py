"""Checkpoints of small runs in which something is changed, with checksums that fit what they hold then."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load, save

from drfl.checkpoint import Checkpoints, resume_point
from drfl.checkpoint.signatures import signature
from drfl.checkpoint.store import sums_of
from drfl.errors import DivergedError, DrflError
from drfl.experiments.artifacts import write_run
from drfl.experiments.build import build
from drfl.experiments.config import Config
from drfl.experiments.resume import check_same, identity
from drfl.loop import run
from drfl.report import load_run

from .binaries import rewritten_header
from .judge import Parser
from .mutate import damaged, written

ROUNDS, OLDER, NEWER = 5, 2, 4
KEY = bytes(range(32))
STATE, RUN, SUMS, SIGNATURE = "state.safetensors", "run.json", "SHA256SUMS", "HMAC-SHA256"
SMALL = {"clients": 5, "rounds": ROUNDS, "steps": 1, "batch": 4, "engine": "loop", "threads": 1}
ALIKE = {
    "FedAvg": {},
    "DRDM": {},
    "SCAFFOLD": {"guards": ("none",)},
    "ScaffPD": {},
    "DualDRDM": {"faults": {"drop": 0.3, "outage": 0.1, "groups": 2}, "guards": ("robust:k=3", "clip:bound=9")},
    "DRFA": {"certificate": "pooled", "evaluate_every": 2},
    "AFL": {"averaged": True, "min_replies": 2},
}
"""Runs by their algorithms: with tables, wrappers, certificates and averages."""

VALUES = (
    None, True, False, -1, 0, 1, 3, 4, 7, 2.0, 2.5, -0.5, 1e300, 1e999, -1e999, float("nan"), 10**400, 2**63, -(2**63),
    "", "2", "x", "a\nb", "\ud800", "x" * 5000, [], [2], {}, {"a": {"b": []}},
)  # fmt: skip
NUMBERS = (
    float("nan"),
    float("inf"),
    -float("inf"),
    -1.0,
    0.0,
    1.0,
    0.5,
    1e30,
    -1e30,
    1e200,
    2.0**62,
    -(2.0**63),
    1e-300,
)
TYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int32, torch.int64, torch.uint8,
    torch.bool,
)  # fmt: skip


class Base(NamedTuple):
    """A run that can go on, and the files of its two checkpoints by round."""

    job: object
    files: dict


class Changed(NamedTuple):
    """A checkpoint in which something was changed.

    Args:
        algorithm: whose.
        name: of its folder.
        files: by name.
        wrong: whether it must not be used, whatever else it may be good for.
        key: with which it must be signed; None = it need not.
    """

    algorithm: str
    name: str
    files: dict
    wrong: bool
    key: bytes | None = None


@functools.cache
def base(algorithm):
    """One of the runs."""
    job = build(Config(algorithm=algorithm, **SMALL, **ALIKE[algorithm]))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        go_on(job, None, Checkpoints(place, lambda: identity(job), 2))
        return Base(job, {r: timeless(place / f"round-{r:08d}") for r in (OLDER, NEWER)})


def go_on(job, start, keep):
    """The run to its end."""
    options = {name: getattr(job.config, name) for name in ("rounds", "seed", "evaluate_every", "averaged")}
    return run(job.algorithm, job.fed, certify=job.certify, start=start, keep=keep, **options)


def timeless(path):
    """The files of a checkpoint as if it had taken a second for each row: inputs must be the same every time."""
    tensors, content = load((path / STATE).read_bytes()), json.loads((path / RUN).read_text())
    tensors["history.seconds"] = torch.arange(len(tensors["history.seconds"]), dtype=torch.float64)
    return {STATE: save(tensors), RUN: json.dumps({**content, "seconds": 9.0}).encode()}


def summed(files, name, key=None):
    """The files with checksums, and with a signature where there is a key."""
    sums = sums_of(files)
    return {**files, SUMS: sums, **({} if key is None else {SIGNATURE: signature(key, name, sums)})}


def changed(rng):
    """A newer checkpoint with one to three changes."""
    algorithm = rng.choice(list(ALIKE))
    files, name = dict(base(algorithm).files[NEWER]), f"round-{NEWER:08d}"
    times = rng.choice((0, 1, 1, 1, 1, 1, 1, 1, 2, 3))
    wrong, changes = False, [rng.choice(CHANGES) for _ in range(times)]
    for change in sorted(dict.fromkeys(changes), key=CHANGES.index):  # those that leave no JSON behind come last
        files, certain = change(rng, files)
        wrong = certain and times == 1  # several might make good for each other
    if times and rng.random() < 0.05:
        name, wrong = rng.choice(("round-00000003", "round-4", "round-99999999", "round-000000004")), True
    return Changed(algorithm, name, summed(files, name), wrong)


def record(rng, files):
    """Another value, or none, in run.json."""
    content = json.loads(files[RUN])
    known = content["identity"]
    part = rng.choice((content, content, content, content["ledger"], known, known["config"], known["versions"]))
    name, kind = rng.choice(list(part)), rng.randrange(5)
    certain = False
    if kind == 0:
        del part[name]
        certain = part is content or part is known or part is content["ledger"]
    elif kind == 1:
        part[rng.choice(("x", "", "a\nb", "round", "format"))] = rng.choice(VALUES)
    elif kind == 2:
        part[name + "s"] = part.pop(name)
    elif kind == 3 and part is content:
        part["round"], part["skipped"] = rng.choice(((3, 0), (4, 5), (6, 0), (10**9, 0), (4, -1), (0, 0), (2**53, 1)))
        certain = part["round"] != NEWER or part["skipped"] not in (0, 1)
    else:
        part[name] = rng.choice(VALUES)
    return {**files, RUN: json.dumps(content).encode()}, certain


def text(rng, files):
    """Other words or bytes in run.json."""
    return {**files, RUN: written(rng, files[RUN].decode())}, False


def header(rng, files):
    """Another header of the tensors, or other bytes."""
    data = files[STATE]
    if rng.random() < 0.3:
        return {**files, STATE: damaged(rng, data)}, False
    length = int.from_bytes(data[:8], "little")
    head = rewritten_header(rng, json.loads(data[8 : 8 + length]))
    return {**files, STATE: len(head).to_bytes(8, "little") + head + data[8 + length :]}, False


def foreign(rng, files):
    """Something of another run, or of the round before."""
    other = base(rng.choice(list(ALIKE))).files[rng.choice((OLDER, NEWER))]
    kind = rng.randrange(3)
    if kind < 2:
        name = (STATE, RUN)[kind]
        return {**files, name: other[name]}, False
    mine, theirs = load(files[STATE]), load(other[STATE])
    name = rng.choice(sorted(theirs))
    return {**files, STATE: save({**mine, name: theirs[name]})}, False


def tensor(rng, files):
    """A tensor that is away, or is another."""
    tensors = load(files[STATE])
    name = rng.choice(sorted(tensors))
    old, certain = tensors[name], True
    kind = rng.choice(("drop", "add", "rename", "swap", "shape", "shape", "type", "value", "value", "value"))
    if kind == "drop":
        del tensors[name]
        certain = name != "point"
    elif kind == "add":
        tensors[rng.choice(("x", f"{name}.x", "state.average", "average", "history.x", "state"))] = old.clone()
    elif kind == "rename":
        tensors[rng.choice((f"{name}s", name.upper(), name[1:]))] = tensors.pop(name)
    elif kind == "swap":
        other = rng.choice(sorted(tensors))
        tensors[name], tensors[other] = tensors[other], old
        certain = tensors[name].shape != old.shape or tensors[name].dtype != old.dtype
    elif kind == "shape":
        tensors[name] = reshaped(rng, old)
    elif kind == "type":
        tensors[name] = old.to(rng.choice([t for t in TYPES if t != old.dtype]))
    else:
        tensors[name], certain = revalued(rng, old, name)
    return {**files, STATE: save({name: part.contiguous() for name, part in tensors.items()})}, certain


def reshaped(rng, old):
    """The tensor with another shape."""
    shapes = [old[None], old[..., None], torch.stack((old, old)), old.new_zeros(0, 1)]
    if old.ndim:
        shapes += [torch.cat((old, old[:1].clone(), old.new_zeros(1, *old.shape[1:]))), old.new_zeros(())]
    if old.ndim and len(old):
        shapes += [old[:-1], old[:0], old.repeat_interleave(2, 0)]
    if old.ndim == 2 and old.numel():
        shapes += [old[:, :-1], torch.cat((old, old[:, :1]), 1)]
    return rng.choice([shape for shape in shapes if shape.shape != old.shape]).clone()


def revalued(rng, old, name):
    """The tensor with other values, and whether they must not be used."""
    new, kind = old.clone(), rng.randrange(5)
    flat = new.flatten()
    if not flat.numel():
        return new, False
    at = rng.randrange(flat.numel())
    if kind <= 2:
        value = rng.choice(NUMBERS)
        finite = value == value and abs(value) < float("inf")
        whole = int(max(min(value, 2.0**62), -(2.0**63))) if finite else -1
        flat[at] = torch.tensor(value, dtype=torch.float64).to(flat) if flat.is_floating_point() else whole
        must = ("state.inner.w", "state.inner.lam", "state.inner.h.rows", "history.lam", "history.seconds")
        return flat.view(old.shape), flat.is_floating_point() and not finite and name in must
    if kind == 3:
        return flat.flip(0).view(old.shape), False
    return torch.zeros_like(old) if rng.random() < 0.5 else -old if old.dtype != torch.bool else ~old, False


CHANGES = (foreign, tensor, tensor, tensor, tensor, record, record, text, header)


def put(item, folder, older=False):
    """A folder with this checkpoint; with ``older`` also with the one before, as it was."""
    place = folder / "checkpoint"
    shutil.rmtree(place, ignore_errors=True)
    every = {item.name: item.files}
    if older:
        name = f"round-{OLDER:08d}"
        every = {name: summed(base(item.algorithm).files[OLDER], name, item.key), **every}
    for name, files in every.items():
        (place / name).mkdir(parents=True)
        for file, data in files.items():
            (place / name / file).write_bytes(data)
    return place


def point_of(item, place):
    """Where the run can go on, as `drfl run --resume` finds it."""
    job = base(item.algorithm).job
    return resume_point(place, job.algorithm, job.fed, rounds=ROUNDS, fresh=job.first,
                        same=lambda kept: check_same(job, kept), key=item.key)  # fmt: skip


def read_one(item, folder):
    """It is refused; or a run goes on from it to its end, or diverges, and its files can be read."""
    place = put(item, folder)
    job, point = base(item.algorithm).job, point_of(item, place)
    assert not item.wrong, "it was used"
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    try:
        result = go_on(job, point.progress, Checkpoints(place, lambda: identity(job), 1))
        write_run(out, job, result)
        load_run(out)
    except DivergedError:
        pass
    except DrflError as error:
        raise AssertionError(f"refused too late: {error}") from None


def changed_newest(rng):
    """As `changed`; now and then the checkpoints are signed, and the newer one was changed after that."""
    item = changed(rng)
    if rng.random() < 0.7:
        return item
    name = f"round-{NEWER:08d}"
    right = summed(base(item.algorithm).files[NEWER], name, KEY)
    files = {**item.files, SIGNATURE: right[SIGNATURE]} if rng.random() < 0.8 else item.files
    return item._replace(files=files, wrong=(files, item.name) != (right, name), key=KEY)


def read_with_older(item, folder):
    """The older one is used and the reason told, or else the newer one; never none."""
    try:
        point = point_of(item, put(item, folder, older=True))
    except DrflError as error:
        raise AssertionError(f"nothing was used: {error}") from None
    assert all(line.isprintable() for line in point.told)
    if point.progress.round == OLDER:
        assert f"{item.name} cannot be used" in point.told[0]
    else:
        assert point.progress.round == NEWER
        assert not item.wrong, "it was used"


CHECKPOINTS = (
    Parser("checkpoints", changed, read_one, seconds=5.0),
    Parser("checkpoints before", changed_newest, read_with_older),
)
