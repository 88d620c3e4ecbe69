"""Test the policy of a site, and the audit logs of server and sites."""

from __future__ import annotations

import math
import multiprocessing
import re
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from flwr.app import ConfigRecord, Message
from tests.flower.conftest import MODEL, SIZES, federation, grid_of, site
from tests.support.refusals import refused
from tests.support.replies import parts

from drfl import Key, LocalSGD, run
from drfl.algorithms import DRDM
from drfl.core import audit_log
from drfl.core.audit_log import FIRST, AuditLog, read
from drfl.core.errors import DrflError, InputError
from drfl.flower.client_app import site_of
from drfl.flower.closing import AuditedRun
from drfl.flower.deploy.audit_one_log import check_records, check_site_requests
from drfl.flower.messages import Ask, LossWork
from drfl.flower.nodes import KeyRoster, NameRoster, gather_members
from drfl.flower.records import write
from drfl.flower.settings import ServerSettings, SiteSettings, validate
from drfl.flower.site_policy import RefusedError, SitePolicy
from drfl.flower.site_task import task_of

from .test_delivery import key_in

LOCAL = LocalSGD(steps=2, lr=0.1, batch=4)
EVERYBODY = torch.arange(4)


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


FIELDS = {"site": "a", "run": "1", "what": "train", "digest": "0" * 32}


def add(log, event):
    return log.add(event, **FIELDS, **({"server": None} if event == "asked" else {"request": None}))


def logged(path, *events):
    log = AuditLog(path, "site", "a")
    for event in events:
        add(log, event)
    return log


def test_every_line_has_the_digest_of_the_previous_one(tmp_path):
    logged(tmp_path / "log", "asked", "sent")
    logged(tmp_path / "log", "asked")  # another process continues the log
    found = read(tmp_path / "log")
    assert [(r["n"], r["event"], r["site"]) for r in found.records[1:]] == [
        (2, "asked", "a"),
        (3, "sent", "a"),
        (4, "asked", "a"),
    ]
    assert [r["previous"] for r in found.records] == [FIRST, *(head.digest for head in found.heads[:-1])]
    assert AuditLog(tmp_path / "log", "site", "a").head() == found.heads[-1]
    assert all(datetime.fromisoformat(str(r["at"])).tzinfo == UTC for r in found.records)


def test_partial_line_of_a_killed_process_is_removed(tmp_path):
    path = tmp_path / "log"
    logged(path, "asked")
    with path.open("a") as file:
        file.write('{"n": 3, "at": "20')
    assert len(read(path).records) == 2
    logged(path, "sent")
    assert [r["event"] for r in read(path).records] == ["opened", "asked", "sent"]


@pytest.mark.parametrize("block", [1, 7, 64, 2**16])
def test_log_is_read_from_its_end(tmp_path, monkeypatch, block):
    monkeypatch.setattr(audit_log, "BLOCK", block)
    path = tmp_path / "log"
    log = logged(path, "asked", "sent", "asked")
    assert [r["n"] for r in log.since("2000")] == [4, 3, 2, 1]
    assert list(log.since("3000")) == []
    assert list(AuditLog(tmp_path / "none", "site", "a").since("2000")) == []
    with path.open("a") as file:
        file.write("half of a li")
    logged(path, "sent")
    assert [r["n"] for r in read(path).records] == [1, 2, 3, 4, 5]
    path.write_text("half")
    logged(path, "asked")
    assert len(read(path).records) == 2


def _write(path, count):
    for _ in range(count):
        add(AuditLog(path, "site", "a"), "asked")


def test_head_names_the_key_that_signed_it(tmp_path):
    key = key_in(tmp_path)
    head = add(AuditLog(tmp_path / "log", "site", "a", key), "asked")
    assert head.is_signed_by(key.public)
    # The signature does not cover the fingerprint.
    assert not head._replace(by="0" * 16).is_signed_by(key.public)


