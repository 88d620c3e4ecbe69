"""Test clients' data from every kind of source, and errors that name the client."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from tests.support.refusals import refused
from torch.utils.data import IterableDataset, TensorDataset

import drfl
from drfl import Simulation, Task
from drfl.core import checks
from drfl.core.key import Key
from drfl.data import IID, ClientData, Dataset, OneClass, Partition, ZipfDirichlet, make_partition


def toy(n=60, k=30):
    inputs = torch.arange(n + k, dtype=torch.float32)[:, None] * torch.ones(3)
    y = torch.arange(n + k) % 3
    return Dataset("toy", inputs[:n], y[:n], inputs[n:], y[n:], 3)


def pair(n, seed=0, classes=2):
    rng = Key(seed).generator()
    return rng.normal(size=(n, 3)), rng.permutation(np.arange(n) % classes)


def test_data_from_a_partitioned_data_set():
    dataset = toy()
    y, y_test = dataset.targets.numpy(), dataset.test_targets.numpy()
    partition = ZipfDirichlet(5, 0.5, 0.7).split(y, y_test, 3, Key(0))
    data = ClientData.from_dataset(dataset, partition)
    assert data.n == 5
    assert data.names == partition.names
    assert data.inputs is dataset.inputs
    assert data.sizes.tolist() == partition.sizes.tolist()
    assert data.sizes.dtype == torch.int64
    assert data.shares.dtype == torch.float64
    assert data.shares.sum().item() == pytest.approx(1, abs=1e-15)
    for i in range(5):
        assert data.train[i].tolist() == partition.train[i].tolist()
        assert data.test[i].tolist() == partition.test[i].tolist()
    assert data.classes is None


def test_partition_of_a_larger_data_set_is_refused():
    large, small = toy(), toy(30)
    y = large.targets.numpy()
    partition = IID(2).split(y, y, 3, Key(0))
    with refused("out-of-range", "client-0", "'client-0'", "0..29"):
        ClientData.from_dataset(small, partition)


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor, np.ndarray.tolist], ids=["numpy", "torch", "lists"])
@pytest.mark.parametrize("named", [True, False])
def test_arrays_are_split_by_class(convert, named):
    pairs = [tuple(convert(array) for array in pair(n, n)) for n in (10, 20)]
    data = ClientData.from_arrays(dict(zip(("north", "east"), pairs, strict=True)) if named else pairs)
    assert data.names == (("north", "east") if named else ("client-0", "client-1"))
    assert data.inputs.shape == (30, 3)
    assert data.inputs.dtype == torch.float32
    assert data.targets.dtype == torch.int64
    assert data.test_inputs is data.inputs
    assert data.sizes.tolist() == [8, 16]
    for i, (first, last) in enumerate([(0, 10), (10, 30)]):
        assert sorted(torch.cat([data.train[i], data.test[i]]).tolist()) == list(range(first, last))
        assert data.targets[data.test[i]].float().mean() == 0.5
    torch.testing.assert_close(data.inputs[:10].double(), torch.tensor(pair(10, 10)[0]), rtol=1e-6, atol=1e-6)


def test_given_test_arrays_are_used_by_name():
    train = {"a": pair(5, 1), "b": pair(6, 2)}
    test = {"b": pair(4, 3), "a": pair(3, 4)}
    data = ClientData.from_arrays(train, test)
    assert [len(indices) for indices in data.test] == [3, 4]
    assert data.sizes.tolist() == [5, 6]
    assert data.test_targets[data.test[1]].tolist() == test["b"][1].tolist()


def test_regression_targets_keep_their_precision():
    x, y = np.ones((6, 2)), np.linspace(0, 1, 6)
    single, double = ClientData.from_arrays([(x, y)]), ClientData.from_arrays([(x, y)], dtype=torch.float64)
    assert (single.inputs.dtype, single.targets.dtype) == (torch.float32, torch.float32)
    assert (double.inputs.dtype, double.targets.dtype) == (torch.float64, torch.float64)
    assert double.targets.tolist() == y.tolist()


def test_dtype_none_keeps_tokens_and_target_sequences():
    x = np.arange(20).reshape(5, 4)
    data = ClientData.from_arrays([(x, x + 1)], dtype=None)
    assert data.inputs.dtype == torch.int64
    assert data.targets.shape == (5, 4)


def test_data_are_copied_and_the_split_is_keyed():
    x, y = pair(20)
    data, same = ClientData.from_arrays([(x, y)]), ClientData.from_arrays([(x, y)])
    other = ClientData.from_arrays([(x, y)], key=Key(1))
    assert torch.equal(data.test[0], same.test[0])
    assert not torch.equal(data.test[0], other.test[0])
    before = data.inputs.clone()
    x[:] = 0
    assert torch.equal(data.inputs, before)


@pytest.mark.parametrize("given", [True, False])
def test_torch_datasets_are_read_once(given):
    x, y = (torch.tensor(array) for array in pair(10))
    sets = {"a": TensorDataset(x, y), "b": [(x[0].numpy(), 1), (x[1].numpy(), 0), (x[2].numpy(), 1)]}
    data = ClientData.from_datasets(sets, sets if given else None)
    assert data.n == 2
    assert data.sizes.tolist() == ([10, 3] if given else [8, 2])
    torch.testing.assert_close(data.inputs[:10], x.float())
    assert data.targets[10:].tolist() == [1, 0, 1]


class Endless(IterableDataset):
    def __iter__(self):
        yield 0, 0


@pytest.mark.parametrize(
    ("dataset", "error"),
    [
        (Endless(), ("wrong-type", "a", "__len__")),
        ([], ("no-rows", "a")),
        ([(1.0, 2, 3, 4)], ("wrong-type", "a")),
        ([(np.zeros(2), 0), (np.zeros(3), 0)], ("wrong-type", "a")),
        ([("text", 0)], ("wrong-type", "a")),
    ],
)
def test_unusable_torch_datasets_are_refused(dataset, error):
    with refused(*error):
        ClientData.from_datasets({"a": dataset})


def with_value(value):
    x, y = pair(4)
    x[2, 1] = value
    return x, y


@pytest.mark.parametrize(
    ("train", "error"),
    [
        ({}, ("empty", "clients")),
        ([], ("empty", "clients")),
        ({"a": pair(4), "b": (np.zeros((0, 3)), np.zeros(0))}, ("no-rows", "b")),
        ({"a": pair(4), "b": (np.zeros((4, 2)), pair(4)[1])}, ("wrong-shape", "b", "(2,)")),
        ({"a": pair(4), "b": (pair(4)[0], np.zeros(4))}, ("wrong-type", "b")),
        ({"a": (np.zeros((4, 3)), np.zeros(3))}, ("wrong-shape", "a")),
        ({"a": (np.float64(3), np.zeros(3))}, ("wrong-shape", "a")),
        ({"a": np.zeros((4, 3))}, ("wrong-type", "a", "'a'")),
        ({"a": (np.array(["x", "y"]), np.zeros(2))}, ("wrong-type", "a", "'a'", "training inputs", "found 'x'")),
        ({"a": (np.zeros(2), ["no", "yes"])}, ("wrong-type", "a", "training targets", "found 'no'", "from_frame")),
        ({"a": (np.zeros(2), [1, None])}, ("wrong-type", "a", "training targets", "found None")),
        ({"a": (np.zeros(2), pd.Series([pd.NA, 1]))}, ("wrong-type", "a", "training targets", "found <NA>")),
        ({"a": (np.array([1, 2], dtype=object), np.zeros(2))}, ("wrong-type", "a", ".astype(float)")),
        ({"a": ({"x": np.array(["u", "v"])}, np.zeros(2))}, ("wrong-type", "inputs", "'a'", "field 'x'", "found 'u'")),
        ({"a": pair(1)}, ("few-rows", None, "'a'", "1")),
        ({"a": with_value(np.nan)}, ("not-finite", "training inputs", "1", "12", "(2, 1)")),
        ({"a": with_value(1e300)}, ("not-finite", "training inputs")),
        ({"a": (np.ones((2, 1)) + 1j, np.array([0, 1]))}, ("wrong-type", "a", "training inputs")),
        ({"a": (np.ones((2, 1)), np.array([0, 1j]))}, ("wrong-type", "a", "training targets")),
        ({"a": (np.zeros((2, 1)), np.array([0.0, np.inf]))}, ("not-finite", "training targets")),
        ({"a": (sparse.csr_array(np.eye(4)), np.arange(4))}, ("wrong-type", "a", "training inputs", ".toarray()")),
        ({"a": (torch.eye(4).to_sparse(), np.arange(4))}, ("wrong-type", "a", "training inputs", ".to_dense()")),
        ({"a": ({"x": torch.eye(4).to_sparse()}, np.arange(4))}, ("wrong-type", "inputs", "field 'x'", ".to_dense()")),
    ],
)
def test_unusable_arrays_are_refused_by_name(train, error):
    with refused(*error):
        ClientData.from_arrays(train)


def test_masked_values_are_missing():
    x, y = pair(6)
    hidden = np.arange(6) == 2
    masked = np.ma.masked_array(x, mask=hidden[:, None] & [False, True, False])
    lists = [*np.ma.masked_array(x)[:2], masked[2], *np.ma.masked_array(x)[3:]]
    for values in (masked, lists, {"x": masked}):
        with refused("not-finite", "training inputs", "(2, 1)"):
            ClientData.from_arrays([(values, y)])
    with refused("not-finite", "training inputs", "(2, 1)"):
        ClientData.from_datasets([[*zip(lists, y, strict=True)]])
    with refused("not-finite", "training targets", "(2,)"):
        ClientData.from_arrays([(x, np.ma.masked_array(y, mask=hidden))])
    # One of several labels may be unknown.
    labels = ClientData.from_arrays([(x, np.ma.masked_array(np.ones((6, 2), int), mask=np.eye(6, 2)))]).targets
    assert labels.isnan().sum(0).tolist() == [1, 1]
    whole = ClientData.from_arrays([(np.ma.masked_array(x), np.ma.masked_array(y))])
    assert whole.targets.equal(torch.tensor(y))


def test_arrays_of_any_order_are_copied():
    x, y = pair(6)
    expected = ClientData.from_arrays([(x[::-1].copy(), y[::-1].copy())])
    found = ClientData.from_arrays([(x.astype(">f8")[::-1], y.astype(">i4")[::-1])])
    assert found.inputs.equal(expected.inputs)
    assert found.targets.equal(expected.targets)


@pytest.mark.parametrize(
    ("test", "error"),
    [
        ({"a": pair(4)}, ("clients-differ", "b")),
        ({"a": pair(4), "c": pair(4)}, ("clients-differ", "b")),
        ([pair(4)], ("count-mismatch", "test", "2", "1")),
        ({"a": pair(4), "b": (np.zeros((0, 3)), np.zeros(0))}, ("no-rows", "b")),
        ([(np.zeros((2, 5)), np.zeros(2, int))] * 2, ("wrong-shape", "inputs")),
        ([(np.zeros((2, 3)), np.zeros(2))] * 2, ("wrong-shape", "targets")),
    ],
)
def test_test_data_that_do_not_match_are_refused(test, error):
    with refused(*error):
        ClientData.from_arrays({"a": pair(4), "b": pair(4)}, test)


def test_two_clients_with_one_name_are_refused():
    twice, once = {1: pair(4), "1": pair(6)}, {"1": pair(4)}
    for arguments in ((twice,), (once, twice)):
        with refused("duplicate-name", "1", "'1'"):
            ClientData.from_arrays(*arguments)
    with refused("duplicate-name", "1", "'1'"):
        ClientData.from_arrays(once, patients={1: [0, 1, 2, 3], "1": [0, 1, 2, 3]})
    items = [(torch.ones(2), k % 2, {"site": 1 if k < 8 else "1"}) for k in range(16)]
    with refused("duplicate-name", "1", "'1'"):
        ClientData.from_datasets(Items(items), group="site")
    with refused("duplicate-name", "1", "'1'"):
        ClientData.from_datasets({1: Items(items), "1": Items(items)})


def parts(**changes):
    x, y, i = torch.zeros(3, 2), torch.tensor([0, 1, 0]), (torch.tensor([0, 1]), torch.tensor([2]))
    good = {"inputs": x, "targets": y, "train": i, "test_inputs": x, "test_targets": y, "test": i}
    return {**good, "names": ("a", "b"), **changes}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"train": (torch.tensor([0]), torch.zeros(0, dtype=torch.int64))}, ("no-rows", "b")),
        ({"test": (torch.tensor([0]), torch.tensor([3]))}, ("out-of-range", "b", "'b'", "0..2")),
        ({"train": (torch.tensor([-1]), torch.tensor([0]))}, ("out-of-range", "a", "'a'")),
        ({"train": (torch.tensor([0.0]), torch.tensor([0]))}, ("wrong-type", "a", "'a'", "1-D int64")),
        ({"names": ("a", "a")}, ("duplicate-name", "names")),
        ({"names": ("a",)}, ("count-mismatch", "names")),
        ({"targets": torch.tensor([0, 1])}, ("wrong-shape", "targets")),
        ({"targets": torch.zeros(3, dtype=torch.int32)}, ("wrong-type", "targets", "int64")),
        ({"inputs": torch.zeros(3, 2).to_sparse()}, ("wrong-type", "inputs", ".to_dense()")),
    ],
)
def test_inconsistent_parts_are_refused(changes, error):
    assert ClientData(**parts()).n == 2
    with refused(*error):
        ClientData(**parts(**changes))


def test_to_casts_only_floats_and_keeps_a_single_pool():
    data = ClientData.from_arrays([pair(10)])
    double = data.to(dtype=torch.float64)
    assert double.inputs.dtype == torch.float64
    assert double.targets.dtype == torch.int64
    assert double.test_inputs is double.inputs
    assert data.inputs.dtype == torch.float32
    assert torch.equal(double.train[0], data.train[0])
    assert data.to("cpu").names == data.names
    with refused("wrong-type", "dtype"):
        data.to(dtype=torch.int64)


def test_loaded_partition_divides_like_the_saved_one(tmp_path):
    dataset = toy()
    partition = IID(4).split(dataset.targets.numpy(), dataset.test_targets.numpy(), 3, Key(0))
    partition.save(tmp_path / "p.json")
    data = ClientData.from_dataset(dataset, Partition.load(tmp_path / "p.json"))
    assert data.sizes.tolist() == [15] * 4


def mapped(path, n=40, bad=None):
    """Return a pool of n samples of 3 numbers in a memory-mapped file."""
    values = np.arange(3.0 * n, dtype=np.float32).reshape(n, 3)
    if bad is not None:
        values[bad] = np.inf
    np.save(path, values)
    return torch.from_numpy(np.load(path, mmap_mode="c"))


def of_pool(x):
    index = torch.arange(len(x)).view(2, 2, -1)
    return ClientData(
        x, torch.arange(len(x)) % 2, tuple(index[0]), x, torch.arange(len(x)) % 2, tuple(index[1]), ("a", "b")
    )


def test_memory_mapped_pool_is_not_copied(tmp_path):
    """Neither the checks nor a simulation of the same dtype copy the pool."""
    x = mapped(tmp_path / "x.npy")
    data = of_pool(x)
    assert data.inputs.data_ptr() == data.test_inputs.data_ptr() == x.data_ptr()
    assert data.to("cpu", torch.float32).inputs.data_ptr() == x.data_ptr()
    fed = Simulation(data, Task(torch.nn.Linear(3, 2)))
    assert {fed._train.x.data_ptr(), fed._test.x.data_ptr()} == {x.data_ptr()}
    memory = of_pool(x.clone())
    assert torch.equal(fed.evaluate(fed.w0).loss, Simulation(memory, Task(fed._train.task.model)).evaluate(fed.w0).loss)


@pytest.mark.parametrize("at_a_time", [1, 9, 10**6])
def test_non_finite_values_are_found_in_pieces(at_a_time, tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "AT_A_TIME", at_a_time)
    assert of_pool(mapped(tmp_path / "good.npy")).n == 2
    with refused("not-finite", "training inputs", "2", "120", "(7, 1)"):
        of_pool(mapped(tmp_path / "bad.npy", bad=([7, 31], [1, 0])))
    with refused("not-finite", "x", "()"):
        checks.finite("x", torch.tensor(torch.nan))
    checks.finite("x", torch.empty(0, 3))


def test_non_finite_values_are_located_in_the_array_of_their_client():
    """A client's training and test rows come from its array, and the message gives row numbers in this array."""
    x, y = pair(30)
    for row in range(30):
        bad, target = x.copy(), y.astype(float)
        bad[row, 2] = np.nan
        target[row] = np.inf
        first, last = (x, y), (bad, y)
        for given in ({"a": first, "b": last, "c": first}, {"b": last}):
            with refused("not-finite", "training inputs", "'b'", f"({row}, 2)"):
                ClientData.from_arrays(given)
        with refused("not-finite", "test inputs", "'b'", f"({row}, 2)"):
            ClientData.from_arrays({"a": first, "b": first}, {"b": last, "a": first})
        with refused("not-finite", "training targets", "'b'", f"({row},)"):
            ClientData.from_arrays({"a": (x, y.astype(float)), "b": (x, target)})
    # A row that no client has is located in the pool.
    pool, rows = torch.tensor(bad), (torch.arange(20),)
    with refused("not-finite", "training inputs", "(29, 2)"):
        ClientData(pool, torch.tensor(y), rows, pool, torch.tensor(y), rows, ("b",))


