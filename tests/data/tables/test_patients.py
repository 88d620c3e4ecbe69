"""Test that patients with several rows are on one side of every split, for every way to read a table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from tests.support.refusals import quotes, refused

from drfl import Natural, Simulation, Task
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.data.partition.splitting import most_frequent, split_rows
from drfl.data.table_description import check_files
from drfl.data.tables.patients import repeated_ids, shared_ids
from drfl.data.tables.schema import Column, TableSchema
from drfl.data.tables.table_files import read_tables
from drfl.data.validation_split import held_out_training


def frame(sites=3, patients=20, seed=0):
    """Return one to eight rows per patient; patient numbers repeat at every site."""
    rng, rows = np.random.default_rng(seed), []
    for site in range(sites):
        for patient in range(patients):
            ill = int(rng.integers(0, 2))
            rows += [[f"s{site}", patient, *rng.normal(size=2), ill] for _ in range(rng.integers(1, 9))]
    return pd.DataFrame(rows, columns=["site", "pid", "a", "b", "ill"]).sample(frac=1, random_state=seed)


def sides(data):
    """Return the set of patients of each part, client by client."""
    return [
        [set(data.patients[rows].tolist()) for rows in parts]
        for parts in zip(*(lists for lists in (data.train, data.test, data.validation) if lists), strict=True)
    ]


def disjoint(sets):
    return sum(map(len, sets)) == len(set.union(*sets))


@pytest.mark.parametrize("seed", range(3))
def test_no_patient_is_on_both_sides_of_a_split(seed):
    data = ClientData.from_frame(frame(), group="site", target="ill", patient="pid", key=Key(seed))
    assert data.columns == ("a", "b")
    for held in (data, data.with_validation(0.3, Key(seed)), held_out_training(data, 0.3, Key(seed))):
        assert all(disjoint(sets) for sets in sides(held))
    # The test set has a fifth of the patients, not of the rows.
    assert data.patient_counts(data.test).tolist() == [4, 4, 4]
    assert data.patient_counts(data.train).tolist() == [16, 16, 16]


def test_files_and_a_schema_keep_patients_whole(tmp_path):
    whole = frame()
    for site, rows in whole.groupby("site"):
        rows.drop(columns="site").to_csv(tmp_path / f"{site}.csv", index=False)
    named = ClientData.from_dataset(read_tables([tmp_path], "ill", patient="pid"), Natural())
    columns = [
        Column("a", "number"),
        Column("b", "number"),
        Column("ill", "category", levels=("0", "1"), role="target"),
    ]
    schema = TableSchema((*columns, Column("pid", "whole number", role="patient")))
    by_schema = ClientData.from_dataset(read_tables([tmp_path], schema=schema), Natural())
    with_site = TableSchema((*schema.columns, Column("site", "text", role="client")))
    framed = ClientData.from_frame(whole.assign(ill=whole["ill"].astype(str)), schema=with_site)
    for data in (named, by_schema, framed):
        assert data.columns == ("a", "b")
        assert all(disjoint(sets) for sets in sides(data))
    assert all(map(torch.equal, named.test, by_schema.test))


def test_arrays_keep_patients_whole(tmp_path):
    rng = np.random.default_rng(0)
    for name in "ab":
        patients = np.repeat([f"{name}{k}" for k in range(10)], 4)
        np.savez(
            tmp_path / f"{name}.npz", inputs=rng.normal(size=(40, 1, 4, 4)), y=rng.integers(0, 2, 40), who=patients
        )
    data = ClientData.from_dataset(read_tables([tmp_path], "y", patient="who"), Natural())
    assert all(disjoint(sets) for sets in sides(data))
    assert data.patient_counts(data.test).tolist() == [2, 2]


def test_classes_keep_their_share_of_the_patients():
    patients = np.repeat(np.arange(40), 5)
    targets = (patients % 4 == 0).astype(int)
    train, test = split_rows(np.arange(200), targets, Key(1), 0.2, patients=patients)
    assert len(test) == 40
    assert targets[test].mean() == targets[train].mean() == 0.25


def test_class_of_a_patient_is_its_most_frequent_one():
    units = np.array([0, 0, 0, 1, 1, 2])
    assert most_frequent(units, np.array([7, 5, 5, 9, 7, 9])).tolist() == [5, 7, 9]


def test_client_with_one_patient_cannot_be_split():
    rows = torch.zeros(8, 1), torch.zeros(8, dtype=torch.int64)
    at = torch.arange(4), torch.arange(4, 8)
    one = ClientData(*rows, (at[0],), *rows, (at[1],), ("a",), patients=torch.tensor([0] * 4 + [1] * 4))
    held = one.with_validation(0.5)
    assert held.validation is not None
    assert torch.equal(held.train[0], held.validation[0])
    single = pd.DataFrame({"site": ["a"] * 4, "pid": [1] * 4, "x": range(4), "y": [0, 1, 0, 1]})
    with refused("few-rows", None, "'a'", "1"):
        ClientData.from_frame(single, group="site", target="y", patient="pid")


@pytest.mark.parametrize(
    ("options", "code", "field"),
    [
        ({"patient": "pod"}, "unknown-name", None),
        ({"patient": "site"}, "conflicting-options", "patient"),
        ({"patient": "ill"}, "conflicting-options", "patient"),
        ({"patient": "a", "features": ["a", "b"]}, "conflicting-options", "a"),
    ],
)
def test_patient_column_has_no_other_role(options, code, field):
    with refused(code, field, options["patient"]):
        ClientData.from_frame(frame(), group="site", target="ill", **options)


def test_row_without_a_patient_is_refused(tmp_path):
    table = frame(sites=1)
    table["pid"] = table["pid"].astype(object)
    table.iloc[3, 1] = None
    table.to_csv(tmp_path / "t.csv", index=False)
    with refused("missing-values", "pid"):
        read_tables([tmp_path / "t.csv"], "ill", "site", patient="pid")


def test_patients_require_a_common_pool_of_rows():
    x, y, rows = torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64), (torch.arange(4),)
    with refused("count-mismatch", "patients"):
        ClientData(x, y, rows, x.clone(), y.clone(), rows, ("a",), patients=torch.arange(4))
    with refused("count-mismatch", "patients"):
        ClientData(x, y, rows, x, y, rows, ("a",), patients=torch.arange(3))
    whole = ClientData.from_frame(frame(), group="site", target="ill", patient="pid")
    assert replace(whole).to(dtype=torch.float64).patients is whole.patients


@pytest.mark.parametrize("name", ["pid", "patient", "Patient_ID", "subject no", "study.id", "personID", "mrn"])
def test_repeated_id_is_reported_although_dropped(tmp_path, name):
    frame().rename(columns={"pid": name}).to_csv(tmp_path / "t.csv", index=False)
    found = read_tables([tmp_path / "t.csv"], "ill", "site", [name]).notices
    assert [(notice.code, notice.field) for notice in found] == [("repeated-id", name)]
    assert f"`patient = '{name}'`" in found[0]
    data = ClientData.from_frame(frame().rename(columns={"pid": name}), group="site", target="ill", features=["a", "b"])
    assert [(notice.code, notice.field) for notice in data.notices] == [("repeated-id", name)]


def test_other_columns_are_not_repeated_ids():
    n = 300
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "paid": rng.integers(0, 100, n),
            "covid": rng.integers(0, 2, n),
            "acid": rng.integers(0, 90, n),
            "ward_id": rng.integers(0, 5, n),
            "row_id": np.arange(n),
            "patient_weight": rng.integers(50, 90, n),
            "uid": rng.normal(size=n),
        }
    )
    assert repeated_ids(table, None, ()) == ()
    named = pd.DataFrame({"pid": np.arange(n) // 3})
    assert repeated_ids(named, None, ("pid",)) == ()
    assert len(repeated_ids(named, None, ())) == 1
    # Each site numbers its patients independently, and each patient has one row.
    assert repeated_ids(pd.DataFrame({"pid": np.tile(np.arange(100), 3)}), np.repeat([*"abc"], 100).tolist(), ()) == ()


def test_one_row_per_patient_equals_a_table_without_patients():
    table = frame().assign(row=lambda rows: range(len(rows)))
    plain = ClientData.from_frame(table.drop(columns=["pid", "row"]), group="site", target="ill")
    named = ClientData.from_frame(table.drop(columns="pid"), group="site", target="ill", patient="row")
    assert all(map(torch.equal, plain.test, named.test))
    task = Task(torch.nn.Linear(2, 2, dtype=torch.float32))
    first, second = (Simulation(data, task) for data in (plain, named))
    evaluations = [fed.evaluate(fed.w0) for fed in (first, second)]
    assert torch.equal(evaluations[0].sums, evaluations[1].sums)


def test_arrays_of_clients_keep_patients_whole():
    rng = np.random.default_rng(0)
    pairs = {name: (rng.normal(size=(40, 2)), rng.integers(0, 2, 40)) for name in "ab"}
    patients = {name: np.repeat(np.arange(10), 4) for name in "ba"}
    data = ClientData.from_arrays(pairs, patients=patients)
    assert all(disjoint(sets) for sets in sides(data))
    assert data.patient_counts(data.test).tolist() == [2, 2]
    with refused("count-mismatch", "patients", "'b'", "39", "40"):
        ClientData.from_arrays(pairs, patients={"a": patients["a"], "b": patients["b"][1:]})
    with refused("conflicting-options", "patients"):
        ClientData.from_arrays(pairs, pairs, patients=patients)


def test_patient_in_two_spellings_is_refused(tmp_path):
    table = frame(sites=2).astype({"pid": str})
    table["pid"] = "P" + table["pid"]
    row = int((table["site"] == "s1").argmax())
    spelt = table.iloc[row, 1].lower()
    table.iloc[row, 1] = spelt
    table.to_csv(tmp_path / "t.csv", index=False)
    with refused("similar-names", "patient", f"'{spelt}'", f"'{spelt.upper()}'", "s1"):
        read_tables([tmp_path / "t.csv"], "ill", "site", patient="pid")
    with refused("similar-names", "patient"):
        ClientData.from_frame(table, group="site", target="ill", patient="pid")
    # Two clients may use different numbers of the same form.
    table.loc[table["site"] == "s1", "pid"] = table["pid"].str.lower()
    assert ClientData.from_frame(table, group="site", target="ill", patient="pid").n == 2


def test_patient_with_and_without_leading_zeros_is_refused(tmp_path):
    table = frame(sites=2).astype({"pid": str})
    own = table.index[table["site"] == "s1"][:2]
    table.loc[own, "pid"] = ["00012", "12"]
    table.to_csv(tmp_path / "t.csv", index=False)
    with refused("similar-names", "patient", "'00012'", "'12'", "s1", "leading zeros"):
        read_tables([tmp_path / "t.csv"], "ill", "site", patient="pid")
    table.loc[own, "pid"] = ["00099", "00099"]
    assert ClientData.from_frame(table, group="site", target="ill", patient="pid").n == 2


def test_patient_has_the_same_name_with_and_without_decimals(tmp_path):
    table = frame(sites=1)
    table.to_parquet(tmp_path / "a.parquet")
    table.assign(pid=table["pid"].astype(float)).to_parquet(tmp_path / "b.parquet")
    found = read_tables([tmp_path / "a.parquet", tmp_path / "b.parquet"], "ill", "site", patient="pid")
    assert found.patients is not None
    assert len(set(found.patients)) == 20


def test_schema_check_finds_blank_patients_and_missing_columns(tmp_path):
    table = frame().astype({"pid": object})
    parts = {"good": table, "lacks": table.drop(columns="pid"), "blank": table.copy()}
    parts["blank"].iloc[3, 1] = None
    for name, part in parts.items():
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    columns = [Column(name, "number") for name in "ab"]
    target = Column("ill", "category", levels=("0", "1"), role="target")
    roles = Column("pid", "text", role="patient"), Column("site", "text", role="client")
    found = {
        check.path.stem: check.problems
        for check in check_files([tmp_path], TableSchema((*columns, target, *roles))).files
    }
    assert found["good"] == ()
    assert [problem.code for problem in found["lacks"]] == ["unknown-name"]
    assert [(problem.code, problem.field) for problem in found["blank"]] == [("missing-values", "pid")]


def test_clients_that_share_ids_are_named():
    owners, patients = [*"aaabbbcc"], ["P1", "P2", "P2", "P2", "P1", "P4", "P2", "P5"]
    (notice,) = shared_ids(owners, patients)
    assert notice.code == "shared-patients"
    assert quotes(notice, "a and b", "2", "3")
    assert shared_ids([*"ab"], ["P1", "P2"]) == ()


def test_consecutive_numbers_are_not_shared_ids():
    counted = [str(k % 30 + 1) for k in range(60)]
    assert shared_ids([*"a" * 30, *"b" * 30], counted) == ()
    sparse = [str(1000 * (k % 30) + 7) for k in range(60)]
    (notice,) = shared_ids([*"a" * 30, *"b" * 30], sparse)
    assert quotes(notice, "a", "b", "30")


def test_data_frame_warns_of_shared_ids():
    frame = pd.DataFrame({"site": [*"a" * 20, *"b" * 20], "who": [f"P{k % 20}" for k in range(40)]})
    frame = frame.assign(age=range(40), ill=[0, 1] * 20)
    data = ClientData.from_frame(frame, group="site", target="ill", patient="who")
    assert [notice.code for notice in data.notices] == ["shared-patients"]


@pytest.mark.parametrize("blank", [np.nan, None, "", " "])
def test_blank_patients_and_clients_are_refused_in_arrays_and_frames(blank):
    rows = np.arange(24.0).reshape(12, 2), np.arange(12) % 2
    names = ["p", "q", blank] * 4
    with refused("missing-values", "patients", "'a', row 3", "4"):
        ClientData.from_arrays({"a": rows}, patients={"a": names})
    with refused("missing-values", "patients", "'a', row 3"):
        ClientData.from_arrays({"a": rows}, patients={"a": np.array(names, dtype=object)})
    table = pd.DataFrame({"site": names, "x": rows[1] + 0.5, "y": rows[1]})
    with refused("missing-values", "site"):
        ClientData.from_frame(table, group="site", target="y")
    items = [(torch.tensor([1.0 * k]), k % 2, {"who": name}) for k, name in enumerate(names)]
    if blank is None or blank != blank:
        with refused("missing-values", "group", "2"):
            ClientData.from_datasets(items_of(items), group="who")


def items_of(items):
    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return len(items)

        def __getitem__(self, k):
            return items[k]

    return Items()


def test_numbers_of_patients_are_the_same_with_and_without_decimals():
    rows = np.arange(24.0).reshape(12, 2), np.arange(12) % 2
    numbers = np.repeat(np.arange(6), 2)
    data = ClientData.from_arrays(dict.fromkeys("ab", rows), patients={"a": numbers, "b": torch.tensor(numbers * 1.0)})
    assert data.patients.tolist() == numbers.tolist() * 2


@pytest.mark.parametrize("name", ["who", "ward"])
@pytest.mark.parametrize("blank", [np.nan, ""])
def test_blank_patients_and_clients_of_npz_files_are_refused(tmp_path, name, blank):
    names = {"who": np.arange(12) // 2, "ward": np.arange(12) % 2}
    odd = names[name].astype(float if blank != "" else str)
    odd[4] = blank
    rows = {"inputs": np.zeros((12, 2)), "y": np.arange(12) % 2}
    np.savez(tmp_path / "a.npz", **rows, **{**names, name: odd})
    with refused("missing-values", name, "a.npz, row 5"):
        read_tables([tmp_path / "a.npz"], "y", "ward", patient="who")
    np.savez(tmp_path / "a.npz", **rows, **{**names, name: odd[:-1]})
    with refused("count-mismatch", name):
        read_tables([tmp_path / "a.npz"], "y", "ward", patient="who")


def test_names_in_npz_files_are_the_same_with_and_without_decimals(tmp_path):
    for k, kind in enumerate((int, float, str)):
        np.savez(
            tmp_path / f"{k}.npz", inputs=np.zeros((12, 2)), y=np.arange(12) % 2,
            ward=(np.arange(12) % 2).astype(kind), who=(np.arange(12) // 2).astype(kind),
        )  # fmt: skip
    data = read_tables([tmp_path], "y", "ward", patient="who")
    assert (set(data.groups), set(data.patients)) == ({"0", "1"}, {*"012345"})