def test_concurrent_writers_keep_the_chain(tmp_path):
    path = tmp_path / "log"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write, args=(path, 20)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [r["n"] for r in read(path).records] == list(range(1, 82))


@pytest.mark.long
def test_unwritable_log_stops_the_action(tmp_path):
    with refused("audit-log", str(tmp_path), kind=DrflError):
        add(AuditLog(tmp_path, "site", "a"), "asked")
    (tmp_path / "log").write_text("no log\n")
    with refused("audit-log", str(tmp_path / "log"), kind=DrflError):
        add(AuditLog(tmp_path / "log", "site", "a"), "asked")
    with refused("audit-log", kind=DrflError):
        AuditLog(tmp_path / "other", "site", "a").add("received", site="a")  # only a server logs this event
    assert not (tmp_path / "other").exists()
    grid = grid_of(
        load=lambda context: site(context.node_config["name"], audit=AuditLog(tmp_path / "log", "site", "a"))
    )
    with refused("sites-missing"):
        federation(grid)


def sites_of(folder, **policy):
    """Make a grid of four sites with logs, of which site b has a policy."""

    def load(context):
        name = context.node_config["name"]
        own = SitePolicy(**policy) if name == "b" else SitePolicy()
        return site(name, audit=AuditLog(folder / name, "site", name), policy=own, folder=folder)

    return grid_of(load=load)


def test_log_belongs_to_one_owner_and_format(tmp_path):
    path = tmp_path / "log"
    logged(path, "asked")
    for role, name in (("site", "b"), ("server", "a")):
        with refused("log-of-another", str(path), kind=DrflError):
            AuditLog(path, role, name).add("key", key="x")
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with refused("log-format", str(path), kind=DrflError):
        logged(path, "asked")


def test_clock_that_is_set_back_does_not_break_the_log(tmp_path, monkeypatch):
    log = logged(tmp_path / "log", "asked")
    before = read(tmp_path / "log").records[-1]["at"]
    monkeypatch.setattr(audit_log, "_now", lambda: "2020-01-01T00:00:00.000Z")
    add(log, "sent")
    assert read(tmp_path / "log").records[-1]["at"] == before


def test_site_log_records_requests_and_replies(tmp_path):
    fed = federation(sites_of(tmp_path))
    run(DRDM(m=3, local=LOCAL, gamma=0.01), fed, rounds=2)
    events = [r["event"] for r in read(tmp_path / "a").records]
    assert events[:2] == ["opened", "identified"]
    assert events.count("asked") == events.count("sent") > 0
    assert all(r["server"] is None for r in read(tmp_path / "a").records if r["event"] == "asked")


def test_updates_and_gradients_are_limited_by_the_policy(tmp_path):
    plain, bounded = federation(), federation(sites_of(tmp_path, max_step=0.01))
    w = plain.w0
    up, free = (fed.train(EVERYBODY, w, LOCAL, Key(0), snapshot=1, average=True) for fed in (bounded, plain))
    order = up.clients.argsort()
    for mine, other in zip(parts(up[1:]), parts(free[1:]), strict=True):
        mine, other = mine[order], other[free.clients.argsort()]
        assert float((mine[1] - w).norm()) == pytest.approx(min(0.01, float((other[1] - w).norm())), rel=1e-4)
        assert torch.equal(mine[[0, 2, 3]], other[[0, 2, 3]])
    g = bounded.gradients(EVERYBODY, w, Key(0))
    assert float(g.values[g.clients == 1].norm()) == pytest.approx(0.01, rel=1e-4)
    assert torch.equal(g.losses.sort().values, plain.gradients(EVERYBODY, w, Key(0)).losses.sort().values)


@pytest.mark.long
def test_site_keeps_the_drift_term_of_the_shortened_update(tmp_path):
    """The site computes the same shift as the server, which otherwise would send it in every round."""
    bounded, plain = federation(sites_of(tmp_path, max_step=0.01)), federation()
    for fed in (bounded, plain):
        run(DRDM(m=4, local=LOCAL, gamma=0.01, mu=2.0), fed, rounds=4)
    assert bounded.ledger == plain.ledger


