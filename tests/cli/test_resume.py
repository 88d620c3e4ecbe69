"""Test `drfl run --resume` after stops, kills, damage and changes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from tests.cli.test_run import FILES
from tests.support.marks import crossed, long_beyond
from tests.support.refusals import notice_codes, notices, quotes, refusal
from tests.support.run_files import different, results_in

import drfl
from drfl.cli import run
from drfl.cli.app import call
from drfl.engine import Loop
from drfl.experiments.run.manifest import is_finished
from drfl.experiments.run.run_directory import claim_folder
from drfl.training.callbacks import Progress
from drfl.training.checkpoint import store
from drfl.training.checkpoint.store import sums_of

SMALL = ["--engine", "loop", "--clients", "6", "--cohort", "4", "--rounds", "6", "--steps", "2", "--threads", "1"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stop(monkeypatch):
    """Raise a signal so that the run stops after round r; None never stops it."""

    def arm(r, number=signal.SIGINT):  # callbacks run after the check for a stop request
        def show(self, step):
            if r is not None and step.round + 1 == r:
                signal.raise_signal(number)

        monkeypatch.setattr(Progress, "__call__", show)

    yield arm
    monkeypatch.undo()


def same(a, b):
    """Return whether two runs have the same files except for wall times."""
    return {path.name for path in a.iterdir()} >= FILES and different(results_in(a), results_in(b)) == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)]
)
def test_resumed_run_equals_an_uninterrupted_run(number, code, stop, tmp_path, capsys):
    assert call(["run", *SMALL, "--out", "w/a"]) == 0
    stop(4, number)
    assert call(["run", *SMALL, "--out", "a", "--evaluate-every", "1"]) == code
    assert json.loads((tmp_path / "a/summary.json").read_text())["stopped"] == "interrupted"
    assert refused(["run", *SMALL, "--out", "a"], capsys).code == "unfinished-run"
    stop(None)
    (told,) = notices(["run", "--out", "a", "--resume"])
    assert told.code == "resumed"
    assert "4 of 6" in told
    assert {path.name for path in (tmp_path / "a").iterdir()} == FILES
    assert same(tmp_path / "a", tmp_path / "w/a")
    assert notice_codes(["run", "--out", "a", "--resume"]) == ["nothing-to-resume"]


def test_finished_run_is_printed_again(capsys):
    assert call(["run", *SMALL, "--out", "a", "--json"]) == 0
    first = capsys.readouterr().out
    assert call(["run", "--out", "a", "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(first)


def refused(arguments, capsys):
    capsys.readouterr()
    error = refusal(arguments)
    assert capsys.readouterr().err.count("\n") == 1
    return error


def test_resuming_another_run_names_the_difference(stop, capsys):
    stop(3)
    call(["run", *SMALL, "--out", "a"])
    for options, field, values in (
        (["--lr", "0.7"], "algorithms.DualDRDM.lr", ("0.7",)),
        (["--seed", "4"], "seed", ("0", "4")),
        (["--algorithm", "DRFA"], "algorithm", ("'DualDRDM'", "'DRFA'")),
        (["--rounds", "9"], "rounds", ("6", "9")),
        (["--clients", "3"], "clients", ("6", "3")),  # fewer than the stored cohort
    ):
        error = refused(["run", "--out", "a", "--resume", *options], capsys)
        assert (error.code, error.field) == ("other-run", field)
        assert quotes(str(error), *values)
    stop(None)
    assert call(["run", *SMALL, "--out", "a", "--resume"]) == 0
    error = refused(["run", "--out", "a", "--resume", "--lr", "0.7"], capsys)
    assert (error.field, quotes(str(error), "0.7")) == ("algorithms.DualDRDM.lr", True)


def test_missing_results_of_a_finished_run_are_named(tmp_path, capsys):
    assert call(["run", *SMALL, "--out", "a"]) == 0
    (tmp_path / "a/report.html").unlink()  # `drfl report` makes it again
    assert call(["run", "--out", "a", "--resume"]) == 0
    for name in ("model.safetensors", "clients.csv"):
        (tmp_path / "a" / name).unlink()
        error = refused(["run", "--out", "a", "--resume"], capsys)
        assert (error.code, error.field) == ("file-not-found", f"a/{name}")


@pytest.mark.long
@pytest.mark.parametrize(
    "job", long_beyond(1, [([],), (["--engine", "loop"],), (["--model", "mlp", "--algorithm", "ScaffPD"],)])
)
def test_different_number_of_threads_is_reported_and_the_run_continues(job, stop, tmp_path, capsys):
    assert call(["run", *SMALL, *job, "--out", "w/a"]) == 0
    stop(3)
    assert call(["run", *SMALL, *job, "--out", "a"]) == 130
    stop(None)
    capsys.readouterr()
    told = notices(["run", "--out", "a", "--resume", "--threads", "2"])
    assert [(notice.code, notice.field) for notice in told] == [("other-version", "threads"), ("resumed", None)]
    assert quotes(told[0], "1", "2")
    assert "3 of 6" in told[-1]
    for name in ("history.csv", "lambda.csv"):  # on some machines the last digits differ, as the notice says
        one, other = (pd.read_csv(tmp_path / run / name) for run in ("a", "w/a"))
        pd.testing.assert_frame_equal(one, other, rtol=1e-4, atol=1e-6)
    assert notice_codes(["run", "--out", "a", "--resume", "--threads", "3"]) == ["nothing-to-resume"]


@pytest.mark.parametrize("what", ["data", pytest.param("model", marks=pytest.mark.long)])
def test_changed_data_are_refused(what, stop, tmp_path, capsys):
    stop(3)
    call(["run", *SMALL, "--out", "a"])
    for path in (tmp_path / "a/checkpoint").glob("round-*"):
        altered(path, lambda content: content["identity"].update({what: "0" * 32}))
    error = refused(["run", "--out", "a", "--resume"], capsys)
    assert (error.code, error.field) == ("other-run", what)


def test_damaged_checkpoint_is_reported_and_the_previous_one_used(stop, tmp_path, capsys):
    call(["run", *SMALL, "--out", "w/a"])
    stop(5)
    call(["run", *SMALL, "--out", "a", "--checkpoint-every", "2"])
    (tmp_path / "a/checkpoint/round-00000005/state.safetensors").write_bytes(b"x")
    stop(None)
    capsys.readouterr()
    assert call(["run", "--out", "a", "--resume"]) == 0
    told = capsys.readouterr().err
    assert "round-00000005 cannot be used: " in told
    assert "after round 4 of 6" in told
    assert (tmp_path / "a/history.csv").read_bytes() == (tmp_path / "w/a/history.csv").read_bytes()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda content: content.update(round="5"), "run.json, round: input should be a valid integer"),
        (lambda content: content["ledger"].pop("messages"), "run.json, ledger: messages "),
        (lambda content: content["identity"].pop("versions"), "run.json, identity.versions: field required"),
        (
            lambda content: content["identity"].update(versions={"torch": "\x1b[2J"}),
            "identity.versions.torch: string sh",
        ),
        (lambda content: content["identity"].update(data=7), "run.json, identity.data: input should be a valid string"),
        (
            lambda content: content["identity"].update(config=None),
            "identity.config: input should be a valid dictionary",
        ),
        (lambda content: content["identity"]["config"].update(lr=0.7), "the run to resume has lr = 0.7, not no value"),
    ],
)
@pytest.mark.long
def test_checkpoint_with_wrong_content_is_reported_and_the_previous_one_used(change, why, stop, tmp_path, capsys):
    stop(5)
    call(["run", *SMALL, "--out", "a", "--checkpoint-every", "2"])
    stop(None)
    altered(tmp_path / "a/checkpoint/round-00000005", change)
    capsys.readouterr()
    assert call(["run", "--out", "a", "--resume"]) == 0
    told = capsys.readouterr().err
    assert "round-00000005 cannot be used: " in told
    assert why in " ".join(told.split())
    assert "after round 4 of 6" in told
    assert {path.name for path in (tmp_path / "a").iterdir()} == FILES


def altered(path, change):
    """Change run.json, and update the checksums."""
    content = json.loads((path / "run.json").read_text())
    change(content)
    (path / "run.json").write_text(json.dumps(content))
    files = {name: (path / name).read_bytes() for name in ("state.safetensors", "run.json")}
    (path / "SHA256SUMS").write_bytes(sums_of(files))


@pytest.mark.parametrize("damage", ["content", pytest.param("missing", marks=pytest.mark.long)])
def test_run_without_usable_checkpoint_starts_from_the_beginning(damage, stop, tmp_path, capsys):
    assert call(["run", *SMALL, "--out", "w/a"]) == 0
    stop(5)
    assert call(["run", *SMALL, "--out", "a"]) == 130
    for path in (tmp_path / "a/checkpoint").glob("round-*"):
        if damage == "content":
            altered(path, lambda content: content.update(seconds=float("inf")))
        else:
            (path / "run.json").unlink()
    stop(None)
    assert notice_codes(["run", "--out", "a", "--resume"]) == ["damaged-checkpoint"]
    assert same(tmp_path / "a", tmp_path / "w/a")


def stopped_record(folder):
    return json.loads((folder / "summary.json").read_text())["stopped"]


BY_DEFAULT = pytest.param(None, id="None", marks=pytest.mark.long)
SIGNALS = [
    pytest.param(signal.SIGINT, 130, id="SIGINT"),
    pytest.param(signal.SIGTERM, 143, id="SIGTERM", marks=pytest.mark.long),
]


@pytest.mark.long
@pytest.mark.parametrize(("every", "number", "code"), crossed([0, BY_DEFAULT], SIGNALS))
def test_run_stopped_before_its_first_checkpoint_is_not_finished(number, code, every, tmp_path, capsys, monkeypatch):
    options = [*SMALL, *([] if every is None else ["--checkpoint-every", str(every)])]
    assert call(["run", *options, "--out", "w/a"]) == 0
    build = run.build
    monkeypatch.setattr(run, "build", lambda *given: (signal.raise_signal(number), build(*given))[1])
    assert call(["run", *options, "--out", "a"]) == code
    assert stopped_record(tmp_path / "a") == "interrupted"
    assert json.loads((tmp_path / "a/summary.json").read_text())["rounds"] == 0
    assert call(["run", "--out", "a", "--resume"]) == code, "interrupted again"
    assert call(["run", "--out", "a", "--resume", "--json"]) == code
    monkeypatch.setattr(run, "build", build)
    capsys.readouterr()
    assert call(["run", *options, "--out", "a", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "unfinished-run"
    assert call(["run", "--out", "a", "--resume", "--seed", "4"]) == 2, "another run"
    assert call(["run", "--out", "a", "--resume"]) == 0
    assert same(tmp_path / "a", tmp_path / "w/a")
    assert notice_codes(["run", "--out", "a", "--resume"]) == ["nothing-to-resume"]


def test_finished_run_that_failed_fails_again(tmp_path, capsys):
    for more in ([], ["--resume"], ["--resume"]):
        assert notices(["run", *SMALL, "--lr", "1e9", "--out", "a", *more], exit_code=1)[-1].code == "loss-rose"


@pytest.mark.long
def test_python_warns_of_an_interrupted_run(stop, tmp_path):
    stop(4)
    assert call(["run", *SMALL, "--out", "a"]) == 130
    with pytest.warns(drfl.RunWarning) as told:
        drfl.assess(tmp_path / "a")
    assert [(one.message.code, one.message.field, one.filename) for one in told] == [
        ("interrupted", str(tmp_path / "a"), __file__)
    ]
    stop(None)
    assert call(["run", "--resume", "--out", "a"]) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drfl.assess(tmp_path / "a")
        drfl.assess_gain(tmp_path / "a", tmp_path / "a")
    assert call(["run", *SMALL, "--out", "w/a"]) == 0
    summary = tmp_path / "w/a/summary.json"
    summary.write_text(summary.read_text().replace('"stopped": "rounds"', '"stopped": "interrupted"'))
    with pytest.warns(drfl.RunWarning) as told:
        drfl.assess_gain(tmp_path / "a", tmp_path / "w/a")
    assert [(one.message.code, one.filename) for one in told] == [("interrupted", __file__)]


@pytest.mark.long
def test_run_without_checkpoints_restarts_from_the_beginning(stop, tmp_path, capsys):
    options = [*SMALL, "--checkpoint-every", "0"]
    assert call(["run", *options, "--out", "w/a"]) == 0
    stop(4, signal.SIGTERM)
    assert call(["run", *options, "--out", "a"]) == 143
    shutil.rmtree(tmp_path / "a/checkpoint")  # only its results show that it did not end
    stop(None)
    assert call(["run", "--out", "a", "--resume"]) == 0
    assert same(tmp_path / "a", tmp_path / "w/a")


@pytest.mark.long
def test_stopped_overwriting_run_is_not_the_old_run(stop, tmp_path):
    assert call(["run", *SMALL, "--out", "a"]) == 0
    before = (tmp_path / "a/history.csv").read_bytes()

    def aborted(self, step):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "__call__", aborted)
        again = [*SMALL, "--rounds", "5", "--checkpoint-every", "0", "--out", "a", "--overwrite"]
        assert call(["run", *again]) == 130
    assert (tmp_path / "a/history.csv").read_bytes() == before, "the results before stay until there are new ones"
    assert not is_finished(tmp_path / "a")
    assert call(["run", "--out", "a", "--resume"]) == 0
    assert call(["run", *SMALL, "--rounds", "5", "--out", "w/a"]) == 0
    assert (tmp_path / "a/history.csv").read_bytes() == (tmp_path / "w/a/history.csv").read_bytes()


@pytest.mark.long
def test_full_batches_are_the_same_after_a_resume(stop, tmp_path):
    job = [*SMALL, "--algorithm", "ScaffPD"]
    assert call(["run", *job, "--out", "w/a"]) == 0
    stop(3)
    assert call(["run", *job, "--out", "a"]) == 130
    stop(None)
    assert call(["run", "--out", "a", "--resume"]) == 0
    assert json.loads((tmp_path / "a/summary.json").read_text())["parameters"]["dual_batch"] is None
    assert same(tmp_path / "a", tmp_path / "w/a")


@pytest.mark.long
def test_report_and_assess_mention_an_interruption(stop, tmp_path, capsys):
    stop(4)
    assert call(["run", *SMALL, "--out", "a"]) == 130
    for command in (["report", "a", "--out", "page.html"], ["assess", "a"]):
        told = notices(command)
        assert [(notice.code, notice.field) for notice in told] == [("interrupted", "a")]
        assert quotes(told[0], "4")
    capsys.readouterr()
    assert call(["assess", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["interrupted"] is True
    stop(None)
    assert call(["run", "--out", "a", "--resume"]) == 0
    capsys.readouterr()
    assert call(["assess", "a", "--json"]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["runs"][0]["interrupted"], err) == (False, "")


def test_run_without_results_is_not_reported(tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt), claim_folder(tmp_path / "a", config="rounds = 1"):
        raise KeyboardInterrupt
    for command in ("report", "assess"):
        error = refusal([command, "a", "--json"] if command == "assess" else [command, "a"])
        assert error.code == "unfinished-run"
        assert "'drfl run --resume --out a'" in str(error)


@pytest.mark.long
def test_deeply_nested_configuration_is_refused(tmp_path, capsys):
    assert call(["run", *SMALL, "--out", "a"]) == 0
    (tmp_path / "a/config.toml").rename(tmp_path / "kept.toml")
    (tmp_path / "a/config.toml").write_text("x = " + "[" * 5000)
    assert "`overwrite`" in str(refused(["run", "kept.toml", "--out", "a", "--resume"], capsys))


@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        (["--resume"], "needs-option", "resume"),
        (["--resume", "--out", "none"], "nothing-to-resume", "none"),
        (["--resume", "--overwrite", "--out", "none"], "conflicting-options", "resume"),
        (["study.toml", "--resume"], "needs-option", "resume"),
        (["study.toml", "--resume", "--overwrite", "--out", "none"], "conflicting-options", "resume"),
        (["--resume", "--out", "mine"], "foreign-folder", "mine"),
        (["--checkpoint-every", "-1", "--out", "none"], "invalid-value", "checkpoint_every"),
    ],
)
def test_nothing_to_resume_is_an_error(arguments, code, field, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("mine")
    (tmp_path / "study.toml").write_text("rounds = 1\n")
    error = refused(["run", *arguments], capsys)
    assert (error.code, error.field) == (code, field)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mine", "study.toml", "thesis.txt"]


@pytest.mark.long
def test_same_command_starts_and_resumes(tmp_path):
    assert call(["run", *SMALL, "--out", "a", "--resume"]) == 0
    assert {path.name for path in (tmp_path / "a").iterdir()} == FILES


def test_full_disk_is_one_line_and_the_run_can_resume(monkeypatch, tmp_path, capsys):
    calls = []

    def full(handle):
        calls.append(handle)
        # A checkpoint has three files and two folders to flush.
        if len(calls) > 10:
            raise OSError(28, os.strerror(28))
        os.fsync(handle)

    monkeypatch.setattr(store, "os", SimpleNamespace(**{**vars(os), "fsync": full}))
    error = refusal(["run", *SMALL, "--out", "a", "--checkpoint-every", "1"], exit_code=2)
    assert error.code == "cannot-write"
    assert quotes(str(error), "3", "No space left", "2")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert call(["run", "--out", "a", "--resume"]) == 0


@pytest.mark.long
def test_killed_run_resumes_and_a_second_process_is_refused(tmp_path, capsys):
    job = [*SMALL, "--rounds", "40", "--checkpoint-every", "3"]
    assert call(["run", *job, "--out", "w/a"]) == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "drfl", "run", *job, "--rounds", "40", "--out", "a"], cwd=tmp_path
    )
    while not any((tmp_path / "a/checkpoint").glob("round-*")):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGSTOP)
    assert refused(["run", "--out", "a", "--resume"], capsys).code == "folder-in-use"
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    assert call(["run", "--out", "a", "--resume"]) == 0
    assert same(tmp_path / "a", tmp_path / "w/a")


@pytest.mark.long
def test_full_gpu_memory_leaves_a_run_that_can_resume(tmp_path, capsys, monkeypatch):
    assert call(["run", *SMALL, "--checkpoint-every", "1", "--out", "w/a"]) == 0
    train, calls = Loop.train, []

    def fourth(self, *arguments):
        calls.append(len(calls))
        if len(calls) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.\nMore lines")
        return train(self, *arguments)

    monkeypatch.setattr(Loop, "train", fourth)
    capsys.readouterr()
    assert call(["run", *SMALL, "--checkpoint-every", "1", "--out", "a", "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["error"]["code"] == "out-of-memory"
    assert printed.err.count("drfl: ") == 1
    assert "Traceback" not in printed.err
    (told,) = notices(["run", "--out", "a", "--resume"])
    assert told.code == "resumed"
    assert "3 of 6" in told
    assert same(tmp_path / "a", tmp_path / "w/a")
