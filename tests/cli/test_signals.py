"""Test Ctrl-C before and during training: one line, and exit code 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.support.marks import crossed, long_except
from tests.support.refusals import refused

from drfl.cli import compare, run, signals, tune
from drfl.cli.app import call
from drfl.core.errors import StoppedError

STUBBORN = """
import os, signal
try:
    os.kill(os.getpid(), int(os.environ["SENT"]))
    for _ in range(1000):
        pass
except BaseException:  # as imports do that can go without a part
    pass
raise SystemExit("went on without it")
"""


PACKAGES = long_except(["pydantic"], ["typer", "torch", "pydantic"])
COMMANDS = long_except(["run"], ["run", "compare", "algorithms", "datasets"])
SIGNALS = [pytest.param(signal.SIGINT, 130, id="SIGINT"), pytest.param(signal.SIGTERM, 143, id="SIGTERM")]


@pytest.mark.parametrize(
    ("package", "command", "number", "code"),
    crossed(
        PACKAGES,
        COMMANDS,
        SIGNALS,
    ),
)
@pytest.mark.long
def test_signal_while_a_package_is_imported(number, code, package, command, tmp_path):
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
            "SENT": str(int(number)),
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]),
        },
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "drfl: interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == [package]


AT_THE_END = """
import atexit, os, sys
from drfl.cli import main

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid()):  # after Python has set its handlers back
        kill(pid, {number})

sys.late = Late()
atexit.register(lambda: os.kill(os.getpid(), {number}))
sys.argv = ["drfl", "--version"]
main()
"""


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_signal_while_python_exits_keeps_the_exit_code(number):
    code = AT_THE_END.format(number=int(number))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("drfl ")


def test_few_modules_are_imported_before_the_handlers():
    # -S excludes site-packages, whose .pth files may import anything.
    code = "import sys; sys.path.insert(0, sys.argv[1]); before = {*sys.modules}; import drfl.cli; "
    code += "print(*({*sys.modules} - before))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, str(Path(signals.__file__).parents[2])],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    drfl = {"drfl", "drfl.cli", "drfl.cli.signals"}
    assert drfl <= set(done.stdout.split())
    assert {name for name in done.stdout.split() if name.startswith("drfl")} == drfl
    assert not {"typing", "re", "threading", "difflib"} & set(done.stdout.split())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_in_the_command_outside_training(number, code, monkeypatch, capsys):
    def pressed(given):
        signal.raise_signal(number)
        pytest.fail("went on")

    monkeypatch.setattr(run, "run_command", pressed)
    assert call(["run"]) == code
    assert capsys.readouterr().err == "drfl: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        (run, "load_data", ["run"]),
        (compare, "from_config", ["compare", "--algorithms", "FedAvg"]),
        (tune, "prepare", ["tune", "mnist-linear"]),
    ],
    ids=["run", "compare", "tune"],
)
def test_signal_while_data_are_loaded_cleans_up(number, code, module, name, words, monkeypatch, capsys):
    tidied = []

    def load(*_, **__):
        try:
            signal.raise_signal(number)
            pytest.fail("went on")
        finally:
            tidied.append(True)

    monkeypatch.setattr(module, name, load)
    assert call(words) == code
    assert capsys.readouterr().err == "drfl: interrupted\n"
    assert tidied


def handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def test_handlers_are_restored():
    default = handlers()
    assert default == [signal.default_int_handler, signal.SIG_DFL]
    with signals.end_at_once():
        leave = handlers()
        assert not set(leave) & set(default)
        with signals.end_at_once(), signals.raise_on_signal():
            assert not set(handlers()) & {*leave, *default}
        assert handlers() == leave
    with refused("interrupted", kind=StoppedError), signals.raise_on_signal():
        signal.raise_signal(signal.SIGTERM)
    assert handlers() == default


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_foreign_handlers_and_ignored_signals_are_kept(number):
    before = signal.getsignal(number)
    try:
        for handler in (signal.SIG_IGN, lambda signum, frame: None):
            signal.signal(number, handler)
            with signals.end_at_once(), signals.raise_on_signal(), signals.CallOnSignal(pytest.fail):
                assert signal.getsignal(number) is handler
            assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


def test_command_can_be_called_from_another_thread(capsys):
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(call(["algorithms", "--json"])))
    thread.start()
    thread.join()
    assert codes == [0]
    assert "DRDM" in capsys.readouterr().out
