"""Test revoked and new keys of sites."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest
from tests.support.refusals import check_refusal, refused

from drfl.cli.app import call
from drfl.core.errors import DrflError
from drfl.flower.deploy import check_network, keys
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
    flwr.write_text(
        f'#!/bin/sh\necho "$@" >>"{tmp_path}/asked"\necho \'{{"success": true, "node-id": "77", "nodes": ["13"]}}\'\n'
    )
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
    assert {path: path.read_text() for path in (trio / "keys").iterdir()} == before
    if failing == "unregister":
        assert superlink[0][-1] == ["supernode", "unregister", "99"]  # so that the command can be repeated


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
