"""Test the pages of the algorithms: their sections, and that options, steps, dropout and costs match the code."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import latex2mathml.converter
import pytest
import torch
from tests.support.problems import federation
from tests.support.scripts import ROOT

import drfl
from drfl import ambiguity
from drfl.algorithms import ALGORITHMS, BASELINES, FULL_PARTICIPATION
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Info, lam_of
from drfl.federation.federation import Ledger, WrappedFederation
from drfl.federation.requests import TrainRequest
from drfl.optim import schedules
from drfl.optim.local import LocalSGD

FOLDER = ROOT / "docs" / "algorithms"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
INDEX = PAGES.pop("index")

SILENT = ["no reply to the", "model", "λ"]
COST = [
    *("exchange", "clients", "vectors down", "vectors up", "losses up", "gradient evaluations", "loss evaluations"),
]
KINDS = {"local steps": "train", "losses": "losses", "gradients": "gradients"}
N, M, TAU, B, SAMPLES = 5, 3, 4, 8, 40
KEY = Key(6).fold("round", 1)
"""Key of a round in which a draw with replacement contains a client twice."""


def page_of(name: str) -> str:
    """Return the page of an algorithm."""
    return PAGES[name.lower()]


def section(text: str, heading: str) -> str:
    """Return the text below a heading, up to the next one; "" is the text above the first."""
    parts = dict(zip(["", *headings(text)], re.split(r"^## .*$", prose(text), flags=re.MULTILINE), strict=True))
    return parts[heading]


def headings(text: str) -> list[str]:
    """Return the second-level headings."""
    return re.findall(r"^## (.*)$", prose(text), flags=re.MULTILINE)


def prose(text: str) -> str:
    """Return the text without code blocks, in which # is not a heading."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def table(text: str, head: list[str]) -> list[list[str]]:
    """Return the cells of the rows of the one table with this head."""
    lines = text.splitlines()
    (at,) = [i for i, line in enumerate(lines) if cells(line) == head]
    rows = []
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(cells(line))
    return rows


