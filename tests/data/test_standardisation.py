"""Test standardised columns: exact, robust against a malicious site, and stored with the data and the model."""

from __future__ import annotations

import dataclasses
from itertools import accumulate

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as any_array
from sklearn.preprocessing import StandardScaler
from tests.support.refusals import refused

import drfl
from drfl.core.key import Key
from drfl.data import ClientData, Standardisation, standardisation
from drfl.data.standardisation import LARGEST, Moments, bound_standardisation, combine
from drfl.data.validation_split import held_out_training
from drfl.engine.frozen_layers import split
from drfl.experiments.config.build import build
from drfl.experiments.config.config import Config
from drfl.experiments.run.artifacts import write_run
from drfl.experiments.run.finished import FinishedRun

SCALES = (1e-3, 1.0, 50.0, 1e6)


def table(n=90, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4)) * SCALES + np.array([0, 3, 1000, 5e6])
    columns = {name: x[:, j] for j, name in enumerate("abcd")}
    ill = (x / SCALES).sum(1) > np.median((x / SCALES).sum(1))
    return pd.DataFrame({**columns, "flat": 7.1, "site": rng.choice(["k", "l", "m"], n), "ill": ill})


def load(frame=None, **options):
    return ClientData.from_frame(table() if frame is None else frame, group="site", target="ill", **options)


def moments(rows):
    x = torch.as_tensor(np.asarray(rows, dtype=np.float64))
    return Moments.of(x, torch.arange(len(x)))


def claim(count, mean, variance):
    return Moments(count, *(torch.tensor(value, dtype=torch.float64).reshape(-1) for value in (mean, variance)))


@pytest.mark.parametrize("at_a_time", [8, 2**22])
@pytest.mark.parametrize(("mean", "scale"), [(0, 1), (1e9, 1e-3), (-1e6, 1e3), (0, 1e-30), (3e90, 1e80)])
def test_moments_do_not_depend_on_the_grouping(mean, scale, at_a_time, monkeypatch):
    monkeypatch.setattr(standardisation, "AT_A_TIME", at_a_time)
    x = np.random.default_rng(0).normal(size=(60, 3)) * scale + mean
    centre = x[0].astype(np.longdouble)
    exact = (x - centre).mean(0) + centre, (x - centre).var(0)
    for found in (moments(x), combine([moments(part) for part in np.split(x, [1, 20, 21])])):
        assert found.count == 60
        np.testing.assert_allclose(found.mean, exact[0].astype(float), rtol=1e-15, atol=1e-15 * scale)
        # The last digit of a mean stored in float64 is inexact.
        np.testing.assert_allclose(found.variance, exact[1].astype(float), rtol=1e-12 + 1e-15 * abs(mean) / scale)


@given(any_array(np.float64, (7, 2), elements=st.floats(-1e6, 1e6)), st.integers(1, 6))
def test_merging_two_groups_gives_the_whole(x, at):
    whole, parts = moments(x), combine([moments(x[:at]), moments(x[at:])])
    torch.testing.assert_close(parts.mean, whole.mean, rtol=1e-12, atol=1e-9)
    torch.testing.assert_close(parts.variance, whole.variance, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9 / 3, -1e-30])
def test_constant_column_has_zero_variance(value):
    found = combine([moments(np.full((n, 1), value)) for n in (3, 7, 1)])
    assert (float(found.mean), float(found.variance)) == (value, 0)
    assert float(Standardisation.of(found).scale) == 1


