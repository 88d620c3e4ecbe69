"""Test clients named by the data, and data without a given test part."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tests.support.refusals import refused

from drfl.cli.app import call
from drfl.core.key import Key
from drfl.data import IID, Dataset, Natural, Partition, ZipfDirichlet, load, make_partition
from drfl.data.partition.natural import without_small_groups


@pytest.fixture(scope="module")
def heart():
    return load("heart-disease")


def test_clients_are_the_groups_and_every_row_is_used_once(heart):
    partition = make_partition(heart, Natural(), Key(0))
    assert partition.names == ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
    assert [len(test) for test in partition.test] == [101, 87, 15, 43]
    assert heart.targets[partition.test[2]].all()  # Switzerland's only healthy patient is a training row
    for name, train, test in zip(partition.names, partition.train, partition.test, strict=True):
        mine = [row for row, group in enumerate(heart.groups) if group == name]
        np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), mine)
        shares = [float(heart.targets[part].double().mean()) for part in (train, test)]
        assert abs(shares[0] - shares[1]) < 0.05


def test_seed_determines_the_split_and_is_recorded(heart, tmp_path):
    first = make_partition(heart, Natural(), Key(5))
    assert first == make_partition(heart, Natural(4), Key(5))
    assert not np.array_equal(first.test[0], make_partition(heart, Natural(), Key(6)).test[0])
    assert first.recipe == {"partition": "natural", "clients": 4, "test_fraction": 1 / 3, "seed": 5}
    first.save(tmp_path / "p.json")
    assert Partition.load(tmp_path / "p.json") == first


@pytest.mark.parametrize("method", [IID(7), ZipfDirichlet(5, 0.5)], ids=lambda method: method.name)
def test_other_partitions_first_split_the_pool_by_class(heart, method):
    partition = make_partition(heart, method, Key(1))
    train, test = np.concatenate(partition.train), np.concatenate(partition.test)
    assert len(train) == 493
    assert sorted([*train, *test]) == list(range(740))
    assert partition.recipe["test_fraction"] == 1 / 3
    shares = [float(heart.targets[part].double().mean()) for part in (train, test)]
    assert shares[0] == pytest.approx(shares[1], abs=2e-3)
    other = make_partition(heart, method, Key(2))
    assert not np.array_equal(np.sort(train), np.sort(np.concatenate(other.train)))


def test_given_test_part_is_kept():
    digits = load("digits")
    method, key = IID(3), Key(0)
    expected = method.split(digits.targets.numpy(), digits.test_targets.numpy(), 10, key)
    assert make_partition(digits, method, key) == expected


def test_unsuitable_data_are_one_line_errors(heart):
    with refused("out-of-range", "clients", "4", "'natural'", "5"):
        make_partition(heart, Natural(5), Key(0))
    with refused("missing-groups", "partition", "'digits'"):
        make_partition(load("digits"), Natural(), Key(0))
    with refused("out-of-range", "test_fraction"):
        Natural(test_fraction=1.0)
    with refused("out-of-range", "clients"):
        Natural(0)
    x, y = torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64)
    with refused("few-rows", None, "'b'", "1"):
        make_partition(Dataset("lone", x, y, x, y, 1, ("a", "a", "b")), Natural(), Key(0))


def test_fewer_clients_are_the_largest_groups_with_the_same_split(heart):
    whole, two = (make_partition(heart, Natural(n), Key(3)) for n in (None, 2))
    assert two.names == ("Cleveland", "Hungary")
    for k in range(2):
        np.testing.assert_array_equal(two.train[k], whole.train[k])
        np.testing.assert_array_equal(two.test[k], whole.test[k])
    assert two.recipe["clients"] == 2


def test_fewer_clients_with_a_given_test_part():
    x, y = torch.zeros(6, 1), torch.zeros(6, dtype=torch.int64)
    test = torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64)
    groups, test_groups = ("b", "a", "c", "c", "b", "lone"), ("c", "b", "later", "a")
    data = Dataset("parts", x, y, *test, 1, groups, test_groups=test_groups)
    partition = make_partition(data, Natural(2), Key(0))
    assert partition.names == ("b", "c")
    assert [rows.tolist() for rows in (*partition.train, *partition.test)] == [[0, 4], [2, 3], [1], [0]]
    with refused("no-rows", "later"):
        make_partition(data, Natural(), Key(0))
    with refused("no-rows", "lone"):
        make_partition(data, Natural(4), Key(0))


RUN = ["run", "--algorithm", "FedAvg", "--dataset", "heart-disease", "--rounds", "5"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_command_uses_natural_clients_by_default(here):
    assert call([*RUN, "--partition", "natural", "--out", "a"]) == 0
    assert call([*RUN, "--out", "b"]) == 0
    assert call(["run", "b/config.toml", "--out", "c"]) == 0
    for name in ("config.toml", "history.csv", "clients.csv", "partition.json"):
        assert (here / "a" / name).read_bytes() == (here / "b" / name).read_bytes() == (here / "c" / name).read_bytes()
    names = [line.split(",")[0] for line in (here / "a/clients.csv").read_text().splitlines()]
    assert names == ["client", "Cleveland", "Hungary", "Switzerland", "VA Long Beach"]
    summary = json.loads((here / "a/summary.json").read_text())
    assert summary["partition"] == {"partition": "natural", "clients": 4, "test_fraction": 1 / 3, "seed": 0}
    assert summary["parameters"]["m"] == 4
    assert summary["final"]["avg_accuracy"] > 0.75


def test_command_can_use_another_partition(here):
    assert call([*RUN, "--partition", "zipf-dirichlet", "--clients", "5", "--out", "a"]) == 0
    assert json.loads((here / "a/summary.json").read_text())["partition"]["partition"] == "zipf-dirichlet"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*RUN, "--clients", "5"], "makes at most 4 clients, got 5"),
        ([*RUN, "--alpha", "0.3"], "alpha has no effect on partition 'natural'"),
        (["run", "--partition", "natural"], "has no groups"),
    ],
)
def test_command_refuses_unsuitable_options(here, capsys, arguments, message):
    assert call(arguments) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
    assert list(here.iterdir()) == []


def small(counts, patients=None):
    groups = tuple(name for name, count in counts.items() for _ in range(count))
    x, y = torch.arange(len(groups)).float()[:, None], torch.zeros(len(groups), dtype=torch.int64)
    return Dataset("small", x, y, x, y, 1, groups, patients=patients)


def test_small_groups_are_excluded_and_named():
    whole = small({"a": 5, "b": 1, "c": 4, "d": 3})
    found = without_small_groups(whole, 4)
    assert found.is_one_pool
    assert sorted(set(found.groups)) == ["a", "c"]
    assert found.inputs.flatten().tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    (notice,) = found.notices
    assert notice.code == "left-out"
    assert "b (1)" in notice
    assert "d (3)" in notice
    assert without_small_groups(whole, 1) is whole
    assert make_partition(found, Natural(), Key(0)).names == ("a", "c")


def test_groups_with_one_patient_are_excluded():
    patients = ("1", "1", "2", "1", "1", "1", "1", "1", "2")
    found = without_small_groups(small({"a": 3, "b": 4, "c": 2}, patients), 2)
    assert sorted(set(found.groups)) == ["a", "c"]
    assert found.patients == ("1", "1", "2", "1", "2")


def test_at_least_two_clients_must_remain():
    with refused("few-clients", "min_rows", "1", "3", "5"):
        without_small_groups(small({"a": 5, "b": 3, "c": 2}), 4)


def test_min_rows_counts_both_given_parts():
    x, y = torch.arange(6.0)[:, None], torch.zeros(6, dtype=torch.int64)
    whole = Dataset("parts", x, y, x[:3], y[:3], 1, tuple("aabbcc"), test_groups=tuple("aab"))
    found = without_small_groups(whole, 3)
    assert (found.groups, found.test_groups) == (tuple("aabb"), tuple("aab"))


def test_patients_require_the_natural_partition():
    with refused("unsupported-combination", "partition", "'iid'"):
        make_partition(small({"a": 5, "b": 3}, tuple("11223111")), IID(2), Key(0))
