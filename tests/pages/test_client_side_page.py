"""Test docs/client-side.md: its code runs, FedProto is short, and every client-side method has a matching page."""

from __future__ import annotations

import dataclasses
import re
import sys
import types

import pytest
import torch
from tests.pages.test_algorithm_pages import FOLDER, INDEX, codes, formulas, section, table
from tests.support.scripts import ROOT

import drfl
from drfl.algorithms import CLIENT_SIDE
from drfl.optim.local import LocalSGD
from drfl.testing import check_algorithm
from drfl.training.loop import run

PAGE = (ROOT / "docs" / "client-side.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python[^\n]*\n(.*?)```", PAGE, re.DOTALL)
LONGEST = 60
"""Maximum number of lines of FedProto."""


@pytest.fixture(scope="module")
def page():
    """Run the blocks of the page one after the other, and return their names."""
    module = types.ModuleType("page")
    sys.modules["page"] = module
    printed = []
    names = {**vars(module), "print": lambda *values: printed.append(" ".join(map(str, values)))}
    for block in BLOCKS:
        exec(block, names)
    yield names, printed
    del sys.modules["page"]


@pytest.mark.long
def test_blocks_run_and_print_the_shown_output(page):
    names, printed = page
    shown = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert "\n".join(printed) == "\n".join(text.strip() for text in shown)
    frame = names["result"].to_frame()
    assert frame.avg_loss.notna().all()


@pytest.mark.long
def test_classes_of_the_page_pass_the_checks(page):
    names, _ = page
    local = LocalSGD(steps=2, lr=0.1)
    for kind in ("SmallOutputs", "FedDecorr", "FedProto", "Everybody"):
        assert not check_algorithm(names[kind](local=local)).failed
    fed = drfl.Simulation(names["data"], names["task"])
    end = run(names["FedProto"](local=local), fed, rounds=3)
    assert torch.equal(end.state.w, fed.w0)
    assert end.state.shared.abs().sum() > 0


@pytest.mark.long
def test_model_of_the_fedbn_section_works():
    text = (FOLDER / "client-side" / "fedbn.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {}
    exec(code, names)
    x = torch.randn(3, 30, 4)
    data = drfl.ClientData.from_arrays([(rows, (rows.sum(1) > 0).long()) for rows in x])
    result = run(drfl.FedBN(local=LocalSGD(lr=0.1)), drfl.Simulation(data, names["task"]), rounds=3, check_data=False)
    assert len({tuple(model.tolist()) for model in result.personal.dense()}) == 3


def test_fedproto_is_short():
    (code,) = [block for block in BLOCKS if "class FedProto" in block]
    assert len(code.splitlines()) <= LONGEST


@pytest.mark.parametrize("name", CLIENT_SIDE)
def test_each_method_has_a_page_with_options_and_source(name):
    text = (FOLDER / "client-side" / f"{name.lower()}.md").read_text(encoding="utf-8")
    assert f"](client-side/{name.lower()}.md)" in INDEX
    assert re.match(rf"# {name}\n", text)
    top = section(text, "")
    assert re.search(r"\b(19|20)\d\d\b", top)
    rows = dict(table(top, ["at a glance", ""]))
    assert rows["Python"] == f"`drfl.{name}`"
    assert getattr(drfl, name) is CLIENT_SIDE[name]
    assert rows["command"] == f"`--algorithm {name}`"
    assert f"src/{CLIENT_SIDE[name].__module__.replace('.', '/')}.py" in codes(rows["code"])
    assert rows["tested with"] == ("own model" if hasattr(CLIENT_SIDE[name], "personal") else "global model")
    assert formulas(section(text, "A round"))
    assert section(text, "Source").strip()
    options = table(section(text, "Options"), ["option", "meaning", "default", "in the source"])
    told = {row[0].strip("`"): row[2] for row in options}
    fields = dataclasses.fields(CLIENT_SIDE[name])
    assert told.keys() == {field.name for field in fields}
    for field in fields:
        default = eval(told[field.name].strip("`"), {"LocalSGD": LocalSGD})
        assert default == getattr(CLIENT_SIDE[name](), field.name)
