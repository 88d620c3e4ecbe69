"""Command lines with right and wrong options and values, in a folder with files of every kind."""

from __future__ import annotations

import contextlib
import io
import json
import os

from hypothesis.strategies import composite, integers, just, lists, one_of, sampled_from

from drfl.cli.app import call
from drfl.core.errors import InputError

from .judge import Parser
from .strategies import NUMBERS, WORDS, chance, mutated_text
from .texts import MEASURED

VALUES = {
    "--dataset": ["digits", "heart-disease", "mnist", "digit"],
    "--data-dir": ["files", "file.bin", "none", "a" * 300],
    "--partition": ["iid", "one-class", "natural", "zipf-dirichlet", "dirichlet-drop"],
    "--clients": ["4", "1", "0", "2000"],
    "--alpha": ["0.1", "inf", "nan", "0"],
    "--zipf": ["0", "2", "-1", "1e6"],
    "--features": ["entk", "penultimate"],
    "--backbone": ["none.safetensors", "file.pth", "resnet18-mars"],
    "--feature-count": ["5", "0"],
    "--resize": ["8", "5000"],
    "--model": ["linear", "mlp", "cnn"],
    "--loss": ["squared", "hinge"],
    "--cohort": ["2", "0", "5000"],
    "--steps": ["1", "0"],
    "--batch": ["full", "8", "0"],
    "--lr": ["0.1", "inf", "0"],
    "--table-dir": ["files", "none", "file.bin", "/proc/x", ""],
    "--param": ["mu=1", "DRDM.gamma=0", "ambiguity=cvar:alpha=0.5", "sampling=everybody", "m=2", "mu=-1"],
    "--engine": ["auto", "loop", "stacked", "threads"],
    "--device": ["cpu", "gpu", "cuda:99", "meta", "mps", "cpu:7"],
    "--dtype": ["float32", "float64", "float16"],
    "--precision": ["bf16", "full"],
    "--threads": ["1", "0", "100000"],
    "--evaluate-every": ["1", "0"],
    "--until": ["worst_accuracy=0.1", "worst_accuracy", "x=1"],
    "--out": ["new", "files", "file.bin", "new/er", "/dev/null/x", "/proc/x", ".", "", "a" * 300],
    "--seed": ["0", "-1", str(2**63)],
}
FLAGS = (
    "--certificate",
    "--no-certificate",
    "--averaged",
    "--json",
    "--overwrite",
    "--version",
    "--help",
    "--help-all",
    "--fading",
    "--all",
    "--x",
)
OTHER = {
    "--seeds": ["1", "0", "1,1", "3..1", "x"],
    "--algorithms": ["DRDM", "DRFA,FedAvg", "DRDM,,", "all"],
    "--snr": ["0", "nan", "inf", "5000"],
    "--bandwidth": ["1e6", "0", "nan"],
    "--target-worst": ["0.5", "0", "nan", "2"],
    "--measurements": ["file.csv", "file.bin", "files"],
    "--runs": ["files", "none", "file.bin", "a" * 300],
    "--rate-min": ["1e5", "-1"],
    "--power": ["0.2", "0", "nan"],
    "--trials": ["1", "0", "100000"],
    "--criterion": ["worst", "loss"],
    "--set": ["clients=4", "rounds=0", "clients"],
    "--settings": ["α = 0.1", "x"],
    "--repeats": ["1", "0"],
    "--tuned": ["files", "none", "a" * 300],
    "--jobs": ["0", "-1", "x"],
    "--data": ["auto", "mine"],
}
FILES = [
    "good.toml",
    "bad.toml",
    "file.bin",
    "files",
    "none.toml",
    "/dev/null",
    "/proc/self/mem",
    "\udcff.toml",
    "",
    "latin.toml",
]
COMMANDS = (*("run",) * 6, "compare", "energy", "tune", "reproduce", "algorithms", "datasets", "rum", "", "\n")
MISTAKES = (("--jobs", "0"), ("--x",), ("--out", "file.bin"))
"""Each of these ends a command that would otherwise take long."""


