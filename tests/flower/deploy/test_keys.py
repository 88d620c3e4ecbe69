"""Test revoked and new keys of sites."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.refusals import check_refusal, refused

from drfl.cli.app import call
from drfl.core.audit_signatures import read_public_key
from drfl.core.errors import DrflError
from drfl.flower.deploy import check_network, flower_cli, keys, membership
from drfl.flower.deploy.init import DeploymentPlan, write
from drfl.flower.deploy.paths import DeploymentFolder


def files(trio):
    return sorted(path.name for path in (trio / "keys").iterdir() if path.is_file())


def make_keys(trio, *arguments):
    return subprocess.run(["sh", trio / "make-keys.sh", *arguments], capture_output=True, text=True)


def material(path):
    return path.read_text().split()[1]


def test_revoked_key_is_refused_and_its_site_returns_with_a_new_key(superlink, trio, new_key, capsys):
    before, key = (trio / "server.toml").read_text(), (trio / "keys/b.pub").read_text()
    assert call(["deploy", "revoke", str(trio), "b"]) == 0
    assert superlink[0] == [["supernode", "unregister", "12"]]
    assert files(trio) == ["a.node", "a.pub", "c.node", "c.pub"]
    (kept,) = (trio / "keys/revoked").iterdir()
    assert kept.read_text() == key
    assert str(kept) in capsys.readouterr().out
    assert (trio / "server.toml").read_text() == before
    with refused("revoked-key", "--key"):
        keys.rotate(DeploymentFolder(trio), "b", kept)
    assert call(["deploy", "rotate", str(trio), "b", "--key", str(new_key)]) == 0
    assert [arguments[1] for arguments in superlink[0]] == ["unregister", "register"]
    assert files(trio) == ["a.node", "a.pub", "b.node", "b.pub", "c.node", "c.pub"]


def test_unregistered_or_unknown_site_has_no_key_to_revoke(superlink, trio):
    folder = DeploymentFolder(trio)
    (trio / "keys/c.node").unlink()
    with refused("not-registered", "SITE"):
        keys.revoke(folder, "c")
    with refused("unknown-name", "site"):
        keys.revoke(folder, "../b*")
    assert superlink[0] == []


@pytest.mark.parametrize("failing", ["unregister", "gone"])
def test_interrupted_revocation_can_be_repeated_and_refusal_changes_nothing(superlink, trio, failing):
    folder = DeploymentFolder(trio)
    if failing == "gone":
        keys.run_flwr(folder.home, ["supernode", "unregister", "12"])  # after this call the machine loses power
    superlink[1].extend({"unregister", failing})
    before = {path: path.read_bytes() for path in trio.rglob("*") if path.is_file()}
    if failing == "unregister":
        with refused("error", None, "code: 23", kind=DrflError):
            keys.revoke(folder, "b")
        assert {path: path.read_bytes() for path in trio.rglob("*") if path.is_file()} == before
        return
    keys.revoke(folder, "b")
    assert files(trio) == ["a.node", "a.pub", "c.node", "c.pub"]


@pytest.mark.long
def test_make_keys_does_not_restore_a_revoked_key(superlink, trio):
    lost = material(trio / "keys/b.pub")
    keys.revoke(DeploymentFolder(trio), "b")
    before = {path: path.read_bytes() for path in trio.rglob("*") if path.is_file()}
    for _ in range(2):
        done = make_keys(trio)
        assert (done.returncode, done.stderr) == (0, "")
        assert "--renew b" in done.stdout
        assert {path: path.read_bytes() for path in trio.rglob("*") if path.is_file()} == before
    done = make_keys(trio, "--renew", "b")
    assert (done.returncode, done.stderr) == (0, "")
    new = trio / "keys/b.pub"
    assert material(new) != lost
    assert material(trio / "sites/b/key.pub") == material(new)
    assert (trio / "sites/b/key").stat().st_mode & 0o777 == 0o600
    before = {path: path.read_bytes() for path in trio.rglob("*") if path.is_file()}
    assert make_keys(trio).stdout.splitlines() == ["all keys and certificates are in place"]
    assert {path: path.read_bytes() for path in trio.rglob("*") if path.is_file()} == before
    assert not list(trio.glob(".keys*"))


def test_make_keys_recognises_a_revoked_key_by_content(superlink, trio):
    folder = DeploymentFolder(trio)
    keys.revoke(folder, "b")
    (old,) = (trio / "keys/revoked").iterdir()
    kind, key, *_ = old.read_text().split()
    (trio / "keys/c.pub").write_text(f"{kind}\t{key}   somebody@else\n")  # c sends b's key as its own
    done = make_keys(trio)
    assert done.returncode == 1
    assert "keys/c.pub" in done.stderr
    found = {
        finding.subject: finding.text for finding in check_network.check_keys(folder, folder.sites()) if not finding.ok
    }
    assert set(found) == {"b", "c"}
    assert str(old) in found["c"]
    assert "remove-site" in found["b"]
    (trio / "keys/c.pub").unlink()
    shutil.copy(trio / "sites/b/key", trio / "sites/c/key")  # c uses b's private key
    done = make_keys(trio)
    assert done.returncode == 1
    assert "sites/c/key" in done.stderr
    assert not (trio / "keys/c.pub").exists()


@pytest.mark.long
def test_key_revoked_without_its_file_is_not_restored(superlink, trio):
    lost = material(trio / "keys/b.pub")
    (trio / "keys/b.pub").unlink()
    keys.revoke(DeploymentFolder(trio), "b")
    assert make_keys(trio).returncode == 0
    assert not (trio / "keys/b.pub").exists()
    assert make_keys(trio, "--renew", "b").returncode == 0
    assert material(trio / "keys/b.pub") != lost


@pytest.mark.long
def test_site_with_a_longer_name_is_a_different_site(tmp_path):
    write(DeploymentPlan(("b", "b-20260101T000000", "c"), port=18000), tmp_path / "fl", keys=True)
    revoked = tmp_path / "fl/keys/revoked"
    revoked.mkdir()
    (tmp_path / "fl/keys/b-20260101T000000.pub").rename(revoked / "b-20260101T000000-20261126T101112.123456.pub")
    (tmp_path / "fl/keys/b.pub").unlink()
    assert make_keys(tmp_path / "fl").returncode == 0
    assert (tmp_path / "fl/keys/b.pub").exists()
    assert not (tmp_path / "fl/keys/b-20260101T000000.pub").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--renew"],
        pytest.param(["--renew", "z"], marks=pytest.mark.long),
        ["--renew", "a"],
        pytest.param(["--new", "a"], marks=pytest.mark.long),
        ["a"],
        pytest.param(["--add"], marks=pytest.mark.long),
        pytest.param(["--add", "../z"], marks=pytest.mark.long),
    ],
)
def test_make_keys_renews_only_revoked_sites(trio, arguments):
    before = {path: path.read_bytes() for path in trio.rglob("*") if path.is_file()}
    done = make_keys(trio, *arguments)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert {path: path.read_bytes() for path in trio.rglob("*") if path.is_file()} == before


def test_register_sites_skips_revoked_keys(superlink, trio, tmp_path):
    keys.revoke(DeploymentFolder(trio), "b")
    (trio / "keys/a.node").unlink()
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    flwr = bin_folder / "flwr"
    nodes = [{"node-id": "13", "status": "offline"}, {"node-id": "77", "status": "registered"}]
    answer = tmp_path / "answer"
    answer.write_text("Listing {all} nodes...\n" + json.dumps({"success": True, "node-id": "77", "nodes": nodes}))
    flwr.write_text(f'#!/bin/sh\necho "$@" >>"{tmp_path}/asked"\ncat "{answer}"\n')
    flwr.chmod(0o755)

    def register():
        (tmp_path / "asked").write_text("")
        environment = {**os.environ, "DRFL_BIN": str(bin_folder)}
        done = subprocess.run(["sh", trio / "register-sites.sh"], env=environment, capture_output=True, text=True)
        return done, [line.split()[2] for line in (tmp_path / "asked").read_text().splitlines()[1:]]

    done, registered = register()
    assert (done.returncode, done.stderr, registered) == (0, "", ["keys/a.pub"])
    shutil.copy(next((trio / "keys/revoked").iterdir()), trio / "keys/b.pub")
    done, registered = register()
    assert (done.returncode, registered) == (1, [])  # a is registered already
    assert re.search(r"keys/b\.pub .*\brevoked\b", done.stderr)
    (trio / "keys/b.pub").unlink()
    for status in flower_cli.REMOVED_STATUSES:
        nodes[0]["status"] = status
        answer.write_text(json.dumps({"success": True, "node-id": "77", "nodes": nodes}))
        (trio / "keys/c.node").write_text("13\n")
        done, registered = register()
        assert (done.returncode, done.stderr, registered) == (0, "", ["keys/c.pub"])
    for text in ("", "{}", '{"success": false}', '{"success": true}'):
        answer.write_text(text)
        done, registered = register()
        assert (done.returncode, len(done.stderr.splitlines()), registered) == (1, 1, [])


def test_new_key_is_registered_before_the_old_one_is_revoked(superlink, trio, new_key, capsys):
    assert call(["deploy", "rotate", str(trio), "b", "--key", str(new_key)]) == 0
    assert superlink[0] == [["supernode", "register", str(new_key)], ["supernode", "unregister", "12"]]
    assert (trio / "keys/b.pub").read_text() == new_key.read_text()
    assert (trio / "keys/b.node").read_text() == "99\n"
    assert len(list((trio / "keys/revoked").iterdir())) == 1
    assert "as 99" in capsys.readouterr().out


@pytest.mark.parametrize("failing", ["register", "unregister"])
def test_superlink_failure_leaves_the_keys_unchanged(superlink, trio, new_key, failing, capsys):
    superlink[1].append(failing)
    before = {path: path.read_text() for path in (trio / "keys").iterdir()}
    assert call(["deploy", "rotate", str(trio), "b", "--key", str(new_key)]) == 1
    assert capsys.readouterr().err == "drfl: [code: 23] Public key already in use.\n"
    assert {path: path.read_text() for path in (trio / "keys").iterdir() if path.suffix != ".new"} == before
    assert (trio / "keys/b.new").exists() == (failing == "unregister")
    superlink[0].clear()
    superlink[1].clear()
    assert call(["deploy", "rotate", str(trio), "b", "--key", str(new_key)]) == 0
    # The SuperLink accepts a key only once, so the new key must not be registered again.
    assert [arguments[1] for arguments in superlink[0]] == ["register"] * (failing == "register") + ["unregister"]
    assert files(trio) == ["a.node", "a.pub", "b.node", "b.pub", "c.node", "c.pub"]


def test_new_key_in_the_place_of_the_old_one_is_refused(superlink, trio, new_key):
    folder, old = DeploymentFolder(trio), (trio / "keys/b.pub").read_bytes()
    shutil.copy(new_key, trio / "keys/b.pub")
    before = {path: path.read_bytes() for path in trio.rglob("*") if path.is_file()}
    for key in (trio / "keys/b.pub", new_key):
        with refused("conflicting-options", "--key", str(trio / "keys/b.pub"), "sites/b/key.pub"):
            keys.rotate(folder, "b", key)
    assert superlink[0] == []
    assert {path: path.read_bytes() for path in trio.rglob("*") if path.is_file()} == before
    (trio / "keys/b.pub").write_bytes(old)
    keys.rotate(folder, "b", new_key)
    (revoked,) = folder.revoked.iterdir()
    assert revoked.read_bytes() == old


@pytest.mark.parametrize("state", ["revoked", "lost"])
def test_new_key_may_be_in_its_place_if_no_old_one_can_be_lost(superlink, trio, new_key, state):
    folder = DeploymentFolder(trio)
    if state == "revoked":
        keys.revoke(folder, "b")
        key = shutil.copy(new_key, trio / "keys/b.pub")
    else:
        (trio / "keys/b.pub").unlink()
        key = new_key
    keys.rotate(folder, "b", key)
    verbs = [arguments[1] for arguments in superlink[0]]
    assert verbs == (["unregister", "register"] if state == "revoked" else ["register", "unregister"])
    assert (trio / "keys/b.pub").read_bytes() == new_key.read_bytes()
    assert (trio / "keys/b.node").read_text() == "99\n"
    assert len(list(folder.revoked.iterdir())) == 1


class StoredNodes:
    """A stand-in for the SuperLink that keeps its nodes in a file, and accepts a key only once, as Flower does."""

    def __init__(self, folder, monkeypatch):
        self.path = folder.root.parent / "nodes.json"
        self.path.write_text("{}")
        for module in (keys, flower_cli):
            monkeypatch.setattr(module, "run_flwr", self.ask)
        monkeypatch.setattr(membership, "run_in_progress", lambda _: None)
        for site in folder.sites():
            site.node.write_text(self.ask(None, ["supernode", "register", str(site.public_key)])["node-id"])

    def nodes(self):
        return json.loads(self.path.read_text())

    def ask(self, home, arguments):
        verb, nodes = arguments[1], self.nodes()
        if verb == "list":
            listed = [{"node-id": node, "status": status} for node, (_, status) in nodes.items()]
            return {"success": True, "nodes": listed}
        if verb == "register":
            node, key = str(100 + len(nodes)), material(Path(arguments[2]))
            if key in [other for other, _ in nodes.values()]:
                raise DrflError("[code: 23] Public key already in use.")
            nodes[node] = key, "registered"
        else:
            node = arguments[2]
            if nodes.get(node, ("", "unregistered"))[1] == "unregistered":
                raise DrflError("[code: 1] Node not found.")
            nodes[node] = nodes[node][0], "unregistered"
        self.path.write_text(json.dumps(nodes))
        return {"success": True, "node-id": node}

    def accepted(self):
        return {key: node for node, (key, status) in self.nodes().items() if status == "registered"}


def killed(step, command, *arguments):
    """Run a command in a process that is killed after this many steps; return whether it was killed."""
    process = os.fork()
    if process == 0:
        left = step

        def counting(function):
            def counted(*arguments, **options):
                nonlocal left
                result = function(*arguments, **options)
                left -= 1
                if left == 0:
                    os._exit(9)
                return result

            return counted

        for name in ("replace", "rename", "unlink"):
            setattr(os, name, counting(getattr(os, name)))
        for module in (keys, flower_cli):
            module.run_flwr = counting(module.run_flwr)
        try:
            command(*arguments)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert code in (0, 9)
    return code == 9


def check_site(folder, superlink, name, key):
    """Check that exactly this key of a site is accepted, if any, and that all its former keys are revoked."""
    paths = {path.suffix: path for path in folder.keys.glob(f"{name}.*")}
    accepted = superlink.accepted()
    others = {material(folder.keys / f"{other}.pub") for other in "abc" if other != name}
    assert set(accepted) == others | ({key} if key else set())
    assert set(paths) == ({".pub", ".node"} if key else set())
    if key:
        assert material(paths[".pub"]) == key
        assert paths[".node"].read_text().strip() == accepted[key]
    revoked = {material(path) for path in folder.revoked.glob("*.pub")}
    assert {key for key, status in superlink.nodes().values() if status == "unregistered"} <= revoked


@pytest.mark.parametrize(
    "then",
    [
        "rotate",
        *(pytest.param(other, marks=pytest.mark.long) for other in ("rotate to another key", "revoke", "remove-site")),
    ],
)
def test_rotation_that_was_killed_after_any_step_is_completed(three, tmp_path, new_key, monkeypatch, then):
    other = shutil.copy(three / "certificates/audit.pub", tmp_path / "other.pub")
    for step in range(1, 30):
        root = shutil.copytree(three, tmp_path / str(step) / "fl")
        folder = DeploymentFolder(root)
        superlink = StoredNodes(folder, monkeypatch)
        was_killed = killed(step, keys.rotate, folder, "b", new_key)
        if not was_killed:
            check_site(folder, superlink, "b", material(new_key))
        if then == "rotate":
            if (root / "keys/b.new").exists() or not keys._has_key(root / "keys/b.pub", read_public_key(new_key)):
                keys.rotate(folder, "b", new_key)
            check_site(folder, superlink, "b", material(new_key))
        elif then == "rotate to another key":
            keys.rotate(folder, "b", other)
            check_site(folder, superlink, "b", material(other))
        else:
            path = keys.revoke(folder, "b") if then == "revoke" else membership.remove_site(folder, "b").key
            assert path.exists()
            check_site(folder, superlink, "b", None)
        if not was_killed:
            break
    assert step > 8


def test_lost_answer_of_the_superlink_is_no_failure(three, tmp_path, new_key, monkeypatch):
    folder = DeploymentFolder(shutil.copytree(three, tmp_path / "fl"))
    superlink = StoredNodes(folder, monkeypatch)

    def ask(home, arguments):
        answer = superlink.ask(home, arguments)
        if arguments[1] in ("register", "unregister"):
            raise DrflError("the connection was lost")
        return answer

    for module in (keys, flower_cli):
        monkeypatch.setattr(module, "run_flwr", ask)
    keys.rotate(folder, "b", new_key)
    check_site(folder, superlink, "b", material(new_key))


@pytest.mark.parametrize("then", ["add-site", pytest.param("remove-site", marks=pytest.mark.long)])
def test_addition_that_was_killed_after_any_step_is_completed(three, tmp_path, new_key, monkeypatch, then):
    for step in range(1, 30):
        folder = DeploymentFolder(shutil.copytree(three, tmp_path / str(step) / "fl"))
        superlink = StoredNodes(folder, monkeypatch)
        was_killed = killed(step, membership.add_site, folder, "d", new_key)
        if then == "add-site":
            membership.add_site(folder, "d", new_key)
            check_site(folder, superlink, "d", material(new_key))
        elif material(new_key) in superlink.accepted():
            membership.remove_site(folder, "d")
            check_site(folder, superlink, "d", None)
        if not was_killed:
            break
    assert step > 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["revoke", "z"], "unknown site 'z'"),
        (["rotate", "a", "--key", "/dev/null"], "/dev/null is a device"),
        (["rotate", "a", "--key", "/no/key"], "/no/key"),
    ],
)
def test_impossible_requests_are_one_line_errors_without_calls(superlink, trio, arguments, said, capsys):
    verb, *rest = arguments
    assert call(["deploy", verb, str(trio), *rest]) == 2
    assert said in capsys.readouterr().err
    assert superlink[0] == []


def test_insecure_deployment_has_no_keys(tmp_path):
    write(DeploymentPlan(("a", "b"), port=18000, insecure=True), tmp_path / "fl", keys=False)
    check_refusal(["deploy", "revoke", str(tmp_path / "fl"), "a"], "insecure-deployment")
