"""Test signed checkpoints."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shutil
from pathlib import Path

import pytest
from tests.papers.energy.jobs import ALGORITHMS, digits
from tests.support.marks import long_beyond
from tests.support.refusals import notices, refused

from drfl import run
from drfl.cli.app import call
from drfl.experiments.config.config import Config
from drfl.experiments.run.resume import key_of
from drfl.training.checkpoint import Checkpoints, DamagedError, newest, read_key, resume_point
from drfl.training.checkpoint.record import record_of
from drfl.training.checkpoint.state_schema import COUNTERS, FORMAT
from drfl.training.checkpoint.store import sums_of

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
SMALL = [
    "--engine",
    "loop",
    "--clients",
    "6",
    "--rounds",
    "6",
    "--steps",
    "1",
    "--threads",
    "1",
    "--checkpoint-every",
    "2",
]
NEW, OLD = "round-00000004", "round-00000002"


@pytest.fixture
def kept(tmp_path):
    """Return the folder of two signed checkpoints."""
    keep = Checkpoints(tmp_path / "kept", lambda: {"of": "digits"}, 2, key=KEY)
    run(ALGORITHMS["FedAvg"], digits(), rounds=5, keep=keep)
    return tmp_path / "kept"


def point(folder, key=KEY):
    return resume_point(folder, ALGORITHMS["FedAvg"], digits(), key=key)


def forged(path):
    """Change a checkpoint, and update its checksums."""
    content = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**content, "seconds": 77.0}))
    files = {name: (path / name).read_bytes() for name in ("state.safetensors", "run.json")}
    (path / "SHA256SUMS").write_bytes(sums_of(files))


def test_signature_covers_name_and_checksums(kept):
    for path in kept.iterdir():
        assert {file.name for file in path.iterdir()} == {"state.safetensors", "run.json", "SHA256SUMS", "HMAC-SHA256"}
        message = path.name.encode() + b"\n" + (path / "SHA256SUMS").read_bytes()
        assert (path / "HMAC-SHA256").read_text() == hmac.new(KEY, message, hashlib.sha256).hexdigest() + "\n"
    found = point(kept)
    assert (found.folder.name, found.notices) == (NEW, ())


def test_signed_checkpoints_without_a_key_give_a_warning(kept):
    found = point(kept, key=None)
    assert found.progress.round == 4
    assert [(notice.code, notice.field) for notice in found.notices] == [("unchecked-signature", "checkpoint_key")]


def of_another(path):
    shutil.copy(path.with_name(OLD) / "HMAC-SHA256", path)


CHANGES = {
    "forged": (forged, "HMAC-SHA256"),
    "unsigned": (lambda path: (path / "HMAC-SHA256").unlink(), "HMAC-SHA256"),
    "emptied": (lambda path: (path / "HMAC-SHA256").write_bytes(b""), "HMAC-SHA256"),
    "no text": (lambda path: (path / "HMAC-SHA256").write_bytes(b"\xff" * 65), "HMAC-SHA256"),
    "another's": (of_another, "HMAC-SHA256"),
    "a folder": (lambda path: [(path / "HMAC-SHA256").unlink(), (path / "HMAC-SHA256").mkdir()], "HMAC-SHA256"),
    "no checksums": (lambda path: (path / "SHA256SUMS").unlink(), "SHA256SUMS"),
    "tensors altered": (lambda path: (path / "state.safetensors").write_bytes(b"x"), "SHA256SUMS"),
}


@pytest.mark.parametrize("name", long_beyond(3, CHANGES))
def test_wrongly_signed_checkpoint_is_skipped(name, kept):
    change, field = CHANGES[name]
    change(kept / NEW)
    found = point(kept)
    assert found.folder.name == OLD
    assert [(notice.code, Path(notice.field).name) for notice in found.notices] == [("damaged-checkpoint", NEW)]
    if name != "another's":
        change(kept / OLD)
        with refused("damaged-checkpoint", None, OLD, kind=DamagedError) as caught:
            point(kept)
        assert Path(caught.value.field).name == field


def test_forged_checkpoint_is_used_without_a_key(kept):
    forged(kept / NEW)
    assert point(kept, key=None).progress.seconds == 77.0


@pytest.fixture
def listed(tmp_path):
    """Return two signed checkpoints that cover 6 and 12 bytes of a list of replies."""
    folder, text = tmp_path / "listed", b"abcdef" * 3
    written = []

    def extent():
        written.append(6)
        return sum(written), hashlib.sha256(text[: sum(written)]).hexdigest()

    keep = Checkpoints(folder, dict, 2, key=KEY, replies=extent)
    run(ALGORITHMS["FedAvg"], digits(), rounds=5, keep=keep)
    (folder / "replies.csv").write_bytes(text)
    return folder


def test_reply_list_is_covered_up_to_the_checkpoint(listed):
    assert (point(listed).folder.name, point(listed).replies) == (NEW, b"abcdef" * 2)
    (listed / "replies.csv").write_bytes(b"abcdefabcdefx")  # later rows do not matter
    assert (point(listed).folder.name, point(listed).replies) == (NEW, b"abcdef" * 2)
    for damage in (b"abcdefabcdxf", b"abcdefabcde", b"abcdef"):
        (listed / "replies.csv").write_bytes(damage)
        assert (point(listed).folder.name, point(listed).replies) == (OLD, b"abcdef")
        assert [notice.code for notice in point(listed).notices] == ["damaged-file"]


@pytest.mark.parametrize("key", [KEY, pytest.param(None, marks=pytest.mark.long)])
def test_missing_covered_list_is_an_error_without_loss(key, listed):
    before = sorted(listed.rglob("*"))
    (listed / "replies.csv").write_bytes(b"abcdeg")
    with refused("damaged-file", "replies.csv"):
        point(listed, key)
    (listed / "replies.csv").unlink()
    with refused("file-not-found"):
        point(listed, key)
    (listed / "replies.csv").symlink_to(listed / NEW / "run.json")
    with refused("not-a-file", str(listed / "replies.csv")):
        point(listed, key)
    assert sorted(listed.rglob("*")) == before


@pytest.mark.parametrize(
    "extent", [[6], [-1, "0" * 64], [2**53 + 1, "0" * 64], ["6", "0" * 64], [6, "x" * 64], {"bytes": 6}, "abc"]
)
def test_impossible_extent_counts_as_damage(extent, tmp_path):
    content = {"format": FORMAT, "round": 1, "skipped": 0, "ledger": dict.fromkeys(COUNTERS, 0), "seconds": 0.0,
               "identity": {}, "replies": [6, "0" * 64]}  # fmt: skip
    assert record_of(json.dumps(content).encode()).replies == (6, "0" * 64)
    with refused("damaged-checkpoint", kind=DamagedError) as caught:
        record_of(json.dumps({**content, "replies": extent}).encode())
    assert caught.value.field.startswith("replies")


def test_renamed_checkpoint_has_a_wrong_signature(kept):
    (kept / NEW).rename(kept / "round-00000009")
    assert [(notice.code, Path(notice.field).name) for notice in point(kept).notices] == [
        ("damaged-checkpoint", "round-00000009")
    ]


def test_restored_older_checkpoint_is_accepted(kept):
    """docs/checkpoints.md lists this as a limit of signing."""
    shutil.rmtree(kept / NEW)
    assert point(kept).progress.round == 2


def test_other_key_accepts_no_checkpoint(kept):
    with refused("damaged-checkpoint", "HMAC-SHA256", "checkpoint_key", kind=DamagedError):
        newest(kept, OTHER)
    assert newest(kept, KEY).folder.name == NEW


def test_unsigned_checkpoints_are_refused_with_a_key(tmp_path):
    run(ALGORITHMS["FedAvg"], digits(), rounds=5, keep=Checkpoints(tmp_path, dict, 2))
    assert not any(tmp_path.glob("*/HMAC-SHA256"))
    with refused("damaged-checkpoint", "HMAC-SHA256", "checkpoint_key", kind=DamagedError):
        point(tmp_path)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", ("invalid-key", "checkpoint_key", "0", "32", "4096")),
        (b"x" * 31, ("invalid-key", "checkpoint_key", "31")),
        (b"x" * 4097, ("invalid-key", "checkpoint_key", "4096")),
    ],
)
def test_invalid_keys_are_refused(content, error, tmp_path):
    path = tmp_path / "key"
    path.write_bytes(content)
    with refused(*error):
        read_key(path)
    path.unlink()
    with refused("file-not-found", str(path), "checkpoint_key"):
        read_key(path)


@pytest.mark.parametrize("length", [32, 4096])
def test_key_is_all_bytes_of_the_file(length, tmp_path):
    (tmp_path / "key").write_bytes(b"\n" * length)
    assert read_key(tmp_path / "key") == b"\n" * length


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("a\0b", "file-unreadable"),
        ("\udcff", "file-not-found"),
        ("x" * 300, "file-unreadable"),
        ("/dev/zero", "not-a-file"),
        (".", "not-a-file"),
    ],
)
def test_invalid_key_paths_are_refused(name, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused(code, None, "checkpoint_key") as caught:
        key_of(Config(checkpoint_key=name), tmp_path / "out")
    assert str(caught.value).isprintable()


def test_key_inside_the_protected_folder_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/key").write_bytes(KEY)
    with refused("invalid-value", "checkpoint_key"):
        key_of(Config(checkpoint_key=tmp_path / "run/key"), tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path / "run/key")
    with refused("invalid-value", "checkpoint_key"):
        key_of(Config(checkpoint_key=tmp_path / "link"), tmp_path / "run")
    assert key_of(Config(), tmp_path) is None


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """Make a run of `drfl run` that stopped after round 4, with a key."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").write_bytes(KEY)
    (tmp_path / "other").write_bytes(OTHER)
    write = Checkpoints.write

    def broken(self, progress):
        write(self, progress)
        if progress.round == 4:
            raise OSError(5, os.strerror(5))

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "write", broken)
        with pytest.raises(OSError, match="Input/output"):
            call(["run", *SMALL, "--out", "a", "--checkpoint-key", "key"])
    return tmp_path / "a"


