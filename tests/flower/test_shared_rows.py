"""Test the detection of rows that several sites have, by keyed hashes."""

from __future__ import annotations

import hashlib
import hmac

import msgspec
import numpy as np
import pytest
import torch
from tests.flower.conftest import session_of
from tests.support.refusals import refused

from drfl.core import audit_log
from drfl.core.audit_log import AuditLog
from drfl.data import ClientData
from drfl.flower import row_hashes, shared_rows
from drfl.flower.client_app import Site, client_app, identity
from drfl.flower.deploy.audit_comparison import compare_logs
from drfl.flower.deploy.audit_one_log import ServerRuns, check_site_requests
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import SharedRows, SiteIdentity
from drfl.flower.nodes import NameRoster, gather_members
from drfl.flower.records import ProtocolError, read, write
from drfl.flower.row_hashes import hash_rows
from drfl.flower.session import log_members
from drfl.flower.shared_rows import compare_sites, shared_row_notices
from drfl.flower.site_policy import SitePolicy

KEY, OTHER = b"k" * 32, b"o" * 40
NAMES = ("a", "b", "c")


def rows(n, seed, coarse=False):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=draw, dtype=torch.float64)
    return (x > 0).double() if coarse else x, torch.arange(n) % 2


def data_of(pair, dtype=torch.float64):
    return ClientData.from_arrays({"site": pair}, dtype=dtype)


def data(extra=0, coarse=False):
    """Make three sites; ``extra`` rows of a are also at b, in another order."""
    parts = {name: rows(60, seed, coarse) for seed, name in enumerate(NAMES)}
    taken = torch.arange(extra).flip(0)
    parts["b"] = tuple(torch.cat([own, other[taken]]) for own, other in zip(parts["b"], parts["a"], strict=True))
    return {name: data_of(pair) for name, pair in parts.items()}


@pytest.fixture
def folder(tmp_path):
    for name, key in (("rows.key", KEY), ("other.key", OTHER), ("short.key", KEY[:31])):
        (tmp_path / name).write_bytes(key + b"\n")
    return tmp_path


def notices(folder, sites, keys=("rows.key",) * 3, logs=False):
    """Return the server's warnings, and the grid."""
    loaded = {
        name: Site(
            name,
            sites[name],
            policy=SitePolicy(shared_rows_key=key),
            folder=folder,
            audit=AuditLog(folder / f"{name}.jsonl", "site", name) if logs else None,
        )
        for name, key in zip(NAMES, keys, strict=True)
    }
    grid = InProcessGrid(
        client_app(lambda context: loaded[context.node_config["name"]]), [{"name": name} for name in NAMES]
    )
    audit = AuditLog(folder / "server.jsonl", "server", "server") if logs else None
    roster = NameRoster(NAMES, audit=audit)
    if audit is not None:
        audit.add("started", run="1", sites=list(NAMES))
    joined = gather_members(grid, roster, 1.0, 5.0, audit)
    if audit is not None:
        log_members(joined, roster, audit)
    members = {client: member.identity for client, member in joined.items()}
    return compare_sites(session_of(grid, roster, members, audit=audit)), grid


def test_sites_that_share_rows_are_named_with_the_number(folder, caplog):
    found, _ = notices(folder, data(extra=7))
    assert [(notice.code, notice.field) for notice in found] == [("shared-rows", "a and b")]
    assert "7 equal rows, of 60 and 67" in found[0]
    assert [record.msg for record in caplog.records if getattr(record.msg, "code", "") == "shared-rows"] == found
    assert notices(folder, data())[0] == []


def test_coarse_rows_coincide_without_a_warning(folder):
    assert notices(folder, data(coarse=True))[0] == []


@pytest.mark.parametrize(
    ("keys", "codes"),
    [
        ((None, None, None), []),
        (("rows.key", "rows.key", None), []),
        (("rows.key", "other.key", "rows.key"), ["sites-differ"]),
    ],
)
def test_hashes_are_sent_only_if_all_sites_have_the_same_key(folder, keys, codes):
    found, grid = notices(folder, data(extra=7), keys)
    assert [notice.code for notice in found] == codes
    asked = dict(grid.count)
    assert set(asked.values()) == {2}  # the description is requested by the roster and by the run


def test_site_without_a_key_refuses(folder, caplog):
    found, grid = notices(folder, data(extra=7), ("rows.key", "rows.key", None))
    members = {i: read(identity(Site(name, data()[name], folder=folder)), SiteIdentity) for i, name in enumerate(NAMES)}
    members = {i: msgspec.structs.replace(member, row_key="0" * 16) for i, member in members.items()}
    found = compare_sites(session_of(grid, NameRoster(NAMES), members))
    assert [notice.field for notice in found] == ["a and b"]
    assert any("shared_rows_key" in str(record.msg) and "c:" in str(record.msg) for record in caplog.records)


