"""Test the table of clients' vectors against a plain matrix: its sharing, its memory and its file."""

from __future__ import annotations

import errno
import gc
import os
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.marks import long_beyond
from tests.support.refusals import refused

from drfl import run
from drfl.algorithms import DRDM, SCAFFOLD, DualDRDM, FedDyn, ScaffPD
from drfl.federation import client_table
from drfl.federation.client_table import BLOCK, ClientTable
from drfl.optim.local import LocalSGD
from drfl.testing import ConstantFederation, state

D = 3
N = 2 * BLOCK + 5
IDS = (0, 1, BLOCK - 1, BLOCK, BLOCK + 7, 2 * BLOCK + 4)


@pytest.fixture(params=["memory", "file"])
def folder(request, tmp_path):
    return None if request.param == "memory" else str(tmp_path)


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def index(*clients):
    return torch.tensor(clients, dtype=torch.int64)


def open_files(folder):
    """Return descriptors of this process with files in the folder, including deleted ones."""
    links = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return [link for link in links if link.exists() or link.is_symlink() if str(folder) in str(os.readlink(link))]


updates = st.lists(
    st.tuples(
        st.sampled_from(["put", "add"]),
        st.lists(st.sampled_from(IDS), unique=True, max_size=5),
        st.sampled_from([1.0, -0.3, 2.5]),
        st.integers(0, 2**32 - 1),
    ),
    max_size=8,
)