def cells(line: str) -> list[str]:
    """Return the cells of a row of a table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []


def codes(text: str) -> list[str]:
    """Return the text marked as code, without formulas."""
    return re.findall(r"`([^`]+)`", re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL))


def formulas(text: str) -> list[str]:
    """Return the display formulas."""
    return re.findall(r"^ *\$\$\n(.*?)\$\$", text, flags=re.MULTILINE | re.DOTALL)


def test_every_algorithm_has_a_page():
    assert [name.lower() for name in sorted(ALGORITHMS, key=str.lower)] == list(PAGES)
    for stem in PAGES:
        assert f"]({stem}.md)" in INDEX
    for name in BASELINES:
        assert f"`{name}`" in INDEX


@pytest.mark.parametrize("name", ALGORITHMS)
def test_page_has_each_section_once_and_none_is_empty(name):
    text = page_of(name)
    found = headings(text)
    assert len(found) == len({*found})
    assert all(section(text, heading).strip() for heading in found)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_page_first_states_when_to_use_the_algorithm(name):
    _title, _purpose, advice, *_ = re.split(r"\n\s*\n", section(page_of(name), ""))
    assert advice.startswith("**When to use.** ")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_page_begins_with_the_overview(name):
    top = section(page_of(name), "")
    assert re.search(r"\b(19|20)\d\d\b", top.partition("| at a glance")[0]), "the paper's year"
    rows = dict(table(top, ["at a glance", ""]))
    assert all(rows.values())
    assert rows["Python"] == f"`drfl.{name}`"
    assert getattr(drfl, name) is ALGORITHMS[name]
    assert rows["command"] == f"`--algorithm {name}`"
    assert f"src/{ALGORITHMS[name].__module__.replace('.', '/')}.py" in codes(rows["code"])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_formulas_are_rendered(name):
    text = page_of(name)
    assert formulas(section(text, "Problem"))
    assert formulas(section(text, "A round"))
    for formula in formulas(text):
        assert "\\" not in latex2mathml.converter.convert(formula.strip()), formula


@pytest.mark.parametrize("name", ALGORITHMS)
def test_steps_are_numbered_and_quote_the_algorithms_code(name):
    """Each line of code is in the files that the page names, in the order of the round."""
    text = page_of(name)
    steps = section(text, "A round")
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", steps, flags=re.MULTILINE)]
    assert len(numbers) >= 3
    assert numbers == list(range(1, len(numbers) + 1))
    assert not re.search(r"\S\n\d+\. ", steps), "a step is drawn as one only after an empty line"
    files = [ROOT / file for file in codes(dict(table(section(text, ""), ["at a glance", ""]))["code"])]
    code = squeezed("\n".join(file.read_text(encoding="utf-8") for file in files))
    options = {field.name for field in dataclasses.fields(ALGORITHMS[name])}
    lines = [line for line in codes(steps) if re.search(r"[=(]", line) and line.split("=")[0] not in options]
    assert len(lines) >= 3
    for line in lines:
        assert squeezed(line) in code, line
    # Lines of the round itself are in its order, except for functions that it defines before their use.
    own = squeezed(inspect.getsource(ALGORITHMS[name].round))
    places = [own.index(squeezed(line)) for line in lines if squeezed(line) in own and not line.startswith("return")]
    assert all(before < after for before, after in pairwise(places)), lines


def squeezed(code: str) -> str:
    """Remove spaces and other formatting."""
    return re.sub(r",(?=[)\]])", "", re.sub(r"\s+", "", code))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_options_match_the_hyperparameters_and_defaults(name):
    known: dict[str, Any] = {**vars(ambiguity), **vars(sampling), **vars(schedules), "LocalSGD": LocalSGD}
    rows = table(section(page_of(name), "Options"), ["option", "meaning", "default", "in the paper"])
    told = {row[0].strip("`"): row[2] for row in rows}
    fields = dataclasses.fields(ALGORITHMS[name])
    assert len(rows) == len(told)
    assert told.keys() == {field.name for field in fields}
    algorithm = ALGORITHMS[name]()
    for field in fields:
        assert eval(told[field.name].strip("`"), known) == getattr(algorithm, field.name), field.name
    assert all(cell for row in rows for cell in row)


class Exchange(NamedTuple):
    """The costs of a request; for local steps also whether they have a shift and a proximal term."""

    kind: str
    asked: int
    booked: Ledger
    corrected: tuple[bool, bool] | None


class Watched(WrappedFederation):
    """Record the cost of every request; no client answers one kind of request."""

    def __init__(self, silent: str = "") -> None:
        super().__init__(federation((SAMPLES,) * N))
        self.silent, self.exchanges = silent, list[Exchange]()

    def ask(self, request):
        """See :class:`drfl.federation.federation.Federation`."""
        before = self.ledger.totals()
        reply = self.fed.ask(request)
        cost = {counter: value - before[counter] for counter, value in self.ledger.totals().items()}
        train = isinstance(request, TrainRequest)
        corrected = (request.shift is not None, request.prox > 0) if train else None
        self.exchanges.append(Exchange(request.kind, len(request.cohort), Ledger(**cost), corrected))
        return request.empty_reply() if request.kind == self.silent else reply


def made(name: str, reports: int | None):
    """Make a small algorithm of this name with a number of samples per loss report."""
    names = {field.name for field in dataclasses.fields(ALGORITHMS[name])}
    options: dict[str, Any] = {"local": LocalSGD(steps=TAU, lr=0.1, batch=B), "m": M}
    options |= dict.fromkeys(("dual_batch", "loss_batch"), reports)
    return ALGORITHMS[name](**{option: value for option, value in options.items() if option in names})


def played(name: str, fed: Watched, reports: int | None = 6) -> tuple[Any, Any, Info]:
    """Return the states before and after a round, and its requests."""
    algorithm = made(name, reports)
    before = algorithm.init(fed)
    return (before, *algorithm.round(before, fed, KEY))


@cache
def formula(cell: str) -> Any:
    """Compile a cell such as `2·m`."""
    (code,) = codes(cell)
    assert cell == f"`{code}`"
    tree = ast.parse(code.replace("·", "*"), mode="eval")
    assert all(isinstance(node, ast.Expression | ast.BinOp | ast.Mult | ast.Add | ast.Name | ast.Constant | ast.Load)
               for node in ast.walk(tree)), code  # fmt: skip
    return compile(tree, code, "eval")


def costs(name: str, values: Mapping[str, int]) -> list[tuple[str, list[int]]]:
    """Return the kind and the numbers of every exchange in the page's table."""
    rows = table(section(page_of(name), "Cost of a round"), COST)
    return [(KINDS[row[0]], [eval(formula(cell), dict(values)) for cell in row[1:]]) for row in rows]


