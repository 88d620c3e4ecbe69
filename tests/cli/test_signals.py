"""Ctrl-C before and beside the training: one line, exit code 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from functools import partial

import pytest
from tests.support.marks import only

from drfl.cli import run, signals
from drfl.cli.app import call

STUBBORN = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass
except BaseException:  # as imports do that can go without a part
    pass
raise SystemExit("went on without it")
"""


@pytest.mark.parametrize("package", ["typer", "torch", "pydantic"])
@pytest.mark.parametrize("command", only(["run"], ["run", "compare", "algorithms", "datasets"]))
def test_while_a_package_is_imported(package, command, tmp_path):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(STUBBORN)
    done = subprocess.run(
        [sys.executable, "-m", "drfl", command],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]),
        },
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "drfl: interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == [package]


def test_in_the_command_outside_the_training(monkeypatch, capsys):
    def pressed(given):
        signal.raise_signal(signal.SIGINT)
        pytest.fail("went on")

    monkeypatch.setattr(run, "run_command", pressed)
    assert call(["run"]) == 130
    assert capsys.readouterr().err == "drfl: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_handlers_are_as_they_were():
    handler, default = partial(signal.getsignal, signal.SIGINT), signal.default_int_handler
    assert handler() is default
    with signals.at_once():
        leave = handler()
        assert leave is not default
        with signals.at_once(), signals.as_stopped():
            assert handler() is default
        assert handler() is leave
    with signals.as_stopped():
        assert handler() is default
    assert handler() is default


def test_a_handler_of_another_and_a_signal_that_is_ignored_stay():
    try:
        for handler in (signal.SIG_IGN, lambda signum, frame: None):
            signal.signal(signal.SIGINT, handler)
            with signals.at_once(), signals.as_stopped():
                assert signal.getsignal(signal.SIGINT) is handler
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_the_command_can_be_called_from_another_thread(capsys):
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(call(["algorithms", "--json"])))
    thread.start()
    thread.join()
    assert codes == [0]
    assert "DRDM" in capsys.readouterr().out