@pytest.mark.parametrize("filed", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize("dtype", long_beyond(1, [torch.float32, torch.float64]))
@settings(max_examples=40, deadline=None)
@given(updates=updates)
def test_table_equals_a_plain_matrix(filed, dtype, updates, tmp_path_factory):
    """Every version is unchanged by updates; rows have the bits of ``index_add`` and ``index_copy``."""
    where = str(tmp_path_factory.getbasetemp()) if filed else None
    now, dense, written, versions = (
        ClientTable.zeros(N, torch.zeros(D, dtype=dtype), where),
        torch.zeros(N, D, dtype=dtype),
        set(),
        [],
    )
    for kind, clients, alpha, seed in updates:
        rows, at = (
            torch.randn(len(clients), D, generator=torch.Generator().manual_seed(seed)).to(dtype),
            index(*clients),
        )
        versions.append((now, dense))
        if kind == "put":
            now, dense = now.put(at, rows), dense.index_copy(0, at, rows)
        else:
            now, dense = now.add(at, iter(rows), alpha=alpha), dense.index_add(0, at, rows, alpha=alpha)
        written |= set(clients)
    for version, matrix in [*versions, (now, dense)]:
        assert torch.equal(version.dense(), matrix)
    assert now.clients.tolist() == sorted(written)
    assert torch.equal(now[index(*IDS[::-1])], dense[index(*IDS[::-1])])
    weights = torch.rand(N, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mixed = now.mix(weights)
    assert mixed.dtype == dtype
    torch.testing.assert_close(mixed, weights.to(dtype) @ dense, rtol=1e-5, atol=1e-6)
    again = ClientTable.of(N, now.clients, now[now.clients], where)
    assert torch.equal(again.dense(), dense)
    assert torch.equal(again.mix(weights), mixed)


def test_repr_shows_size_and_written_rows(folder):
    t = ClientTable.zeros(N, torch.zeros(D, dtype=torch.float64), folder).put(
        index(BLOCK, 2), torch.ones(2, D).double()
    )
    assert (t.n, t.shape, t.dtype, t.device.type, t.folder) == (N, (N, D), torch.float64, "cpu", folder)
    assert t.clients.dtype == torch.int64
    assert t.clients.tolist() == [2, BLOCK]
    assert repr(t) == f"Table({N} × 3, torch.float64, 2 rows written)"


@pytest.mark.parametrize("size", [1, 7, 100])
def test_weighted_sum_in_pieces(size, folder, monkeypatch):
    """Pieces have one row, two rows or all rows; rows of weight 0 are not read."""
    monkeypatch.setattr(client_table, "CHUNK", size)
    rows = torch.randn(6, D, dtype=torch.float64)
    t = ClientTable.zeros(N, rows[0], folder).put(index(*IDS), rows)
    weights = torch.zeros(N, dtype=torch.float64)
    weights[index(*IDS)] = vector(0.1, 0.2, 0.0, 0.3, 0.0, 0.4)
    torch.testing.assert_close(t.mix(weights), weights @ t.dense(), rtol=0, atol=1e-15)
    assert torch.equal(t.put(index(IDS[2]), torch.full((1, D), torch.inf).double()).mix(weights), t.mix(weights))
    assert not ClientTable.zeros(N, rows[0], folder).mix(weights).any()


def test_given_and_returned_tensors_do_not_alias_the_table(folder):
    given_rows = torch.ones(2, D)
    t = ClientTable.zeros(N, given_rows[0], folder).put(index(1, 2), given_rows)
    given_rows.zero_()
    t[index(1, 2)].zero_()
    t.dense().zero_()
    assert t[index(1, 2)].eq(1).all()


def test_rows_share_no_memory():
    """A view would keep the buffer of the whole cohort alive."""
    rows = torch.ones(4, D)
    t = ClientTable.zeros(N, rows[0]).put(index(1, 2), rows[:2]).add(index(3, 4), rows[2:]).add(index(1), rows[:1])
    held = [row for block in t._blocks for row in block.values()]
    assert [row.untyped_storage().nbytes() for row in held] == [D * 4] * 4
    assert len({row.data_ptr() for row in held} | {row.data_ptr() for row in rows}) == 8


def test_untouched_rows_are_shared_and_replaced_rows_freed():
    """After k updates of one client, only its newest row is alive once the older tables are gone."""
    t = ClientTable.zeros(N, torch.zeros(D)).put(index(*IDS), torch.ones(len(IDS), D))
    seen = [weakref.ref(row) for block in t._blocks for row in block.values()]
    gc.disable()
    try:
        for _ in range(5):
            t = t.add(index(0), torch.ones(1, D))
            seen.append(weakref.ref(t._blocks[0][0]))
        assert sum(row() is not None for row in seen) == len(IDS)
        del t
        assert all(row() is None for row in seen)
    finally:
        gc.enable()


def test_update_copies_few_references():
    """Blocks without a written client are the same objects in both tables."""
    t = ClientTable.zeros(100 * BLOCK, torch.zeros(D)).put(index(0, BLOCK), torch.ones(2, D))
    after = t.add(index(BLOCK), torch.ones(1, D))
    assert [a is b for a, b in zip(t._blocks, after._blocks, strict=True)].count(False) == 1


def test_slots_of_the_file_are_reused(tmp_path):
    """Repeated updates of the same clients need space only for the old and the new rows."""
    t = ClientTable.zeros(N, torch.zeros(D), str(tmp_path))
    for _ in range(50):
        t = t.add(index(*IDS), torch.ones(len(IDS), D))
    assert t._file.slots <= 2 * len(IDS)
    assert t[index(*IDS)].eq(50).all()
    old = t
    for _ in range(50):
        t = t.add(index(*IDS), torch.ones(len(IDS), D))
    assert old[index(*IDS)].eq(50).all()
    assert t[index(*IDS)].eq(100).all()
    assert t._file.slots <= 3 * len(IDS)


def test_file_has_no_name_and_ends_with_its_last_table(tmp_path):
    t = ClientTable.zeros(N, torch.zeros(D), str(tmp_path)).put(index(3), torch.ones(1, D))
    assert list(tmp_path.iterdir()) == []
    assert len(open_files(tmp_path)) == 1
    child = t.add(index(3), torch.ones(1, D))
    del t
    assert child[index(3)].eq(2).all()
    del child
    gc.collect()
    assert open_files(tmp_path) == []


def test_full_disk_is_a_one_line_error(tmp_path, monkeypatch):
    t = ClientTable.zeros(N, torch.zeros(D), str(tmp_path)).put(index(3), torch.ones(1, D))

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", full)
        with refused("cannot-write", "table_dir", "2", "No space left on device"):
            t.add(index(3, 4), torch.ones(2, D))
    assert t[index(3, 4)].tolist() == [[1, 1, 1], [0, 0, 0]]
    t = t.add(index(3, 4), torch.ones(2, D))
    assert t[index(3, 4)].tolist() == [[2, 2, 2], [1, 1, 1]]


def test_short_writes_and_reads_are_continued(tmp_path, monkeypatch):
    """A system call may transfer fewer bytes than requested."""
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:5], at))
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: read(fd, [into[0][:3]], at))
    rows = torch.randn(2, D)
    assert torch.equal(ClientTable.zeros(N, rows[0], str(tmp_path)).put(index(0, 1), rows)[index(0, 1)], rows)