@pytest.mark.parametrize("reports", [6, pytest.param(None, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_costs_of_a_round_match_the_page(name, reports):
    fed = Watched()
    _, _, info = played(name, fed, reports)
    k = len(info.cohort.clients)
    values = {"N": N, "m": M, "k": k, "τ": TAU, "B": B, "n": SAMPLES, "b": SAMPLES if reports is None else reports}
    told = costs(name, values)
    assert [kind for kind, _ in told] == [exchange.kind for exchange in fed.exchanges]
    vector = fed.w0.numel() * fed.w0.element_size()
    for (_, numbers), exchange in zip(told, fed.exchanges, strict=True):
        clients, down, up, losses, gradients, evaluations = numbers
        assert clients == exchange.asked
        assert exchange.booked == Ledger(down * vector, up * vector + 8 * losses, 2 * clients, gradients, evaluations)


CORRECTIONS = {
    (False, False): "none",
    (False, True): "a proximal term",
    (True, False): "control variates",
    (True, True): "dynamic regularisation",
}
"""Names of corrections by whether a request has a shift and a proximal term."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_overview_matches_a_round(name):
    rows = dict(table(section(page_of(name), ""), ["at a glance", ""]))
    fed = Watched()
    before, _, _ = played(name, fed)
    (corrected,) = [exchange.corrected for exchange in fed.exchanges if exchange.corrected]
    assert re.split(r"[;:,]", rows["drift correction"])[0] == CORRECTIONS[corrected]
    assert rows["λ"].startswith("none") == (lam_of(before) is None)
    fields = {field.name for field in dataclasses.fields(ALGORITHMS[name])}
    assert rows["cohort"].startswith("m draws") == ("sampling" in fields)
    everybody = ALGORITHMS[name] in FULL_PARTICIPATION or any(exchange.asked == N for exchange in fed.exchanges)
    assert ("all N" in rows["cohort"]) == everybody
    assert ("m of N" in rows["cohort"]) == any(exchange.asked == M for exchange in fed.exchanges)


def test_sample_round_distinguishes_k_from_m():
    for name in ("DRFA", "DRFAProx", "DRFAGA", "DRDM", "DualDRDM", "DeltaFL"):
        assert 0 < len(played(name, Watched())[2].cohort.clients) < M, name


@pytest.mark.parametrize("name", ALGORITHMS)
def test_averaged_solution_costs_one_vector_per_training_client(name):
    plain, averaged = Watched(), Watched()
    averaged.averaged = True
    for fed in (plain, averaged):
        played(name, fed)
    vector = plain.w0.numel() * plain.w0.element_size()
    for own, other in zip(plain.exchanges, averaged.exchanges, strict=True):
        more = vector * own.asked if own.kind == "train" else 0
        assert other.booked.bytes_up - own.booked.bytes_up == more


@pytest.mark.parametrize("name", ALGORITHMS)
def test_effect_of_dropout_matches_the_page(name):
    rows = table(section(page_of(name), "Clients that do not answer"), SILENT)
    assert {row[0] for row in rows} == {row[0] for row in table(section(page_of(name), "Cost of a round"), COST)}
    for exchange, *told in rows:
        fed = Watched(silent=KINDS[exchange])
        before, after, _ = played(name, fed)
        assert KINDS[exchange] in {exchange.kind for exchange in fed.exchanges}
        lam = lam_of(before)
        moved = [not torch.equal(before.w, after.w), None if lam is None else not torch.equal(lam, after.lam)]
        assert told == [{True: "moves", False: "stays", None: "fixed"}[each] for each in moved], exchange