@composite
def arguments(draw):
    """Draw a command with up to five options; valid ones take no time."""
    command = draw(sampled_from(COMMANDS))
    words = [command]
    if command in ("run", "compare", "energy") and draw(chance(30)):
        words.append(draw(sampled_from(FILES)))
    if command in ("tune", "reproduce"):
        names = one_of(sampled_from(("mnist-linear", "drdm-table-3")), sampled_from(FILES), sampled_from(WORDS))
        words += draw(lists(names, max_size=1))
    known = VALUES if draw(chance(80)) else {**VALUES, **OTHER}
    for name in draw(lists(sampled_from(list(known)), max_size=3, unique=True)):
        words += draw(option(name, known[name]))
    if draw(chance(30)):
        words.append(draw(sampled_from(FLAGS)))
    if command in ("run", "compare"):
        words += ["--rounds", draw(sampled_from(("0",) * 9 + ("-1", "x", "")))]  # the last one counts
        words += ["--seeds", draw(sampled_from(("1", "1", "0", "x")))] if command == "compare" else []
    elif command in ("energy", "tune", "reproduce"):
        words += draw(sampled_from(MISTAKES[:2] if command != "energy" else MISTAKES[1:]))
    if draw(chance(10)):
        del words[draw(integers(0, max(len(words) - 2, 0)))]
        words += ["--x"]
    return [word.replace("\0", "") for word in words]  # the system allows no such arguments


@composite
def option(draw, name, values):
    """Draw a name, possibly misspelt, with an optional value."""
    kind = draw(sampled_from(("bare", *("right",) * 4, *("listed",) * 3, "misspelt", "joined", *("odd",) * 3)))
    if kind == "bare":
        return [name]
    if kind == "right":
        value = values[0]
    elif kind != "odd" or name in ("--out", "--data-dir"):  # files may be written only to this folder
        value = draw(sampled_from(values))
    elif name == "--threads":
        value = draw(sampled_from(("0", "-1", "x")))  # these options would affect this process
    else:
        value = draw(one_of(sampled_from(NUMBERS), sampled_from(WORDS), just("\udcff")))
    if kind == "misspelt":
        name = draw(mutated_text(name))
    return [f"{name}={value}"] if kind == "joined" else [name, value]


def prepare(folder):
    """Write the files that arguments name, and return the working directory that contains them."""
    here = folder / "here"
    if not here.is_dir():
        (here / "files").mkdir(parents=True)
        (here / "files" / "summary.json").write_text("{")
        (here / "file.bin").write_bytes(bytes(range(256)))
        (here / "file.pth").write_bytes(bytes(range(256)))
        (here / "file.csv").write_text(MEASURED)
        (here / "good.toml").write_text('algorithm = "FedAvg"\nclients = 3\nrounds = 0\n')
        (here / "bad.toml").write_text("rounds = [")
        (here / "latin.toml").write_bytes(b'dataset = "\xe9"')
    return here


@contextlib.contextmanager
def elsewhere(folder):
    """Work in a folder without data sets and network."""
    before, where = dict(os.environ), os.getcwd()
    for name in ("DRFL_DATA", "TORCH_HOME", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
    os.environ |= {"HOME": str(folder / "home"), "DRFL_MIRROR": "http://127.0.0.1:9"}
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(where)
        os.environ.clear()
        os.environ.update(before)


class CommandError(Exception):
    """The command broke a rule."""


def run_command(item, folder):
    """Call the command; a refusal is an InputError, as for the other parsers."""
    here = prepare(folder)
    before = listing(here)
    out, err = io.StringIO(), io.StringIO()
    with elsewhere(here), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = call(item)
    after, said = listing(here), err.getvalue()
    if code not in (0, 2):
        raise CommandError(f"exit code {code}: {said!r}")
    if code == 0:
        clean(here, before)
        return
    if len(said.splitlines()) != 1 or not said.startswith("drfl: "):
        raise CommandError(f"not one line of drfl's own: {said!r}")
    if not is_error(out.getvalue(), "--json" in item):
        raise CommandError(f"on standard output: {out.getvalue()[:200]!r}")
    if after != before:
        clean(here, before)
        raise CommandError(f"files left after a refusal: {sorted(after - before)}, gone: {sorted(before - after)}")
    raise InputError("refused")


def is_error(printed, as_json):
    """Return whether standard output is empty or, as JSON, one error with its code."""
    if not (printed and as_json):
        return not printed
    return bool(json.loads(printed)["error"]["code"])


def listing(folder):
    """Return every path in the folder, and the size of every file."""
    return {
        (str(path.relative_to(folder)), path.stat().st_size if path.is_file() else -1) for path in folder.rglob("*")
    }


def clean(folder, before):
    """Delete new files and folders."""
    known = {name for name, _ in before}
    for path in sorted(folder.rglob("*"), reverse=True):
        if str(path.relative_to(folder)) not in known:
            path.rmdir() if path.is_dir() else path.unlink()


COMMAND = (Parser("the command", arguments(), run_command, seconds=20),)