def test_hash_is_an_hmac_under_a_key_of_the_run():
    x, y = torch.tensor([[1.5, -0.0], [0.25, 3.0], [1.5, 0.0], [2.0, 2.0]]), torch.tensor([1, 0, 1, 1])
    found = hash_rows(data_of((x, y)), KEY, 5)
    own = hmac.new(KEY, b"drfl rows of run 5", hashlib.sha256).digest()
    expected = sorted(
        {
            hmac.new(own, np.array([*row, label], dtype="<f4").tobytes(), hashlib.sha256).digest()[:8]
            for row, label in (((1.5, 0.0), 1), ((0.25, 3.0), 0), ((2.0, 2.0), 1))
        }
    )
    assert (found.rows, found.distinct, found.hashes) == (4, 3, b"".join(expected))
    assert hash_rows(data_of((x, y), torch.float32), KEY, 5).hashes == found.hashes
    for key, run in ((OTHER, 5), (KEY, 6)):
        other = hash_rows(data_of((x, y)), key, run).hashes
        assert not {other[i : i + 8] for i in range(0, 24, 8)} & set(expected)


def test_sent_data_contain_neither_key_nor_values(folder):
    site = Site("a", data()["a"], policy=SitePolicy(shared_rows_key="rows.key"), folder=folder)
    sent = [identity(site), write(hash_rows(site.data, KEY, 1))]
    for content in sent:
        for record in content.values():
            assert KEY not in b"".join(value for value in record.values() if isinstance(value, bytes))
    assert KEY.decode() not in repr(site)


def test_large_sites_send_the_smallest_hashes(folder, monkeypatch):
    for module in (row_hashes, shared_rows):
        monkeypatch.setattr(module, "MOST_HASHES", 40)
    monkeypatch.setattr("drfl.flower.messages.MOST_HASHES", 40)
    reports = {i: hash_rows(own, KEY, 1) for i, own in enumerate(data(extra=30).values())}
    assert [len(report.hashes) // 8 for report in reports.values()] == [40] * 3
    whole = {i: set(np.frombuffer(report.hashes, ">u8").tolist()) for i, report in reports.items()}
    (notice,) = shared_row_notices(NAMES, reports)
    assert f"at least {len(whole[0] & whole[1])} equal rows" in notice
    assert len(whole[0] & whole[1]) >= 5


@pytest.mark.parametrize(
    "changes",
    [
        {"distinct": 61},
        {"hashes": b"x" * 12},
        {"hashes": b""},
        {"rows": 0},
        {"hashes": lambda hashes: hashes[8:] + hashes[:8]},
        {"hashes": lambda hashes: hashes[:8] + hashes[:-8]},
    ],
)
def test_contradictory_hashes_are_refused(changes):
    good = hash_rows(data()["a"], KEY, 1)
    assert read(write(good), SharedRows).hashes == good.hashes
    changes = {name: value(good.hashes) if callable(value) else value for name, value in changes.items()}
    fields = {"rows": good.rows, "distinct": good.distinct, "hashes": good.hashes, **changes}
    content = write(good)
    content["message"]["fields"] = msgspec.msgpack.encode(fields)
    with pytest.raises(ProtocolError):
        read(content, SharedRows)


def test_short_key_is_refused(folder):
    with refused("invalid-value", "shared_rows_key", "31"):
        identity(Site("a", data()["a"], policy=SitePolicy(shared_rows_key="short.key"), folder=folder))


def test_request_and_reply_are_in_both_logs(folder):
    notices(folder, data(extra=7), logs=True)
    server, *sites = (audit_log.read(folder / f"{name}.jsonl") for name in ("server", *NAMES))
    assert [r["what"] for r in server.records if r["event"] == "asked"] == ["rows"] * 3
    assert [finding for finding in ServerRuns(server).findings() if finding.kind == "problem"] == []
    for log, name in zip(sites, NAMES, strict=True):
        assert list(check_site_requests(log)) == []
        assert [str(finding.text) for finding in compare_logs(server, log, name) if finding.kind != "ok"] == []


def test_site_counts_the_request(folder):
    policy = SitePolicy(shared_rows_key="rows.key", requests_a_day=2)
    log = AuditLog(folder / "a.jsonl", "site", "a")
    site = Site("a", data()["a"], policy=policy, folder=folder, audit=log)
    grid = InProcessGrid(client_app(lambda context: site), [{"name": "a"}])
    members = {i: read(identity(site), SiteIdentity) for i in range(2)}
    gather_members(grid, NameRoster(("a",)), 1.0, 5.0)
    assert compare_sites(session_of(grid, NameRoster(("a",)), members)) == []
    assert "refused" in [record["event"] for record in audit_log.read(folder / "a.jsonl").records]