def test_daily_limit_counts_requests_of_every_kind(tmp_path, caplog):
    fed = federation(sites_of(tmp_path, requests_a_day=5))  # including two identity requests
    for r in range(4):
        up = fed.train(EVERYBODY, fed.w0, LOCAL, Key(r))
        assert (1 in up.clients.tolist()) == (r < 2)
        if not r:
            fed.evaluate(fed.w0)
    assert re.search(r"RefusedError: .*\b5 requests\b", caplog.text)
    log = read(tmp_path / "b").records
    assert [r["event"] for r in log].count("sent") == 3
    assert [r["what"] for r in log if r["event"] == "refused"] == ["train"] * 2
    with pytest.raises(InputError):  # the run restarts on the same day
        federation(sites_of(tmp_path, requests_a_day=5))
    assert read(tmp_path / "b").records[-1]["what"] == "identity"
    assert list(check_site_requests(read(tmp_path / "b"))) == []


def test_evaluations_count_towards_the_daily_limit(tmp_path):
    fed = federation(sites_of(tmp_path, requests_a_day=3))
    fed.evaluate(fed.w0)
    fed.evaluate(fed.w0)
    assert [r["event"] for r in read(tmp_path / "b").records].count("sent") == 1


def test_simultaneous_requests_are_all_counted(tmp_path):
    log, policy = AuditLog(tmp_path / "log", "site", "a"), SitePolicy(requests_a_day=2)
    about = {"site": "a", "run": "1", "what": "test"}
    for _ in range(3):
        log.add("asked", **about, digest="0" * 32, server=None)  # three processes have not replied yet
    with refused("too-many-requests", "requests_a_day", kind=RefusedError):
        policy.check_count(log)
    # A refusal frees no place: a request with a bad head has only this line.
    log.add("refused", **about, request=None, reason="")
    with refused("too-many-requests", "requests_a_day", kind=RefusedError):
        policy.check_count(log)


def test_messages_with_a_bad_head_buy_no_requests(tmp_path):
    policy, log = SitePolicy(requests_a_day=2), AuditLog(tmp_path / "log", "site", "a")
    grid = grid_of("a", load=lambda _: site("a", audit=log, policy=policy))
    w = task_of(MODEL, (6,)).w0

    def is_answered(head=None):
        content = write(Ask(0, MODEL, w, work=LossWork(0, (1,), None)))
        if head is not None:
            content["audit"] = ConfigRecord({"head": head})
        (reply,) = grid.pull_messages(grid.push_messages([Message(content, 1, "train", ttl=9)]))
        return reply.has_content()

    assert [is_answered() for _ in range(3)] == [True, True, False]
    assert not any(is_answered("junk") for _ in range(3))
    assert not any(is_answered() for _ in range(3))


def test_daily_limit_counts_the_days_of_the_clock(tmp_path, monkeypatch):
    log, policy = AuditLog(tmp_path / "log", "site", "a"), SitePolicy(requests_a_day=1)
    today, real = f"{datetime.now(UTC):%Y-%m-%d}", audit_log._now
    monkeypatch.setattr(audit_log, "_now", lambda: "2999-01-01T00:00:00.000Z")
    for _ in range(2):
        add(log, "asked")
    policy.check_count(log)  # these requests belong to another day
    monkeypatch.setattr(audit_log, "_now", real)
    add(log, "asked")
    policy.check_count(log)
    add(log, "asked")
    with refused("too-many-requests", "requests_a_day", kind=RefusedError):
        policy.check_count(log)
    content = read(tmp_path / "log")
    assert [str(r["at"])[:4] for r in content.records][1:] == ["2999"] * 4
    assert [str(audit_log.clock_of(r))[:10] for r in content.records][1:] == ["2999-01-01"] * 2 + [today] * 2
    assert [finding for finding in check_records(content) if finding.kind == "problem"] == []


