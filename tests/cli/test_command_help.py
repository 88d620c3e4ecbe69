"""Test the short help of every command, its long help, and the options that only the long help shows."""

from __future__ import annotations

import itertools
import re

import pytest
import typer
from typer.main import get_command

from drfl.cli.app import add_plugins, app, call

add_plugins(["--help"])
ROOT = get_command(app)


def leaves(group, *path):
    """Return the commands below a group, each as a list of words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, *path, name)
        else:
            yield (*path, name), command


COMMANDS = dict(leaves(ROOT))
LONG = ("run", "fit", "compare", "sweep", "tune", "report", "reproduce", "energy")


@pytest.fixture
def help_of(monkeypatch, capsys):
    """Return the help of a command at a width of 80."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")

    def printed(*words):
        assert call(words) == 0
        return capsys.readouterr().out

    return printed


def names(command):
    """Return the names of all arguments and options."""
    for param in command.params:
        if param.param_type_name == "argument":
            yield (param.metavar or param.name).upper()
        elif param.name != "help_all":
            yield param.opts[0]


@pytest.mark.parametrize("path", [(), ("deploy",), *COMMANDS], ids=" ".join)
def test_short_help_fits_a_screen(path, help_of):
    lines = help_of(*path, "--help").rstrip().splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_long_help_names_every_parameter(path, help_of):
    printed = help_of(*path, "--help-all").split()
    assert [name for name in names(COMMANDS[path]) if not any(name in word for word in printed)] == []


@pytest.mark.long
@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_no_markup_is_read_into_a_help_text(path, help_of):
    """rich would read the brackets of "drfl[onnx]" as a style, and print "drfl"."""
    command, printed = COMMANDS[path], help_of(*path, "--help-all")
    _, described = re.split(r"\n\s*\n", printed.split("╭")[0].strip(), maxsplit=1)
    assert described.split() == command.help.split()
    shown = re.sub(r"[│╭╮╰╯─]", " ", printed).split()
    texts = {param.opts[0]: param.help for param in command.params if param.help and not param.hidden}
    assert {name: text for name, text in texts.items() if not set(text.split()) <= set(shown)} == {}


@pytest.mark.long
@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_paragraph_of_a_description_fills_its_lines(path, help_of):
    """A line is broken only if the next word does not fit; docstrings have longer lines than a terminal of 80."""
    lines = help_of(*path, "--help").split("╭")[0].rstrip().splitlines()
    for line, following in itertools.pairwise(lines):
        if line.strip() and following.strip():
            assert len(line.rstrip()) + 1 + len(following.split()[0]) > 79, line


@pytest.mark.long
@pytest.mark.parametrize("path", [(), ("deploy",), *COMMANDS], ids=" ".join)
def test_command_with_few_options_has_one_help(path, help_of):
    is_long = len(path) == 1 and path[0] in LONG
    assert (help_of(*path, "--help") != help_of(*path, "--help-all")) == is_long


@pytest.mark.parametrize("name", LONG)
def test_short_help_counts_the_hidden_options(name, help_of):
    short, full = help_of(name, "--help"), help_of(name, "--help-all")
    more, rest = short.rstrip().splitlines()[-1].split(maxsplit=1)
    assert rest == f"more options: drfl {name} --help-all"
    # The names of one option are printed as "--budget,--rounds".
    shown, everything = (re.split(r"[\s,]+", text) for text in (short, full))
    hidden = [option for option in names(COMMANDS[name,]) if option.startswith("--") and option not in shown]
    assert len(hidden) == int(more) > 0
    assert all(option in everything for option in hidden)


def test_long_help_groups_are_in_order(help_of):
    printed = help_of("run", "--help-all")
    titles = [line.split("─")[1].strip() for line in printed.splitlines() if line.startswith("╭")]
    assert titles[2:] == [
        "Data and clients",
        "Training",
        "Algorithm",
        "Evaluation",
        "Failures and attacks",
        "Execution",
        "Output",
    ]


def test_commands_are_listed_in_groups_with_one_line_each(help_of):
    lines = help_of("--help").splitlines()
    for name in ROOT.commands:
        assert [line.split()[1] for line in lines if line.startswith("│")].count(name) == 1
    titles = [line.split("─")[1].strip() for line in lines if line.startswith("╭")]
    assert titles == ["Options", "Training", "Results", "Getting started", "Plug-ins", "Deployment"]
    rows = [line for line in lines if line.startswith("│")]
    assert len(rows) == len(ROOT.commands) + 2  # --version and --help


def test_hidden_option_works(monkeypatch):
    seen = []
    monkeypatch.setattr("drfl.cli.run.run_command", lambda options: seen.append(options.settings) or 0)
    assert call(["run", "--over-select", "1.5"]) == 0
    assert seen == [{"over_select": 1.5}]


def test_unknown_command_suggests_the_nearest(capsys):
    assert call(["deploy", "chek", "--help-all"]) == 2
    assert "'check'" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--over-select", "--rounds", "--help-all"])
def test_shell_completes_all_options(option):
    command = COMMANDS["run",]
    completed = command.shell_complete(typer.Context(command, info_name="run"), option[:-2])
    assert option in [item.value for item in completed]
