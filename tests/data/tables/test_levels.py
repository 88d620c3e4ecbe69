"""Test values in two spellings, and values that only one client has."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.refusals import refused

from drfl.data.table_description import describe
from drfl.data.tables.levels import plain
from drfl.data.tables.schema import Column, TableSchema
from drfl.data.tables.table_files import read_tables


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()


def write(values, ill=("no", "yes"), odd=None, odd_ill=None):
    """Write three files, the last of which has other values."""
    for site in "abc":
        words, classes = (odd or values, odd_ill or ill) if site == "c" else (values, ill)
        rows = [f"{k % 7}.5,{words[k % len(words)]},{classes[k % 2]}" for k in range(8)]
        Path("in", f"{site}.csv").write_text("\n".join(["age,smoker,ill", *rows]) + "\n")


def read():
    return read_tables([Path("in")], "ill")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Yes", "yes"),
        pytest.param("non-smoker", "non_smoker", marks=pytest.mark.long),
        ("non smoker", "nonsmoker"),
        pytest.param(">50K", ">50K.", marks=pytest.mark.long),
    ],
)
def test_two_spellings_of_a_value_are_refused(a, b):
    assert plain(a) == plain(b)
    write([a, "other"], odd=[b, "other"])
    with refused("similar-values", "smoker", f"'{a}'", f"'{b}'", "c"):
        read()
    write(["x", "other"], ill=(a, "other"), odd_ill=(b, "other"))
    with refused("similar-values", "ill", f"'{a}'", f"'{b}'", "c"):
        read()


@pytest.mark.parametrize(
    ("a", "b"), [("A+", "A-"), ("T1", "T11"), ("<5", "5+"), ("stage 1", "stage 11"), ("1-2", "12+")]
)
def test_different_values_are_accepted(a, b):
    assert plain(a) != plain(b)
    write([a, b])
    assert read().notices == ()


def test_client_with_other_values_or_classes():
    write(["never", "former", "current"], odd=["A0", "A1"])
    (notice,) = read().notices
    assert notice.code == "values-differ"
    assert "'smoker' ('A0', 'A1' at c; 'current'" in notice
    write(["x", "y"], odd_ill=("0", "1"))
    with refused("classes-differ", "ill", "c", "'no'", "'0'"):
        read()


def write_each(words):
    """Write a file per site with these values of a feature and these classes."""
    for site, (own, classes) in words.items():
        rows = [f"{k}.5,{own[k % len(own)]},{classes[k % len(classes)]}" for k in range(12)]
        Path("in", f"{site}.csv").write_text("\n".join(["age,smoker,ill", *rows]) + "\n")


USUAL, WORDS = ("no", "yes"), ("nao", "sim")


@pytest.mark.parametrize(
    "classes",
    [
        {"a": USUAL, "b": ("0", "1")},
        {"a": USUAL, "b": USUAL, "c": ("0", "1"), "d": ("0", "1")},
        {"a": USUAL, "b": USUAL, "c": ("0", "1"), "d": WORDS},
    ],
)
def test_groups_of_clients_with_other_classes_are_refused(classes):
    write_each({site: (["x", "y"], own) for site, own in classes.items()})
    with refused("classes-differ", "ill", "'0'", "'1'"):
        read()


def test_schema_that_lists_all_classes_accepts_clients_with_different_ones():
    write_each({"a": (["x", "y"], ("cat", "dog")), "b": (["x", "y"], ("bus", "car"))})
    with refused("classes-differ", "ill", "'cat'", "'bus'"):
        read()
    columns = (
        Column("age", "number"),
        Column("smoker", "category", levels=("x", "y")),
        Column("ill", "category", levels=("bus", "car", "cat", "dog"), role="target"),
    )
    assert read_tables([Path("in")], schema=TableSchema(columns)).class_names == ("bus", "car", "cat", "dog")


def test_groups_of_clients_with_other_values_are_reported():
    coded = {"a": USUAL, "b": USUAL, "f": USUAL, "c": WORDS, "d": ("non", "oui"), "e": ("non", "oui")}
    write_each({site: (own, ("0", "1")) for site, own in coded.items()})
    (notice,) = read().notices
    assert notice.code == "values-differ"
    assert "'smoker' ('nao', 'sim' at c; 'non', 'oui' at d, e; 'no', 'yes' elsewhere)" in notice


@pytest.mark.parametrize(
    "words",
    [
        {"a": ("north",), "b": ("north",), "c": ("south",), "d": ("south",)},
        {"a": ("north",), "b": ("south",)},
        {"a": ("x1", "x2"), "b": ("y1", "y2"), "c": ("z1", "z2")},
    ],
    ids=["regions", "two towns", "wards"],
)
def test_values_that_name_places_are_accepted(words):
    write_each({site: (own, ("0", "1")) for site, own in words.items()})
    assert read().notices == ()


def test_truth_values_of_one_file_are_0_and_1_of_another():
    write_each({"a": (["x", "y"], ("True", "False")), "b": (["x", "y"], ("0", "1"))})
    assert read().classes == 2
    assert describe([Path("in")], "ill").problems == ()


def test_classes_that_are_numbers_may_differ():
    write_each({"a": (["x", "y"], ("0", "1")), "b": (["x", "y"], ("2", "3")), "c": (["x", "y"], ("0", "1"))})
    assert read().notices == ()
    assert "classes-differ" not in [problem.code for problem in describe([Path("in")], "ill").problems]


def test_regional_values_are_accepted():
    for site, region in zip("abc", ("north", "south", "west"), strict=True):
        rows = [f"{k}.5,{region} {k % 2},{k % 2}" for k in range(8)]
        Path("in", f"{site}.csv").write_text("\n".join(["age,region,ill", *rows]) + "\n")
    assert read().notices == ()


def test_typing_error_at_one_client_is_reported():
    write(["smoker", "never"], odd=["smokr", "never"])
    (notice,) = read().notices
    assert notice.code == "similar-values"
    assert "'smokr' in column 'smoker' at c, like 'smoker'" in notice