@pytest.mark.long
def test_site_answers_nothing_before_approval(tmp_path, caplog):
    with refused("sites-missing", None, "b"):
        gather_members(sites_of(tmp_path, approved="approved"), NameRoster("abcd", 0.5), 1.0, 0.5)
    told = [record for record in caplog.records if getattr(record.msg, "code", None) == "run-not-approved"]
    assert len(told) == 1  # asked several times, logged once
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("line", ["# 17", "17 18", "117", "171", "no"])
def test_only_a_line_with_nothing_but_the_number_approves_a_run(tmp_path, line):
    policy = SitePolicy(approved=Path("approved"))
    (tmp_path / "approved").write_text(f"16\n{line}\n")
    with refused("request-refused", kind=RefusedError):
        policy.check_run(17, tmp_path)
    (tmp_path / "approved").write_text(f"16\n{line}\n 17 \r\n")
    policy.check_run(17, tmp_path)


def test_log_names_the_sites_that_cannot_describe_themselves_or_close_the_log(tmp_path, caplog):
    roster = KeyRoster(tuple("abcd"), tuple(name.encode() for name in "abcd"))
    nowhere = SimpleNamespace(node_config={"site": str(tmp_path / "site.toml")})
    grid = grid_of(load=lambda context: site_of(nowhere))
    grid.keys = dict(enumerate(roster.keys, start=1))
    with refused("sites-missing", None, "d"):
        gather_members(grid, roster, 1.0, 1.0)
    audit = AuditLog(tmp_path / "log", "server", "server")
    record = AuditedRun(audit, grid, roster, 5.0)
    record.start()
    record.close("failed")
    texts = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert [text[0] for text in texts] == [*"abcd", *"abcd"]
    assert all("(file-not-found)" in text and "<class" not in text for text in texts)


def test_server_waits_for_approval(tmp_path):
    approved = tmp_path / "approved"
    approved.write_text("17\n")
    later = threading.Timer(0.5, lambda: approved.write_text("17\n1\n"))
    later.start()
    fed = federation(sites_of(tmp_path, approved="approved"))
    later.join()
    assert fed.train(EVERYBODY, fed.w0, LOCAL, Key(0)).clients.tolist() == [0, 1, 2, 3]
    approved.unlink()  # approval can be withdrawn
    assert fed.train(EVERYBODY, fed.w0, LOCAL, Key(1)).clients.tolist() == [0, 2, 3]
    refused = [r for r in read(tmp_path / "b").records if r["event"] == "refused"]
    assert len(refused) == 1
    assert "run 1 " in refused[0]["reason"]


def test_contradictory_settings_are_refused():
    about = {"name": "a", "data": {"npz": "x.npz"}}
    assert SiteSettings.model_validate(about).policy == SitePolicy()
    with pytest.raises(ValueError, match=r"policy\.requests_a_day .* audit = "):
        SiteSettings.model_validate({**about, "policy": {"requests_a_day": 5}})
    assert SiteSettings.model_validate({**about, "audit": "log", "policy": {"requests_a_day": 5}}).audit is not None
    for name, values in {
        "timeout": (math.inf, math.nan, 1e10, 0),
        "name": ("", "a" * 129, "a\nb"),
        "threads": (0, 1025),
    }.items():
        for value in values:
            with refused("invalid-value", name):
                validate(Path("site.toml"), {**about, name: value}, SiteSettings)
    for name, values in {"timeout": (math.inf, math.nan, 1e10, 0), "grace": (math.inf, 1e10), "wait": (1e10,)}.items():
        for value in values:
            with refused("invalid-value", name):
                content = {"job": {"algorithm": "FedAvg"}, "sites": [{"name": "a"}], "insecure": True}
                validate(Path("server.toml"), {**content, name: value}, ServerSettings)
    for wrong in ({"max_step": 0}, {"requests_a_day": 0}, {"steps": 3}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            SiteSettings.model_validate({**about, "policy": wrong})
    assert len(SIZES) == 4
