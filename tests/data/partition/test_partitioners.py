"""Test every partition: exact, complete, never empty, and a function of its arguments only."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.support.refusals import refused

from drfl.core.key import Key
from drfl.data import IID, PARTITIONS, DirichletDrop, OneClass, PartitionMethod, ZipfDirichlet, read_idx
from drfl.data.partition.splitting import dirichlet, holdings

ALPHAS = st.sampled_from([1e-300, 1e-3, 0.1, 1.0, 1e3, math.inf])
SIGMAS = st.sampled_from([0.0, 0.7, 3.0])


@st.composite
def problems(draw):
    """Draw labels with every class in both pools, in uneven numbers and random order."""
    classes = draw(st.integers(1, 6))
    numbers = draw(st.lists(st.integers(4, 60), min_size=classes, max_size=classes))
    held = draw(st.lists(st.integers(1, 20), min_size=classes, max_size=classes))
    rng = Key(draw(st.integers(0, 99))).generator()
    pools = [rng.permutation(np.repeat(np.arange(classes), n)) for n in (numbers, held)]
    return pools[0], pools[1], classes


def check_exact(partition, y, y_test, classes, *, dropped=False):
    """Check properties of every partition of labelled samples."""
    used = np.concatenate(partition.train)
    assert len(np.unique(used)) == len(used), "a training sample is used twice"
    assert dropped or len(used) == len(y), "a training sample is not used"
    assert set(np.concatenate(partition.test)) == set(range(len(y_test))), "a test sample is not used"
    assert partition.sizes.min() >= 1
    for indices in partition.train + partition.test:
        assert indices.dtype == np.int64
        assert (np.diff(indices) > 0).all()
    if not dropped:
        counts = holdings(partition.train, y, classes)
        for i, indices in enumerate(partition.test):
            assert set(y_test[indices]) <= set(np.flatnonzero(counts[i])), "tested on a class it does not hold"


@settings(max_examples=60)
@given(problems(), st.integers(1, 20), ALPHAS, SIGMAS, st.integers(0, 9))
def test_zipf_dirichlet_uses_every_sample_once(problem, clients, alpha, sigma, seed):
    y, y_test, classes = problem
    assume(clients <= len(y))
    method = ZipfDirichlet(clients, alpha, sigma)
    partition = method.split(y, y_test, classes, Key(seed))
    assert len(partition) == clients
    check_exact(partition, y, y_test, classes)
    assert partition == method.split(y, y_test, classes, Key(seed))


@settings(max_examples=40)
@given(problems(), st.integers(1, 20), SIGMAS, st.integers(0, 9))
def test_iid_uses_every_sample_once(problem, clients, sigma, seed):
    y, y_test, classes = problem
    assume(clients <= len(y))
    partition = IID(clients, sigma).split(y, y_test, classes, Key(seed))
    check_exact(partition, y, y_test, classes)
    assert (np.diff(partition.sizes) <= 0).all()
    assert sigma or np.ptp(partition.sizes) <= 1


@settings(max_examples=40)
@given(problems(), st.integers(0, 10), SIGMAS, st.integers(0, 9))
def test_one_class_gives_one_class_per_client(problem, extra, sigma, seed):
    y, y_test, classes = problem
    clients = classes + extra % (3 * classes)  # at most four clients per class, which has at least four samples
    partition = OneClass(clients, sigma).split(y, y_test, classes, Key(seed))
    check_exact(partition, y, y_test, classes)
    for i, (train, test) in enumerate(zip(partition.train, partition.test, strict=True)):
        assert set(y[train]) == set(y_test[test]) == {i % classes}


@settings(max_examples=40)
@given(problems(), st.integers(1, 20), ALPHAS, st.floats(0, 1), st.floats(0, 1), st.integers(0, 9))
def test_dirichlet_drop_drops_the_stated_share(problem, clients, alpha, client_fraction, sample_fraction, seed):
    y, y_test, classes = problem
    assume(clients <= len(y))
    whole = DirichletDrop(clients, alpha, 0.0, 0.0).split(y, y_test, classes, Key(seed))
    check_exact(whole, y, y_test, classes)
    part = DirichletDrop(clients, alpha, client_fraction, sample_fraction).split(y, y_test, classes, Key(seed))
    check_exact(part, y, y_test, classes, dropped=True)
    kept = [max(n - math.floor(sample_fraction * n + 0.5), 1) for n in whole.sizes]
    losers = part.sizes < whole.sizes
    assert losers.sum() <= math.floor(client_fraction * clients + 0.5)
    assert (part.sizes[losers] == np.array(kept)[losers]).all()
    for mine, before in zip(part.train + part.test, whole.train + whole.test, strict=True):
        assert np.isin(mine, before).all()


def balanced(classes=10, each=100):
    return np.arange(classes * each) % classes


def test_default_drop_is_that_of_the_paper():
    y = balanced(each=2000)
    whole = DirichletDrop(client_fraction=0.0).split(y, y, 10, Key(1))
    part = DirichletDrop().split(y, y, 10, Key(1))
    ratios = part.sizes / whole.sizes
    assert (ratios < 1).sum() == 6
    np.testing.assert_allclose(ratios[ratios < 1], 0.3, atol=0.02)


@pytest.mark.parametrize("sigma", [0.0, 0.3, 0.7])
def test_sizes_follow_zipf(sigma):
    y = balanced()
    sizes = ZipfDirichlet(30, 0.5, sigma).split(y, y, 10, Key(0)).sizes
    weights = np.arange(1, 31) ** -sigma
    assert np.abs(sizes - 1000 * weights / weights.sum()).max() < 1


@pytest.mark.parametrize("sigma", [0.0, 0.7])
def test_tiny_alpha_gives_one_class_per_client(sigma):
    y = np.repeat(np.arange(4), [40, 50, 60, 90])
    limit = ZipfDirichlet(10, 1e-300, sigma).split(y, y, 4, Key(3))
    one = OneClass(10, sigma).split(y, y, 4, Key(3))
    np.testing.assert_array_equal(holdings(limit.train, y, 4), holdings(one.train, y, 4))


@pytest.mark.parametrize("alpha", [1e3, math.inf])
def test_large_alpha_gives_every_client_all_classes(alpha):
    y = balanced()
    counts = holdings(ZipfDirichlet(20, alpha).split(y, y, 10, Key(0)).train, y, 10)
    assert np.abs(counts - 5).max() <= (3 if alpha < math.inf else 0)


def test_clients_of_one_sample_keep_their_size():
    y = np.repeat(np.arange(3), [1, 5, 6])
    assert ZipfDirichlet(12, 1e-300).split(y, y, 3, Key(0)).sizes.tolist() == [1] * 12


@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_ranked_shares_follow_the_dirichlet_law(alpha):
    """Most clients have the drawn profile of shares, whichever class has which share."""
    y = balanced(each=3000)
    counts = holdings(ZipfDirichlet(30, alpha).split(y, y, 10, Key(5)).train, y, 10)
    drawn = dirichlet(alpha, 30, 10, Key(5).fold("shares"))
    realised = -np.sort(-counts / counts.sum(axis=1, keepdims=True))
    distance = np.abs(realised + np.sort(-drawn)).sum(axis=1) / 2
    assert np.median(distance) < 2e-3
    assert distance.mean() < 0.08


def test_mixes_of_test_samples_are_near_training_mixes(shared):
    y, y_test = (
        read_idx(shared / "mnist" / f"{part}-labels-idx1-ubyte.gz").astype(np.int64) for part in ("train", "t10k")
    )
    partition = ZipfDirichlet(30, 0.3, 0.3).split(y, y_test, 10, Key(0))
    check_exact(partition, y, y_test, 10)
    mixes = [holdings(part, labels, 10) for part, labels in ((partition.train, y), (partition.test, y_test))]
    train, test = (mix / mix.sum(axis=1, keepdims=True) for mix in mixes)
    assert np.abs(train - test).sum(axis=1).max() / 2 < 0.05


def test_clients_without_own_test_samples_share_them_by_class():
    y, y_test = balanced(4, 20), balanced(4, 2)
    partition = OneClass(40).split(y, y_test, 4, Key(0))
    check_exact(partition, y, y_test, 4)
    assert {len(test) for test in partition.test} == {1}


def test_client_that_cannot_be_tested_is_an_error():
    with refused("no-rows", "test", "[1]"):
        OneClass(2).split(np.array([0, 1]), np.array([0]), 2, Key(0))


def test_unassigned_test_samples_are_shared_out():
    y, y_test = np.zeros(10, np.int64), np.array([0, 0, 1, 1])
    partition = IID(2).split(y, y_test, 2, Key(0))
    assert [sorted(y_test[test]) for test in partition.test] == [[0, 1], [0, 1]]


METHODS = [ZipfDirichlet(20, 0.3, 0.5), OneClass(20, 0.5), DirichletDrop(20, 0.3), IID(20, 0.5)]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_seed_determines_the_partition_and_is_recorded(method):
    y = balanced()
    first = method.split(y, y, 10, Key(7))
    assert first == method.split(y.astype(np.uint8), y, 10, Key(7))
    other = method.split(y, y, 10, Key(8))
    for mine, theirs in ((first.train, other.train), (first.test, other.test)):
        assert not all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert first != other
    parameters = dataclasses.asdict(method)
    assert first.recipe == {"partition": method.name, **parameters, "seed": 7}
    assert first.names[:2] == ("client-00", "client-01")
    assert PARTITIONS[method.name] is type(method)
    assert isinstance(method, PartitionMethod)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize(
    ("y", "classes", "error"),
    [
        (np.arange(10), 10, ("few-rows", "clients", "20", "10")),
        (balanced(), 9, ("out-of-range", None, "0..8")),
        (balanced() - 1, 10, ("out-of-range", None, "0..9")),
        (np.zeros(0, np.int64), 10, ("empty",)),
        (balanced().astype(float), 10, ("wrong-shape", None, "1-D")),
        (balanced(), 0, ("out-of-range", "classes")),
    ],
)
def test_unusable_labels_are_refused(method, y, classes, error):
    with refused(*error):
        method.split(y, balanced(), classes, Key(0))


@pytest.mark.parametrize("alpha", [0, -1, math.nan, -math.inf])
@pytest.mark.parametrize("method", [ZipfDirichlet, DirichletDrop])
def test_non_positive_alpha_is_refused_with_the_limit(method, alpha):
    with refused("out-of-range", "alpha", "'one-class'"):
        method(alpha=alpha)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: ZipfDirichlet(zipf=-0.1), ("out-of-range", "zipf")),
        (lambda: ZipfDirichlet(zipf=math.nan), ("out-of-range", "zipf")),
        (lambda: IID(zipf=math.inf), ("out-of-range", "zipf")),
        (lambda: IID(clients=0), ("out-of-range", "clients", "1")),
        (lambda: OneClass(clients=True), ("out-of-range", "clients")),
        (lambda: OneClass(clients=2.5), ("out-of-range", "clients")),
        (lambda: DirichletDrop(client_fraction=1.1), ("out-of-range", "client_fraction")),
        (lambda: DirichletDrop(sample_fraction=math.nan), ("out-of-range", "sample_fraction")),
        (lambda: OneClass(3).split(balanced(), balanced(), 10, Key(0)), ("few-clients", "clients", "10", "3")),
        (
            lambda: OneClass(5).split(np.array([0, 0, 0, 0, 1]), np.arange(2), 2, Key(0)),
            ("few-rows", "clients", "class 1", "1 training"),
        ),
    ],
)
def test_impossible_parameters_are_refused(make, error):
    with refused(*error):
        make()


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-3, 0.5, 1e3, 1e308, math.inf])
def test_dirichlet_shares_have_the_right_law_for_every_alpha(alpha):
    shares = dirichlet(alpha, 4000, 5, Key(2))
    assert np.isfinite(shares).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    np.testing.assert_allclose(shares.mean(axis=0), 0.2, atol=0.03)
    variance = 0.16 / (5 * alpha + 1) if alpha < 1e300 else 0.0  # p(1-p)/(Cα+1)
    np.testing.assert_allclose(shares.var(axis=0), variance, rtol=0.1, atol=1e-9)
