"""Test checkpoints on disk, and runs that resume from them."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.papers.energy.jobs import ALGORITHMS, digits
from tests.support.marks import crossed, long_except
from tests.support.refusals import refused

from drfl import run
from drfl.core.errors import DrflError
from drfl.experiments.config.build import build
from drfl.experiments.config.config import Config
from drfl.training.certificate import Certifier
from drfl.training.checkpoint import Checkpoints, DamagedError, newest, resume_point, store
from drfl.training.checkpoint.store import sums_of


def stopped_at(r):
    return [lambda step: step.round == r]


def kept(folder, every=2, rounds=5, name="DRDM", **options):
    fed = digits()
    keep = Checkpoints(folder, lambda: {"of": "digits"}, every)
    return run(ALGORITHMS[name], fed, rounds=rounds, seed=3, keep=keep, **options)


@pytest.mark.parametrize(("every", "name"), crossed([1, 3], long_except(["DRDM", "ScaffPD"], ALGORITHMS)))
def test_resumed_run_equals_an_uninterrupted_run(name, every, tmp_path):
    options = {"rounds": 7, "evaluate_every": every}
    whole = run(ALGORITHMS[name], digits(), seed=3, **options)
    kept(tmp_path, name=name, every=100, callbacks=stopped_at(5), **options)
    fed = digits()
    start = resume_point(tmp_path, ALGORITHMS[name], fed, rounds=7).progress
    assert start.round == 5
    again = run(ALGORITHMS[name], fed, seed=3, start=start, **options)
    assert again.history.to_csv() == whole.history.to_csv()
    assert again.history.lambda_csv(("x",) * 8) == whole.history.lambda_csv(("x",) * 8)
    assert torch.equal(again.state.w, whole.state.w)
    assert (again.rounds, again.skipped) == (7, 0)
    assert torch.equal(again.evaluation.loss, whole.evaluation.loss)


@pytest.mark.long
def test_certificates_continue_their_search(tmp_path):
    algorithm = ALGORITHMS["DRFA"]

    def certified(**options):
        return run(algorithm, digits(), rounds=4, evaluate_every=2, certify=Certifier(build(Config()).task), **options)

    whole = certified()
    certified(keep=Checkpoints(tmp_path, dict, 3))
    start = resume_point(tmp_path, algorithm, digits()).progress
    assert (start.round, start.point.shape) == (3, (650,))
    assert certified(start=start).history.to_csv() == whole.history.to_csv()


def test_last_two_checkpoints_are_kept_and_pass_sha256sum(tmp_path):
    kept(tmp_path, every=1, rounds=6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-00000004", "round-00000005"]
    for path in tmp_path.iterdir():
        sums = [line.split("  ") for line in (path / "SHA256SUMS").read_text().splitlines()]
        assert {name for _, name in sums} == {"state.safetensors", "run.json"}
        assert all(hashlib.sha256((path / name).read_bytes()).hexdigest() == digest for digest, name in sums)
    assert newest(tmp_path).record.identity == {"of": "digits"}


def test_checkpoints_take_a_small_share_of_the_time_by_default(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(store, "write", lambda *_: now.__setitem__(0, now[0] + 2.0))
    keep, written = Checkpoints(tmp_path, dict, clock=lambda: now[0]), []
    for _ in range(100):
        now[0] += 1.0
        before = now[0]
        keep(Fake, stopping=False)
        written.append(now[0] > before)
    assert written[0]
    assert [k for k, yes in enumerate(written) if yes] == [0, 40, 80]


class Fake:
    round = 1


@pytest.mark.parametrize(
    ("name", "how"), crossed(["state.safetensors", "run.json", "SHA256SUMS"], ["flipped", "cut", "gone"])
)
def test_damaged_newest_checkpoint_is_skipped(name, how, tmp_path):
    kept(tmp_path)
    path = tmp_path / "round-00000004" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    {"flipped": lambda: path.write_bytes(data), "cut": lambda: path.write_bytes(data[:-3]), "gone": path.unlink}[how]()
    assert newest(tmp_path).folder.name == "round-00000002"
    found = resume_point(tmp_path, ALGORITHMS["DRDM"], digits())
    assert (found.folder.name, found.progress.round) == ("round-00000002", 2)
    assert [(notice.code, Path(notice.field).name) for notice in found.notices] == [
        ("damaged-checkpoint", "round-00000004")
    ]


def test_only_damaged_checkpoints_are_an_error(tmp_path):
    assert newest(tmp_path) is None
    kept(tmp_path)
    for path in tmp_path.iterdir():
        (path / "run.json").write_text("{}")
    with refused("damaged-checkpoint", "SHA256SUMS", "round-00000002", kind=DamagedError):
        newest(tmp_path)


def test_other_format_is_refused(tmp_path):
    kept(tmp_path)
    for path in tmp_path.iterdir():
        content = json.loads((path / "run.json").read_text())
        (path / "run.json").write_text(json.dumps({**content, "format": 99}))
        files = {name: (path / name).read_bytes() for name in ("state.safetensors", "run.json")}
        (path / "SHA256SUMS").write_bytes(sums_of(files))
    with refused("damaged-checkpoint", "format", kind=DamagedError):
        newest(tmp_path)


def test_full_disk_stops_the_run_and_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    kept(tmp_path)
    before = newest(tmp_path).folder

    def full(handle):
        os.ftruncate(handle, os.fstat(handle).st_size // 2)
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(store, "os", SimpleNamespace(**{**vars(os), "fsync": full}))
    with refused("cannot-write", str(tmp_path), "2", "No space left", "4", kind=DrflError):
        kept(tmp_path)
    assert newest(tmp_path).folder == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-00000002", "round-00000004"]


def test_half_written_checkpoint_is_ignored(tmp_path):
    (tmp_path / ".round-00000002.part").mkdir()
    (tmp_path / ".round-00000002.part/run.json").write_text("{")
    assert newest(tmp_path) is None
    kept(tmp_path)
    assert newest(tmp_path).folder.name == "round-00000004"
