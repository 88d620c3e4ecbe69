"""Test that messages in Python name arguments instead of the command's options."""

from __future__ import annotations

import re

import pytest
import torch
from tests.support.refusals import refused
from tests.support.scripts import ROOT

import drfl
from drfl.core.errors import InputError, Notice
from drfl.core.python_wording import in_python, with_python_wording

OPTION = re.compile(r"(?<![\w-])--[a-z]")


def test_python_messages_contain_no_command_options():
    lines = (ROOT / "tests" / "messages.txt").read_text(encoding="utf-8").splitlines()
    with_options = [line for line in lines if line.startswith("    ") and OPTION.search(line)]
    assert len(with_options) > 20
    assert [line for line in with_options if OPTION.search(in_python(line))] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("give another --out, or --overwrite to replace it", "give another out, or overwrite=True to replace it"),
        ("use --data-dir", "use data_dir"),
        ("'drfl compare --resume --out runs/a' continues it", "the same call with resume=True continues it"),
        ("a -- b, -- and x--y", "a -- b, -- and x--y"),
    ],
)
def test_options_become_arguments(text, expected):
    assert in_python(text) == expected


def test_notices_and_errors_keep_code_and_field():
    notice = in_python(Notice("give --out", "some-code", "out"))
    assert (notice, notice.code, notice.field) == ("give out", "some-code", "out")

    @with_python_wording
    def fails():
        raise InputError("give --out", code="some-code", field="out")

    with refused("some-code", "out") as caught:
        fails()
    assert str(caught.value) == "give out"


def test_error_about_a_folder_in_use_names_arguments(tmp_path):
    data = drfl.ClientData.from_arrays([(torch.randn(30, 3), torch.arange(30) % 2) for _ in range(2)])
    job = {"a": drfl.FedAvg(m=2, local=drfl.LocalSGD(lr=0.1))}, data, drfl.Task(torch.nn.Linear(3, 2))
    options = {"rounds": 1, "seeds": 1, "out": tmp_path / "r", "progress": None}
    drfl.compare(*job, **options)
    with refused("already-exists", str(tmp_path / "r"), "overwrite=True") as caught:
        drfl.compare(*job, **options)
    assert "--" not in str(caught.value)
