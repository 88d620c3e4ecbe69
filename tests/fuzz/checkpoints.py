"""Checkpoints of small runs with a changed part and matching checksums."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from hypothesis.strategies import composite, integers, lists, sampled_from
from safetensors.torch import load, save

from drfl.core.errors import DivergedError, DrflError
from drfl.experiments.config.build import build
from drfl.experiments.config.config import Config
from drfl.experiments.run.artifacts import write_run
from drfl.experiments.run.finished import FinishedRun
from drfl.experiments.run.resume import check_same, identity
from drfl.report import load_run
from drfl.training.checkpoint import Checkpoints, resume_point
from drfl.training.checkpoint.signatures import signature
from drfl.training.checkpoint.store import sums_of
from drfl.training.loop import run

from .judge import Parser
from .strategies import chance, mutated_file, mutated_json, mutated_safetensors

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
"""Settings of runs by algorithm, with tables, wrappers, certificates and averages."""

NUMBERS = (
    float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1.0, 0.5, 1e30, -1e30, 1e200, 2.0**62, -(2.0**63), 1e-300,
)  # fmt: skip
TYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int32, torch.int64, torch.uint8,
    torch.bool,
)  # fmt: skip


class Base(NamedTuple):
    """A run that can be resumed, and the files of its two checkpoints by round."""

    job: object
    files: dict


class Changed(NamedTuple):
    """A checkpoint with a changed part.

    Args:
        algorithm: name of the algorithm.
        name: name of its folder.
        files: files by name.
        wrong: whether it must not be used.
        key: key with which it must be signed; None = it need not be signed.
    """

    algorithm: str
    name: str
    files: dict
    wrong: bool
    key: bytes | None = None


@functools.cache
def base(algorithm):
    """Return one of the runs."""
    job = build(Config(algorithm=algorithm, **SMALL, **ALIKE[algorithm]))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        go_on(job, None, Checkpoints(place, lambda: identity(job), 2))
        return Base(job, {r: timeless(place / f"round-{r:08d}") for r in (OLDER, NEWER)})


def go_on(job, start, keep):
    """Continue the run to its end."""
    options = {name: getattr(job.settings, name) for name in ("rounds", "seed", "evaluate_every", "averaged")}
    return run(job.algorithm, job.fed, certify=job.certify, start=start, keep=keep, **options)


def timeless(path):
    """Return the files of a checkpoint with fixed times, so that inputs are reproducible."""
    tensors, content = load((path / STATE).read_bytes()), json.loads((path / RUN).read_text())
    tensors["history.seconds"] = torch.arange(len(tensors["history.seconds"]), dtype=torch.float64)
    return {STATE: save(tensors), RUN: json.dumps({**content, "seconds": 9.0}).encode()}


def summed(files, name, key=None):
    """Return the files with checksums, and with a signature if there is a key."""
    sums = sums_of(files)
    return {**files, SUMS: sums, **({} if key is None else {SIGNATURE: signature(key, name, sums)})}


@composite
def changed(draw):
    """Draw a newer checkpoint with up to three changes."""
    algorithm = draw(sampled_from(list(ALIKE)))
    files, name = dict(base(algorithm).files[NEWER]), f"round-{NEWER:08d}"
    changes = draw(lists(sampled_from(CHANGES), min_size=draw(chance(90)), max_size=draw(sampled_from((1, 1, 1, 3)))))
    wrong = False
    for change in sorted(dict.fromkeys(changes), key=CHANGES.index):  # changes that break the JSON come last
        files, certain = change(draw, files)
        wrong = certain and len(changes) == 1  # several changes might cancel each other
    if changes and draw(chance(5)):
        name, wrong = draw(sampled_from(("round-00000003", "round-4", "round-99999999", "round-000000004"))), True
    return Changed(algorithm, name, summed(files, name), wrong)


def record(draw, files):
    """Change or remove a value in run.json."""
    before = json.loads(files[RUN])
    after = draw(mutated_json(before))
    rounds = ((3, 0), (4, 5), (6, 0), (10**9, 0), (4, -1), (0, 0), (2**53, 1))
    if draw(chance(10)):
        after |= dict(zip(("round", "skipped"), draw(sampled_from(rounds)), strict=True))
    objects = [(before, after), *((before[name], after.get(name)) for name in ("ledger", "identity"))]
    certain = any(not isinstance(new, dict) or old.keys() - new.keys() for old, new in objects)
    certain = certain or after["round"] != NEWER or after["skipped"] not in (0, 1)
    return {**files, RUN: json.dumps(after).encode()}, certain


def text(draw, files):
    """Change words or bytes of run.json."""
    return {**files, RUN: draw(mutated_file(files[RUN].decode()))}, False


def header(draw, files):
    """Change the header or the bytes of the tensors."""
    return {**files, STATE: draw(mutated_safetensors(files[STATE]))}, False


def foreign(draw, files):
    """Replace a part by that of another run or of an earlier round."""
    other = base(draw(sampled_from(list(ALIKE)))).files[draw(sampled_from((OLDER, NEWER)))]
    name = draw(sampled_from((STATE, RUN, None)))
    if name is not None:
        return {**files, name: other[name]}, False
    mine, theirs = load(files[STATE]), load(other[STATE])
    name = draw(sampled_from(sorted(theirs)))
    return {**files, STATE: save({**mine, name: theirs[name]})}, False


def tensor(draw, files):
    """Change, remove or add a tensor."""
    tensors = load(files[STATE])
    name = draw(sampled_from(sorted(tensors)))
    old, certain = tensors[name], True
    kind = draw(sampled_from(("value", "value", "value", "shape", "shape", "type", "drop", "add", "rename", "swap")))
    if kind == "drop":
        del tensors[name]
        certain = name != "point"
    elif kind == "add":
        tensors[draw(sampled_from(("x", f"{name}.x", "state.average", "average", "history.x", "state")))] = old.clone()
    elif kind == "rename":
        tensors[draw(sampled_from((f"{name}s", name.upper(), name[1:])))] = tensors.pop(name)
    elif kind == "swap":
        other = draw(sampled_from(sorted(tensors)))
        tensors[name], tensors[other] = tensors[other], old
        certain = tensors[name].shape != old.shape or tensors[name].dtype != old.dtype
    elif kind == "shape":
        tensors[name] = draw(reshaped(old))
    elif kind == "type":
        tensors[name] = old.to(draw(sampled_from([t for t in TYPES if t != old.dtype])))
    else:
        tensors[name], certain = revalued(draw, old, name)
    return {**files, STATE: save({name: part.contiguous() for name, part in tensors.items()})}, certain


def reshaped(old):
    """Change the shape of the tensor."""
    shapes = [old[None], old[..., None], torch.stack((old, old)), old.new_zeros(0, 1)]
    if old.ndim:
        shapes += [torch.cat((old, old[:1].clone(), old.new_zeros(1, *old.shape[1:]))), old.new_zeros(())]
    if old.ndim and len(old):
        shapes += [old[:-1], old[:0], old.repeat_interleave(2, 0)]
    if old.ndim == 2 and old.numel():
        shapes += [old[:, :-1], torch.cat((old, old[:, :1]), 1)]
    return sampled_from([shape for shape in shapes if shape.shape != old.shape]).map(torch.clone)


def revalued(draw, old, name):
    """Change values of the tensor, and return whether they must be rejected."""
    flat = old.clone().flatten()
    kind = draw(sampled_from(("one", "one", "one", "flip", "zero", "negative"))) if flat.numel() else "none"
    if kind == "one":
        at, value = draw(integers(0, flat.numel() - 1)), draw(sampled_from(NUMBERS))
        finite = value == value and abs(value) < float("inf")
        whole = int(max(min(value, 2.0**62), -(2.0**63))) if finite else -1
        flat[at] = torch.tensor(value, dtype=torch.float64).to(flat) if flat.is_floating_point() else whole
        must = ("state.inner.w", "state.inner.lam", "state.inner.h.rows", "history.lam", "history.seconds")
        return flat.view(old.shape), flat.is_floating_point() and not finite and name in must
    if kind == "flip":
        flat = flat.flip(0)
    elif kind == "zero":
        flat = torch.zeros_like(flat)
    elif kind == "negative":
        flat = -flat if flat.dtype != torch.bool else ~flat
    return flat.view(old.shape), False


CHANGES = (foreign, tensor, tensor, tensor, tensor, record, record, text, header)


def put(item, folder, older=False):
    """Write a folder with this checkpoint, and with ``older`` also the unchanged previous one."""
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
    """Return the point from which `drfl run --resume` would continue."""
    job = base(item.algorithm).job
    return resume_point(place, job.algorithm, job.fed, rounds=ROUNDS, fresh=job.first,
                        same=lambda kept: check_same(job, kept), key=item.key)  # fmt: skip


def read_one(item, folder):
    """Require a refusal, or a run that resumes to its end or diverges with readable files."""
    place = put(item, folder)
    job, point = base(item.algorithm).job, point_of(item, place)
    assert not item.wrong, "it was used"
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    try:
        result = go_on(job, point.progress, Checkpoints(place, lambda: identity(job), 1))
        write_run(out, FinishedRun(job, result))
        load_run(out)
    except DivergedError:
        pass
    except DrflError as error:
        raise AssertionError(f"refused too late: {error}") from None


@composite
def changed_newest(draw):
    """Draw like `changed`, but sometimes with signed checkpoints of which the newer one was changed after signing."""
    item = draw(changed())
    if draw(chance(70)):
        return item
    name = f"round-{NEWER:08d}"
    right = summed(base(item.algorithm).files[NEWER], name, KEY)
    files = {**item.files, SIGNATURE: right[SIGNATURE]} if draw(chance(80)) else item.files
    return item._replace(files=files, wrong=(files, item.name) != (right, name), key=KEY)


def read_with_older(item, folder):
    """Require that the older one is used with a reason, or else the newer one."""
    try:
        point = point_of(item, put(item, folder, older=True))
    except DrflError as error:
        raise AssertionError(f"nothing was used: {error}") from None
    assert all(line.isprintable() for line in point.notices)
    if point.progress.round == OLDER:
        assert f"{item.name} cannot be used" in point.notices[0]
    else:
        assert point.progress.round == NEWER
        assert not item.wrong, "it was used"


CHECKPOINTS = (
    Parser("checkpoints", changed(), read_one, seconds=10),
    Parser("checkpoints before", changed_newest(), read_with_older),
)
