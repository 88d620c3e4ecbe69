"""Test the four hospitals: the content of the embedded table, and inputs that do not depend on test rows."""

from __future__ import annotations

import socket
from collections import Counter
from importlib import resources
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tests.support.refusals import check_refusal

from drfl.cli.app import call
from drfl.core.key import Key
from drfl.data import DATASETS, IID, ClientData, Natural, load, make_partition
from drfl.data.datasets.catalogue import FEATURES
from drfl.report.test_rows import read

ROWS = {"Cleveland": 303, "Hungary": 261, "Switzerland": 46, "VA Long Beach": 130}
ILL = {"Cleveland": 139, "Hungary": 98, "Switzerland": 45, "VA Long Beach": 101}


@pytest.fixture
def heart(monkeypatch):
    def refuse(*_):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "socket", refuse)
    return load("Heart_Disease")


def column(data, name):
    return data.inputs[:, FEATURES.index(name)]


def of(data, hospital):
    return torch.tensor([group == hospital for group in data.groups])


def test_rows_and_classes_of_each_hospital(heart):
    assert Counter(heart.groups) == ROWS
    assert {name: int(heart.targets[of(heart, name)].sum()) for name in ROWS} == ILL
    assert heart.inputs.shape == (740, 13)
    assert heart.inputs.isfinite().all()
    assert (heart.classes, heart.is_one_pool, heart.standardise) == (2, True, True)


def test_values_are_as_recorded(heart):
    ages = column(heart, "age")
    assert (ages.min(), ages.max()) == (28, 77)
    assert heart.groups[int(ages.argmin())] == "Hungary"  # the source calls this patient a Clevelander
    missing = column(heart, "chol") == 0
    assert {name: int(missing[of(heart, name)].sum()) for name in ROWS} == {
        "Cleveland": 0, "Hungary": 0, "Switzerland": 46, "VA Long Beach": 33,
    }  # fmt: skip
    first = dict(zip(FEATURES, heart.inputs[0].tolist(), strict=True))  # a man of 63 with typical angina
    assert first == {
        "age": 63, "sex": 1, "trestbps": 145, "chol": 233, "fbs": 1, "thalach": 150, "exang": 0,
        "oldpeak": pytest.approx(2.3), "cp=2": 0, "cp=3": 0, "cp=4": 0, "restecg=1": 0, "restecg=2": 1,
    }  # fmt: skip


def test_categories_have_the_counts_of_the_source(heart):
    counts = {name: int(column(heart, name).sum()) for name in FEATURES if "=" in name}
    assert counts == {"cp=2": 150, "cp=3": 161, "cp=4": 392, "restecg=1": 120, "restecg=2": 175}


@pytest.mark.parametrize("method", [Natural(), IID(6)], ids=lambda method: method.name)
def test_inputs_are_standardised_by_training_rows_only(heart, method):
    partition = make_partition(heart, method, Key(3))
    data = ClientData.from_dataset(heart, partition)
    rows = torch.cat(data.train)
    np.testing.assert_allclose(data.inputs[rows].double().mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(data.inputs[rows].double().std(0, correction=0), 1, atol=1e-6)
    assert data.test_inputs is data.inputs
    spoilt = heart.inputs.clone()
    spoilt[torch.cat(data.test)] = 1e6
    other = type(heart)("spoilt", spoilt, heart.targets, spoilt, heart.targets, 2, heart.groups, standardise=True)
    assert torch.equal(ClientData.from_dataset(other, partition).inputs[rows], data.inputs[rows])


def test_constant_column_becomes_zero(heart):
    inputs = heart.inputs.clone()
    inputs[:, 0] = 7
    flat = type(heart)("flat", inputs, heart.targets, inputs, heart.targets, 2, heart.groups, standardise=True)
    assert (ClientData.from_dataset(flat, make_partition(flat, Natural(), Key(0))).inputs[:, 0] == 0).all()


def test_described_sizes_match_the_natural_partition(heart):
    partition, info = make_partition(heart, Natural(), Key(0)), DATASETS["heart-disease"].info
    assert (info.train, info.test) == (partition.sizes.sum(), sum(map(len, partition.test)))
    assert (info.shape, info.classes, info.partition) == ((13,), heart.classes, Natural.name)


@pytest.fixture(scope="module")
def published():
    return resources.files("drfl.data.datasets") / "embedded" / "heart_disease.csv"


@pytest.mark.long
def test_models_predict_from_the_published_table(published, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shared = ["run", "--dataset", "heart-disease", "--metric", "auc", "--rounds"]
    assert call([*shared, "2", "--out", "r"]) == 0
    assert call(["predict", "r", str(published), "--out", "p.csv"]) == 0
    frame, found, tested = pd.read_csv(str(published)), pd.read_csv("p.csv"), read(Path("r/test-rows.safetensors"))
    rows = tested.rows.numpy()
    assert found["hospital"].tolist() == frame["hospital"].tolist()
    assert ((found["prediction"] == (frame["num"] > 0))[rows] == tested.scores["accuracy"].bool().numpy()).all()
    odds = np.log(found["probability_1"] / found["probability_0"]).to_numpy()[rows]
    np.testing.assert_allclose(odds, tested.scores["auc.output"], rtol=0, atol=1e-5)
    # Rows to predict may lack the diagnosis and the hospital. The model can start another run.
    frame.drop(columns=["num", "hospital"]).to_parquet("new.parquet")
    assert call(["predict", "r", "new.parquet", "--out", "q.csv"]) == 0
    assert pd.read_csv("q.csv")["probability_1"].tolist() == found["probability_1"].tolist()
    assert call([*shared, "1", "--out", "s", "--init-from", "r"]) == 0
    for code, column, values in (
        ("unknown-level", "cp", 5),
        ("unknown-level", "sex", "Male"),
        ("missing-values", "chol", ""),
        ("not-a-number", "age", "old"),
    ):
        frame.assign(**{column: values}).to_csv("wrong.csv", index=False)
        check_refusal(["predict", "r", "wrong.csv", "--out", "w.csv"], code, column)
    frame.drop(columns="chol").to_csv("wrong.csv", index=False)
    check_refusal(["predict", "r", "wrong.csv", "--out", "w.csv"], "missing-column", "chol")
