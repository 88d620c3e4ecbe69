"""Test that malicious files and folders give a one-line error, quickly, in little memory, and execute nothing."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.report.conftest import write_directory

from drfl.cli.app import call

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SECONDS, MEGABYTES = 8, 500
ESCAPE = "\x1b]0;x\x07\x9b31m\u202e"


def table(path, write):
    write(path)
    return ["run", "--data", str(path), "--target", "y", "--rounds", "1", "--out", "out"]


def pipe(path):
    os.mkfifo(path)


def bomb_npz(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("inputs", "y"):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                head = {
                    "descr": "|u1",
                    "fortran_order": False,
                    "shape": (2**20, 2048) if name == "inputs" else (2**20,),
                }
                np.lib.format.write_array_header_1_0(file, head)
                for _ in range(2048 if name == "inputs" else 1):
                    file.write(bytes(2**20))


def promised_npz(shape, kind="<f8"):
    def write(path):
        with zipfile.ZipFile(path, "w") as archive:
            for name in ("inputs", "y"):
                with archive.open(f"{name}.npy", "w") as file:
                    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})

    return write


def pickled_npz(path):
    np.savez(path, inputs=np.array([Ran()], dtype=object), y=np.zeros(1))


class Ran:
    def __reduce__(self):
        return os.system, ("touch ran",)


def parquet(**columns):
    return lambda path: pq.write_table(pa.table(columns), path)


def zeros(path):
    pq.write_table(
        pa.table({"a": np.zeros(2**26, np.float32), "b": np.zeros(2**26, np.float32), "y": np.zeros(2**26)}), path
    )


def one_word(path):
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2000, np.int32)), pa.array(["x" * 10**6]))
    pq.write_table(pa.table({"a": words, "y": np.arange(2000) % 2}), path)


def lying_parquet(path):
    """Write a file whose footer declares small pages, but whose pages declare two gigabytes."""
    pq.write_table(pa.table({"a": np.arange(8.0), "y": np.arange(8) % 2}), path, use_dictionary=False)
    raw = path.read_bytes()
    at = raw.index(b"\x15\x00\x15")  # a data page, followed by its unpacked size as a varint of one or two bytes
    end = next(k for k in range(at + 3, at + 9) if raw[k] < 128) + 1
    value, big = 2 * (2**31 - 1), b""
    while value:
        big, value = big + bytes([value & 127 | (128 if value > 127 else 0)]), value >> 7
    path.write_bytes(raw[: at + 3] + big + raw[end:])


def hole(path):
    with path.open("wb") as file:
        file.write(b"a,y\n1,0\n")
        file.truncate(4 * 2**30)


TABLES = {
    "pipe.csv": pipe,
    "pipe.npz": pipe,
    "pipe.parquet": pipe,
    "folder.csv": lambda path: path.mkdir(),
    "zero.csv": lambda path: path.symlink_to("/dev/zero"),
    "hole.csv": hole,
    "wide.csv": lambda path: path.write_text(",".join(map(str, range(200_000))) + "\n" + "1," * 199_999 + "1\n"),
    "bomb.npz": bomb_npz,
    "terabytes.npz": promised_npz((3 * 10**12,)),
    "nothing.npz": promised_npz((10**12, 0)),
    "empty-type.npz": promised_npz((10**15,), "<U0"),
    "pickled.npz": pickled_npz,
    "zeros.parquet": zeros,
    "word.parquet": one_word,
    "lists.parquet": parquet(a=[[1, 2], [3]], y=[0, 1]),
    "structs.parquet": parquet(a=[{"b": 1}, {"b": 2}], y=[0, 1]),
    "lying.parquet": lying_parquet,
}

SLOW = ("bomb.npz", "zeros.parquet", "hole.csv")
"""Files that take a second to write."""

TOMLS = {
    "brackets.toml": b"x = " + b"[" * 200_000,
    "dots.toml": b"a" + b".a" * 100_000 + b" = 1",
    "large.toml": b"#" * 2**21,
    "binary.toml": bytes(range(256)),
}


def damaged(name, content):
    def write(folder):
        (folder / name).unlink()
        content(folder / name) if callable(content) else (folder / name).write_bytes(content)

    return write


ROWS = "test-rows.safetensors"

RUNS = {
    "summary of brackets": damaged("summary.json", b"[" * 200_000),
    "summary of objects": damaged("summary.json", b'{"algorithm":[' + b"{}," * 20_000_000 + b"{}]}"),
    "summary nested in a summary": damaged("summary.json", b'{"algorithm":1,"x":' + b"[" * 500 + b"]" * 500 + b"}"),
    "summary a pipe": damaged("summary.json", pipe),
    "summary a link to a file": damaged("summary.json", lambda path: path.symlink_to("/etc/hostname")),
    "history endless": damaged("history.csv", lambda path: path.symlink_to("/dev/zero")),
    "clients a pipe": damaged("clients.csv", pipe),
    "lambda wide": damaged("lambda.csv", b"round," + b"a," * 3_000_000 + b"a\n"),
    "lambda a long line": damaged("lambda.csv", b"round" * 2**22),
    "config of dots": damaged("config.toml", TOMLS["dots.toml"]),
    "test rows a header of 8 EB": lambda folder: (folder / "test-rows.safetensors").write_bytes(
        b"\xff" * 7 + b"\x7f{}"
    ),
    "test rows a pipe": lambda folder: os.mkfifo(folder / ROWS),
    "manifest a bracket": lambda folder: (folder / "manifest.json").write_bytes(b"[" * 200_000),
}


def weights_bomb(path):
    torch.save({"a": torch.zeros(2**20)}, path.with_suffix(".0"))
    with zipfile.ZipFile(path.with_suffix(".0")) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            content = bytes(2**29) if info.filename.endswith("/data/0") else old.read(info)
            new.writestr(info.filename, content)


HEART = ["run", "--dataset", "heart-disease", "--rounds", "1"]

OTHERS = {
    "exec as score": ["run", "--score", "builtins:exec"],
    "a class as score": ["run", "--score", "builtins:dict"],
    "a module that is not there": ["run", "--score", "no.such.module:x"],
    "a long path of data": ["run", "--data", "a" * 5000 + ".csv", "--target", "y"],
    "a long path of a file": ["run", "/".join(["a" * 200] * 25) + ".toml"],
    "a long name of a file": ["run", "a" * 5000 + ".toml"],
    "a long run": ["assess", "a" * 5000],
    "a long report": ["report", "a" * 5000],
    "a long model": ["run", "--model", "a" * 5000 + ".py:f"],
    "a long key": ["run", "--checkpoint-key", "a" * 5000],
    "a key without end": [
        "run",
        "--dataset",
        "heart-disease",
        "--rounds",
        "1",
        "--checkpoint-key",
        "/dev/zero",
        "--out",
        "out",
    ],
    "a folder as model": ["run", "--model", "folder.py:f"],
    "a log without end": ["deploy", "audit", "/dev/zero"],
    "a backbone without end": ["run", "--features", "entk", "--backbone", "/dev/zero"],
}


def check(words, capsys):
    """Require exit code 1 or 2, and one line, in this process."""
    code = call(words)
    said = capsys.readouterr()
    assert code in (1, 2), said
    lines = (said.err or said.out).splitlines()
    assert len(lines) == 1, said
    assert lines[0].isprintable()
    assert not os.path.exists("ran")
    assert not os.path.exists("out")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRFL_FILE_LIMIT", raising=False)
    Path("folder.py").mkdir()


@pytest.mark.parametrize("name", [name for name in TABLES if name not in SLOW])
def test_malicious_tables(name, capsys):
    check(table(Path(name), TABLES[name]), capsys)


@pytest.mark.parametrize("name", TOMLS)
def test_malicious_settings(name, capsys):
    Path(name).write_bytes(TOMLS[name])
    check(["run", name], capsys)


@pytest.mark.parametrize("name", RUNS)
def test_malicious_run_folders(name, tmp_path, capsys):
    RUNS[name](write_directory(tmp_path, "run"))
    check(["assess", "run"], capsys)


@pytest.mark.parametrize("name", OTHERS)
def test_malicious_options(name, capsys):
    check(OTHERS[name], capsys)


FORKS = """
import importlib, json, os, pkgutil, signal, sys
import pandas, pyarrow.parquet, torch
import drfl
from drfl.cli.app import call
for package in ("core", "data", "engine", "experiments", "cli", "report"):
    for module in pkgutil.walk_packages([f"{drfl.__path__[0]}/{package}"], f"drfl.{package}."):
        if "template" not in module.name and "ray" not in module.name:
            importlib.import_module(module.name)
