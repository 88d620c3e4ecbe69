"""Common parts of the scripts of evidence/ and benchmarks/: options, sizes, stand-in data, and storage of results.

Every script accepts ``--smoke``, which runs all of it in seconds: with the small sizes defined beside the full ones, on
data that come with drfl and scikit-learn, and into a temporary folder unless ``--out`` names one. ``make test-all``
runs every script in this way.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import importlib
import json
import multiprocessing
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeVar, cast

T = TypeVar("T")

SMOKE = "--smoke" in sys.argv[1:]
"""Read before the options are parsed, because sizes are module constants, also in worker processes."""

FLAGS = ["--smoke"] * SMOKE
"""The option to pass on when a script starts itself in another process."""


def sized(full: T, smoke: T) -> T:
    """The full size, or with ``--smoke`` the small one."""
    return smoke if SMOKE else full


def parser(doc: str | None, out: Path, *, data: bool = False) -> argparse.ArgumentParser:
    """The options of every script: ``--smoke`` and ``--out``, and ``--data-dir`` if it reads data sets.

    Args:
        doc: the script's docstring.
        out: folder of its results.
        data: whether it reads data sets from files.
    """
    # An abbreviation of --smoke would not be found in sys.argv.
    found = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    found.add_argument("--smoke", action="store_true", help="run the whole script in seconds, on little data")
    found.add_argument("--out", type=Path, default=_scratch() / "out" if SMOKE else out, help="folder for the results")
    if data:
        found.add_argument("--data-dir", type=Path, default=stand_in(), help="folder with the data sets")
    if SMOKE:
        os.environ["DRFL_MIRROR"] = "http://127.0.0.1:9"  # nothing is downloaded
    return found


def again(file: str, main: Callable[[], object], words: Sequence[str]) -> str:
    """Run a script with other options in its own process, and return its output.

    With ``--smoke`` the process is a fork of this one, because importing torch takes seconds.

    Args:
        file: the script.
        main: its main function.
        words: the options besides ``--smoke``.
    """
    errors = ""
    if SMOKE:
        importlib.import_module("torch._dynamo")  # otherwise torch.func loads it in every fork
        with tempfile.TemporaryFile("w+") as printed:
            fork = multiprocessing.get_context("fork").Process(target=_forked, args=(file, main, words, printed))
            fork.start()
            fork.join()
            printed.seek(0)
            code, output = fork.exitcode, printed.read()
    else:
        done = subprocess.run([sys.executable, file, *words], capture_output=True, text=True, check=False)
        code, output, errors = done.returncode, done.stdout, done.stderr
    if code:
        raise RuntimeError(f"{file} {' '.join(words)} failed: {errors[-3000:]}")
    return output


def _forked(file: str, main: Callable[[], object], words: Sequence[str], printed: IO[str]) -> None:
    sys.argv = [file, *FLAGS, *words]
    with contextlib.redirect_stdout(printed):
        main()
    printed.flush()


def add_adult(parser: argparse.ArgumentParser) -> None:
    """The option ``--adult`` of the default benchmark."""
    help = "adult.csv of the PyPI package fairness 0.1.8"
    parser.add_argument("--adult", type=Path, default=stand_in("adult.csv"), required=not SMOKE, help=help)


def stand_in(file: str = "") -> Path | None:
    """The folder of stand-in data, or a file in it, with ``--smoke``; otherwise None."""
    return _stand_in() / file if SMOKE else None


def store(folder: Path, files: Mapping[str, str | Mapping[str, object]]) -> None:
    """Write files into a folder: texts unchanged, other content as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def tuned(job: str) -> dict[str, dict[str, object]]:
    """The hyperparameters that `drfl tune` found for each algorithm on a job of the papers, without variants.

    Args:
        job: name of the job, e.g. "mnist-linear".
    """
    from drfl_papers.plan import hyperparameters
    from drfl_papers.specification import PAPERS
    from drfl_papers.tuning_jobs import methods_of

    tables = cast("dict[str, dict[str, object]]", hyperparameters(PAPERS / "tuned", job)["algorithms"])
    return {m.algorithm: tables[name] for name, m in methods_of(job).items() if not m.table and name in tables}


@functools.cache
def _scratch() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="drfl-smoke-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _stand_in() -> Path:
    folder = Path(os.environ.setdefault("DRFL_STAND_IN", str(_scratch() / "data")))  # shared by child processes
    os.environ["DRFL_DATA"] = str(folder)  # backbones are trained on data sets without a --data-dir
    os.environ["XDG_CACHE_HOME"] = str(_scratch() / "cache")  # features and backbones are cached here
    if not folder.exists():
        runpy.run_path(str(Path(__file__).with_name("stand_in_data.py")))["write"](folder)
    return folder
