"""Test that errors at one of four sites are found for every way to read their tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.support.refusals import quotes, refused

from drfl.data import ClientData
from drfl.data.table_description import check_files, describe
from drfl.data.tables.schema import Column, TableSchema
from drfl.data.tables.table_files import read_tables
from drfl.data.tables.text_form import DETECT, ReadOptions

SITES, ODD = ("Aachen", "Bonn", "Celle", "Dessau"), "Bonn"
MISSING = ReadOptions(missing=("?",))
READINGS = pytest.mark.parametrize("reading", [DETECT, MISSING], ids=["detected", "missing"])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()


def tables(n=100):
    """Return the tables of four sites without errors."""
    rng, found = np.random.default_rng(0), {}
    for site in SITES:
        frame = pd.DataFrame(
            {
                "age": rng.integers(20, 90, n),
                "bp": rng.normal(130, 15, n).round(1),
                "sex": rng.choice(["f", "m"], n),
            }
        )
        z = (frame.age - 55) / 15 + (frame.bp - 130) / 15 + 0.5 * (frame.sex == "m") + rng.normal(size=n)
        found[site] = frame.assign(ill=np.where(z > 0.3, "yes", "no"))
    return found


def write(frames):
    for site, frame in frames.items():
        frame.to_csv(Path("in", f"{site}.csv"), index=False)


def read(frames, target="ill", reading=DETECT, **options):
    write(frames)
    return read_tables([Path("in")], target, reading=reading, **options)


def found(frames, target="ill", reading=DETECT, **options):
    return [(notice.code, notice.field) for notice in read(frames, target, reading, **options).notices]


def checked(schema):
    """Codes and fields of the warnings of a strict check."""
    return [(notice.code, notice.field) for notice in check_files([Path("in")], schema, strict=True).notices]


@READINGS
def test_tables_without_errors_have_no_warnings(reading):
    assert found(tables(), reading=reading) == []


@READINGS
@pytest.mark.parametrize(
    ("names", "code", "quoted"),
    [
        ({"yes": "YES", "no": "NO"}, "similar-values", ("'YES'", "'yes'", ODD)),
        ({"yes": "ja", "no": "nein"}, "classes-differ", ("'ja'", "'nein'", ODD)),
    ],
)
def test_other_names_of_classes_are_refused(names, code, quoted, reading):
    frames = tables()
    frames[ODD]["ill"] = frames[ODD].ill.map(names)
    with refused(code, "ill", *quoted):
        read(frames, reading=reading)
    whole = pd.concat([frame.assign(site=site) for site, frame in frames.items()])[["age", "bp", "ill", "site"]]
    with refused(code, "ill", *quoted):
        ClientData.from_frame(whole, group="site", target="ill", reading=MISSING)


def test_truth_values_and_numbers_are_not_mixed_with_missing_words():
    frames = {site: frame.assign(ill=frame.ill == "yes") for site, frame in tables().items()}
    frames[ODD]["ill"] = frames[ODD].ill.astype(int)
    with refused("classes-differ", "ill", ODD, "'True'", "'1'"):
        read(frames, reading=MISSING)
    assert read(frames).classes == 2


@READINGS
def test_other_codes_of_a_feature_are_reported(reading):
    frames = tables()
    frames[ODD]["sex"] = (frames[ODD].sex == "m").astype(int)
    (notice,) = read(frames, reading=reading).notices
    assert notice.code == "values-differ"
    assert quotes(notice, "'sex'", "'0'", "'1'", ODD, "'f'", "'m'")


def test_words_for_missing_values_are_not_spellings():
    frames = tables()
    for frame in frames.values():
        frame.loc[:9, "sex"] = "?"
    assert found(frames, reading=MISSING) == []


def test_repeated_id_is_reported_for_every_way_to_read_tables():
    frames = tables()
    for site, frame in frames.items():
        frame["patient_id"] = [f"{site[0]}{k // 4:03}" for k in range(len(frame))]
    expected = ("repeated-id", "patient_id")
    assert expected in found(frames, reading=MISSING)
    for reading in (DETECT, MISSING):
        assert found(frames, reading=reading, drop=["patient_id"]) == [expected]
    schema = describe([Path("in")], "ill").schema
    assert found(frames, None, schema=schema) == [expected]
    assert checked(schema) == [expected]
    columns = [column for column in schema.columns if column.name != "patient_id"]
    named = TableSchema((*columns, Column("patient_id", "id", role="patient")))
    assert found(frames, None, schema=named) == checked(named) == []