for line in sys.stdin:
    child = os.fork()
    if not child:
        signal.alarm(300)
        with open("told", "w") as told:
            os.dup2(told.fileno(), 1)
            os.dup2(told.fileno(), 2)
        os._exit(call(json.loads(line)))
    _, status, used = os.wait4(child, 0)
    code, seconds = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
    print(json.dumps([code, seconds, used.ru_maxrss / 1024]), flush=True)
"""
"""Runs each command in a separate process that already has the imports."""


@pytest.fixture
def in_process():
    """Return a function that runs a command: exit code, output, processor time in seconds and peak memory in MB."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:

        def run(words):
            parent.stdin.write(json.dumps(words) + "\n")
            parent.stdin.flush()
            code, seconds, peak = json.loads(parent.stdout.readline())
            return code, Path("told").read_text().splitlines(), seconds, peak

        yield run
        parent.stdin.close()


@pytest.mark.long
def test_time_and_memory_of_real_processes(tmp_path, in_process):
    idle = in_process([*HEART, "--json", "--out", "idle"])
    assert idle[0] == 0, idle
    wrong = []
    everything = {name: table(Path(name), write) for name, write in TABLES.items()}
    for name, content in TOMLS.items():
        Path(name).write_bytes(content)
        everything[name] = ["run", name]
    for number, (name, write) in enumerate(RUNS.items()):
        write(write_directory(tmp_path, f"run{number}"))
        everything[name] = ["assess", f"run{number}"]
    weights_bomb(Path("bomb.pth"))
    everything["weights"] = ["run", "--dataset", "heart-disease", "--features", "entk", "--backbone", "bomb.pth"]
    everything |= OTHERS
    assert len(everything) >= 20
    for name, words in everything.items():
        code, said, seconds, peak = in_process(words)
        if (
            code not in (1, 2)
            or (len(said) != 1 and name != "a log without end")
            or seconds > SECONDS
            or peak > idle[3] + MEGABYTES
        ):
            wrong.append((name, code, said[-1:], seconds, peak - idle[3]))
    assert not wrong
    assert not Path("ran").exists()