def test_rows_of_all_clients_share_one_tensor():
    """One tensor per client would need more memory than the rows for a hundred thousand clients."""
    data = ClientData.from_arrays([pair(10, i) for i in range(4)])
    for part in (data.train, data.test, data.to(dtype=torch.float64).train):
        assert len({rows.untyped_storage().data_ptr() for rows in part}) == 1


def test_sizes_are_counted_once():
    data = ClientData.from_arrays([pair(10), pair(20)])
    assert data.sizes is data.sizes
    assert data.sizes.tolist() == [8, 16]


def test_numeric_and_several_targets_from_python():
    x = torch.randn(2, 20, 3, generator=torch.Generator().manual_seed(0))
    one = ClientData.from_arrays([(part, part.sum(1)) for part in x])
    assert (one.targets.dtype, one.majority) == (torch.float32, None)
    several = ClientData.from_arrays([(part, (part[:, :2] > 0).float()) for part in x])
    assert several.test_targets.shape == (40, 2)
    frame = pd.DataFrame({"who": ["a", "b"] * 10, "x": range(20), "y": range(20), "z": [k % 2 == 0 for k in range(20)]})
    data = ClientData.from_frame(frame, group="who", target=("y", "z"))
    assert (data.targets[3].tolist(), data.classes, data.columns) == ([3.0, 0.0], None, ("x",))
    for target, error in (
        ((), ("missing-option", "target")),
        (("y", "w"), ("unknown-name", "column", "'w'")),
        (("y", "y"), ("given-twice", "target", "y")),
        (("x", "who"), ("conflicting-options", "who")),
    ):
        with refused(*error):
            ClientData.from_frame(frame, group="who", target=target)
    with refused("not-a-number", "w"):
        ClientData.from_frame(frame.assign(w="x"), group="who", target=("y", "w"), features=["x"])
    with refused("count-mismatch", "columns", "2"):
        dataclasses.replace(data, columns=("x", "y"))