def test_training_rows_are_scaled_as_by_scikit_learn():
    data, raw = load(dtype=torch.float64), load(dtype=torch.float64, standardise=False)
    scaler = StandardScaler().fit(raw.inputs[torch.cat(raw.train)].numpy())
    np.testing.assert_allclose(data.inputs, scaler.transform(raw.inputs.numpy()), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(data.standardisation.mean, scaler.mean_, rtol=1e-13)
    np.testing.assert_allclose(data.standardisation.scale[:4], scaler.scale_[:4], rtol=1e-12)
    assert (raw.standardisation, data.test_inputs is data.inputs) == (None, True)
    assert (data.inputs[:, 4] == 0).all()
    assert load().inputs.dtype == torch.float32
    torch.testing.assert_close(load().inputs.double(), data.inputs, rtol=1e-6, atol=1e-6)


def test_rows_for_testing_are_scaled_but_not_used_for_the_scale():
    raw = load(standardise=False, dtype=torch.float64)
    pairs = {name: (raw.inputs[rows], raw.targets[rows]) for name, rows in zip(raw.names, raw.train, strict=True)}
    tests = {name: (x[:2] * 100 + 1, y[:2]) for name, (x, y) in pairs.items()}
    data = ClientData.from_arrays(pairs, tests, standardise=True, dtype=torch.float64)
    assert torch.equal(data.standardisation.scale, load(dtype=torch.float64).standardisation.scale)
    back = data.test_inputs * data.standardisation.scale + data.standardisation.mean
    torch.testing.assert_close(back, torch.cat([x for x, _ in tests.values()]))
    other = ClientData.from_arrays(pairs, {name: (x * 3, y) for name, (x, y) in tests.items()}, standardise=True)
    torch.testing.assert_close(other.inputs.double(), data.inputs, atol=1e-6, rtol=1e-6)


def test_large_mean_is_subtracted_before_rounding_to_float32():
    x = 1.7e9 + np.arange(12)[:, None]
    data = ClientData.from_arrays([(x, np.arange(12) % 2)], standardise=True)
    assert data.inputs.dtype == torch.float32
    assert len(data.inputs.unique()) == 12
    whole = ClientData.from_arrays([(x.astype(np.int64), np.arange(12) % 2)], standardise=True)
    assert torch.equal(whole.inputs, data.inputs)


@pytest.mark.parametrize(
    ("inputs", "dtype"),
    [(np.ones((6, 2, 2)), torch.float32), (np.ones(6), torch.float32), (np.ones((6, 2), int), None)],
)
def test_inputs_that_are_not_tables_are_refused(inputs, dtype):
    with refused("unsupported-data", "standardise", "(n, p)"):
        ClientData.from_arrays([(inputs, np.arange(6) % 2)], standardise=True, dtype=dtype)


def test_overflowing_columns_and_repeated_standardisation_are_refused():
    x, y = np.array([[1e200, 1.0], [-1e200, 1.0]] * 3), np.arange(6) % 2
    with refused("invalid-statistics", "client 'client-1'", "client-1", "5", "column 1", "2e+199"):
        ClientData.from_arrays([(x * 0, y), (x, y)], standardise=True)
    with refused("conflicting-options", "standardise"):
        load().standardised()


def test_standardisation_is_kept_with_the_data():
    data = load()
    renamed = dataclasses.replace(data, names=tuple("xyz"))
    for other in (data.to(dtype=torch.float64), held_out_training(data, 0.3, Key(0)), renamed):
        assert other.standardisation is data.standardisation
    assert torch.equal(held_out_training(data, 0.3, Key(0)).inputs, data.inputs)


def test_model_behind_the_layer_accepts_raw_rows():
    data, raw = load(), load(standardise=False)
    model = torch.nn.Linear(5, 2)
    whole = data.standardisation.before(model)
    torch.testing.assert_close(whole(raw.inputs), model(data.inputs), rtol=1e-5, atol=1e-5)
    task = drfl.Task(whole)
    assert torch.equal(task.w0, drfl.Task(model).w0)
    assert split(task) is not None
    local = drfl.LocalSGD(steps=3, lr=0.1, batch=8)
    before, behind = (
        drfl.run(drfl.FedAvg(m=3, local=local), drfl.Simulation(*pair), rounds=3).state.w
        for pair in ((data, drfl.Task(model)), (raw, task))
    )
    torch.testing.assert_close(before, behind, rtol=1e-4, atol=1e-5)
    assert not data.standardisation.before(model.eval()).training
    assert data.standardisation.before(model)(torch.ones(2, 5, dtype=torch.int64)).dtype == torch.float32


def test_model_file_accepts_raw_rows(tmp_path):
    job = build(Config(dataset="heart-disease", algorithm="FedAvg", rounds=2))
    result = drfl.run(job.algorithm, job.fed, rounds=2)
    write_run(tmp_path, FinishedRun(job, result))
    saved = drfl.load_model(tmp_path / "model.safetensors")
    assert saved.standardisation.scale.equal(job.data.standardisation.scale)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(13, 2))
    served = drfl.load_model(tmp_path / "model.safetensors", model).to_torch()
    from drfl.data import load as load_data

    rows = job.data.test[0]
    raw = load_data("heart-disease").test_inputs[rows]
    torch.testing.assert_close(served(raw), model(job.data.test_inputs[rows]), rtol=1e-5, atol=1e-5)


