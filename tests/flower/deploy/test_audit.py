"""Test the audit of a deployment: honest logs pass, and every manipulation is detected or listed as undetectable."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from dataclasses import replace

import pytest
from flwr.app import Error, Message
from tests.support.audited import NAMES, Deployed, make_key
from tests.support.marks import crossed, long_beyond, long_except
from tests.support.refusals import refused

from drfl.cli.app import call
from drfl.core import audit_log
from drfl.core.audit_log import Head, read
from drfl.core.audit_signatures import read_public_key, read_signing_key
from drfl.core.errors import DrflError
from drfl.flower import nodes, server_app, transport
from drfl.flower.deploy.audit_keys import SERVER, TrustedKeys
from drfl.flower.in_process import InProcessGrid
from drfl.flower.settings import read_server, read_site


@pytest.fixture(scope="module", params=["secure", pytest.param("insecure", marks=pytest.mark.long)])
def honest(request, tmp_path_factory):
    """Complete a run of two rounds."""
    deployed = Deployed(tmp_path_factory.mktemp(request.param) / "fl", request.param == "secure")
    server_app.serve(deployed.grid(), deployed.settings())
    return deployed


@pytest.fixture
def deployed(honest, tmp_path):
    """Return a copy whose logs a test may change."""
    copy = Deployed.__new__(Deployed)
    copy.__dict__ |= honest.__dict__
    copy.root = shutil.copytree(honest.root, tmp_path / "fl")
    copy.sites = {name: replace(site, folder=copy.root / "sites" / name) for name, site in honest.sites.items()}
    for name in NAMES:
        copy.load(name)
    return copy


@pytest.fixture(autouse=True, scope="module")
def _each_signature_is_verified_once():
    """Verify each signature once, because most lines are the same in all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit_log, "is_signed", functools.cache(audit_log.is_signed))
        yield


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    for module in (nodes, transport):
        monkeypatch.setattr(module, "PAUSE", 0.01)


