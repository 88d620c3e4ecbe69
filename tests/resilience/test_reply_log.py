"""Test that used replies are recorded, and that a simulation that replays the list ends with the same model."""

import hashlib
from types import SimpleNamespace

import pytest
import torch
from tests.support.marks import long_beyond
from tests.support.refusals import refused

import drfl
from drfl.core.errors import DrflError
from drfl.core.key import Key
from drfl.federation.federation import WrappedFederation
from drfl.optim.local import LocalSGD
from drfl.resilience import (
    FailureModel,
    Faulty,
    OverSelection,
    Protected,
    Quorum,
    Recorded,
    Replayed,
    ReplyLog,
    UsedReplies,
    read_replies,
)
from drfl.resilience.reply_log import name_of

from ..flower.conftest import simulation

LOCAL = LocalSGD(steps=2, lr=0.1, batch=8)
ALGORITHMS = {
    "FedAvg": drfl.FedAvg(m=3, local=LOCAL),
    "DRFA": drfl.DRFA(m=3, local=LOCAL),
    "ScaffPD": drfl.ScaffPD(m=4, local=LOCAL),
    "DualDRDM": drfl.DualDRDM(m=3, local=LOCAL),
    "SCAFFOLD": drfl.SCAFFOLD(m=3, local=LOCAL),
}
FAULTS = FailureModel(drop=0.4, deadline=3.0, slow=0.5, slowdown=2.0)


def recorded(folder, algorithm, wrap, rounds=6):
    record = ReplyLog()
    record.open(folder / "replies.csv")
    found = drfl.run(wrap(Recorded(algorithm, record.add)), simulation(), rounds=rounds, seed=3, callbacks=[record])
    return found, folder / "replies.csv"


@pytest.mark.parametrize("name", long_beyond(1, ALGORITHMS))
def test_replayed_list_gives_the_same_bits(name, tmp_path):
    algorithm = ALGORITHMS[name]
    a, file = recorded(tmp_path, algorithm, lambda inner: Faulty(Protected(inner), FAULTS))
    b = drfl.run(Protected(Replayed(algorithm, read_replies(file))), simulation(), rounds=6, seed=3)
    undisturbed = drfl.run(Protected(algorithm), simulation(), rounds=6, seed=3)
    assert torch.equal(a.state.w, b.state.w)
    assert torch.equal(a.lam, b.lam)
    assert not torch.equal(a.state.w, undisturbed.state.w)


@pytest.mark.parametrize("algorithm", [drfl.DRFA(m=4, local=LOCAL, reference="own"), drfl.LocalOnly(local=LOCAL)])
def test_requests_to_one_client_each_are_replayed(algorithm, tmp_path):
    a, file = recorded(tmp_path, algorithm, lambda inner: Faulty(inner, FailureModel(drop=0.2)), rounds=4)
    record = read_replies(file)
    assert len({(entry.kind, entry.key) for entry in record}) < len(record)
    b = drfl.run(Replayed(algorithm, record), simulation(), rounds=4, seed=3)
    undisturbed = drfl.run(algorithm, simulation(), rounds=4, seed=3)
    assert torch.equal(a.state.w, b.state.w)
    assert torch.equal(a.lam, b.lam)
    assert not torch.equal(a.state.w, undisturbed.state.w)


def test_repeated_rounds_of_a_quorum_are_replayed(tmp_path):
    algorithm = drfl.DRDM(m=4, local=LOCAL)

    def wrap(inner, faults=FAULTS):
        return Quorum(Faulty(Protected(OverSelection(inner, 3)), faults), 2, "repeat", 2)

    a, file = recorded(tmp_path, algorithm, wrap)
    played = Replayed(algorithm, read_replies(file))
    b = drfl.run(wrap(played, FailureModel()), simulation(), rounds=6, seed=3)
    assert torch.equal(a.state.w, b.state.w)
    assert torch.equal(a.lam, b.lam)


