"""Test the checks of clients' data, in the library, the command and the files."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tests.support.marks import long_except

from drfl import DataWarning, FedAvg, LocalSGD, Simulation, Task, run
from drfl import compare as compare_objects
from drfl.cli.app import call
from drfl.core.errors import complete_listings
from drfl.data import ClientData
from drfl.data.checks import data_warnings
from drfl.data.checks.raw_table import FEW, MOST, RawTable
from drfl.data.tables.propose import propose
from drfl.data.tables.schema import Column, TableSchema
from drfl.data.tables.text_form import ReadOptions


def clients(sizes=(120, 120, 120), classes=2, p=2):
    """Make clients with normal columns and mixed classes; a third of the rows are test rows."""
    g = torch.Generator().manual_seed(0)
    pairs = {f"site {k}": (torch.randn(n, p, generator=g), torch.arange(n) % classes) for k, n in enumerate(sizes)}
    return ClientData.from_arrays(pairs, test_fraction=1 / 3)


def about(notices):
    """Return codes and fields of notices."""
    return [(notice.code, notice.field) for notice in notices]


def test_sound_data_give_no_warning():
    assert data_warnings(clients()) == ()
    assert data_warnings(clients().standardised()) == ()


def test_few_test_rows_are_listed_smallest_first():
    assert data_warnings(clients((FEW * 3, FEW * 3))) == ()
    (line,) = data_warnings(clients((120, 30, 57, 9, 12, 15)))
    assert about([line]) == [("few-test-rows", None)]
    assert "site 3 (3), site 4 (4), site 5 (5) and 2 more" in line
    assert about(data_warnings(clients((120, 30)))) == [("few-test-rows", "site 1")]


def test_warnings_are_found_again_after_a_change_of_the_data():
    data = clients((120, 30, 57, 9, 12, 15))
    (few,) = data_warnings(data)
    assert data_warnings(data)[0] is few
    with complete_listings():
        assert "and 2 more" not in data_warnings(data)[0]
    assert data_warnings(data)[0] == few
    data = clients()
    assert data_warnings(data) == ()
    data.inputs[7, 1] = 1e9
    assert ("outlier", "1") in about(data_warnings(data))


def with_test_targets(data, change):
    targets = data.test_targets.clone()
    change(targets)
    return dataclasses.replace(data, test_targets=targets)


def test_clients_with_one_class_are_listed():
    data = clients()
    one = with_test_targets(data, lambda y: y.index_fill_(0, data.test[1], 1))
    assert about(data_warnings(one)) == [("one-class-test", "site 1")]
    assert data_warnings(one, by_class=True) == ()
    (line,) = data_warnings(with_test_targets(data, lambda y: y.fill_(1)))
    assert about([line]) == [("one-class-test", None)]
    own = with_test_targets(data, lambda y: [y.index_fill_(0, data.test[k], k % 2) for k in range(3)])
    assert data_warnings(own) == ()  # a property of the task
    floats = dataclasses.replace(data, targets=data.targets.double(), test_targets=data.targets.double() * 0)
    assert data_warnings(floats) == ()


@pytest.mark.parametrize("label", [0, 1])
def test_single_client_with_one_class(label):
    data = with_test_targets(clients((120,)), lambda y: y.fill_(label))
    assert about(data_warnings(dataclasses.replace(data, targets=data.test_targets))) == [("one-class-test", "site 0")]


def test_similar_client_names_are_listed():
    data = dataclasses.replace(clients(), names=("Ward 1", "ward  1", "Ward 2"))
    (line,) = data_warnings(data)
    assert about([line]) == [("similar-names", "clients")]
    assert "'Ward 1' and 'ward  1'" in line


def test_outlier_in_a_column_is_found_at_any_scale():
    data = clients()
    inputs = data.inputs.double() / 1e4
    slip = int(data.train[2][0])
    inputs[slip, 1] = 80.0  # in units of 1e-4
    data = dataclasses.replace(data, inputs=inputs, test_inputs=inputs, columns=("age", "dose"))
    for found in (data, data.standardised()):
        (line,) = data_warnings(found)
        assert about([line]) == [("outlier", "dose")]
        assert "'dose' at site 2" in line
    # a column that is mostly one value has no spread to compare with
    inputs[:, 1] = 0
    inputs[slip, 1] = 80.0
    assert data_warnings(dataclasses.replace(data, inputs=inputs, test_inputs=inputs)) == ()
    # an absurd value is still reported, here in a test row
    row = int(data.test[1][3])
    inputs[slip, 1], inputs[row, 1] = 0, 1e12
    data = dataclasses.replace(data, inputs=inputs, test_inputs=inputs)
    far, large = data_warnings(data)
    assert about([far, large]) == [("outlier", "dose"), ("not-standardised", "dose")]
    assert "'dose' at site 1" in far
    assert "'dose' at site 1" in large
    assert data_warnings(data.standardised()) == (far,)


@pytest.mark.parametrize("value", [1e7, 1e8, -1e8, 5e8, -5e8, 2e9])
@pytest.mark.parametrize("standardised", [pytest.param(False, marks=pytest.mark.long), True])
def test_one_huge_value_is_the_only_number_that_is_named(value, standardised):
    data = table_of({"bp": at_site_2(normal(130, 15), lambda x: np.r_[value, x[1:]]), "age": normal(60, 9)})
    line = data_warnings(data.standardised() if standardised else data)[0]
    assert about([line]) == [("outlier", "bp")]
    assert f"'bp' at site 2 ({value:g})" in line
    assert "missing-code" not in [notice.code for notice in data_warnings(data)]


def test_column_in_another_unit_at_one_client_is_reported():
    data = clients()
    inputs = data.inputs.double() + 70
    inputs[torch.cat((data.train[1], data.test[1])), 1] *= 1000
    data = dataclasses.replace(data, inputs=inputs, test_inputs=inputs, columns=("age", "weight"))
    for found in (data, data.standardised()):
        (line,) = data_warnings(found)
        assert about([line]) == [("unit-mismatch", "weight")]
        assert "'weight' at site 1" in line
    assert data_warnings(data, by_class=True) == ()
    two = clients((120, 120))
    inputs = two.inputs.clone()
    inputs[torch.cat((two.train[0], two.test[0])), 0] /= 1000
    (line,) = data_warnings(dataclasses.replace(two, inputs=inputs, test_inputs=inputs))
    assert about([line]) == [("unit-mismatch", "0")]
    assert "0 at site 1 (" in line


def test_large_unstandardised_columns_are_reported():
    data = clients()
    inputs = data.inputs * torch.tensor([1.0, 1e7])
    raw = dataclasses.replace(data, inputs=inputs, test_inputs=inputs)
    (line,) = data_warnings(raw)
    assert about([line]) == [("not-standardised", "1")]
    assert data_warnings(raw.standardised()) == ()


def test_column_that_is_constant_at_one_client_is_reported():
    data = clients((120, 120, 30))
    inputs = data.inputs.clone()
    inputs[:, 0] = (inputs[:, 0] > 0).float()  # a column of two values is often constant at a client
    inputs[torch.cat((data.train[0], data.test[0])), 0] = 0
    inputs[torch.cat((data.train[1], data.test[1])), 1] = -1
    inputs[torch.cat((data.train[2], data.test[2])), 1] = 0.5
    data = dataclasses.replace(data, inputs=inputs, test_inputs=inputs)
    (line,) = [notice for notice in data_warnings(data) if notice.code == "constant-column"]
    assert line.field == "1"
    assert "column 1 at site 1, column 1 at site 2" in line
    assert line not in data_warnings(data, by_class=True)


def test_large_pools_and_images_are_not_checked(monkeypatch):
    monkeypatch.setattr("drfl.data.checks.raw_table.MOST", 10)
    assert MOST > 10
    data = clients()
    assert data_warnings(dataclasses.replace(data, inputs=data.inputs * 1e9, test_inputs=data.inputs * 1e9)) == ()


def table_of(columns, targets=None, sites=4, rows=120):
    """Make clients with columns that ``columns`` draws, and a third of the rows for testing."""
    frames = []
    for site in range(sites):
        g = np.random.default_rng(site)
        values = {name: make(g, site, rows) for name, make in columns.items()}
        y = g.integers(0, 2, rows) if targets is None else targets(g, site, values)
        frames.append(pd.DataFrame({**values, "y": y, "site": f"site {site}"}))
    return ClientData.from_frame(pd.concat(frames), group="site", target="y", test_fraction=1 / 3, standardise=False)


def normal(mean=0.0, std=1.0):
    return lambda g, site, rows: g.normal(mean, std, rows)


def at_site_2(make, change):
    return lambda g, site, rows: change(make(g, site, rows)) if site == 2 else make(g, site, rows)


@pytest.mark.parametrize(
    ("make", "change", "shown"),
    [
        (normal(1.1, 0.2), lambda x: 88.4 * x, "µmol/L and mg/dL of creatinine"),
        (normal(6.0, 1.0), lambda x: x / 18, "mmol/L and mg/dL of glucose"),
        (normal(50.0, 9.0), lambda x: 3 * x, "times"),
        (normal(37.0, 0.5), lambda x: 1.8 * x + 32, "°F in place of °C"),
        (normal(0.0, 1.0), lambda x: x + 6, "standard deviations"),
        (normal(0.0, 1.0), lambda x: 1000 * x, "range"),
        (normal(20.0, 3.0), lambda x: -x, "negative"),
    ],
)
@pytest.mark.parametrize("standardised", [False, True])
def test_values_unlike_those_of_other_clients_are_reported(make, change, shown, standardised):
    data = table_of({"dose": at_site_2(make, change), "age": normal(60, 9)})
    (line,) = data_warnings(data.standardised() if standardised else data)
    assert about([line]) == [("unit-mismatch", "dose")]
    assert "'dose' at site 2" in line
    assert shown in line


@pytest.mark.parametrize("factor", [88.42, 2.2046])
def test_other_unit_at_several_clients_is_reported(factor):
    def dose(g, site, rows):
        return (factor if site in (1, 3) else 1) * g.normal(1.1, 0.2, rows)

    (line,) = data_warnings(table_of({"dose": dose, "age": normal(60, 9)}, sites=5))
    assert about([line]) == [("unit-mismatch", "dose")]
    assert "'dose' at site 1" in line
    assert "'dose' at site 3" in line
    far = table_of({"dose": lambda g, site, rows: 2 ** (site / 2) * g.normal(1.1, 0.2, rows)}, sites=6)
    assert data_warnings(far) == ()


def test_user_column_named_like_an_indicator_is_checked():
    data = table_of(
        {"age": normal(60, 9), "pages missing": lambda g, site, rows: g.integers(0, 2, rows)}
        | {"dose": at_site_2(normal(1.1, 0.2), lambda x: 88.4 * x)}
    )
    ill = Column("ill", "yes/no", levels=("0", "1"), role="target")
    schema = TableSchema((Column("age", "number", missing=("",)), ill))
    with_schema = dataclasses.replace(data, schema=schema)
    assert about(data_warnings(with_schema)) == about(data_warnings(data)) == [("unit-mismatch", "dose")]
    assert len(RawTable.of(with_schema).columns) == 3


def test_factor_of_large_values_is_not_taken_for_fahrenheit():
    def income(g, site, rows):
        return (2.8 if site == 2 else 1) * g.lognormal(10, 0.9, rows)

    (line,) = data_warnings(table_of({"income": income, "age": normal(60, 9)}))
    assert about([line]) == [("unit-mismatch", "income")]
    assert "°F" not in line


def test_large_factor_is_written_out():
    data = table_of({"dose": at_site_2(normal(50.0, 9.0), lambda x: 2000 * x), "age": normal(60, 9)})
    (line,) = data_warnings(data.standardised())
    assert "(2,0" in line


def test_dates_of_few_days_at_one_client_are_not_another_unit():
    g, frames = np.random.default_rng(0), []
    for site in "abcd":
        days = {"admitted": 18_262 + g.integers(300, 320, 120) if site == "b" else 18_262 + g.integers(0, 700, 120)}
        days["born"] = g.integers(-9000, -100, 120) if site == "b" else g.integers(100, 9000, 120)
        dates = {name: (np.datetime64("1970-01-01") + values).astype(str) for name, values in days.items()}
        frames.append(pd.DataFrame({**dates, "bp": g.normal(130, 15, 120), "ill": g.integers(0, 2, 120), "site": site}))
    frame = pd.concat(frames, ignore_index=True)
    data = ClientData.from_frame(frame, schema=propose([frame], "ill", "site").schema, test_fraction=1 / 3)
    assert data_warnings(data) == ()


def test_zero_among_near_values_of_a_client_is_not_a_code():
    def age(lowest):
        return lambda g, site, rows: g.integers(lowest if site == 2 else 20, 60, rows)

    def coded(g, site, rows):
        return np.where((site == 2) & (np.arange(rows) % 5 == 0), 0, age(1)(g, site, rows))

    assert data_warnings(table_of({"age": age(0), "dose": normal()}, rows=600)) == ()
    (line,) = data_warnings(table_of({"age": coded, "dose": normal()}, rows=600))
    assert about([line]) == [("missing-code", "age")]


def test_plausible_differences_are_not_unit_errors():
    older = table_of({"age": lambda g, site, rows: g.normal(60 + 8 * (site == 2), 9, rows), "dose": normal(5)})
    assert data_warnings(older) == ()
    spread = table_of({"stay": lambda g, site, rows: g.lognormal(site / 2, 1, rows)})  # medians 1 to 4.5
    assert data_warnings(spread) == ()


@pytest.mark.parametrize("code", [-9, -1, 0, 99, 999])
def test_codes_for_missing_values_are_reported(code):
    def coded(x):
        x[::20] = code
        return x

    data = table_of(
        {"bmi": at_site_2(lambda g, site, rows: g.normal(27, 3, rows).round(1), coded), "age": normal(60, 9)}
    )
    for found in (data, data.standardised()):
        (line,) = data_warnings(found)
        assert about([line]) == [("missing-code", "bmi")]
        assert f"'bmi' at site 2 ({code})" in line


@pytest.mark.parametrize("code", [9998, 998, 888, 777, 1111, -7, -8, -88])
@pytest.mark.parametrize("sites", [[2], pytest.param([0, 1, 2, 3], marks=pytest.mark.long)])
def test_codes_far_from_all_other_values_are_reported(code, sites):
    def pressure(g, site, rows):
        return np.where((np.arange(rows) % 7 == 0) & (site in sites), code, g.normal(130, 15, rows).round(1))

    data = table_of({"bp": pressure, "age": normal(60, 9)})
    (line,) = data_warnings(data.standardised())
    assert about([line]) == [("missing-code", "bp")]
    assert f"'bp'{' at site 2' if sites == [2] else ''} ({code})" in line


def with_dates(born, admitted, rows):
    """Return warnings about a table with two columns of dates; some rows of client b have other dates."""
    frames = []
    for site in "abcd":
        g = np.random.default_rng(ord(site))
        days = {"born": -15_000 + g.integers(0, 25_000, 120), "admitted": 18_262 + g.integers(0, 700, 120)}
        dates = {name: (np.datetime64("1970-01-01") + values).astype(str) for name, values in days.items()}
        frames.append(pd.DataFrame({**dates, "bp": g.normal(130, 15, 120), "ill": g.integers(0, 2, 120), "site": site}))
    frames[1].loc[frames[1].index[:rows], ["born", "admitted"]] = [born, admitted]
    table = pd.concat(frames, ignore_index=True)
    schema = propose([table], "ill", "site").schema
    return data_warnings(ClientData.from_frame(table, schema=schema, test_fraction=1 / 3))


@pytest.mark.parametrize(
    "code",
    long_except(["1900-01-01"], ["1900-01-01", "1970-01-01", "2099-12-31", "9999-12-31"]),
)
def test_dates_used_as_codes_for_missing_values_are_reported(code):
    usual = "1961-05-02", "2021-02-03"
    assert with_dates(*usual, 10) == ()
    for born, admitted, field in ((code, usual[1], "born"), (usual[0], code, "admitted")):
        (line,) = with_dates(born, admitted, 10)
        assert about([line]) == [("missing-code", field)]
        assert f"'{field}' at b ({code})" in line
    (line,) = with_dates(usual[0], code, 1)
    assert about([line]) == [("missing-code", "admitted")]
    assert with_dates("1970-01-01", usual[1], 1) == ()


def test_several_codes_of_one_column_are_reported():
    def coded(x):
        x[::7], x[1::9], x[2::11] = -9, -8, -1
        return x

    (line,) = data_warnings(table_of({"bp": at_site_2(normal(130, 9), coded), "age": normal(60, 9)}))
    assert about([line]) == [("missing-code", "bp")]
    assert all(f"'bp' at site 2 ({code})" in line for code in (-9, -8, -1))


@pytest.mark.parametrize(("highest", "code", "is_code"), [(1, 9, True), (5, 99, True), (5, -9, True), (5, 8, False)])
def test_codes_far_from_a_few_levels_are_reported(highest, code, is_code):
    def level(g, site, rows):
        return np.where(np.arange(rows) % 13, g.integers(0, highest + 1, rows), code)

    found = data_warnings(table_of({"level": level, "age": normal(60, 9)}))
    assert about(found) == [("missing-code", "level")] * is_code
    assert all(f"'level' ({code})" in line for line in found)


@pytest.mark.parametrize("code", [9, 99, 77])
def test_codes_of_one_client_within_the_range_of_others_are_reported(code):
    def age(g, site, rows):
        return g.normal(55, 13, rows).round().clip(18, 95)

    def coded(g, site, rows):
        x = age(g, site, rows)
        return np.where(g.random(rows) < 0.15, code, x) if site == 2 else np.where(x == code, 50, x)

    (line,) = data_warnings(table_of({"age": coded, "bp": normal(130, 15)}))
    assert about([line]) == [("missing-code", "age")]
    assert f"'age' at site 2 ({code})" in line
    everywhere = table_of({"age": lambda g, site, rows: np.where(g.random(rows) < 0.15, 77, age(g, site, rows))})
    assert data_warnings(everywhere) == ()
    assert data_warnings(table_of({"age": age, "bp": normal(130, 15)})) == ()


@pytest.mark.parametrize(
    ("change", "code", "shown"),
    [
        (lambda x: x + 1, "values-differ", "'smoker' at site 2 (1 and 2; 0 and 1 elsewhere)"),
        (lambda x: 2 * x - 1, "values-differ", "'smoker' at site 2 (-1 and 1; 0 and 1 elsewhere)"),
        (lambda x: np.where(np.arange(len(x)) % 10, x, -1), "missing-code", "'smoker' at site 2 (-1)"),
    ],
)
@pytest.mark.parametrize("standardised", [False, True])
def test_other_codes_for_two_values_at_one_client_are_reported(change, code, shown, standardised):
    data = table_of({"smoker": at_site_2(lambda g, site, rows: g.integers(0, 2, rows), change), "age": normal(60, 9)})
    (line,) = data_warnings(data.standardised() if standardised else data)
    assert about([line]) == [(code, "smoker")]
    assert shown in line


def test_rare_values_of_a_column_of_zeros_are_chance():
    def faint(g, site, rows):
        return np.where(np.arange(rows) == 3, 1 + site % 2, 0) if site else np.zeros(rows)

    assert data_warnings(table_of({"pixel": faint, "age": normal(60, 9)})) == ()


@pytest.mark.parametrize("standardised", [False, True])
def test_sums_in_the_last_row_are_reported(standardised):
    def with_sum(make):
        return at_site_2(make, lambda x: np.r_[x[:-1], x[:-1].sum()])

    columns = {"age": with_sum(lambda g, site, rows: g.integers(20, 90, rows)), "bp": with_sum(normal(130, 15))}
    data = table_of({**columns, "x": normal()})
    found = data_warnings(data.standardised() if standardised else data)
    assert ("sum-row", "site 2") in about(found)
    assert "sum-row" not in [code for code, _ in about(data_warnings(table_of({**columns, "bp": normal(130, 15)})))]


def test_class_of_a_single_row_is_reported():
    def labels(g, site, values):
        return np.where((site == 2) & (np.arange(120) == 7), 103, g.integers(0, 2, 120))

    (line,) = data_warnings(table_of({"age": normal(60, 9)}, labels))
    assert about([line]) == [("few-of-a-class", "site 2")]
    assert "'103' at site 2" in line


def test_column_that_reveals_the_target_at_one_client_is_reported():
    columns = {"bp": normal(130, 15), "stay": normal(8, 3)}
    data = table_of(columns, lambda g, site, x: x["stay"] > 8 if site == 2 else x["bp"] + g.normal(0, 25, 120) > 130)
    found = [notice for notice in data_warnings(data) if notice.code == "leak"]
    assert about(found) == [("leak", "stay")]
    assert "'stay' at site 2 (right in 100.0% of the rows)" in found[0]


def test_strong_column_that_is_right_at_one_client_is_no_leak():
    def died(g, site, x):
        return x["bp"] + (site != 2) * g.normal(0, 3, 120) > 130

    data = table_of({"bp": normal(130, 15), "age": normal(60, 9)}, died)
    assert "leak" not in [code for code, _ in about(data_warnings(data))]


def test_heavy_tails_are_not_codes():
    data = table_of({"people": lambda g, site, rows: np.where(np.arange(rows) % 50, g.integers(0, 3500, rows), 7300)})
    assert data_warnings(data) == ()
    doses = table_of({"dose": lambda g, site, rows: 10.0 ** g.integers(-1, 3, rows), "age": normal(60, 9)})
    assert data_warnings(doses) == ()


def test_meaningful_zeros_are_not_missing_codes():
    counts = table_of({"nodes": lambda g, site, rows: g.poisson(4, rows).astype(float), "age": normal(60, 9)})
    assert data_warnings(counts) == ()


def test_columns_that_number_the_rows_are_reported():
    data = table_of({"row": lambda g, site, rows: np.arange(rows), "age": normal(60, 9)})
    assert about(data_warnings(data)) == [("row-number", "row")]
    ids = table_of({"person": lambda g, site, rows: g.permutation(200)[:rows] + 1000 * site, "age": normal(60, 9)})
    assert ("identifier", "person") in about(data_warnings(ids))
    whole = table_of({"age": lambda g, site, rows: g.normal(60, 9, rows).round(), "dose": normal(5)})
    assert data_warnings(whole) == ()


def test_column_that_reveals_the_target_is_reported():
    def almost(g, site, values):
        return (values["later"] > 0) ^ (np.arange(len(values["later"])) == 3)

    data = table_of({"later": normal(), "age": normal(60, 9)}, almost)
    (line,) = data_warnings(data)
    assert about([line]) == [("leak", "later")]
    assert "99.2%" in line  # one row of 120 at each site
    noisy = table_of(
        {"early": normal(), "age": normal(60, 9)}, lambda g, site, values: values["early"] + g.normal(0, 0.5, 120) > 0
    )
    assert data_warnings(noisy) == ()
    numbers = table_of({"twice": normal(), "age": normal(60, 9)}, lambda g, site, values: 2.0 * values["twice"])
    assert about(data_warnings(numbers)) == [("leak", "twice")]


def with_discharge(site):
    """Return a table in which the first level of a category is the outcome."""
    random = np.random.default_rng(ord(site))
    died = random.random(60) < 0.3
    ward = np.where(died, "deceased", random.choice(["home", "rehab"], 60))
    return pd.DataFrame({"age": random.normal(60, 9, 60), "ward": ward, "died": died.astype(int), "site": site})


def test_category_whose_first_level_reveals_the_target_is_reported():
    frame = pd.concat(map(with_discharge, "abc"), ignore_index=True)
    schema = propose([frame], "died", "site").schema
    assert ("leak", "ward") in about(data_warnings(ClientData.from_frame(frame, schema=schema)))


def with_blanks(change, target="died", task=None):
    """Return warnings about a table whose columns ``change`` draws; an empty cell is a missing value."""
    frames = []
    for site in "abcd":
        random = np.random.default_rng(ord(site))
        frame = pd.DataFrame({"age": random.normal(60, 9, 200), "lab": random.normal(5, 1, 200).round(2)})
        frame.loc[random.random(200) < 0.3, "lab"] = np.nan
        frame["died"] = np.where(random.random(200) < 0.4, "yes", "no")
        frames.append(frame.assign(site=site, **change(frame, random)))
    table = pd.concat(frames, ignore_index=True)
    reading = ReadOptions(missing=("",))
    schema = propose([table], target, "site", (), task, reading=reading).schema
    return data_warnings(ClientData.from_frame(table, schema=schema, reading=reading, test_fraction=1 / 3))


@pytest.mark.parametrize("causes", [["heart"], ["heart", "cancer"], ["heart", "cancer", "fall", "fever"]])
def test_category_that_is_blank_for_one_class_reveals_the_target(causes):
    def cause(frame, random):
        return {"cause": np.where(frame["died"] == "yes", random.choice(causes, 200), None)}

    assert about(with_blanks(cause)) == [("leak", "cause")]


def test_number_that_is_blank_for_one_class_reveals_the_target():
    def days(frame, random):
        return {"days": np.where(frame["died"] == "yes", random.integers(1, 400, 200), np.nan)}

    (line,) = with_blanks(days)
    assert about([line]) == [("leak", "days")]
    assert "by whether it is blank, right in 100.0%" in line
    assert with_blanks(lambda frame, random: {}) == ()


def test_known_numbers_of_a_column_with_blanks_reveal_the_target():
    def late(frame, random):
        value = 10 * (frame["died"] == "yes") + random.normal(0, 1, 200)
        return {"late": value.where(random.random(200) < 0.6)}

    (line,) = with_blanks(late)
    assert about([line]) == [("leak", "late")]
    assert "if it is not blank, right in 100.0%" in line


def test_blanks_reveal_numbers():
    def cost(frame, random):
        cost = np.where(frame["died"] == "yes", 0, random.lognormal(7, 1, 200).round(1))
        paid, same = (
            np.where(cost > 0, random.normal(5, 1, 200), np.nan),
            np.where(random.random(200) < 0.4, np.nan, 2 * cost),
        )
        return {"cost": cost, "paid": paid, "same": same, "died": frame["age"] > 60}

    (line,) = with_blanks(cost, "cost", "regression")
    assert about([line]) == [("leak", None)]
    assert "'paid' (by whether it is blank), column 'same' (if it is not blank)" in line


@pytest.mark.parametrize("classes", [3, 5])
def test_number_that_several_classes_divide_reveals_the_target(classes):
    def stage(g, site, values):
        return np.digitize(values["bp"], np.linspace(-1, 1, classes - 1))

    columns = {"bp": normal(), "age": normal(60, 9)}
    (line,) = data_warnings(table_of(columns, stage, rows=240))
    assert about([line]) == [("leak", "bp")]
    assert "right in 100.0%" in line
    assert data_warnings(table_of(columns, lambda g, site, values: g.integers(0, classes, 240), rows=240)) == ()


def test_run_without_a_schema_checks_categories_as_a_whole(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for site in "abc":
        with_discharge(site).drop(columns="site").to_csv(f"{site}.csv", index=False)
    files = [word for site in "abc" for word in ("--data", f"{site}.csv")]
    assert call(["run", *files, "--target", "died", "--rounds", "1", "--out", "out"]) == 0
    assert "columns that nearly determine the target: column 'ward' (right in 100.0%" in capsys.readouterr().err


def test_constant_targets_and_many_classes_are_not_a_leak():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    constant = ClientData.from_arrays([(x[:20], torch.zeros(20, dtype=torch.int64))] * 2)
    assert "leak" not in [code for code, _ in about(data_warnings(constant))]
    many = ClientData.from_arrays([(x[:20], torch.arange(20) * 1000), (x[20:], torch.arange(20) * 1000 + 7)])
    assert "leak" not in [code for code, _ in about(data_warnings(many))]


def test_swapped_classes_and_levels_are_reported():
    columns = {"x": normal(), "age": normal(60, 9)}
    swapped = table_of(columns, lambda g, site, values: (values["x"] + g.normal(0, 1, 120) > 0) ^ (site == 1))
    (line,) = data_warnings(swapped)
    assert about([line]) == [("classes-swapped", "site 1")]
    female = table_of({"female": at_site_2(lambda g, site, rows: g.random(rows) < 0.05, lambda x: ~x), **columns})
    assert about(data_warnings(female)) == [("levels-swapped", "female")]


def test_ignored_labels_are_not_a_class():
    def labels(swapped, later=False):
        def draw(g, site, values):
            y = (values["x"] + (0 if later else g.normal(0, 1, 120)) > 0) ^ (swapped and site == 1)
            return np.where(np.arange(120) % 4 == 1, -100, y)

        return table_of({"x": normal(), "age": normal(60, 9)}, draw)

    def with_labels(data):
        """Use labels as given, without the encoding of a table."""
        numbers = torch.tensor([int(name) for name in data.classes])
        targets = numbers[data.targets]
        return dataclasses.replace(data, targets=targets, test_targets=targets, classes=None)

    assert data_warnings(with_labels(labels(swapped=False))) == ()
    assert about(data_warnings(with_labels(labels(swapped=True)))) == [("classes-swapped", "site 1")]
    assert ("leak", "x") in about(data_warnings(with_labels(labels(swapped=False, later=True))))


def test_several_labels_have_no_unit_check():
    g = torch.Generator().manual_seed(0)

    def rows(site):
        y = (torch.rand(120, 2, generator=g) < (0.9 if site else 0.1)).float()
        y[::3, 1] = float("nan")
        return torch.randn(120, 2, generator=g), y

    data = ClientData.from_arrays({f"site {i}": rows(i) for i in range(4)}, test_fraction=1 / 3)
    assert data_warnings(data) == ()
    data.targets[data.test[2], 1] = float("nan")
    assert about(data_warnings(data)) == [("unknown-label", "site 2")]
    data.targets[data.train[1][:5]] = float("nan")
    found = data_warnings(data)
    assert about(found) == [("unlabelled-rows", "site 1"), ("unknown-label", "site 2")]
    assert "site 1 (5)" in found[0]


def test_targets_in_another_unit_are_reported():
    columns = {"x": normal(), "age": normal(60, 9)}
    data = table_of(columns, lambda g, site, values: g.normal(5, 1, 120) * (10 if site == 3 else 1))
    assert about(data_warnings(data)) == [("target-unit", "site 3")]


@pytest.mark.parametrize("code", [999, -99, -9, 998])
@pytest.mark.parametrize("sites", [[2], [0, 1, 2, 3]])
def test_codes_for_missing_targets_are_reported(code, sites):
    def stay(g, site, values):
        return np.where((np.arange(120) % 20 == 0) & (site in sites), code, g.normal(8, 1.5, 120).round(1))

    (line,) = data_warnings(table_of({"x": normal(), "age": normal(60, 9)}, stay))
    assert about([line]) == [("missing-code", "y")]
    assert f"column 'y'{' at site 2' if sites == [2] else ''} ({code})" in line


def test_outlier_among_targets_is_reported():
    def stay(g, site, values):
        return np.r_[1e8 if site == 1 else 8, g.normal(8, 1.5, 119)]

    (line,) = data_warnings(table_of({"x": normal(), "age": normal(60, 9)}, stay))
    assert about([line]) == [("outlier", "y")]
    assert "column 'y' at site 1 (1e+08)" in line


def test_costs_with_many_zeros_are_not_codes():
    def cost(g, site, values):
        return np.where(g.random(120) < 0.4, 0, g.lognormal(7, 1.5, 120).round(2))

    assert data_warnings(table_of({"x": normal(), "age": normal(60, 9)}, cost)) == ()


def test_schema_names_the_target_with_codes():
    frame = pd.concat(with_discharge(site).drop(columns=["ward", "died"]) for site in "abc").reset_index(drop=True)
    frame["stay"] = np.random.default_rng(0).normal(8, 1.5, len(frame)).round(1)
    frame.loc[frame.index[frame.site == "b"][::6], "stay"] = 999.0
    schema = propose([frame], "stay", "site", task="regression").schema
    (line,) = data_warnings(ClientData.from_frame(frame, schema=schema, test_fraction=1 / 3))
    assert about([line]) == [("missing-code", "stay")]
    assert "'stay' at b (999)" in line


def test_copies_of_rows_are_reported():
    columns = {name: normal() for name in "abc"}
    base = table_of(columns)
    assert data_warnings(base) == ()

    def repeated(times, noise):
        frames = []
        for site in range(4):
            g = np.random.default_rng(site)
            frame = pd.DataFrame(g.normal(size=(60, 3)), columns=list("abc")).assign(y=g.integers(0, 2, 60))
            if site == 1:
                frame = frame.loc[frame.index.repeat(times)]
                frame[list("abc")] += noise * g.normal(size=(len(frame), 3))
            frames.append(frame.assign(site=f"site {site}"))
        return pd.concat(frames)

    def said(frame):
        return data_warnings(ClientData.from_frame(frame, group="site", target="y", test_fraction=1 / 3))

    (line,) = said(repeated(2, 0))
    assert about([line]) == [("copies", "site 1")]
    assert "60 copies" in line
    assert about(said(repeated(10, 0.01))) == [("near-copies", "site 1")]
    frame = repeated(1, 0)
    shared = pd.concat([frame, frame[frame.site == "site 3"].head(20).assign(site="site 0")])
    (line,) = said(shared)
    assert line.code == "shared-rows"
    assert "site 0 and site 3 (20)" in line


def test_equal_coarse_rows_are_not_copies():
    coarse = table_of({name: lambda g, site, rows: g.integers(0, 4, rows) for name in "abc"})
    assert data_warnings(coarse) == ()


def test_few_rows_of_a_class_are_reported():
    data = table_of(
        {"x": normal(), "age": normal(60, 9)}, lambda g, site, values: np.arange(120) < (6 if site == 2 else 60)
    )
    (line,) = [one for one in data_warnings(data) if one.code == "few-of-a-class"]
    assert line.field == "site 2"
    assert "site 2 (6 of 'True')" in line


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    k = range(120)
    frame = {"x": [i * 37 % 101 for i in k], "ill": [i % 2 * (i > 12) for i in k], "site": ["AB"[i > 12] for i in k]}
    pd.DataFrame(frame).to_csv("all.csv", index=False)


LINES = ["fewer than 20 test rows at A (3): ", "all test rows are of one class at A: "]


@pytest.mark.usefixtures("table")
def test_command_warns_before_training_and_in_its_files(capsys):
    words = "--data all.csv --target ill --group site --rounds 1 --steps 1"
    assert call(f"run {words} --algorithm FedAvg --out r".split()) in (0, 1)
    err = capsys.readouterr().err
    for line in LINES:
        assert err.count(line) == 1
    assert err.index(LINES[1]) < err.index("round 1")
    told = json.loads(Path("r/summary.json").read_text())["warnings"]
    assert [any(line.startswith(start) for line in told) for start in LINES] == [True, True]
    assert call(f"compare {words} --algorithms FedAvg,DRFA --seeds 2 --out c --json".split()) in (0, 1)
    out, err = capsys.readouterr()
    assert [err.count(line) for line in LINES] == [1, 1]  # once, not once per run
    assert json.loads(out)["warnings"] == json.loads(Path("c/summary.json").read_text())["warnings"]
    # once in the report, with the algorithms concerned
    report = Path("c/report.html").read_text()
    assert report.count(LINES[1][:-1]) == 1
    assert "FedAvg and DRFA: all test rows are of one class at A" in report


@pytest.mark.long
def test_papers_jobs_give_no_warning(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in ("--partition one-class", "--clients 30", "--partition iid --clients 60"):
        assert call(f"run --dataset digits {words} --rounds 1 --steps 1 --out r --overwrite --json".split()) in (0, 1)
        assert "test rows" not in capsys.readouterr().err
        assert not [w for w in json.loads(Path("r/summary.json").read_text())["warnings"] if "test rows" in w]


def test_run_in_python_warns():
    fed = Simulation(clients((12, 120)), Task(torch.nn.Linear(2, 2)))
    algorithm = FedAvg(m=2, local=LocalSGD(steps=1, lr=0.1))
    with pytest.warns(DataWarning) as told:
        run(algorithm, fed, rounds=1)
    assert about(warning.message for warning in told) == [("few-test-rows", "site 0")]
    assert [warning.filename for warning in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(algorithm, fed, rounds=1, check_data=False)
        run(algorithm, Simulation(clients(), Task(torch.nn.Linear(2, 2))), rounds=1)


def test_python_objects_are_checked():
    lines: list[str] = []
    algorithm = FedAvg(m=2, local=LocalSGD(steps=1, lr=0.1))
    found = compare_objects(
        {"mean": algorithm}, clients((12, 120)), Task(torch.nn.Linear(2, 2)), rounds=1, seeds=1, progress=lines.append
    )
    assert about(found.warnings) == [("few-test-rows", "site 0")]
    assert found.warnings[0] in lines


def test_columns_of_very_different_scale_are_reported():
    """The checks concern only inputs that are not standardised."""
    plain = {"age": normal(60, 9), "dose": normal(5), "bmi": normal(27, 3)}
    for columns, field in ((plain | {"cells": normal(2e6, 1e6)}, "cells"), ({"year": normal(2010, 3)}, "year")):
        data = table_of(columns)
        (notice,) = (one for one in data_warnings(data) if one.code == "not-standardised")
        assert notice.field == field
        assert not [one for one in data_warnings(data.standardised()) if one.code == "not-standardised"]


def test_column_that_is_blank_at_some_clients_is_named_once():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat([*"abcd"], 60), "age": rng.normal(60, 9, 240).round(1)})
    frame["crp"], frame["ward"] = rng.gamma(2, 3, 240).round(2), rng.choice(["I", "II", "III"], 240)
    frame["ill"] = rng.choice(["no", "yes"], 240)
    assert blank_columns(frame) == []
    frame.loc[frame["site"].isin(["b", "d"]), "crp"] = np.nan
    (line,) = blank_columns(frame)
    assert line.field == "crp"
    assert "'crp' at b, d;" in line
    frame.loc[frame["site"] == "c", "ward"] = None
    (line,) = blank_columns(frame)
    assert "'crp' at b, d, 'ward' at c;" in line


@pytest.mark.parametrize("blank", ["crp", "ward"])
def test_column_that_is_blank_at_a_single_client(blank):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": "a", "crp": rng.gamma(2, 3, 60).round(2), "ward": rng.choice(["I", "II"], 60)})
    frame["ill"] = rng.choice(["no", "yes"], 60)
    frame.loc[::9, blank] = None
    assert blank_columns(frame) == []
    schema = propose([frame], "ill", "site").schema
    found = data_warnings(ClientData.from_frame(frame.assign(**{blank: None}), schema=schema, standardise=False))
    assert about(found) == [("few-test-rows", "a"), ("blank-column", blank)]


@pytest.mark.parametrize("other", ["a", "diab"])
def test_blank_category_with_one_level_is_not_blamed_on_its_neighbour(other):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat([*"abcd"], 60), f"{other}_dur": rng.normal(size=240)})
    frame["diab"] = np.where((rng.random(240) < 0.3) & (frame["site"] != "a"), "yes", None)
    frame["ill"] = rng.choice(["no", "yes"], 240)
    data = ClientData.from_frame(frame, group="site", target="ill", reading=ReadOptions(missing=("",)))
    assert data.columns == (f"{other}_dur", "diab missing")
    (line,) = [notice for notice in data_warnings(data) if notice.code != "few-test-rows"]
    assert about([line]) == [("blank-column", "diab")]
    assert "'diab' at a;" in line
    frame["ill"] = frame["diab"].notna().map({False: "no", True: "yes"})
    data = ClientData.from_frame(frame, group="site", target="ill", reading=ReadOptions(missing=("",)))
    assert ("leak", "diab") in about(data_warnings(data))


def test_apostrophes_are_part_of_a_column_name():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat([*"abcd"], 60), "'feet'": rng.normal(size=240), "toes'": 0.0})
    frame["toes'"], frame["ill"] = rng.normal(size=240), rng.choice(["no", "yes"], 240)
    frame.loc[frame["site"] == "a", ["'feet'", "toes'"]] = np.nan
    (line,) = blank_columns(frame)
    assert "''feet'' at a" in line
    assert blank_columns(frame.assign(**{"toes'": 1.0}))[0].field == "'feet'"


def test_dates_are_no_identifiers():
    rng = np.random.default_rng(0)
    visit = np.datetime64("2024-01-01") + rng.choice(400, 60, replace=False)
    frame = pd.DataFrame({"site": "a", "visit": visit.astype(str), "next": np.sort(visit).astype(str)})
    frame["series"] = (np.datetime64("2024-01-01") + np.arange(60)).astype(str)
    frame["ill"] = rng.choice(["no", "yes"], 60)
    schema = propose([frame], "ill", "site").schema
    assert [column.name for column in schema.columns if column.type == "date"] == ["visit", "next", "series"]
    assert about(data_warnings(ClientData.from_frame(frame, schema=schema))) == [("few-test-rows", "a")]


def blank_columns(frame):
    schema = propose([frame], "ill", "site").schema
    found = data_warnings(ClientData.from_frame(frame, schema=schema))
    assert "constant-column" not in [notice.code for notice in found]
    return [notice for notice in found if notice.code == "blank-column"]


@pytest.mark.parametrize(("count", "is_quantity"), [(50, False), (51, True)])
def test_target_of_many_numbers_may_be_a_quantity(count, is_quantity):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat([*"ab"], 2 * count), "x": rng.normal(size=4 * count)})
    frame["age"] = np.tile(np.arange(count), 4)
    codes = about(data_warnings(ClientData.from_frame(frame, group="site", target="age")))
    assert [code for code, _ in codes if code == "many-classes"] == ["many-classes"] * is_quantity
    # Words are always classes, and numbers with a decimal point are always a quantity.
    for values in (frame["age"].map("class {}".format), frame["age"].astype(float)):
        found = data_warnings(ClientData.from_frame(frame.assign(age=values), group="site", target="age"))
        assert "many-classes" not in [notice.code for notice in found]


def test_copies_within_training_are_not_called_memorised():
    data = table_of({name: normal() for name in "abc"})
    inputs, rows = data.inputs.clone(), data.train[1]
    inputs[rows[1:20]], targets = inputs[rows[0]].clone(), data.targets.clone()
    targets[rows[:20]] = 1
    data = dataclasses.replace(data, inputs=inputs, test_inputs=inputs, targets=targets, test_targets=targets)
    (line,) = [notice for notice in data_warnings(data) if notice.code == "copies"]
    assert "0 of its test rows" in line
    assert "memorised" not in line