def test_command_signs_and_verifies(stopped, tmp_path, capsys):
    assert len(list((stopped / "checkpoint").glob("*/HMAC-SHA256"))) == 2
    forged(stopped / "checkpoint" / NEW)
    assert call(["run", *SMALL, "--out", "whole"]) == 0
    capsys.readouterr()
    damaged, resumed = notices(["run", "--out", "a", "--resume"])  # config.toml names the key file
    assert (damaged.code, Path(damaged.field).name) == ("damaged-checkpoint", NEW)
    assert "checkpoint_key" in damaged
    assert (resumed.code, "2 of 6" in resumed) == ("resumed", True)
    assert (stopped / "history.csv").read_bytes() == (tmp_path / "whole/history.csv").read_bytes()
    assert not any(KEY in path.read_bytes() for path in stopped.iterdir())


@pytest.mark.long
def test_command_with_another_key_is_refused(stopped, capsys):
    capsys.readouterr()
    assert call(["run", "--out", "a", "--resume", "--checkpoint-key", "other", "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["code"] == "bad-signature"
    assert err.count("\n") == 1
    assert call(["run", "--out", "a", "--resume", "--checkpoint-key", "key"]) == 0


def test_bad_key_is_reported_before_reading_or_writing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_bytes(b"x")
    monkeypatch.setattr("drfl.cli.run.load_data", lambda *_: pytest.fail("the data were loaded"))
    for key, code in (("none", "file-not-found"), ("short", "invalid-key")):
        assert said(["run", *SMALL, "--out", "a", "--checkpoint-key", key], capsys)[0] == code
    (tmp_path / "job.toml").write_text('checkpoint_key = "short"')
    assert call(["run", "job.toml", "--out", "a"]) == 2
    assert not (tmp_path / "a").exists()


def said(arguments, capsys):
    """Return code and field of the refused command."""
    capsys.readouterr()
    assert call([*arguments, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    return error["code"], error["field"]


NAMES = ("manifest.json", "config.toml")


def check_every_file(folder, names, arguments, capsys, may_go=()):
    """Assert that each of these files is refused if it is altered, unsigned, swapped or missing, without any change."""
    for name in names:
        path = folder / name
        data = path.read_bytes()
        own = name.rpartition("-seed0/")[2]  # name within a cell's folder
        changed = bytearray(data)
        changed[-3] ^= 1
        first, _, rest = data.partition(b"\n")
        plain = rest if first.startswith(b"#") else b"{" + rest
        other = next(path for path in folder.rglob("*.*") if path.name in NAMES and path.name != own)
        for content, code in (
            (bytes(changed), "bad-signature"),
            (data.replace(b"a", b"b", 1), "bad-signature"),
            (data + b"\n", "bad-signature"),
            (plain, "not-signed"),
            (b"", "not-signed"),
            (other.read_bytes(), "bad-signature"),
        ):
            path.write_bytes(content)
            found = said(arguments, capsys)
            assert found in ((code, own), ("not-signed", own)), (name, content[:80])
        path.unlink()
        if name not in may_go:
            assert said(arguments, capsys)[0] == "file-not-found", name
        (folder.parent / "elsewhere").write_bytes(data)
        path.symlink_to(folder.parent / "elsewhere")
        assert said(arguments, capsys) == ("file-not-found", own)
        path.unlink()
        path.write_bytes(data)


@pytest.mark.long
def test_every_file_read_when_resuming_a_run_is_signed(stopped, capsys):
    arguments = ["run", "--resume", "--out", "a", "--checkpoint-key", "key"]
    check_every_file(stopped, ["manifest.json", "checkpoint/config.toml"], arguments, capsys)
    (stopped / "config.toml").write_text("rounds = 7")
    assert said(arguments, capsys) == ("not-signed", "config.toml")
    (stopped / "config.toml").unlink()
    assert call(arguments) == 0
    check_every_file(stopped, ["manifest.json", "config.toml"], arguments, capsys)
    assert call(arguments) == 0
    assert call(["report", "a", "--out", "page.html"]) == 0


def test_signature_is_verified_before_parsing(stopped, monkeypatch, capsys):
    (stopped / "manifest.json").write_text("{" * 100_000)
    monkeypatch.setattr("drfl.experiments.run.run_directory.read_manifest", lambda *_: pytest.fail("it was parsed"))
    monkeypatch.setattr("drfl.cli.run.config_of", lambda *_: pytest.fail("it was parsed"))
    arguments = ["run", "--resume", "--out", "a", "--checkpoint-key", "key"]
    assert said(arguments, capsys) == ("not-signed", "manifest.json")


def test_key_named_only_in_the_folder_is_not_used(stopped, tmp_path, capsys):
    """Anyone who can edit the configuration could name another key and sign with it."""
    (tmp_path / "job.toml").write_text('checkpoint_key = "other"\nengine = "loop"\nclients = 6\nrounds = 6')
    arguments = ["run", "job.toml", "--resume", "--out", "a"]
    assert said(arguments, capsys) == ("bad-signature", "manifest.json")


@pytest.mark.long
def test_every_file_read_when_resuming_a_comparison_is_signed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").write_bytes(KEY)
    write, calls = Checkpoints.write, []

    def broken(self, progress):
        write(self, progress)
        calls.append(progress.round)
        if len(calls) == 4:
            raise OSError(5, os.strerror(5))

    words = [*SMALL, "--algorithms", "FedAvg,DRDM", "--seeds", "1", "--checkpoint-key", "key", "--out", "c"]
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "write", broken)
        with pytest.raises(OSError, match="Input/output"):
            call(["compare", *words])
    arguments = ["compare", "--resume", "--out", "c", "--checkpoint-key", "key"]
    names = ["manifest.json", "checkpoint/config.toml", "checkpoint/identity.json", "checkpoint/FedAvg-seed0.json",
             "FedAvg-seed0/manifest.json", "FedAvg-seed0/config.toml", "DRDM-seed0/manifest.json",
             "DRDM-seed0/checkpoint/config.toml"]  # fmt: skip
    # a cell without a manifest is a foreign folder, which is refused for another reason
    check_every_file(tmp_path / "c", names, arguments, capsys, [name for name in names if "0/manifest" in name])
    record = (tmp_path / "c/checkpoint/FedAvg-seed0.json").read_bytes()
    (tmp_path / "c/checkpoint/DRDM-seed0.json").write_bytes(record.replace(b"FedAvg", b"DRDM"))
    assert said(arguments, capsys) == ("bad-signature", "checkpoint/DRDM-seed0.json")
    (tmp_path / "c/checkpoint/DRDM-seed0.json").unlink()
    assert call(arguments) == 0
    check_every_file(tmp_path / "c", ["config.toml", "outcomes.json"], arguments, capsys)
    assert call(arguments) == 0