def test_unusable_statistics_are_refused():
    bad = "invalid-statistics"
    for mean, scale, code in (
        ([0.0], [0.0], bad),
        ([float("nan")], [1.0], bad),
        ([0.0], [-1.0], bad),
        ([0.0], [1.0, 2.0], "wrong-type"),
    ):
        with refused(code):
            Standardisation(torch.tensor(mean).double(), torch.tensor(scale).double())
    with refused("wrong-shape", "inputs", "(n, 1)"):
        Standardisation(*torch.ones(2, 1).double()).apply(torch.ones(3, 2))


@pytest.mark.parametrize(
    ("mean", "variance"), [(np.nan, 1), (np.inf, 1), (0, np.nan), (0, np.inf), (0, -1e-9), (-1.1 * LARGEST, 1)]
)
def test_impossible_moments_are_one_line_errors(mean, variance):
    claim(3, [0, LARGEST], [0, 1]).check("site 'b'")
    with refused("invalid-statistics", "site 'b'", "'b'", "3", "column 2") as caught:
        claim(3, [0, mean], [0, variance]).check("site 'b'")
    assert "\n" not in str(caught.value)


def scales(parts):
    found = bound_standardisation(parts)
    return float(found.standardisation.mean), float(found.standardisation.scale), int(found.outlier)


def test_similar_sites_give_pooled_statistics():
    parts = [claim(n, m, v) for n, m, v in ((30, 0.0, 1.0), (10, 1.0, 2.0), (25, -0.5, 0.4))]
    exact = Standardisation.of(combine(parts))
    found = bound_standardisation(parts)
    assert torch.equal(found.standardisation.scale, exact.scale)
    assert torch.equal(found.standardisation.mean, exact.mean)
    assert (int(found.outlier), float(found.factor)) == (-1, 1)
    assert scales(parts[:1]) == (0, 1, -1)
    assert scales([claim(5, 2.0, 0.0)] * 3) == (2, 1, -1)


HONEST = [claim(30, 0.1, 1.0), claim(12, -0.1, 1.2), claim(50, 0.0, 0.9)]
LIES = [(1, 0.0, 1e40), (10, 1e30, 1.0), (2**31, 1e30, 0.0), (2**31, 0.0, 0.0), (2**31, 0.0, 1e-30), (5, -LARGEST, 0.0)]


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("place", [0, 3])
def test_malicious_site_at_most_doubles_a_scale(lie, place):
    without = Standardisation.of(combine(HONEST))
    mean, scale, _ = scales([*HONEST[:place], claim(*lie), *HONEST[place:]])
    assert 0.5 - 1e-9 <= scale / float(without.scale) <= 2 + 1e-9
    assert abs(mean - float(without.mean)) <= 3.4 * float(without.scale)


site = st.tuples(st.integers(1, 2**31), st.floats(-1e6, 1e6), st.floats(0, 1e12))


@given(st.lists(site, min_size=3, max_size=6))
def test_no_report_can_more_than_double_a_scale(told):
    """The reference combines the other sites' reports, each with a weight of at most three quarters."""
    parts = [claim(*one) for one in told]
    scale = scales(parts)[1]
    for i in range(len(parts)):
        others = [*parts[:i], *parts[i + 1 :]]
        most = 3 * (sum(part.count for part in others) - max(part.count for part in others))
        given_by_others = combine([dataclasses.replace(part, count=min(part.count, most)) for part in others])
        alone = float(given_by_others.variance.sqrt())
        assert alone == 0 or scale <= 2 * alone * (1 + 1e-9)


def test_report_is_used_if_other_sites_are_constant():
    for lie in ((5, 3.0, 4.0), (2**31, 1e30, 1.0), (5, 1e30, 1e60)):
        mean, scale, outlier = scales([claim(20, 1.0, 0.0), claim(30, 1.0, 0.0), claim(*lie)])
        assert abs(1 - mean) / scale <= 3**0.5 + 1e-9
        assert outlier == -1


