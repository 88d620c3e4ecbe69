"""Test checkpoints with valid checksums and wrong content: one warning, and the previous checkpoint is used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from tests.support.refusals import refused

from drfl import DRFA, Average, CVaR, FedAvg, LocalSGD, ScaffPD, run
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.experiments.config.build import build
from drfl.experiments.config.config import Config
from drfl.federation.federation import WrappedFederation
from drfl.resilience import Protected
from drfl.training.certificate import Certifier
from drfl.training.checkpoint import Checkpoints, DamagedError, resume_point
from drfl.training.checkpoint.state_schema import check, restored, state_specs, tensors_of
from drfl.training.checkpoint.store import RUN, STATE, SUMS, sums_of
from drfl.training.run_state import first


def back(first, tensors):
    """Return a state from its tensors, if they fit."""
    check(state_specs(first), tensors)
    return restored(first, tensors)


N, D, ROUNDS = 5, 650, 6
LOCAL = LocalSGD(steps=1, lr=0.1, batch=4)
ALGORITHM = Protected(ScaffPD(local=LOCAL, ambiguity=CVaR(0.5)))


@pytest.fixture(scope="module")
def fed():
    return build(Config(clients=N, engine="loop")).fed


@pytest.fixture(scope="module")
def original(fed, tmp_path_factory):
    """Return the files of the two checkpoints of a run, of rounds 2 and 4."""
    folder = tmp_path_factory.mktemp("run")
    certify = Certifier(build(Config()).task)
    keep = Checkpoints(folder, lambda: {"of": "digits"}, 2)
    run(ALGORITHM, fed, rounds=5, evaluate_every=2, averaged=True, certify=certify, keep=keep)
    return {path.name: {name: (path / name).read_bytes() for name in (STATE, RUN)} for path in folder.iterdir()}


NEW, OLD = "round-00000004", "round-00000002"


def laid(folder, files):
    """Write the folder with these checkpoints and valid checksums."""
    for name, content in files.items():
        (folder / name).mkdir()
        for file, data in {**content, SUMS: sums_of(content)}.items():
            (folder / name / file).write_bytes(data)
    return folder


def point(folder, fed, **options):
    fresh = first(ALGORITHM, fed, averaged=True)
    return resume_point(folder, ALGORITHM, fed, **{"rounds": ROUNDS, "fresh": fresh, **options})


def with_record(files, change):
    content = json.loads(files[RUN])
    text = change(content)
    return {**files, RUN: text if isinstance(text, bytes) else json.dumps(content).encode()}


def with_tensors(files, change):
    tensors = load(files[STATE])
    change(tensors)
    return {**files, STATE: save({name: part.contiguous() for name, part in tensors.items()})}


def check_refused(folder, fed, files, field, *quoted):
    """Assert that the checkpoint is refused if it is the only one."""
    with refused("damaged-checkpoint", field, NEW, *quoted, kind=DamagedError) as caught:
        point(laid(folder, {NEW: files}), fed)
    assert str(caught.value).isprintable()


def put(name, value):
    return lambda content: content.__setitem__(name, value)


def drop(name):
    return lambda content: content.__delitem__(name)


def nested(content):
    return b'{"format": 2, "identity": ' + b"[" * 100_000


RECORDS = {
    "round is text": (put("round", "4"), "round"),
    "round is a fraction": (put("round", 4.5), "round"),
    "round is true": (put("round", True), "round"),
    "round is negative": (put("round", -4), "round"),
    "round is huge": (put("round", 10**400), "round"),
    "round is NaN": (put("round", float("nan")), "round"),
    "round is missing": (drop("round"), "round"),
    "round is another": (put("round", 3), "round", "3"),
    "skipped is more than all": (put("skipped", 5), "skipped", "5", "4"),
    "skipped is nothing": (put("skipped", None), "skipped"),
    "identity is a list": (put("identity", []), "identity"),
    "identity is missing": (drop("identity"), "identity"),
    "ledger lacks a counter": (lambda content: content["ledger"].pop("bytes_up"), "ledger", "bytes_up"),
    "ledger is huge": (lambda content: content["ledger"].update(messages=10**400), "ledger.messages"),
    "ledger is negative": (lambda content: content["ledger"].update(messages=-1), "ledger.messages"),
    "ledger is less than before": (lambda content: content["ledger"].update(messages=1), "history.ledger"),
    "ledger is text": (put("ledger", "x"), "ledger"),
    "seconds are infinite": (put("seconds", float("inf")), "seconds"),
    "seconds are NaN": (put("seconds", float("nan")), "seconds"),
    "seconds are longer than any run": (put("seconds", 1e300), "seconds"),
    "seconds are missing": (drop("seconds"), "seconds"),
    "format is missing": (drop("format"), "format"),
    "no object": (lambda content: b"[]", "run.json"),
    "no JSON": (lambda content: b"{", "run.json"),
    "nested too deep": (nested, "run.json"),
    "half a character": (lambda content: b'{"x": "\\ud800"}', "run.json"),
    "no UTF-8": (lambda content: b'{"x": "\xff"}', "run.json"),
    "a number of many digits": (lambda content: b'{"round": ' + b"9" * 5000 + b"}", "run.json"),
}


@pytest.mark.parametrize("name", RECORDS)
def test_invalid_records_are_refused(name, original, fed, tmp_path):
    change, *named = RECORDS[name]
    check_refused(tmp_path, fed, with_record(original[NEW], change), *named)


def changed(name, change):
    return lambda tensors: tensors.__setitem__(name, change(tensors[name]))


def at(name, place, value):
    def change(part):
        part = part.clone()
        part[place] = value
        return part

    return changed(name, change)


def longer(part):
    return torch.cat((part, part[-1:]))


def both(*changes):
    return lambda tensors: [change(tensors) for change in changes]


W, LAM = "state.inner.w", "state.inner.lam"
C = "state.inner.reports.c"
TENSORS = {
    "w is longer": (changed(W, longer), "state.inner.w", "(651,)", "(650,)"),
    "w is of another type": (changed(W, torch.Tensor.double), "state.inner.w", "torch.float64"),
    "w is missing": (drop(W), "state.inner.w"),
    "w has NaN": (at(W, 3, torch.nan), "state.inner.w", "NaN"),
    "w is infinite": (at(W, 3, torch.inf), "state.inner.w", "infinity"),
    "lam of more clients": (changed(LAM, longer), "state.inner.lam", "(6,)"),
    "lam does not add up": (changed(LAM, lambda lam: 2 * lam), "state.lam"),
    "lam is negative": (changed(LAM, lambda lam: lam + torch.tensor([-2.0, 2, 0, 0, 0])), "state.lam"),
    "lam is beyond the set": (changed(LAM, lambda lam: torch.eye(N)[0].double()), "state.lam"),
    "averaged lam is none": (changed("average.lam", lambda lam: -lam), "average.lam"),
    "an average of too many": (changed("average.rounds", lambda r: r + 1), "average.rounds", "5", "4"),
    "an average of too few": (changed("average.rounds", lambda r: r - 9), "average"),
    "a step size of 0": (changed("state.inner.tau", lambda tau: 0 * tau), "state.inner"),
    "a scalar with a shape": (changed("state.inner.tau", lambda tau: tau[None]), "state.inner.tau", "(1,)"),
    "rows of nobody": (at(f"{C}.clients", 0, N), "state.inner.reports.c.clients", str(N)),
    "rows of a negative one": (at(f"{C}.clients", 0, -1), "state.inner.reports.c.clients", "-1"),
    "rows twice": (at(f"{C}.clients", 0, 1), "state.inner.reports.c"),
    "rows too few": (changed(f"{C}.rows", lambda rows: rows[:-1]), "state.inner.reports.c.rows"),
    "rows too short": (changed(f"{C}.rows", lambda rows: rows[:, :-1]), "state.inner.reports.c.rows"),
    "rows with NaN": (at(f"{C}.rows", (0, 0), torch.nan), "state.inner.reports.c.rows", "NaN"),
    "clients that are no list": (
        changed(f"{C}.clients", lambda clients: clients[None]),
        "state.inner.reports.c.clients",
    ),
    "losses without gradients": (at("state.inner.reports.seen", 0, False), "state.inner.reports"),
    "guards of more": (changed("state.memory.guards", longer), "state.memory.guards"),
    "a guard's peak is NaN": (at("state.memory.guards", -1, torch.nan), "state.memory.guards", "NaN"),
    "a negative count": (at("state.memory.strikes", 0, -1), "state.memory"),
    "flags that are none": (
        changed("state.memory.flagged", lambda part: torch.full((N,), 7, dtype=torch.uint8).view(torch.bool)),
        "state.memory.flagged",
    ),
    "a part that nobody has": (put("state.inner.drift", torch.zeros(3)), "state.inner.drift"),
    "a column that nobody has": (put("history.x", torch.zeros(3)), "history.x"),
    "a point too long": (changed("point", longer), "point"),
    "a point with NaN": (at("point", 0, torch.nan), "point", "NaN"),
    "rounds not in order": (at("history.round", 1, 0), "history.round"),
    "rounds that wrap around": (at("history.round", 2, -(2**63)), "history.round", "-9.22337e+18"),
    "rounds not from 0": (at("history.round", 0, 1), "history.round", "0"),
    "rounds to come": (at("history.round", -1, 5), "history.round", "5"),
    "no rounds": (changed("history.round", lambda part: part[:0]), "history.metrics"),
    "one round more": (changed("history.round", longer), "history.metrics"),
    "metrics more": (changed("history.metrics", lambda part: part[:, :-1]), "history.metrics"),
    "metrics of fewer rows": (changed("history.metrics", lambda part: part[1:]), "history.metrics"),
    "an accuracy of 2": (at("history.metrics", (0, 0), 2.0), "history.metrics", "2"),
    "a loss beyond all": (at("history.metrics", (0, 5), 1e200), "history.metrics", "1e+200"),
    "a ledger that falls": (at("history.ledger", (-1, 0), 0), "history.ledger"),
    "a counter less": (changed("history.ledger", lambda part: part[:, 1:]), "history.ledger"),
    "seconds that are none": (at("history.seconds", 1, -1.0), "history.seconds", "-1"),
    "seconds without end": (at("history.seconds", 1, torch.inf), "history.seconds", "infinity"),
    "half a certificate": (at("history.certificate", (0, 0), torch.nan), "history.certificate"),
    "half a proof": (at("history.certificate", (0, 3), 0.5), "history.certificate"),
    "a mixture of others": (changed("history.lam", lambda part: part[:, :-1]), "history.lam"),
    "a mixture that is none": (changed("history.lam", lambda part: part + 1), "history.lam"),
    "fewer flags": (changed("history.flagged", lambda part: part[1:]), "history.flagged"),
    "no flags": (changed("history.flagged", lambda part: torch.empty(0)), "history.flagged"),
    "flags of more": (changed("history.flagged", lambda part: torch.cat((part, part), 1)), "history.flagged"),
    "two faults": (both(at(W, 0, torch.nan), changed(LAM, longer)), "state.inner.w", "NaN"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_invalid_tensors_are_refused(name, original, fed, tmp_path):
    change, *named = TENSORS[name]
    check_refused(tmp_path, fed, with_tensors(original[NEW], change), *named)


@pytest.mark.parametrize("name", ["no JSON", "round is another", "w is missing", "w has NaN", "lam does not add up"])
def test_invalid_checkpoint_is_skipped_if_the_previous_is_valid(name, original, fed, tmp_path):
    damage, (change, *_) = (with_record, RECORDS[name]) if name in RECORDS else (with_tensors, TENSORS[name])
    found = point(laid(tmp_path, {**original, NEW: damage(original[NEW], change)}), fed)
    assert (found.folder.name, found.progress.round) == (OLD, 2)
    assert [(notice.code, Path(notice.field).name) for notice in found.notices] == [("damaged-checkpoint", NEW)]


@pytest.mark.parametrize(
    ("shape", "field"), [([651], STATE), ([0, 2**40], STATE), ([-1], STATE), ([325, 2], "state.inner.w")]
)
def test_mismatched_header_is_refused(shape, field, original, fed, tmp_path):
    data = original[NEW][STATE]
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header[W]["shape"] = shape
    head = json.dumps(header).encode()
    files = {**original[NEW], STATE: len(head).to_bytes(8, "little") + head + data[8 + length :]}
    check_refused(tmp_path, fed, files, field)


@pytest.mark.parametrize("name", ["round-4", "round-00000003", "round-99999999", "round-000000004"])
def test_name_that_contradicts_the_round_is_refused(name, original, fed, tmp_path):
    found = point(laid(tmp_path, {OLD: original[OLD], name: original[NEW]}), fed)
    assert found.folder.name == OLD
    (told,) = found.notices
    assert (told.code, Path(told.field).name) == ("damaged-checkpoint", name)


def test_folders_without_a_round_number_are_ignored(original, fed, tmp_path):
    laid(tmp_path, {OLD: original[OLD], "round-²": original[NEW], "round-": {}, "rounds-9": {}})
    assert point(tmp_path, fed).notices == ()
    (tmp_path / "round-00000009").write_text("a file")
    assert [Path(notice.field).name for notice in point(tmp_path, fed).notices] == ["round-00000009"]


def test_run_with_more_rounds_is_refused_and_not_continued_from_an_older_checkpoint(original, fed, tmp_path):
    laid(tmp_path, original)
    assert point(tmp_path, fed, rounds=4).progress.round == 4
    with refused("out-of-range", "rounds", "4", "3"):
        point(tmp_path, fed, rounds=3)


def test_other_run_is_distinguished_from_damage(original, fed, tmp_path):
    laid(tmp_path, original)

    def same(identity):
        raise InputError(f"the run to resume is of {identity['of']}")

    with refused("input", None, "digits"):
        point(tmp_path, fed, same=same)
    assert point(tmp_path, fed, same=lambda identity: ["a remark"]).notices == ("a remark",)


def test_checkpoint_of_another_run_is_skipped_if_the_previous_fits(original, fed, tmp_path):
    other = with_record(original[NEW], put("identity", {"of": "mnist"}))
    laid(tmp_path, {**original, NEW: other})

    def same(identity):
        if identity["of"] != "digits":
            raise InputError("it is of mnist")
        return ()

    found = point(tmp_path, fed, same=same)
    assert found.progress.round == 2
    assert "it is of mnist" in found.notices[0]


def test_used_checkpoint_is_kept_beside_an_unusable_one(original, fed, tmp_path):
    broken = with_record(original[NEW], put("round", "4"))
    laid(tmp_path, {OLD: original[OLD], "round-00000009": broken})
    start = point(tmp_path, fed).progress
    options = {"averaged": True, "start": start, "keep": Checkpoints(tmp_path, dict, 1)}
    run(ALGORITHM, fed, rounds=ROUNDS, evaluate_every=2, **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-00000004", "round-00000005", "round-00000009"]


def test_history_of_a_diverging_model_is_not_damage(original, fed, tmp_path):
    change = at("history.metrics", (1, slice(5, 7)), torch.inf)
    laid(tmp_path, {NEW: with_tensors(original[NEW], change)})
    assert point(tmp_path, fed).progress.rows[1].metrics.worst_loss == torch.inf


def test_full_disk_under_a_table_is_not_damage(fed, tmp_path, monkeypatch):
    algorithm, fed = ALGORITHM.algorithm, WrappedFederation(fed)
    fed.table_dir = str(tmp_path)
    state, _ = algorithm.round(algorithm.init(fed), fed, Key(0))

    def full(*_):
        raise OSError(28, "No space left on device")

    fresh, tensors = algorithm.init(fed), tensors_of(state)
    monkeypatch.setattr("drfl.federation.client_table.os.pwrite", full)
    with refused("cannot-write", "table_dir", "No space left"):
        back(fresh, tensors)


def test_initially_infinite_values_can_stay_infinite():
    like = Average(torch.zeros(2), torch.tensor([torch.nan, 1.0]), torch.tensor(0), torch.tensor(0.0))
    for lam in ([torch.nan, 1.0], [0.0, 2.0]):
        kept = like._replace(lam=torch.tensor(lam))
        assert back(like, tensors_of(kept)).lam.tolist() == pytest.approx(lam, nan_ok=True)
    for lam in ([torch.inf, 1.0], [torch.nan, torch.nan]):
        with refused("damaged-checkpoint", "state.lam", "NaN", kind=DamagedError):
            back(like, tensors_of(like._replace(lam=torch.tensor(lam))))


def test_state_of_another_algorithm_is_refused(original, fed, tmp_path):
    algorithm = DRFA(m=3, local=LOCAL)
    with refused("damaged-checkpoint", "average.lam", kind=DamagedError):
        resume_point(laid(tmp_path, original), algorithm, fed)


@pytest.mark.parametrize(
    ("rollbacks", "restarted", "field"),
    [(1, 4, "step_size.restarted"), (2, 1, "step_size"), (0, 1, "step_size"), (1, 3, None)],
)
def test_rollback_after_the_end_of_the_run_is_impossible(rollbacks, restarted, field, fed, tmp_path):
    algorithm = FedAvg(m=3, local=LocalSGD(steps=1, batch=4))
    run(algorithm, fed, rounds=5, keep=Checkpoints(tmp_path / "run", dict, 4))
    files = {name: (tmp_path / "run" / NEW / name).read_bytes() for name in (STATE, RUN)}
    numbers = {"lowered": 1, "rollbacks": rollbacks, "restarted": restarted}
    changes = both(*(put(f"step_size.{name}", torch.tensor(value)) for name, value in numbers.items()))
    laid(tmp_path, {NEW: with_tensors(files, changes)})
    if field is None:
        size = resume_point(tmp_path, algorithm, fed, rounds=ROUNDS).progress.step_size
        assert (int(size.rollbacks), int(size.restarted)) == (1, 3)
        return
    with refused("damaged-checkpoint", field, kind=DamagedError):
        resume_point(tmp_path, algorithm, fed, rounds=ROUNDS)