def test_iid_divides_rows_without_classes():
    x = torch.arange(30.0)[:, None]
    y = x[:, 0]
    pool = Dataset("numbers", x, y, x, y, 1, task="regression")
    own = Dataset("numbers", x, x, x[:9], x[:9], 1, task="regression")
    for dataset, tested in ((pool, 6), (own, 9)):
        parts = make_partition(dataset, IID(clients=3), Key(0))
        assert sorted(row for part in parts.test for row in part) == (
            sorted({*range(30)} - {row for part in parts.train for row in part}) if dataset is pool else [*range(9)]
        )
        assert sum(map(len, parts.test)) == tested
    with refused("wrong-task", "partition", "'one-class'"):
        make_partition(pool, OneClass(), Key(0))
    for targets, task, error in (
        (x.int(), "regression", ("wrong-type", "inputs", "torch.int32")),
        (x, "multi-label", ("not-binary", "targets")),
        (x[:, 0], "multi-label", ("wrong-shape", "inputs")),
        (x / 0, "regression", ("not-finite", "dataset 'odd': training targets")),
    ):
        with refused(*error):
            Dataset("odd", x, targets, x, targets, 1, task=task)


def test_data_set_is_divided_by_a_partition_or_method():
    digits, way = drfl.load("digits"), drfl.DirichletDrop(clients=6, alpha=0.3)
    found = drfl.ClientData.from_dataset(digits, way, drfl.Key(4))
    known = drfl.ClientData.from_dataset(digits, make_partition(digits, way, drfl.Key(4)))
    assert [rows.tolist() for rows in found.train] == [rows.tolist() for rows in known.train]
    for dataset, partition, error in (
        ("digits", way, ("wrong-type", "dataset", "'digits'")),
        (digits, "dirichlet", ("wrong-type", "partition", "'dirichlet'")),
        (digits, drfl.DirichletDrop, ("wrong-type", "partition", "<class")),
    ):
        with refused(*error):
            drfl.ClientData.from_dataset(dataset, partition)