def test_two_sites_cannot_judge_each_other():
    assert scales([claim(10, 0.0, 1.0), claim(10, 0.0, 4.0)])[1] == pytest.approx(2.5**0.5)  # the pooled scale
    assert scales([claim(10, 0.0, 1.0), claim(10, 0.0, 1e6)])[1] == pytest.approx(1000**0.5)  # between 1 and 1000
    assert scales([claim(99, 0.0, 0.0), claim(10, 0.0, 4.0)])[1] == pytest.approx(1.0)  # the other's 2, by rows 3 : 1
    assert scales([claim(10, 0.0, 1.0), claim(10, 100.0, 1.0)]) == (50, 2, 0)


@pytest.mark.long
def test_many_clients_are_combined_quickly():
    parts = [claim(n + 1, float(n), 1.0) for n in range(2000)]
    counts = list(accumulate(part.count for part in parts))
    assert combine(parts).count == counts[-1]
    assert bound_standardisation(parts[:50]).standardisation.scale > 1


def test_majority_is_the_score_of_a_constant_answer():
    y = {"a": [0, 0, 1, 0], "b": [2**62, 5], "c": [1]}
    pairs = {name: (np.ones((len(labels), 1)), np.array(labels)) for name, labels in y.items()}
    data = ClientData.from_arrays(pairs, pairs)
    assert data.majority.tolist() == [0.75, 0.5, 1.0]
    assert data.majority.dtype == torch.float64
    floats = {name: (x, labels / 2) for name, (x, labels) in pairs.items()}
    assert ClientData.from_arrays(floats, floats).majority is None


def test_simulation_knows_the_majorities():
    data = load()
    fed = drfl.Simulation(data, drfl.Task(torch.nn.Linear(5, 2)))
    assert torch.equal(fed.majority, data.majority)
    assert drfl.federation.federation.WrappedFederation(fed).majority is fed.majority


def test_missing_values_are_excluded():
    x = np.random.default_rng(0).normal(3, 2, size=(60, 4))
    x[::3, 1] = np.nan
    x[:20, 2] = np.nan
    x[:, 3] = np.nan
    known = x[:, :3]
    for found in (
        moments(x),
        combine([moments(part) for part in np.split(x, [20, 40])]),
        standardisation.client_moments(torch.from_numpy(x), torch.arange(60).split(20), "abc"),
    ):
        assert (found.count, found.counts.tolist()) == (60, [60, 40, 40, 0])
        np.testing.assert_allclose(found.mean, [*np.nanmean(known, 0), 0], rtol=1e-14)
        np.testing.assert_allclose(found.variance, [*np.nanvar(known, 0), 0], rtol=1e-12)
    by = bound_standardisation([moments(part) for part in np.split(x, [20, 40])]).standardisation
    np.testing.assert_allclose(by.scale[:3], np.nanstd(known, 0), rtol=1e-12)
    scaled = by.apply(torch.from_numpy(x))
    assert (scaled[np.isnan(x)] == 0).all()
    assert torch.equal(by.before(torch.nn.Identity())(torch.from_numpy(x)), scaled)


def test_report_of_more_values_than_rows_is_refused():
    own = Moments(3, *torch.zeros(2, 1).double(), counts=torch.tensor([4.0]).double())
    with refused("invalid-statistics", "site 'b'"):
        own.check("site 'b'")


def test_missing_values_require_standardisation():
    frame = table()
    frame.loc[3, "b"] = np.nan
    columns = [drfl.data.Column(name, "number", missing=("",)) for name in "abcd"]
    target = drfl.data.Column("ill", "yes/no", levels=("False", "True"), role="target")
    schema = drfl.TableSchema((*columns, target, drfl.data.Column("site", "text", role="client")))
    frame = frame.drop(columns="flat")
    raw = ClientData.from_frame(frame, schema=schema, standardise=False)
    model = torch.nn.Linear(8, 2)
    with refused("missing-values", "standardise"):
        drfl.Simulation(raw, drfl.Task(model))
    assert drfl.Simulation(raw.standardised(), drfl.Task(model)).n == 3
