"""Keys of sites that may not take part any more, and new ones."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest
from tests.support.refusals import check_refusal, refused

from drfl.cli.app import call
from drfl.core.errors import DrflError
from drfl.flower.deploy import check_network, flower_cli, keys
from drfl.flower.deploy.init import DeploymentPlan, write
from drfl.flower.deploy.paths import DeploymentFolder
from drfl.flower.settings import read_server


@pytest.fixture(scope="session")
def three(tmp_path_factory):
    """A folder for sites a, b and c; tests that change it take a copy."""
    root = tmp_path_factory.mktemp("keys") / "fl"
    write(DeploymentPlan(("a", "b", "c"), port=18000), root, keys=True)
    return root


@pytest.fixture
def copy(three, tmp_path):
    return shutil.copytree(three, tmp_path / "copy")


@pytest.fixture
def superlink(copy, monkeypatch):
    """Sites a, b and c are registered as 11 to 13; gives what was asked of the SuperLink, and what it fails at."""
    for name, node in (("a", "11"), ("b", "12"), ("c", "13")):
        (copy / f"keys/{name}.node").write_text(f"{node}\n")
    asked: list[list[str]] = []
    failing: list[str] = []

    def ask(home, arguments):
        assert home == copy / "flwr"
        asked.append(list(arguments))
        if arguments[1] in failing:
            raise DrflError("[code: 23] Public key already in use.")
        gone = [one[2] for one in asked[:-1] if one[1] == "unregister"] if "gone" in failing else []
        nodes = [{"node-id": n, "status": "unregistered" if n in gone else "online"} for n in ("11", "12", "13")]
        return {"success": True, "node-id": "99", "nodes": nodes}

    monkeypatch.setattr(keys, "run_flwr", ask)
    monkeypatch.setattr(flower_cli, "run_flwr", ask)
    return asked, failing


@pytest.fixture
def new_key(tmp_path):
    path = tmp_path / "new"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(path)], check=True)
    return path.with_suffix(".pub")


def files(copy):
    return sorted(path.name for path in (copy / "keys").iterdir() if path.is_file())


def make_keys(copy, *arguments):
    return subprocess.run(["sh", copy / "make-keys.sh", *arguments], capture_output=True, text=True)


def material(path):
    return path.read_text().split()[1]


def test_a_revoked_key_is_refused_and_kept_and_its_site_leaves_server_toml(superlink, copy, capsys):
    path = copy / "server.toml"
    before, key = path.read_text(), (copy / "keys/b.pub").read_text()
    path.chmod(0o640)
    assert call(["deploy", "revoke", str(copy), "b"]) == 0
    assert superlink[0] == [["supernode", "unregister", "12"]]
    assert files(copy) == ["a.node", "a.pub", "c.node", "c.pub"]
    (kept,) = (copy / "keys/revoked").iterdir()
    assert kept.read_text() == key
    assert path.read_text() == before.replace('\n[[sites]]\nname = "b"\npublic_key = "keys/b.pub"\n', "", 1)
    assert path.stat().st_mode & 0o777 == 0o640
    (old,) = copy.glob("server.toml.*")
    assert old.read_text() == before
    said = capsys.readouterr().out
    assert str(kept) in said
    assert str(old) in said
    assert [site.name for site in read_server(path).sites] == ["a", "c"]
    folder = DeploymentFolder(copy)
    with refused("revoked-site", "SITE"):
        keys.revoke(folder, "b")
    with refused("unknown-name", "site"):
        keys.revoke(folder, "../b*")


def test_with_key_only_the_site_stays_and_comes_back_with_a_new_key(superlink, copy, new_key):
    before = (copy / "server.toml").read_text()
    assert call(["deploy", "revoke", str(copy), "b", "--key-only"]) == 0
    assert (copy / "server.toml").read_text() == before
    with refused("revoked-key", "--key"):
        keys.rotate(DeploymentFolder(copy), "b", next((copy / "keys/revoked").iterdir()))
    assert call(["deploy", "rotate", str(copy), "b", "--key", str(new_key)]) == 0
    assert [arguments[1] for arguments in superlink[0]] == ["unregister", "register"]
    assert files(copy) == ["a.node", "a.pub", "b.node", "b.pub", "c.node", "c.pub"]


def test_two_sites_must_remain_but_a_key_alone_can_always_be_revoked(superlink, copy):
    folder = DeploymentFolder(copy)
    keys.revoke(folder, "c")
    before = (copy / "server.toml").read_text()
    with refused("too-few-sites", "SITE"):
        keys.revoke(folder, "b")
    assert (copy / "server.toml").read_text() == before
    assert len(superlink[0]) == 1
    assert keys.revoke(folder, "b", key_only=True).settings is None
    assert files(copy) == ["a.node", "a.pub"]


@pytest.mark.parametrize("failing", ["unregister", "gone"])
def test_a_revocation_that_was_cut_off_can_be_repeated_but_a_refusal_changes_nothing(superlink, copy, failing):
    folder = DeploymentFolder(copy)
    if failing == "gone":
        keys.run_flwr(folder.home, ["supernode", "unregister", "12"])  # and then the machine lost power
    superlink[1].extend({"unregister", failing})
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    if failing == "unregister":
        with refused("error", None, "code: 23", kind=DrflError):
            keys.revoke(folder, "b")
        assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
        return
    keys.revoke(folder, "b")
    assert files(copy) == ["a.node", "a.pub", "c.node", "c.pub"]
    assert [site.name for site in folder.sites()] == ["a", "c"]


def test_a_revocation_that_was_cut_off_before_the_settings_were_written_ends_with_the_next_call(superlink, copy):
    folder = DeploymentFolder(copy)
    with refused("not-registered", "SITE"):
        (copy / "keys/c.node").unlink()
        keys.revoke(folder, "c")
    keys.revoke(folder, "b", key_only=True)
    assert keys.revoke(folder, "b").settings is not None
    assert [site.name for site in folder.sites()] == ["a", "c"]
    assert len(superlink[0]) == 1
    assert len(list((copy / "keys/revoked").iterdir())) == 1


def test_what_no_longer_fits_the_sites_that_are_left_is_told(superlink, copy):
    path, folder = copy / "server.toml", DeploymentFolder(copy)
    path.write_text(path.read_text().replace('"keys/a.pub"', '"keys/a.pub"\nmax_share = 0.5'))
    (copy / "run").mkdir()
    assert [notice.code for notice in keys.revoke(folder, "b", key_only=True).notices] == []
    assert {notice.code for notice in keys.revoke(folder, "b").notices} == {"shares-grow", "run-with-other-sites"}


def test_a_number_of_replies_that_cannot_come_any_more_is_told(superlink, copy):
    path = copy / "server.toml"
    path.write_text(path.read_text().replace("# min_replies = 2 ", "min_replies = 3 #"))
    (notice,) = keys.revoke(DeploymentFolder(copy), "b").notices
    assert (notice.code, notice.field) == ("invalid-settings", "server.toml")


def test_settings_that_cannot_be_edited_leave_all_as_it_was(superlink, copy):
    path = copy / "server.toml"
    sites = ", ".join(f'{{name = "{name}", public_key = "keys/{name}.pub"}}' for name in "abc")
    path.write_text(f"sites = [{sites}]\ninsecure = false\n[job]\nrounds = 1\n")
    read_server(path)
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    with refused("cannot-edit", "server.toml"):
        keys.revoke(DeploymentFolder(copy), "b")
    assert superlink[0] == []
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_make_keys_does_not_bring_a_revoked_key_back(superlink, copy):
    lost = material(copy / "keys/b.pub")
    keys.revoke(DeploymentFolder(copy), "b")
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    for _ in range(2):
        done = make_keys(copy)
        assert (done.returncode, done.stderr) == (0, "")
        assert "--renew b" in done.stdout
        assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
    done = make_keys(copy, "--renew", "b")
    assert (done.returncode, done.stderr) == (0, "")
    new = copy / "keys/b.pub"
    assert material(new) != lost
    assert material(copy / "sites/b/key.pub") == material(new)
    assert (copy / "sites/b/key").stat().st_mode & 0o777 == 0o600
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    assert make_keys(copy).stdout.splitlines() == ["all keys and certificates are in place"]
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
    assert not list(copy.glob(".keys*"))


def test_make_keys_knows_a_revoked_key_by_itself_and_not_by_its_file(superlink, copy):
    folder = DeploymentFolder(copy)
    keys.revoke(folder, "b")
    (old,) = (copy / "keys/revoked").iterdir()
    kind, key, *_ = old.read_text().split()
    (copy / "keys/c.pub").write_text(f"{kind}\t{key}   somebody@else\n")  # c sends b's key as its own
    done = make_keys(copy)
    assert done.returncode == 1
    assert "keys/c.pub" in done.stderr
    (found,) = (finding for finding in check_network.check_keys(folder, folder.sites()) if not finding.ok)
    assert found.subject == "c"
    assert str(old) in found.text
    (copy / "keys/c.pub").unlink()
    shutil.copy(copy / "sites/b/key", copy / "sites/c/key")  # or takes its private key
    done = make_keys(copy)
    assert done.returncode == 1
    assert "sites/c/key" in done.stderr
    assert not (copy / "keys/c.pub").exists()


def test_a_key_whose_file_was_missing_when_it_was_revoked_does_not_come_back_either(superlink, copy):
    lost = material(copy / "keys/b.pub")
    (copy / "keys/b.pub").unlink()
    keys.revoke(DeploymentFolder(copy), "b")
    assert make_keys(copy).returncode == 0
    assert not (copy / "keys/b.pub").exists()
    assert make_keys(copy, "--renew", "b").returncode == 0
    assert material(copy / "keys/b.pub") != lost


def test_a_site_with_a_longer_name_is_another_one(tmp_path):
    write(DeploymentPlan(("b", "b-20260101T000000", "c"), port=18000), tmp_path / "fl", keys=True)
    revoked = tmp_path / "fl/keys/revoked"
    revoked.mkdir()
    (tmp_path / "fl/keys/b-20260101T000000.pub").rename(revoked / "b-20260101T000000-20261126T101112.123456.pub")
    (tmp_path / "fl/keys/b.pub").unlink()
    assert make_keys(tmp_path / "fl").returncode == 0
    assert (tmp_path / "fl/keys/b.pub").exists()
    assert not (tmp_path / "fl/keys/b-20260101T000000.pub").exists()


@pytest.mark.parametrize("arguments", [["--renew"], ["--renew", "z"], ["--renew", "a"], ["--new", "a"], ["a"]])
def test_make_keys_renews_only_a_site_that_was_revoked(copy, arguments):
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    done = make_keys(copy, *arguments)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_register_sites_does_not_register_a_revoked_key(superlink, copy, tmp_path):
    keys.revoke(DeploymentFolder(copy), "b")
    (copy / "keys/a.node").unlink()
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
        done = subprocess.run(["sh", copy / "register-sites.sh"], env=environment, capture_output=True, text=True)
        return done, [line.split()[2] for line in (tmp_path / "asked").read_text().splitlines()[1:]]

    done, registered = register()
    assert (done.returncode, done.stderr, registered) == (0, "", ["keys/a.pub"])
    shutil.copy(next((copy / "keys/revoked").iterdir()), copy / "keys/b.pub")
    done, registered = register()
    assert (done.returncode, registered) == (1, [])  # a is registered already
    assert re.search(r"keys/b\.pub .*\brevoked\b", done.stderr)


def test_a_new_key_is_registered_before_the_old_one_is_revoked(superlink, copy, new_key, capsys):
    assert call(["deploy", "rotate", str(copy), "b", "--key", str(new_key)]) == 0
    assert superlink[0] == [["supernode", "register", str(new_key)], ["supernode", "unregister", "12"]]
    assert (copy / "keys/b.pub").read_text() == new_key.read_text()
    assert (copy / "keys/b.node").read_text() == "99\n"
    assert len(list((copy / "keys/revoked").iterdir())) == 1
    assert "as 99" in capsys.readouterr().out


@pytest.mark.parametrize("failing", ["register", "unregister"])
def test_what_the_superlink_does_not_do_leaves_the_keys_as_they_were(superlink, copy, new_key, failing, capsys):
    superlink[1].append(failing)
    before = {path: path.read_text() for path in (copy / "keys").iterdir()}
    assert call(["deploy", "rotate", str(copy), "b", "--key", str(new_key)]) == 1
    assert capsys.readouterr().err == "drfl: [code: 23] Public key already in use.\n"
    assert {path: path.read_text() for path in (copy / "keys").iterdir()} == before
    if failing == "unregister":
        assert superlink[0][-1] == ["supernode", "unregister", "99"]  # so that it can be tried again


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["revoke", "z"], "unknown site 'z'"),
        (["rotate", "a", "--key", "/dev/null"], "/dev/null is a device"),
        (["rotate", "a", "--key", "/no/key"], "/no/key"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line_and_nothing_is_asked(superlink, copy, arguments, said, capsys):
    verb, *rest = arguments
    assert call(["deploy", verb, str(copy), *rest]) == 2
    assert said in capsys.readouterr().err
    assert superlink[0] == []


def test_an_insecure_deployment_has_no_keys(tmp_path):
    write(DeploymentPlan(("a", "b"), port=18000, insecure=True), tmp_path / "fl", keys=False)
    check_refusal(["deploy", "revoke", str(tmp_path / "fl"), "a"], "insecure-deployment")