def test_file_has_a_row_per_request_and_is_cut_on_resume(tmp_path):
    _, file = recorded(tmp_path, drfl.DRFA(m=3, local=LOCAL), Protected, rounds=3)
    lines = file.read_text().splitlines()
    assert lines[0] == "round,kind,key,clients,number"
    assert [line.split(",")[:2] for line in lines[1:]] == [
        [str(r), kind] for r in (1, 2, 3) for kind in ("train", "losses")
    ]
    again = ReplyLog()
    again.open(file, "".join(f"{line}\n" for line in lines[:5]).encode())
    assert file.read_text().splitlines() == lines[:5]
    fresh = ReplyLog()
    fresh.open(file)
    assert file.read_text().splitlines() == lines[:1]


def test_log_knows_length_and_digest_of_its_file(tmp_path):
    log, file = ReplyLog(), tmp_path / "replies.csv"

    def is_covered():
        data = file.read_bytes()
        return log.extent() == (len(data), hashlib.sha256(data).hexdigest())

    log.open(file)
    assert is_covered()
    for r in (1, 2):
        log.add(UsedReplies(r, "train", f"key{r}", (0, 2)))
        log(SimpleNamespace(round=r))
        assert is_covered()
    whole = file.read_bytes()
    log.open(file, whole)
    assert is_covered()
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (b"\xff\n", "damaged-file"),
        (b"a,b\n1,2\n", "missing-column"),
        (b"round,kind,key,clients,number\n1,train\n", "missing-column"),
    ],
)
def test_log_starts_without_old_rows(rows, code, tmp_path):
    with refused(code):
        ReplyLog().open(tmp_path / "replies.csv", rows)
    assert not (tmp_path / "replies.csv").exists()


def test_full_disk_is_a_one_line_error(tmp_path, monkeypatch):
    log = ReplyLog()
    log.open(tmp_path / "replies.csv")
    log.add(UsedReplies(1, "train", "key", (0,)))

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("drfl.resilience.reply_log.os.fsync", full)
    with refused("cannot-write", str(tmp_path / "replies.csv"), kind=DrflError):
        log(SimpleNamespace(round=1))


def test_list_of_another_run_is_a_one_line_error(tmp_path):
    algorithm, fed = drfl.FedAvg(m=3, local=LOCAL), simulation()
    key = name_of(Key(3).fold("round", 1, "sgd"))
    for record in ((), (UsedReplies(1, "losses", key, (0,)),), (UsedReplies(1, "train", key, (77,)),)):
        with refused("other-run", "replies"):
            drfl.run(Replayed(algorithm, record), fed, rounds=1, seed=3)
    with refused("given-twice", "replies"):
        Replayed(algorithm, (UsedReplies(1, "train", key, (0,)), UsedReplies(2, "train", key, (1,))))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b\n1,2\n",
        "round,kind,key,clients,number\nx,train,1,0,1\n",
        "round,kind,key,clients,number\n1,train,1,x,1\n",
        "round,kind,key,clients,number\n1,train,1,0,x\n",
    ],
)
def test_damaged_list_is_a_one_line_error(text, tmp_path):
    file = tmp_path / "replies.csv"
    file.write_text(text)
    if not text:
        assert read_replies(file) == ()
        file = tmp_path / "missing.csv"
    with refused("damaged-file", str(file)):
        read_replies(file)


class BundlingFederation(WrappedFederation):
    """A federation whose test results are available only after the next round."""

    def evaluate_later(self, models):
        return lambda: [self.evaluate(w) for w in models]


@pytest.mark.parametrize("at", [0, 2])
def test_dropped_prefetched_round_leaves_no_rows(at, tmp_path):
    def rows(fed, rounds, stop):
        record = ReplyLog()
        record.open(tmp_path / "replies.csv")
        algorithm, noted = drfl.DRFA(m=3, local=LOCAL), []

        def note(one):
            noted.append(one.round)
            record.add(one)

        callbacks = [record, lambda step: step.round == stop]
        drfl.run(Recorded(algorithm, note), fed, rounds=rounds, seed=3, evaluate_every=2, callbacks=callbacks)
        return (tmp_path / "replies.csv").read_text(), noted

    plain, _ = rows(simulation(), at, None)
    text, noted = rows(BundlingFederation(simulation()), 4, at)
    assert noted == [r for r in range(1, at + 2) for _ in ("train", "losses")]  # the prefetched round did run
    assert text == plain
    whole, _ = rows(BundlingFederation(simulation()), 4, None)
    assert whole == rows(simulation(), 4, None)[0]
    assert len(whole.splitlines()) == 1 + 4 * 2