class Items(torch.utils.data.Dataset):
    """A map-style data set of these items."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, k):
        return self.items[k]


def test_items_with_dictionary_or_tuple_inputs():
    ids, mask, y = torch.arange(24).reshape(8, 3), torch.ones(8, 3).bool(), torch.arange(8) % 2
    named = [({"ids": ids[k].tolist(), "mask": mask[k]}, int(y[k])) for k in range(8)]
    pairs = [((ids[k], mask[k]), int(y[k])) for k in range(8)]
    for items, x in ((named, {"ids": ids, "mask": mask}), (pairs, (ids, mask))):
        data, expected = ClientData.from_datasets({"a": Items(items)}), ClientData.from_arrays({"a": (x, y)})
        assert data.fields == expected.fields
        assert torch.equal(data.inputs, expected.inputs)
        assert data.fields.unpack(data.inputs)["ids" if isinstance(x, dict) else 0].tolist() == ids.tolist()
    with refused("wrong-type", "a"):
        ClientData.from_datasets({"a": Items([*named, ({"ids": [1, 2, 3]}, 0)])})
    with refused("wrong-shape", "inputs", "'b'", "mask"):
        ClientData.from_datasets({"a": Items(named), "b": Items([({"ids": [1, 2, 3]}, 0)] * 4)})
    with refused("wrong-shape", "a", "'a'", "8", "2"):
        ClientData.from_arrays({"a": (tuple(torch.ones(2, 8)), torch.zeros(2).long())})
    with refused("wrong-shape", "fields", "4"):
        dataclasses.replace(ClientData.from_arrays({"a": ((ids, mask[:, 0]), y)}), inputs=ids, test_inputs=ids)


SITES = ["north", "east", "north", "west", "east", "west", "north", "east"]
CODES = torch.tensor([[0.0, 7], [0, 10], [0, 7], [0, 9], [0, 10], [0, 9], [0, 7], [0, 10]])


class Wilds(Items):
    """A data set with the attributes of those of WILDS."""

    metadata_fields, metadata_array = ("slide", "hospital"), CODES


def test_metadata_entry_names_the_client():
    pair = [(torch.full((2,), float(k)), k % 2) for k in range(8)]
    codes = [(*item, code) for item, code in zip(pair, CODES, strict=True)]
    named = [(*item, {"site": site, "slide": k}) for k, (item, site) in enumerate(zip(pair, SITES, strict=True))]
    single = [(*item, site) for item, site in zip(pair, SITES, strict=True)]
    for items, group, expected in (
        (Items(codes), 1, {"7": [0, 2, 6], "9": [3, 5], "10": [1, 4, 7]}),
        (Wilds(codes), "hospital", {"7": [0, 2, 6], "9": [3, 5], "10": [1, 4, 7]}),
        (Items(named), "site", {"east": [1, 4, 7], "north": [0, 2, 6], "west": [3, 5]}),
        (Items(single), 0, {"east": [1, 4, 7], "north": [0, 2, 6], "west": [3, 5]}),
    ):
        data = ClientData.from_datasets(items, group=group)
        assert data.names == tuple(expected)
        for train, test, rows in zip(data.train, data.test, expected.values(), strict=True):
            assert sorted(data.inputs[torch.cat([train, test]), 0].tolist()) == rows
        tested = ClientData.from_datasets(items, items, group=group)
        assert [len(rows) for rows in tested.test] == [3, 2, 3] if "9" in expected else [3, 3, 2]
        assert tested.names == data.names
    # Without a group, metadata are not used.
    plain, with_metadata = (ClientData.from_datasets({"a": Items(items)}) for items in (pair, codes))
    assert torch.equal(plain.inputs, with_metadata.inputs)


def test_metadata_without_a_client_are_refused():
    pair = [(torch.ones(2), k % 2) for k in range(8)]
    codes = [(*item, code) for item, code in zip(pair, CODES, strict=True)]
    for items, group in ((pair, 0), (codes, 2), (codes, "hospital"), ([(*p, "north") for p in pair], 1)):
        with refused("missing-option", "group", "item 0"):
            ClientData.from_datasets(Items(items), group=group)
    with refused("unknown-name", "group", "'hopital'", "'hospital'"):
        ClientData.from_datasets(Wilds(codes), group="hopital")
    with refused("missing-option", "group"):
        ClientData.from_datasets(Items(codes))
    with refused("conflicting-options", "group"):
        ClientData.from_datasets({"a": Items(codes)}, group=1)
    with refused("clients-differ", "7"):
        ClientData.from_datasets(Items(codes), Items(codes[3:6]), group=1)
    with refused("wrong-type", "train"):
        ClientData.from_datasets(torch.utils.data.Dataset(), group=1)


@pytest.mark.parametrize("value", ["a.csv", [{"x": 1.0, "site": "a", "y": 0}], {"x": [1.0]}, None])
def test_object_other_than_a_data_frame_is_refused(value):
    with refused("wrong-type", "frame"):
        ClientData.from_frame(value, group="site", target="y")


def test_hugging_face_objects_are_refused_with_the_remedy():
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, k):
            return {"x": [0.0, 1.0], "label": k % 2, "site": "a"}

        def to_pandas(self):
            return pd.DataFrame([self[k] for k in range(4)])

    with refused("wrong-type", "train", "site", "to_pandas"):
        ClientData.from_datasets(Rows(), group="site")
    with refused("wrong-type", "frame", "to_pandas"):
        ClientData.from_frame(Rows(), group="site", target="label")
    with refused("not-a-number", "x", "from_arrays"):
        ClientData.from_frame(Rows().to_pandas(), group="site", target="label")


def test_inputs_and_targets_in_two_lists_are_refused():
    with refused("wrong-type", None, "client-0", "Tensor"):
        ClientData.from_arrays([torch.zeros(4, 2)] * 3, [torch.zeros(4)] * 3)


@pytest.mark.parametrize(
    ("classes", "code"),
    [
        (("a",), "count-mismatch"),
        (("a", "a"), "duplicate-name"),
        ("ab", "wrong-type"),
        ((0, 1), "wrong-type"),
        ({"a", "b"}, "wrong-type"),
    ],
)
def test_wrong_names_of_classes_are_refused(classes, code):
    with refused(code, "classes"):
        ClientData.from_arrays([pair(20)], classes=classes)


def test_names_of_classes_may_be_a_list_and_more_than_the_labels():
    assert ClientData.from_arrays([pair(20)], classes=["a", "b", "c"]).classes == ("a", "b", "c")


def test_clients_may_come_from_any_iterable():
    pairs = [pair(20, seed) for seed in range(3)]
    whole = ClientData.from_arrays(pairs)
    for train, test in ((iter(pairs), None), (zip(*zip(*pairs, strict=True), strict=True), None), (pairs, iter(pairs))):
        data = ClientData.from_arrays(train, test)
        assert (data.names, len(data.inputs)) == (whole.names, len(whole.inputs))
    for wrong in (3, None, "abc"):
        with refused("wrong-type", "clients", type(wrong).__name__):
            ClientData.from_arrays(wrong)


def test_seeds_are_keys():
    frame = pd.DataFrame({"site": ["a"] * 20 + ["b"] * 20, "x": np.arange(40.0), "y": [0, 1] * 20})
    sources = [
        lambda key: ClientData.from_arrays([pair(20)], key=key),
        lambda key: ClientData.from_datasets([TensorDataset(*map(torch.tensor, pair(20)))], key=key),
        lambda key: ClientData.from_frame(frame, group="site", target="y", key=key),
        lambda key: ClientData.from_dataset(toy(), IID(3), key),
        lambda key: ClientData.from_arrays([pair(20)]).with_validation(0.2, key),
    ]
    for source in sources:
        expected = source(Key(3)).tensors()
        for seed in (3, np.int64(3)):
            assert all(map(torch.equal, source(seed).tensors(), expected))
        for wrong in ("3", 3.0, True, None):
            with refused("wrong-type", "key", repr(wrong)):
                source(wrong)


@pytest.mark.parametrize(
    ("item", "quoted"),
    [
        ({"x": torch.zeros(3), "y": 1}, ("keys x, y", "dict", "to_pandas", "with_format")),
        ((torch.zeros(3),), ("tuple of 1",)),
        (torch.zeros(2), ("Tensor",)),
    ],
    ids=["dict", "tuple of 1", "tensor"],
)
def test_items_other_than_pairs_are_refused(item, quoted):
    with refused("wrong-type", "a", "(x, y)", *quoted):
        ClientData.from_datasets({"a": [item] * 4})


def test_remedy_for_a_single_row_exists_in_python():
    with refused("few-rows", None, "Remove the client", "test data"):
        ClientData.from_arrays({"a": pair(1)})
    assert ClientData.from_arrays({"a": pair(1)}, {"a": pair(1)}).n == 1


def test_all_tensors_move_to_a_device(monkeypatch):
    pairs = [(torch.randn(20, 2), torch.arange(20) % 2) for _ in range(2)]
    data = ClientData.from_arrays(pairs, patients=[[k // 2 for k in range(20)]] * 2).with_validation()
    # The device "meta" has no values to check, but tensors are there or not, as on a GPU.
    monkeypatch.setattr(ClientData, "__post_init__", lambda self: None)
    moved = data.to("meta")
    assert {tensor.device.type for tensor in (*moved.tensors(), moved.patients)} == {"meta"}
