"""Test that errors at one of four sites are found for every way to read their tables."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tests.support.marks import long_beyond
from tests.support.refusals import quotes, refused

from drfl.data import ClientData
from drfl.data.table_description import check_files, describe
from drfl.data.tables.schema import Column, TableSchema
from drfl.data.tables.table_files import read_tables
from drfl.data.tables.text_form import DETECT, ReadOptions

SITES, ODD = ("Aachen", "Bonn", "Celle", "Dessau"), "Bonn"
MISSING = ReadOptions(missing=("?",))
READINGS = {"detected": DETECT, "missing": MISSING}
MOSTLY_DETECTED = pytest.mark.parametrize("reading", long_beyond(1, READINGS.values(), READINGS))


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
    """Return codes and fields of the warnings of a strict check."""
    return [(notice.code, notice.field) for notice in check_files([Path("in")], schema, strict=True).notices]


@MOSTLY_DETECTED
def test_tables_without_errors_have_no_warnings(reading):
    assert found(tables(), reading=reading) == []


@MOSTLY_DETECTED
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


@MOSTLY_DETECTED
def test_truth_values_are_0_and_1_of_other_rows(reading):
    rng = np.random.default_rng(2)
    numbers = {
        site: frame.assign(ill=(frame.ill == "yes").astype(int), smoker=rng.integers(0, 2, len(frame)))
        for site, frame in tables().items()
    }
    plain = read(numbers, reading=reading)
    for mixed in (lambda cells: cells.replace({1: "TRUE"}), lambda cells: cells.astype(bool)):
        frames = {
            **numbers,
            ODD: numbers[ODD].assign(**{name: mixed(numbers[ODD][name]) for name in ("ill", "smoker")}),
        }
        own = read(frames, reading=reading)
        assert own.notices == plain.notices == ()
        assert torch.equal(own.inputs, plain.inputs)
        assert torch.equal(own.targets, plain.targets)
    described = describe([Path("in")], "ill")
    assert described.problems == ()
    assert {site.columns["smoker"].range for site in described.sites} == {("0", "1")}


@MOSTLY_DETECTED
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


@pytest.mark.long
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


def numbered(frames):
    return {site: frame.assign(ill=(frame.ill == "yes").astype(int)) for site, frame in frames.items()}


@MOSTLY_DETECTED
@pytest.mark.parametrize(
    ("change", "quoted"),
    [
        pytest.param(lambda ill: ill + 1, ("'2'", "'0'"), marks=pytest.mark.long),
        (lambda ill: ill.map({0: "N", 1: "J"}), ("'J'", "'Y'")),
        (lambda ill: ill.where(np.arange(len(ill)) % 7 > 0, 9), ("'9'", "15")),
        pytest.param(
            lambda ill: ill.map({0: "no", 1: "yes"}).where(ill.index > 5, "NA"), ("'NA'", "6"), marks=pytest.mark.long
        ),
        pytest.param(
            lambda ill: ill.map({0: "no", 1: "yes"}).where(ill.index > 15, "maybe"),
            ("'maybe'", "16"),
            marks=pytest.mark.long,
        ),
    ],
    ids=["1 and 2", "J and N", "9", "NA", "frequent"],
)
def test_class_at_one_client_is_reported(change, quoted, reading):
    frames = numbered(tables())
    names = {"'J'": {0: "N", 1: "Y"}, "'NA'": {0: "no", 1: "yes"}, "'maybe'": {0: "no", 1: "yes"}}.get(quoted[0])
    for site, frame in frames.items():
        frame["ill"] = change(frame.ill) if site == ODD else frame.ill if names is None else frame.ill.map(names)
    (notice,) = read(frames, reading=reading).notices
    assert (notice.code, notice.field) == ("class-at-one-client", "ill")
    assert quotes(notice, ODD, *quoted)
    assert ("class-at-one-client", "ill") in [(each.code, each.field) for each in describe([Path("in")], "ill").notices]


def test_class_at_one_client_by_a_group_column(folder):
    whole = pd.concat([frame.assign(site=site) for site, frame in numbered(tables()).items()])
    whole.loc[whole.site == ODD, "ill"] += 1
    whole.to_csv("in/all.csv", index=False)
    (notice,) = read_tables([Path("in")], "ill", "site").notices
    assert notice.code == "class-at-one-client"
    # Without clients, a partition divides the rows by class as it likes.
    assert read_tables([Path("in")], "ill", drop=["site"]).notices == ()


@pytest.mark.parametrize(
    "classes",
    [
        {"Aachen": [0], "Bonn": [1], "Celle": [2], "Dessau": [3]},
        {"Aachen": [0, 1], "Bonn": [2, 3], "Celle": [4, 5], "Dessau": [0, 9]},
        pytest.param(
            {"Aachen": [0, 1, 2], "Bonn": [1, 2, 9], "Celle": [0, 2], "Dessau": [0, 1]}, marks=pytest.mark.long
        ),
    ],
    ids=["one class", "two classes", "skewed"],
)
def test_label_skew_is_accepted(classes):
    frames = tables()
    for site, own in classes.items():
        frames[site]["ill"] = np.array(own)[np.arange(len(frames[site])) % len(own)]
    assert found(frames) == []


def test_rare_class_at_one_client_is_accepted():
    frames = {site: frame.assign(ill=np.arange(len(frame)) % 9) for site, frame in tables().items()}
    frames[ODD].loc[:1, "ill"] = 9
    assert found(frames) == []
    frames[ODD].loc[:1, "ill"] = 99
    assert found(frames) == [("class-at-one-client", "ill")]


@MOSTLY_DETECTED
@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (lambda sex: sex.where(sex.index % 9 > 0, "9"), [("class-at-one-client", "sex")]),
        pytest.param(
            lambda sex: sex.where(sex.index % 9 > 0, "unknown"),
            [("class-at-one-client", "sex")],
            marks=pytest.mark.long,
        ),
        pytest.param(lambda sex: sex.replace("f", "w"), [("class-at-one-client", "sex")], marks=pytest.mark.long),
        (lambda sex: sex.where(sex.index != 9, "unknown"), []),
        (lambda sex: sex.where(sex.index % 9 > 0, "d"), []),
    ],
    ids=["9", "unknown", "w", "one", "d"],
)
def test_other_words_of_a_feature_at_one_client(change, fields, reading):
    frames = {site: frame.assign(sex=np.where(frame.index % 2, "f", "m")) for site, frame in tables().items()}
    frames[ODD]["sex"] = change(frames[ODD].sex)
    assert [each for each in found(frames, reading=reading) if each[0] != "rare-levels"] == fields


def test_class_at_one_of_two_clients_is_accepted():
    frames = {site: frame for site, frame in numbered(tables()).items() if site in SITES[:2]}
    frames[ODD].loc[:20, "ill"] = 2
    assert found(frames) == []


def staged():
    rng = np.random.default_rng(1)
    return {site: frame.assign(stage=rng.choice(["II", "III", "IV"], len(frame))) for site, frame in tables().items()}


@MOSTLY_DETECTED
def test_other_spelling_of_the_text_of_a_condition_is_refused(reading):
    frames = staged()
    assert found(frames, "stage == IV", reading, drop=["ill"]) == []
    frames[ODD].loc[::2, "stage"] = frames[ODD].stage[::2].str.lower()
    for comparison in ("==", "!="):
        with refused("similar-values", "stage", "'iv'", "'IV'", "line"):
            read(frames, f"stage {comparison} IV", reading, drop=["ill"])
    problems = describe([Path("in")], "stage == IV", drop=["ill"]).problems
    assert ("similar-values", "stage") in [(problem.code, problem.field) for problem in problems]
    whole = pd.concat([frame.assign(site=site) for site, frame in frames.items()])[["age", "bp", "stage", "site"]]
    with refused("similar-values", "stage", "'iv'", "'IV'"):
        ClientData.from_frame(whole, group="site", target="stage == IV")


def test_condition_does_not_depend_on_the_spelling_of_other_values():
    frames = staged()
    frames[ODD]["stage"] = frames[ODD].stage.where(frames[ODD].index % 2 > 0, frames[ODD].stage.replace("III", "iii"))
    assert found(frames, "stage == IV", drop=["ill"]) == []


@MOSTLY_DETECTED
@pytest.mark.parametrize(
    ("change", "codes"),
    [
        (lambda stage: stage.map({"II": "2", "III": "3", "IV": "4"}), ["values-differ"]),
        (lambda stage: stage.where(stage.index > 5, "NA"), ["class-at-one-client"]),
    ],
)
def test_other_values_of_the_text_column_of_a_condition_are_reported(change, codes, reading):
    frames = staged()
    frames[ODD]["stage"] = change(frames[ODD].stage)
    assert [code for code, _ in found(frames, "stage == IV", reading, drop=["ill"])] == codes


@pytest.mark.parametrize(
    ("change", "code", "quoted"),
    [
        (lambda bp: bp.where(bp.index % 2 > 0, -9), "missing-code", ("-9",)),
        pytest.param(lambda bp: bp.where(bp.index % 2 > 0, 999), "missing-code", ("999",), marks=pytest.mark.long),
        pytest.param(lambda bp: bp / 10, "unit-mismatch", ("0.102 times",), marks=pytest.mark.long),
        pytest.param(lambda bp: bp.where(bp.index != 7, 1e9), "outlier", (), marks=pytest.mark.long),
    ],
    ids=["-9", "999", "unit", "outlier"],
)
def test_errors_in_the_numbers_of_a_condition_are_reported(change, code, quoted):
    frames, target = tables(), "bp > 130"
    assert found(frames, target, drop=["ill"]) == []
    schema = describe([Path("in")], target, drop=["ill"]).schema
    assert checked(schema) == []
    frames[ODD]["bp"] = change(frames[ODD].bp)
    (notice,) = read(frames, target, MISSING, drop=["ill"]).notices
    assert (notice.code, notice.field) == (code, "bp")
    assert quotes(notice, ODD, *quoted)
    assert (code, "bp") in found(frames, None, schema=schema)
    assert (code, "bp") in checked(schema)
    assert (code, "bp") in [(each.code, each.field) for each in describe([Path("in")], target).notices]


WARD = Column("ward", "category", levels=("East", "North", "West"), other=True)


def warded():
    """Return tables with a column of wards, and their schema, which allows other wards."""
    rng, frames = np.random.default_rng(1), tables()
    for frame in frames.values():
        frame["ward"] = rng.choice(["East", "North", "West"], len(frame))
    frames["Celle"].loc[:1, "ward"] = "Roof"
    write(frames)
    return frames, describe([Path("in")], "ill").schema


def test_other_spelling_of_a_level_is_not_another_value():
    frames, schema = warded()
    assert next(column for column in schema.columns if column.name == "ward") == WARD
    assert checked(schema) == found(frames, None, schema=schema) == []
    frames[ODD].loc[::3, "ward"] = frames[ODD].ward[::3].str.upper()
    with refused("similar-values", "ward", f"in/{ODD}.csv", "line 2", "differs from"):
        read(frames, None, schema=schema)
    problems = [problem for file in check_files([Path("in")], schema).files for problem in file.problems]
    assert {(problem.code, problem.field) for problem in problems} == {("similar-values", "ward")}


def arrays(labels, name="ill"):
    """Write an npz file per site without names of columns, and read them."""
    rng = np.random.default_rng(0)
    for site, values in labels.items():
        np.savez(Path("in", f"{site}.npz"), inputs=rng.normal(size=(len(values), 3)), **{name: values})


def words_of_sites(change=None, n=60):
    words = {site: np.random.default_rng(1).choice(["no", "yes"], n) for site in SITES}
    return words if change is None else words | {ODD: np.array([change.get(word, word) for word in words[ODD]])}


def test_classes_of_arrays_are_compared():
    arrays(words_of_sites())
    assert read_tables([Path("in")], "ill").notices == ()
    arrays(words_of_sites({"yes": "ja", "no": "nein"}))
    with refused("classes-differ", "ill", ODD, "'ja'", "'nein'"):
        read_tables([Path("in")], "ill")
    arrays(words_of_sites({"yes": "Yes"}))
    with refused("similar-values", "ill", ODD, "'Yes'", "'yes'"):
        read_tables([Path("in")], "ill")
    arrays({site: (words == "yes").astype(int) + (site == ODD) for site, words in words_of_sites().items()})
    (notice,) = read_tables([Path("in")], "ill").notices
    assert (notice.code, notice.field) == ("class-at-one-client", "ill")
    assert quotes(notice, ODD, "'2'", "'0'")


def test_letters_of_both_cases_are_classes():
    letters = np.array([*"abcdefghijklABCDEFGHIJKL"] * 5)
    arrays(dict.fromkeys(SITES, letters))
    assert read_tables([Path("in")], "ill").classes == 24


def test_condition_on_an_array_is_checked():
    rng = np.random.default_rng(0)
    pressure = {site: rng.normal(130, 15, 60) for site in SITES}
    arrays(pressure, "bp")
    assert read_tables([Path("in")], "bp > 130").notices == ()
    pressure[ODD][::2] = 999
    arrays(pressure, "bp")
    assert [(each.code, each.field) for each in read_tables([Path("in")], "bp > 130").notices] == [
        ("missing-code", "bp")
    ]


@pytest.mark.parametrize("columns", [("age",), ("age", "sex")])
def test_array_of_python_objects_names_the_remedy(columns):
    for site, frame in tables().items():
        found = {name: frame[name].to_numpy(dtype=object if name == columns[-1] else None) for name in columns}
        np.savez(Path("in", f"{site}.npz"), ill=frame.ill.to_numpy(dtype=str), **found)
    with refused("unsupported-file", columns[-1], "Python objects", ".astype(str)"):
        read_tables([Path("in")], "ill")


def decomposed(text):
    return unicodedata.normalize("NFD", text)


@MOSTLY_DETECTED
@pytest.mark.parametrize(
    ("word", "other", "column"),
    [
        ("Süd", decomposed("Süd"), "sex"),
        ("yes", "yes\u200b", "ill"),
        pytest.param("a b", "a\u00a0b", "sex", marks=pytest.mark.long),
        pytest.param("Süd", decomposed("Süd"), "ill", marks=pytest.mark.long),
    ],
)
def test_two_unicode_forms_of_a_value_are_refused(word, other, column, reading):
    frames = tables()
    for frame in frames.values():
        frame[column] = np.where(frame[column].isin(["f", "no"]), "no", word)
    frames[ODD].loc[::2, column] = frames[ODD][column][::2].replace(word, other)
    with refused("similar-values", column, ODD) as caught:
        read(frames, reading=reading)
    assert f"Unicode form ({other!a} and {word!a})" in str(caught.value)


def test_two_unicode_forms_of_a_client_or_patient_are_refused():
    whole = pd.concat([frame.assign(town="München", case="Jörg") for frame in tables().values()], ignore_index=True)
    whole.loc[::2, "town"] = decomposed("München")
    whole.to_csv("in/all.csv", index=False)
    with refused("similar-names", "group", "Unicode form"):
        read_tables([Path("in")], "ill", "town")
    whole.assign(town="A", case=whole.town).to_csv("in/all.csv", index=False)
    with refused("similar-names", "patient", "Unicode form"):
        read_tables([Path("in")], "ill", "town", patient="case")


def test_two_unicode_forms_of_a_column_are_refused():
    frames = {site: frame.rename(columns={"bp": "größe"}) for site, frame in tables().items()}
    write(frames)
    schema = describe([Path("in")], "ill").schema
    frames[ODD] = frames[ODD].rename(columns={"größe": decomposed("größe")})
    with refused("columns-differ", decomposed("größe"), f"in/{ODD}.csv", "Unicode form"):
        read(frames)
    with refused("missing-column", "größe", f"in/{ODD}.csv", "Unicode form"):
        read(frames, None, schema=schema)
    with refused("unknown-name", "target", "Unicode form"):
        read_tables([Path("in", "Aachen.csv")], decomposed("größe"), task="regression")
    # These are two columns.
    assert found({site: frame.assign(**{"x²": frame.bp, "x2": frame.age}) for site, frame in tables().items()}) == []


@pytest.mark.long
def test_unicode_form_of_a_level_is_refused():
    frames, _ = warded()
    frames = {site: frame.replace("West", "Süd") for site, frame in frames.items()}
    write(frames)
    schemas = [describe([Path("in")], "ill").schema]
    ward = Column("ward", "category", levels=("East", "North", "Roof", "Süd"))
    schemas.append(replace(schemas[0], columns=tuple(ward if c.name == "ward" else c for c in schemas[0].columns)))
    frames[ODD] = frames[ODD].replace("Süd", decomposed("Süd"))
    for schema, code in zip(schemas, ("similar-values", "unknown-level"), strict=True):
        with refused(code, "ward", f"in/{ODD}.csv", "Unicode form"):
            read(frames, None, schema=schema)