def test_unsuitable_table_dirs_are_refused(tmp_path, monkeypatch):
    with refused("not-a-folder", "table_dir"):
        ClientTable.zeros(N, torch.zeros(D), str(tmp_path / "nowhere"))
    with refused("unsupported-combination", "table_dir", "CPU"):
        ClientTable.zeros(N, torch.zeros(D, device="meta"), str(tmp_path))

    def denied(**_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(client_table.tempfile, "mkstemp", denied)
    with refused("cannot-write", "table_dir", "Permission denied"):
        ClientTable.zeros(N, torch.zeros(D), str(tmp_path))


@pytest.mark.parametrize(
    ("clients", "rows", "told"),
    [
        ((1, 1), torch.ones(2, D), "twice"),
        ((-1,), torch.ones(1, D), rf"\b{N}\b.* -1 "),
        ((N,), torch.ones(1, D), rf"\b{N}\b.*\b{N}\b"),
        ((1,), torch.ones(1, D + 1), rf"torch\.float32 of shape \({D + 1},\)"),
        ((1,), torch.ones(1, D).double(), rf"torch\.float64 of shape \({D},\)"),
        ((1, 2), torch.ones(1, D), "shorter"),  # words of the error of zip
        ((1,), torch.ones(2, D), "longer"),
    ],
)
def test_invalid_updates_are_refused(clients, rows, told, folder):
    t = ClientTable.zeros(N, torch.zeros(D), folder)
    for update in (t.put, t.add):
        with pytest.raises(ValueError, match=told):
            update(index(*clients), rows)
    assert not t.clients.numel()


def test_invalid_clients_and_weights_are_refused():
    t = ClientTable.zeros(N, torch.zeros(D))
    with pytest.raises(ValueError, match=str(N)):
        t[index(N)]
    with pytest.raises(ValueError, match=rf"\b{N}\b.*\({N + 1},\)"):
        t.mix(torch.ones(N + 1))


MAKE = [DRDM, DualDRDM, FedDyn, SCAFFOLD, ScaffPD]


@pytest.mark.parametrize("make", MAKE, ids=lambda make: make.__name__)
def test_algorithms_give_the_same_bits_with_a_file(make, tmp_path):
    """The initial state uses no memory for the N rows."""
    fed, ends = ConstantFederation([1.0, 0.4, 0.7, 0.2, 0.9]), []
    for where in (None, str(tmp_path)):
        algorithm, fed.table_dir = make(m=3, local=LocalSGD(steps=2, lr=0.1)), where
        now = algorithm.init(fed)
        assert all(not t.clients.numel() for t in tables_of(now))
        for r in range(1, 7):
            now, _ = algorithm.round(now, fed, state_key(r))
        assert [t.folder for t in tables_of(now)] == [where]
        ends.append(now)
    assert state.bits_differ(*ends) == []
    fed.table_dir = None
    kept = run(algorithm, fed, rounds=6, table_dir=str(tmp_path)).state
    assert [t.folder for t in tables_of(kept)] == [str(tmp_path)]
    assert state.bits_differ(kept, ends[0]) == []
    with refused("not-a-folder", "table_dir"):
        run(make(m=3), fed, rounds=1, table_dir="/nowhere")


def state_key(r):
    from drfl.core.key import Key

    return Key(0).fold("round", r)


def tables_of(now):
    parts = [*now, *getattr(now, "reports", ())]
    return [part for part in parts if isinstance(part, ClientTable)]


def test_each_table_has_its_own_tensor_of_written_clients():
    """A later table includes the clients of the earlier one; a checkpoint of both contains no tensor twice."""
    table = ClientTable.zeros(N, torch.zeros(D)).put(index(5, 1), torch.ones(2, D))
    assert table.clients.tolist() == [1, 5]
    later = table.put(index(5), torch.ones(1, D))
    assert later.clients.tolist() == [1, 5]
    assert later.clients.data_ptr() != table.clients.data_ptr()
    assert later.put(index(N - 1, 0, 5), torch.ones(3, D)).clients.tolist() == [0, 1, 5, N - 1]


def test_difference_to_an_origin_in_pieces(folder, monkeypatch):
    """The bits equal those of the difference computed first, for pieces of any size."""
    monkeypatch.setattr(client_table, "CHUNK", 2)
    change, origin = torch.randn(3, D), torch.randn(D)
    t = ClientTable.zeros(N, origin, folder).put(index(1, 600), torch.randn(2, D))
    clients = index(600, 1, 5)
    expected = t.add(clients, (row - origin for row in change), alpha=-0.3)
    assert torch.equal(t.add(clients, change, alpha=-0.3, origin=origin).dense(), expected.dense())


@pytest.mark.parametrize("with_origin", [False, True])
def test_adding_rows_together_or_separately_gives_the_same_bits(with_origin):
    """A GPU adds them together. Each result has its own memory, so that a row can be freed alone."""
    g = torch.Generator().manual_seed(0)
    old, change = torch.randn(2, D, generator=g), torch.randn(3, D, generator=g)
    origin = torch.randn(D, generator=g) if with_origin else None
    table = ClientTable.zeros(N, old[0]).put(index(0, 1), old)
    expected = table.add(index(0, 1, BLOCK), change, -0.3, origin)[index(0, 1, BLOCK)]
    found = client_table.added_together([*old, None], list(change), -0.3, origin)
    assert torch.equal(torch.stack(found), expected)
    assert len({row.untyped_storage().data_ptr() for row in [*found, *old]}) == 4


def test_rows_beyond_the_memory_are_stored_in_a_file(tmp_path, monkeypatch, caplog):
    """Tables that do not fit give the same bits as those that do, and one notice."""
    monkeypatch.setattr(client_table, "LARGE", 3 * D * 4)
    monkeypatch.setattr(client_table, "free_memory", lambda: 4 * D * 4)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(client_table.tempfile, "tempdir", None)
    rows = torch.randn(6, D)
    small = ClientTable.zeros(N, rows[0]).put(index(*IDS[:3]), rows[:3])
    assert small.folder is None
    large = small.put(index(*IDS[3:]), rows[3:])
    assert large.folder == str(tmp_path)
    again = large.add(index(*IDS), rows, alpha=2.0)
    assert torch.equal(again[index(*IDS)], 3 * rows)
    weights = torch.rand(N, dtype=torch.float64)
    inside = ClientTable.of(N, index(*IDS), again[index(*IDS)], str(tmp_path))
    assert torch.equal(again.mix(weights), inside.mix(weights))
    assert [(record.msg.code, record.msg.field) for record in caplog.records] == [("table-in-file", "table_dir")]
    monkeypatch.setattr(client_table, "free_memory", lambda: None)
    assert small.put(index(*IDS[3:]), rows[3:]).folder is None


@pytest.mark.parametrize("d", [1, D, 40])
def test_weighted_sum_is_bitwise_equal_in_memory_and_file(d, tmp_path, monkeypatch):
    monkeypatch.setattr(client_table, "CHUNK", 4)
    rows, weights = torch.randn(len(IDS), d), torch.rand(N, dtype=torch.float64)
    memory, file = (ClientTable.zeros(N, rows[0], where).put(index(*IDS), rows) for where in (None, str(tmp_path)))
    assert torch.equal(memory.mix(weights), file.mix(weights))
