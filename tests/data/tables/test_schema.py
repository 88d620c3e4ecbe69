"""Test schemas: their refusals, file, digest and features."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.refusals import refused

import drfl
from drfl.data.tables.schema import Column, TableSchema

AGE = Column("age", "whole number", unit="years", range=(0, 120), missing=("", "-9"))
SEX = Column("sex", "category", levels=("f", "m"), other=True, role="sensitive", feature=True)
SEEN = Column("seen", "date")
WHO = Column("who", "id", role="patient")
ILL = Column("ill", "yes/no", levels=("no", "yes"), role="target")
SCHEMA = TableSchema((AGE, SEX, SEEN, WHO, Column("site", "text", role="client"), ILL), positive="no")


def test_features_are_in_the_order_of_the_columns():
    assert SCHEMA.features == ("age", "age missing", "sex_m", "sex other", "seen")
    assert TableSchema(SCHEMA.columns[::-1]).features == ("seen", "sex_m", "sex other", "age", "age missing")
    assert (SCHEMA.client, SCHEMA.classes, SCHEMA.targets) == ("site", ("yes", "no"), (ILL,))
    assert replace(SEX, feature=False).features == ()
    assert drfl.TableSchema is TableSchema


def test_written_file_is_read_back(tmp_path):
    path = tmp_path / "schema.toml"
    SCHEMA.write(path)
    assert TableSchema.read(path) == SCHEMA
    assert 'missing = ["", "-9"]' in path.read_text()
    words = Column("c", "category", levels=('["x",\n]', "#"), missing=("",))
    odd = TableSchema((Column('a "b" é.x', "number"), words, ILL))
    odd.write(path)
    assert TableSchema.read(str(path)) == odd


def test_digest_depends_only_on_the_content(tmp_path):
    path = tmp_path / "schema.toml"
    SCHEMA.write(path)
    path.write_text("# by hand\n" + path.read_text().replace('["", "-9"]', '["-9", ""]').replace("120", "120.0"))
    assert TableSchema.read(path).digest == SCHEMA.digest
    assert len(SCHEMA.digest) == 64
    for other in (
        replace(SCHEMA, positive="yes"),
        # The features are in another order, which another model would need.
        replace(SCHEMA, columns=SCHEMA.columns[::-1]),
        replace(SCHEMA, columns=(replace(AGE, unit="months"), *SCHEMA.columns[1:])),
        replace(SCHEMA, columns=(AGE, replace(SEX, levels=("m", "f")), *SCHEMA.columns[2:])),
    ):
        assert other.digest != SCHEMA.digest


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('[columns.age]\ntype = "nmber"', ("unknown-name", "age", "s.toml", "'nmber'", "'number'")),
        ('[columns.age]\ntype = "number"\nrole = "targt"', ("unknown-name", "age", "'target'")),
        ('[columns.age]\ntype = "number"\nlevel = []', ("unknown-name", "age", "'level'", "'levels'")),
        ('[column.age]\ntype = "number"', ("unknown-name", "column", "'columns'")),
        ("task = 3", ("wrong-type", "task")),
        ("", ("missing-option", "columns")),
        ("columns = 3", ("missing-option", "columns")),
        ("[columns.age]", ("missing-option", "age")),
        ('[columns.age]\ntype = "number"\nmissing = [-9]', ("wrong-type", "age", "missing")),
        ('[columns.age]\ntype = "number"\nrange = [1]', ("wrong-type", "age", "range")),
        ('[columns.age]\ntype = "number"\nother = 1', ("wrong-type", "age", "other")),
        ('[columns.age]\ntype = "number"\nrange = [3, 1]', ("invalid-value", "age")),
        ("[[", ("damaged-file",)),
    ],
)
def test_mistake_in_the_file_is_a_one_line_error(text, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(text)
    with refused(*error) as caught:
        TableSchema.read("s.toml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"levels": ("no",)},
        {"levels": ("no", "no")},
        {"levels": ("no", " ")},
        {"levels": ()},
        {"missing": ("no",), "role": "feature"},
        {"range": (0, 1)},
        {"other": True},
        {"feature": True},
    ],
)
def test_contradictory_columns_are_refused(changes):
    with refused("invalid-value", "ill"):
        replace(ILL, **changes)


@pytest.mark.parametrize(
    ("columns", "options", "error"),
    [
        ((AGE,), {}, ("missing-option",)),
        ((ILL,), {}, ("no-features",)),
        ((AGE, AGE, ILL), {}, ("duplicate-name", "age")),
        ((AGE, Column("age missing", "number"), ILL), {}, ("duplicate-name", "age missing")),
        ((AGE, ILL, replace(ILL, name="b")), {}, ("wrong-task", "target")),
        ((AGE, ILL), {"task": "regression"}, ("wrong-task", "ill")),
        ((AGE, replace(ILL, missing=("",))), {}, ("invalid-value", "ill")),
        ((AGE, ILL), {"task": "regresion"}, ("unknown-name", "task", "'regression'")),
        ((AGE, ILL), {"positive": "ye"}, ("unknown-name", "positive", "'yes'")),
        ((SEX, replace(AGE, role="target", missing=())), {"task": "regression", "positive": "1"}, ("unused-option",)),
        ((AGE, ILL, *(Column(n, "text", role="client") for n in "ab")), {}, ("conflicting-options", "b")),
    ],
)
def test_conflicting_columns_are_refused(columns, options, error):
    with refused(*error):
        TableSchema(columns, **options)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"targets": ("sex",)}, "target"),
        ({"group": "who"}, "group"),
        ({"task": "regression"}, "task"),
        ({"drop": ("age",)}, "drop"),
    ],
)
def test_options_must_agree_with_the_schema(options, field):
    SCHEMA.check_options(("ill",), "site", (), "classification")
    with refused("conflicting-options", field):
        SCHEMA.check_options(**options)


@pytest.mark.parametrize(("synonym", "known"), [("integer", "whole number"), ("Bool", "yes/no"), ("str", "category")])
def test_types_of_other_programs_are_recognised(synonym, known):
    with refused("unknown-name", "age", f"'{synonym}'", f"Did you mean '{known}'?"):
        Column("age", synonym)