def audited(capsys, *arguments):
    """Return exit code and findings of the command."""
    capsys.readouterr()
    code = call(["deploy", "audit", *map(str, arguments), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert "findings" not in told or told["ok"] == (code == 0)
    return code, told


def problems(capsys, *arguments):
    """Return the codes of the problems, each of which names a file and a reason."""
    code, told = audited(capsys, *arguments)
    found = [one for one in told["findings"] if one["kind"] == "problem"]
    assert code == (1 if found else 0)
    assert all(one["field"] and one["message"] for one in found)
    return {one["code"] for one in found}


def notes(capsys, *arguments):
    return {one["code"] for one in audited(capsys, *arguments)[1]["findings"] if one["kind"] == "note"}


def test_honest_logs_pass(deployed, capsys):
    assert problems(capsys, *deployed.logs()) == set()
    assert notes(capsys, *deployed.logs()) == (set() if deployed.secure else {"unsigned"})
    events = [record["event"] for record in deployed.records("a")]
    assert (events[0], events[-1], events.count("asked")) == ("opened", "closed", events.count("sent"))
    assert [r["event"] for r in deployed.records("server")][-5:] == ["closing", *["parted"] * 3, "finished"]


def test_order_of_the_logs_does_not_matter(deployed, capsys):
    assert problems(capsys, *reversed(deployed.logs())) == set()


# Manipulations. Each changes the records of one log, whose owner then chains and signs the result again.


def positions(records, event):
    return [place for place, record in enumerate(records) if record["event"] == event]


def drop(event, which=slice(None)):
    def change(records):
        gone = set(positions(records, event)[which])
        return [record for place, record in enumerate(records) if place not in gone]

    return change


def edit(event, /, which=0, **values):
    """Change values of a record; ``...`` removes a field."""

    def change(records):
        found = [dict(record) for record in records]
        found[positions(records, event)[which]] |= values
        return [{k: v for k, v in record.items() if v is not ...} for record in found]

    return change


def everywhere(**values):
    def change(records):
        found = [record | {k: v for k, v in values.items() if k in record} for record in records]
        return [{k: v for k, v in record.items() if v is not ...} for record in found]

    return change


def cut(count):
    return lambda records: records[:-count]


def replaced_sent(records):
    """Remove the line on a sent message, and add one with another name."""
    left = drop("sent")(records)
    return [*left, left[-1] | {"site": "z"}]


def swapped(records):
    first, second = positions(records, "sent")[:2]
    found = list(records)
    found[first], found[second] = found[second], found[first]
    return found


def back_in_time(records):
    found = [dict(record) for record in records]
    found[-1]["at"] = "2020-01-01T00:00:00.000Z"
    return found


def extra(event, /, **values):
    """Add a copy of the first record of its kind with other values before the last line."""

    def change(records):
        return [*records[:-1], records[positions(records, event)[0]] | values, records[-1]]

    return change


def used_name(name, which=0):
    def change(records):
        place = positions(records, "used")[which]
        found = list(records)
        found[place] = found[place] | {"sites": [*found[place]["sites"], name]}
        return found

    return change


def silent_instead(records):
    """Make the server claim that a reply did not arrive and was not used."""
    found = list(records)
    place = positions(records, "received")[0]
    own = found[place]
    found[place] = {k: own[k] for k in ("at", "site", "request")} | {"event": "silent", "reason": "no reply"}
    return [r | {"sites": [s for s in r["sites"] if s != own["site"]]} if r["event"] == "used" else r for r in found]


def hidden_exchange(records):
    """Make the server remove a request with its answer and its use."""
    gone = records[positions(records, "asked")[0]]["n"]
    return [r for r in records if r["n"] != gone and r.get("request") != gone]


ON_SITE = {
    "sent lines deleted, a line with another name": (replaced_sent, "several-sites"),
    "all sent lines deleted": (drop("sent"), "truncated-log"),
    "the last sent line deleted": (drop("sent", slice(-1, None)), "rewritten-log"),
    "one request and its answer deleted": (
        lambda r: drop("sent", slice(0, 1))(drop("asked", slice(0, 1))(r)),
        "rewritten-log",
    ),
    "the site field dropped": (everywhere(site=...), "bad-record"),
    "the site field of one line dropped": (edit("sent", site=...), "bad-record"),
    "another name throughout": (everywhere(site="z", name="z"), "unknown-site"),
    "the name of another site": (everywhere(site="b", name="b"), "two-logs"),
    "another digest of a reply": (edit("sent", digest="0" * 32), "rewritten-log"),
    "another kind of a reply": (edit("sent", what="losses"), "answer-without-request"),
    "two replies swapped": (swapped, "time-goes-back"),
    "the last line deleted": (cut(1), "truncated-log"),
    "the last 5 lines deleted": (cut(5), "truncated-log"),
    "the header alone": (lambda r: r[:1], "truncated-log"),
    "the first line deleted": (lambda r: r[1:], "log-format"),
    "another format": (edit("opened", format=2), "log-format"),
    "time goes back": (back_in_time, "time-goes-back"),
    "an event that nobody writes": (extra("sent", event="nothing"), "bad-record"),
    "a server's event": (extra("sent", event="received"), "bad-record"),
    "a reply that nobody asked for": (extra("sent", request=1), "answer-without-request"),
    "a request made up": (extra("asked", digest="0" * 32), "other-request"),
    "a request without the server's head": (edit("asked", server=None), "without-head"),
    "the server's head made up": (edit("asked", server=str(Head(99999, "0" * 64))), "truncated-log"),
    "another run": (everywhere(run="2"), "other-run"),
    "a server's log now": (edit("opened", role="server", name="server"), "not-compared"),
}

ON_SERVER = {
    "the last line deleted": (cut(1), "end-missing"),
    "the last 4 lines deleted": (cut(4), "end-missing"),
    "the last 10 lines deleted": (cut(10), "truncated-log"),
    "the last 40 lines deleted": (cut(40), "truncated-log"),
    "all lines but the header deleted": (lambda r: r[:1], "not-compared"),
    "a name in used that does not exist": (used_name("z"), "used-without-reply"),
    "a reply in used that was not received": (
        lambda r: used_name("a")(drop("received", slice(0, 1))(r)),
        "used-without-reply",
    ),
    "no names in used, with a number": (edit("used", sites=1), "bad-record"),
    "a received line deleted": (drop("received", slice(0, 1)), "outcome-missing"),
    "all received lines deleted": (drop("received"), "outcome-missing"),
    "a reply said to be late": (silent_instead, "rewritten-log"),
    "a request with its answer deleted": (hidden_exchange, "rewritten-log"),
    "all requests deleted": (drop("asked"), "answer-without-request"),
    "a site not joined": (drop("joined", slice(0, 1)), "not-joined"),
    "the start deleted": (drop("started"), "outside-a-run"),
    "another digest of a reply": (edit("received", digest="0" * 32), "other-reply"),
    "another digest of a request": (edit("asked", digest="0" * 32), "rewritten-log"),
    "another kind of a request": (edit("asked", what="losses"), "rewritten-log"),
    "a reply without the site's head": (edit("received", head=None), "without-head"),
    "a reply that the site did not send": (extra("received"), "answer-without-request"),
    "the names of sites swapped": (
        lambda r: [x | ({"site": {"a": "b", "b": "a"}.get(x["site"], x["site"])} if "site" in x else {}) for x in r],
        "rewritten-log",
    ),
    "time goes back": (back_in_time, "time-goes-back"),
    "another outcome": (edit("finished", outcome="failed"), "wrong-end"),
    "the end of another run": (edit("finished", run="2"), "wrong-end"),
    "a run closed twice": (extra("closing"), "wrong-end"),
    "a site that left twice": (extra("parted"), "wrong-end"),
    "a field added": (extra("closing", more="x"), "bad-record"),
}


def one_for_each_code(changes):
    """Return the first change for each problem code."""
    return list({code: name for name, (_, code) in reversed(changes.items())}.values())


@pytest.mark.parametrize(("change", "code"), long_except(one_for_each_code(ON_SITE), ON_SITE.values(), ON_SITE))
def test_manipulations_of_a_sites_log_are_detected(deployed, capsys, change, code):
    deployed.rewrite("a", change(deployed.records("a")))
    assert code in problems(capsys, *deployed.logs())


@pytest.mark.parametrize(("change", "code"), long_except(one_for_each_code(ON_SERVER), ON_SERVER.values(), ON_SERVER))
def test_manipulations_of_the_servers_log_are_detected(deployed, capsys, change, code):
    deployed.rewrite("server", change(deployed.records("server")))
    assert code in problems(capsys, *deployed.logs())


BYTES = {
    "nothing": (lambda text: b"", "empty-log"),
    "an unfinished line alone": (lambda text: text[:50], "empty-log"),
    "no JSON": (lambda text: b"{\n" + text, "broken-chain"),
    "no records": (lambda text: b"[]\n" + text, "broken-chain"),
    "a word changed": (lambda text: text.replace(b'"train"', b'"trein"', 1), "broken-chain"),
    "a line doubled": (lambda text: text + text.splitlines(True)[-1], "broken-chain"),
    "a name twice": (lambda text: text.replace(b'"n": 2,', b'"n": 7, "n": 2,', 1), "broken-chain"),
    "lines ended as on Windows": (lambda text: text.replace(b"\n", b"\r\n"), "broken-chain"),
    "deep": (lambda text: b"[" * 100_000 + b"\n" + text, "broken-chain"),
    "not UTF-8": (lambda text: text.replace(b'"train"', b'"tr\xff"', 1), "broken-chain"),
    "a huge number": (lambda text: text.replace(b'"n": 2,', b'"n": 1e999,', 1), "broken-chain"),
}


@pytest.mark.parametrize(
    ("name", "change", "code"), crossed(["server", "a"], [pytest.param(*case, id=name) for name, case in BYTES.items()])
)
def test_file_that_is_not_a_chain_is_detected(deployed, capsys, name, change, code):
    path = deployed.log(name)
    path.write_bytes(change(path.read_bytes()))
    assert code in problems(capsys, *deployed.logs())


def test_logs_that_cannot_be_compared_are_a_problem(deployed, capsys):
    server, a, b, c = deployed.logs()
    assert "not-compared" in problems(capsys, server)
    assert "not-compared" in problems(capsys, a, b, c)
    assert problems(capsys, server, a, b) == {"missing-log"}
    assert problems(capsys, server, a, b, "--without", "c") == set()
    assert problems(capsys, server, *(word for name in "abc" for word in ("--without", name))) == set()
    assert "not-compared" in problems(capsys, server, "--without", "a", "--without", "b")
    code, told = audited(capsys, server, a, b, "--without", "z")
    assert (code, told["error"]["code"], told["error"]["field"]) == (2, "unknown-name", "site")
    assert "two-logs" in problems(capsys, server, a, a, b, c)
    assert "not-compared" in problems(capsys, server, server, a)


def test_unreadable_files_are_usage_errors(deployed, capsys):
    code, told = audited(capsys, deployed.root / "none")
    assert (code, told["error"]["code"], told["error"]["field"]) == (2, "file-not-found", str(deployed.root / "none"))
    assert audited(capsys, *deployed.logs(), "--deployment", deployed.root / "keys")[0] == 2


@pytest.fixture
def secure(deployed):
    if not deployed.secure:
        pytest.skip("there are no keys")
    return deployed


def unsigned(records):
    return [record | ({"key": None} if record["event"] == "opened" else {}) for record in records]


@pytest.mark.parametrize("name", ["server", pytest.param("a", marks=pytest.mark.long)])
def test_log_signed_with_another_key_is_detected(secure, capsys, name):
    make_key(secure.root / "other")
    other = read_signing_key(secure.root / "other")
    records = secure.records(name)
    secure.rewrite(name, records, other)
    assert "bad-signature" in problems(capsys, *secure.logs())
    secure.rewrite(name, [records[0] | {"key": other.public}, *records[1:]], other)
    assert {"unknown-key", "rewritten-log"} <= problems(capsys, *secure.logs())


@pytest.mark.parametrize("name", [pytest.param("server", marks=pytest.mark.long), "a"])
def test_log_rewritten_without_signatures_is_detected(secure, capsys, name):
    records = unsigned(secure.records(name))
    secure.secure = False
    secure.rewrite(name, records)
    assert "unsigned-log" in problems(capsys, *secure.logs())
    assert "bad-signature" in problems(capsys, *secure.logs()) or "rewritten-log" in problems(capsys, *secure.logs())


def test_line_added_without_the_key_is_detected_and_not_continued(secure, capsys):
    path = secure.log("a")
    last = secure.records("a")[-1]
    secure.secure = False
    from tests.support.audited import Forged

    Forged(path, "site", "a").append(last)
    secure.secure = True
    assert "bad-signature" in problems(capsys, *secure.logs())
    secure.load("a")
    with refused("log-unsigned", str(path), kind=DrflError) as caught:
        secure.sites["a"].audit.add("closed", site="a", run="1", server=None)
    assert caught.value.code == "log-unsigned"


def test_unknown_keys_are_detected(secure, capsys, tmp_path):
    logs = [shutil.copy(log, tmp_path / f"{place}.jsonl") for place, log in enumerate(secure.logs())]
    assert problems(capsys, *logs) == {"unknown-key"}
    assert problems(capsys, *logs, "--deployment", secure.root) == set()


def rotate(deployed, name, keep):
    """Change the key of a site as ``drfl deploy rotate`` and the site do."""
    folder = deployed.root / "sites" / name
    old = deployed.key(name)
    (folder / "key").unlink(), (folder / "key.pub").unlink()
    make_key(folder / "key")
    revoked = deployed.root / "keys" / "revoked"
    revoked.mkdir(exist_ok=True)
    (deployed.root / "keys" / f"{name}.pub").rename(revoked / f"{name}-20260101T000000.000000.pub")
    shutil.copy(folder / "key.pub", deployed.root / "keys" / f"{name}.pub")
    deployed.load(name, old if keep else None)


@pytest.mark.parametrize("keep", long_beyond(1, [True, False]))
@pytest.mark.long
def test_chain_continues_after_a_key_rotation(secure, capsys, keep):
    for again in range(2):
        rotate(secure, "a", keep)
        (secure.root / "keys" / "revoked" / "a-20260101T000000.000000.pub").rename(
            secure.root / "keys" / "revoked" / f"a-2026010{again + 2}T000000.000000.pub"
        )
        server_app.serve(secure.grid(), secure.settings(f"run{again}"))
    assert problems(capsys, *secure.logs()) == set()
    assert "new-key" in notes(capsys, *secure.logs())
    assert [r["event"] for r in secure.records("a")].count("key") == 2


@pytest.mark.long
def test_unauthorised_new_key_is_detected(secure, capsys):
    rotate(secure, "a", keep=False)
    for path in (secure.root / "keys" / "revoked").iterdir():
        path.unlink()
    server_app.serve(secure.grid(), secure.settings("again"))
    assert problems(capsys, *secure.logs()) == {"new-key-without-the-old"}


class Flaky(InProcessGrid):
    """Lose messages and replies, and deliver some twice."""

    left = 0
    dies = None

    def push_messages(self, messages):
        messages = list(messages)
        type(self).left += 1
        if self.dies is not None and self.left == self.dies:
            raise KeyboardInterrupt
        return super().push_messages(messages)

    def answer(self, message, context):
        found = super().answer(message, context)
        node = message.metadata.dst_node_id
        if self.left in (4, 6) and node == 1:
            super().answer(message, context)  # the message is delivered twice
        if self.left == 4 and node == 2:  # done, and the reply lost
            return Message(Error(5, "lost"), reply_to=message)
        if self.left == 6 and node == 3:
            return Message(Error(2, "killed"), reply_to=message)
        return found


@pytest.mark.long
@pytest.mark.parametrize("dies", long_beyond(2, [None, 3, 5, 7]))
def test_lost_and_repeated_messages_and_a_killed_server_pass(tmp_path, capsys, monkeypatch, dies):
    deployed = Deployed(tmp_path / "fl")
    monkeypatch.setattr(Flaky, "left", 0)
    monkeypatch.setattr(Flaky, "dies", dies)
    if dies is not None:
        with pytest.raises(KeyboardInterrupt):
            server_app.serve(deployed.grid(Flaky), deployed.settings())
        if deployed.log("a").exists():
            assert problems(capsys, *deployed.logs()) == set()
            assert "unfinished-run" in notes(capsys, *deployed.logs())
        Flaky.left, Flaky.dies = 100, None
    server_app.serve(deployed.grid(Flaky), deployed.settings())
    assert problems(capsys, *deployed.logs()) == set()


class Dead(InProcessGrid):
    """Kill a node after it has logged its reply, in every exchange from the second one on."""

    def answer(self, message, context):
        found = super().answer(message, context)
        if message.metadata.dst_node_id == 2 and self.count[2] > 2:
            return Message(Error(2, "killed"), reply_to=message)
        return found


@pytest.mark.long
def test_replies_that_never_arrive_are_noted(tmp_path, capsys):
    deployed = Deployed(tmp_path / "fl")
    server_app.serve(deployed.grid(Dead), deployed.settings())
    assert problems(capsys, *deployed.logs()) == set()
    assert "replies-lost" in notes(capsys, *deployed.logs())


@pytest.mark.long
def test_failing_or_unreachable_site_passes(tmp_path, capsys, monkeypatch):
    deployed = Deployed(tmp_path / "fl")
    grid = deployed.grid()
    whole = grid.push_messages

    def push(messages):
        messages = list(messages)
        if grid.count[3] >= 2:
            grid.offline = {3}
        return whole(messages)

    monkeypatch.setattr(grid, "push_messages", push)
    path = deployed.settings()
    path.write_text(path.read_text().replace("timeout = 5.0", "timeout = 1.0"))
    server_app.serve(grid, path)
    assert problems(capsys, *deployed.logs()) == set()
    assert notes(capsys, *deployed.logs()) & {"requests-lost"}


def test_audit_without_keys_reports_that_and_finds_the_same_problems(tmp_path, capsys):
    deployed = Deployed(tmp_path / "fl", secure=False)
    server_app.serve(deployed.grid(), deployed.settings())
    assert problems(capsys, *deployed.logs()) == set()
    assert notes(capsys, *deployed.logs()) == {"unsigned"}
    deployed.rewrite("a", drop("sent", slice(-1, None))(deployed.records("a")))
    assert problems(capsys, *deployed.logs()) == {"rewritten-log", "truncated-log"}


@pytest.mark.parametrize("key", ["ssh-dss AAAA", "ssh-ed25519 AAAA", "x", 5])
def test_invalid_key_is_detected(secure, capsys, key):
    deployed = secure
    deployed.rewrite("a", edit("opened", key=key)(deployed.records("a")))
    assert {"bad-signature", "bad-record"} & problems(capsys, *deployed.logs())


def test_site_can_audit_in_its_own_folder(secure, capsys, tmp_path):
    folder = secure.root / "sites" / "a"
    (folder / "site.toml").write_text('name = "a"\nserver_key = "superlink.pub"\n')
    shutil.copy(secure.root / "certificates" / "audit.pub", folder / "superlink.pub")
    server = shutil.copy(secure.log("server"), tmp_path / "server.jsonl")
    own = (server, secure.log("a"), "--without", "b", "--without", "c", "--deployment", folder)
    assert problems(capsys, *own) == set()
    make_key(tmp_path / "other")
    shutil.copy(tmp_path / "other.pub", folder / "superlink.pub")
    assert problems(capsys, *own) == {"unknown-key"}


@pytest.mark.long
def test_failed_run_is_closed_in_all_logs(tmp_path, capsys):
    deployed = Deployed(tmp_path / "fl")
    server_app.serve(deployed.grid(), deployed.settings())
    path = deployed.settings()
    path.write_text(path.read_text().replace("lr = ", "lr = 1"))
    with refused("other-run"):  # the folder already contains the first run
        server_app.serve(deployed.grid(), path)
    assert problems(capsys, *deployed.logs()) == set()
    assert deployed.records("server")[-1]["outcome"] == "failed"
    assert deployed.records("a")[-1]["event"] == "closed"


@pytest.mark.long
@pytest.mark.parametrize("algorithm", long_except(["ScaffPD"], ["FedAvg", "DRFA", "ScaffPD", "DRDM"]))
def test_logs_do_not_change_results(tmp_path, capsys, algorithm):
    logged, plain = Deployed(tmp_path / "a", algorithm=algorithm), Deployed(tmp_path / "b", algorithm=algorithm)
    path = plain.settings()
    path.write_text(path.read_text().replace('audit = "audit.jsonl"', ""))
    for name in NAMES:
        plain.sites[name] = plain.sites[name].__class__(name, plain.sites[name].data)
    one, two = server_app.serve(logged.grid(), logged.settings()), server_app.serve(plain.grid(), path)
    for file in ("model.safetensors", "lambda.csv", "clients.csv", "history.csv", "replies.csv"):
        assert (one / file).read_bytes() == (two / file).read_bytes()
    assert {path.name for path in one.iterdir()} == {path.name for path in two.iterdir()}
    assert problems(capsys, *logged.logs()) == set()


def test_site_refuses_a_request_with_an_unsigned_head(tmp_path, caplog):
    deployed = Deployed(tmp_path / "fl")
    make_key(tmp_path / "other")
    other = read_signing_key(tmp_path / "other")
    deployed.sites["b"] = deployed.sites["b"].__class__(
        "b", deployed.sites["b"].data, audit=deployed.sites["b"].audit, server_key=other.public
    )
    with refused("sites-missing"):
        server_app.serve(deployed.grid(), deployed.settings())
    assert not deployed.log("b").exists()  # the site has not even identified itself


def test_server_rejects_a_site_with_a_log_signed_by_another_key(tmp_path):
    deployed = Deployed(tmp_path / "fl")
    make_key(tmp_path / "other")
    from drfl.core.audit_log import AuditLog

    log = AuditLog(deployed.log("b"), "site", "b", read_signing_key(tmp_path / "other"))
    deployed.sites["b"] = deployed.sites["b"].__class__("b", deployed.sites["b"].data, audit=log)
    with refused("bad-signature", "key") as caught:
        server_app.serve(deployed.grid(), deployed.settings())
    assert caught.value.code == "bad-signature"


def test_two_histories_of_a_server_are_detected_from_site_logs(deployed, capsys):
    records = deployed.records("a")
    place = positions(records, "asked")[1]
    head = Head.parse(records[place]["server"])
    records[place]["server"] = str(head._replace(digest="f" * 64))
    changed = [r | {"server": str(head._replace(digest="f" * 64))} if r["event"] == "asked" else r for r in records]
    deployed.rewrite("a", changed)
    other = deployed.records("b")
    first = positions(other, "asked")[0]
    other[first]["server"] = str(head)
    deployed.rewrite("b", other)
    assert "two-histories" in problems(capsys, *deployed.logs()[1:])


def test_documented_manipulations_are_not_detected(secure, capsys):
    """No other log proves these manipulations, which docs/audit.md lists."""
    # If the server hides that it used a reply, no site's log proves it.
    whole = read(secure.log("server"))
    assert all("used" not in str(record.get("server")) for record in secure.records("a"))
    # A server was killed before any message contained its last lines, which are then removed.
    last = max(Head.parse(r["server"]).n for n in NAMES for r in secure.records(n) if r.get("server"))
    assert last == len(whole.records) - 4  # the closing line; only the sites' heads and the end follow


def test_init_creates_keys_for_server_and_sites(copy):
    server = read_server(copy / "server.toml")
    trusted = TrustedKeys.of(copy)
    assert (trusted.secure, sorted(trusted.current)) == (True, ["a", "b", SERVER])
    assert read_signing_key(copy / server.key).public == trusted.current[SERVER]
    assert (copy / server.key).stat().st_mode & 0o077 == 0
    for name in ("a", "b"):
        folder = copy / "sites" / name
        site = read_site(folder / "site.toml")
        assert read_signing_key(folder / site.key).public == trusted.current[name]
        assert read_public_key(folder / site.server_key) == trusted.current[SERVER]


def test_make_keys_adds_missing_keys_and_never_overwrites(copy):
    private, public = copy / "certificates" / "audit.key", copy / "certificates" / "audit.pub"
    before = private.read_bytes(), read_public_key(public)
    public.unlink()
    subprocess.run(["sh", "make-keys.sh"], cwd=copy, check=True, capture_output=True)
    assert (private.read_bytes(), read_public_key(public)) == before
    private.unlink()
    assert subprocess.run(["sh", "make-keys.sh"], cwd=copy, capture_output=True).returncode == 1
    assert not private.exists()
