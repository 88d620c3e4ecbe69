"""Test sites that join and leave a deployment."""

from __future__ import annotations

import os
import stat
import subprocess
import tomllib

import pytest
from tests.support.marks import long_except
from tests.support.refusals import check_refusal, quotes, refused

from drfl.cli.app import call
from drfl.core.errors import DrflError
from drfl.flower.deploy import edit_settings, membership
from drfl.flower.deploy.init import DeploymentPlan, compose_service, write
from drfl.flower.deploy.paths import DeploymentFolder
from drfl.flower.settings import read_server


def contents(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def listed(root):
    return [site.name for site in read_server(root / "server.toml").sites]


def make_keys(root):
    return subprocess.run(["sh", root / "make-keys.sh"], capture_output=True, text=True)


def test_new_site_gets_folder_keys_registration_and_table(superlink, trio, capsys):
    before = (trio / "server.toml").read_text()
    assert call(["deploy", "add-site", str(trio), "d", "--rows", "300", "--classes", "2"]) == 0
    assert superlink[0] == [["supernode", "register", str(trio / "keys/d.pub")]]
    assert (trio / "keys/d.node").read_text() == "99\n"
    text = (trio / "server.toml").read_text()
    assert text.startswith(before)
    added = tomllib.loads(text)["sites"][-1]
    assert added == {"name": "d", "public_key": "keys/d.pub", "rows": 300, "classes": 2}
    folder = trio / "sites/d"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    others = {path.name for path in (trio / "sites/a").iterdir()}
    assert {path.name for path in folder.iterdir()} == others
    assert {(trio / f"sites/{name}/ca.crt").read_bytes() for name in "ad"} == {
        (trio / "certificates/ca.crt").read_bytes()
    }
    ports = [(trio / f"sites/{name}/superlink.env").read_text().split("PORT=")[1] for name in "abcd"]
    assert len(set(ports)) == 4
    assert compose_service("d", 18000) in (trio / "compose.yaml").read_text()
    assert str(folder) in capsys.readouterr().out
    assert make_keys(trio).stdout.splitlines() == ["all keys and certificates are in place"]


@pytest.mark.long
def test_add_site_can_be_repeated_after_an_interruption(superlink, trio):
    folder = DeploymentFolder(trio)
    assert call(["deploy", "add-site", str(trio), "d"]) == 0
    before = contents(trio)
    assert call(["deploy", "add-site", str(trio), "d"]) == 0
    assert contents(trio) == before
    assert len(superlink[0]) == 1
    (trio / "keys/d.node").unlink()
    assert membership.add_site(folder, "d").node == "99"
    text = edit_settings.remove_site((trio / "server.toml").read_text(), "d")
    (trio / "server.toml").write_text(text)
    assert membership.add_site(folder, "d").settings is not None
    assert listed(trio) == [*"abcd"]
    assert len(superlink[0]) == 2


@pytest.mark.parametrize("step", long_except(["register"], ["make-keys", "register", "settings"]))
def test_failed_step_leaves_everything_unchanged(superlink, trio, monkeypatch, step):
    def fails(*_):
        raise DrflError("no", code="command-failed")

    if step == "make-keys":
        (trio / "certificates/ca.key").rename(trio / "elsewhere")
        (trio / "certificates/superlink.crt").rename(trio / "certificates/old")
    elif step == "settings":
        monkeypatch.setattr(edit_settings, "replace", fails)
    else:
        superlink[1].append("register")
    before = contents(trio)
    with refused("error" if step == "register" else "command-failed", kind=DrflError):
        membership.add_site(DeploymentFolder(trio), "d")
    assert contents(trio) == before
    assert not (trio / "sites/d").exists()
    asked = {"make-keys": [], "register": ["register"], "settings": ["register", "unregister"]}
    assert [arguments[1] for arguments in superlink[0]] == asked[step]


def test_site_can_make_its_own_key(superlink, trio, new_key, tmp_path):
    folder = DeploymentFolder(trio)
    added = membership.add_site(folder, "d", new_key)
    assert (trio / "keys/d.pub").read_text() == new_key.read_text()
    assert not (added.folder / "key").exists()
    assert (added.folder / "superlink.pub").exists()
    membership.add_site(folder, "d", new_key)
    with refused("conflicting-options", "--key", "keys/d.pub"):
        membership.add_site(folder, "d", trio / "keys/a.pub")
    membership.remove_site(folder, "d")
    with refused("revoked-key", "--key"):
        membership.add_site(folder, "d", new_key)


@pytest.mark.parametrize(
    ("name", "error"), [("../d", ("invalid-name", "sites", "'../d'")), ("A", ("duplicate-name", "sites"))]
)
def test_invalid_names_are_refused(superlink, trio, name, error):
    before = contents(trio)
    with refused(*error):
        membership.add_site(DeploymentFolder(trio), name)
    assert contents(trio) == before
    assert superlink[0] == []


def test_sites_cannot_change_during_a_run(superlink, trio):
    superlink[1].append("run")
    before = contents(trio)
    check_refusal(["deploy", "add-site", str(trio), "d"], "run-in-progress", "SITE", "7", "stop")
    check_refusal(["deploy", "remove-site", str(trio), "c"], "run-in-progress", "SITE", "7", "revoke")
    assert contents(trio) == before
    assert superlink[0] == []
    assert call(["deploy", "revoke", str(trio), "c"]) == 0  # a stolen key must be revoked even during a run
    superlink[1].clear()
    assert call(["deploy", "remove-site", str(trio), "c"]) == 0
    assert listed(trio) == ["a", "b"]
    assert len(superlink[0]) == 1


def test_removed_site_loses_key_table_and_service(superlink, trio, capsys):
    path = trio / "server.toml"
    before, key = path.read_text(), (trio / "keys/b.pub").read_text()
    path.chmod(0o640)
    assert call(["deploy", "remove-site", str(trio), "b"]) == 0
    assert superlink[0] == [["supernode", "unregister", "12"]]
    assert path.read_text() == before.replace('\n[[sites]]\nname = "b"\npublic_key = "keys/b.pub"\n', "", 1)
    assert path.stat().st_mode & 0o777 == 0o640
    (kept,), (old,) = (trio / "keys/revoked").iterdir(), trio.glob("server.toml.*")
    assert (kept.read_text(), old.read_text()) == (key, before)
    said = capsys.readouterr().out
    assert str(kept) in said
    assert str(old) in said
    assert "./sites/b:" not in (trio / "compose.yaml").read_text()
    after = contents(trio)
    assert call(["deploy", "remove-site", str(trio), "b"]) == 0
    assert contents(trio) == after
    assert len(superlink[0]) == 1
    with refused("unknown-name", "site"):
        membership.remove_site(DeploymentFolder(trio), "z")


def test_removed_site_returns_with_a_new_key(superlink, trio):
    folder, compose = DeploymentFolder(trio), (trio / "compose.yaml").read_text()
    lost = (trio / "keys/c.pub").read_text().split()[1]
    data = (trio / "sites/c/site.toml").read_text().replace("data.npz", "mine.npz")
    (trio / "sites/c/site.toml").write_text(data)
    membership.remove_site(folder, "c")
    membership.add_site(folder, "c")
    assert listed(trio) == [*"abc"]
    assert (trio / "keys/c.pub").read_text().split()[1] != lost
    assert (trio / "sites/c/key.pub").read_text() == (trio / "keys/c.pub").read_text()
    assert (trio / "sites/c/site.toml").read_text() == data
    assert (trio / "compose.yaml").read_text() == compose


def test_at_least_two_sites_must_remain(superlink, trio):
    folder = DeploymentFolder(trio)
    membership.remove_site(folder, "c")
    before = contents(trio)
    with refused("too-few-sites", "SITE", "rotate"):
        membership.remove_site(folder, "b")
    assert contents(trio) == before


def test_interrupted_removal_ends_with_the_next_call(superlink, trio, monkeypatch):
    folder = DeploymentFolder(trio)
    with monkeypatch.context() as patched:
        patched.setattr(edit_settings, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            membership.remove_site(folder, "b")
    assert listed(trio) == [*"abc"]
    assert membership.remove_site(folder, "b").settings is not None
    assert listed(trio) == ["a", "c"]
    assert len(superlink[0]) == 1
    assert len(list((trio / "keys/revoked").iterdir())) == 1


def test_settings_that_no_longer_fit_the_sites_are_reported(superlink, trio):
    path, folder = trio / "server.toml", DeploymentFolder(trio)
    path.write_text(path.read_text().replace('"keys/a.pub"', '"keys/a.pub"\nmax_share = 0.5'))
    (trio / "runs/20261127T090000.000000").mkdir(parents=True)
    assert {notice.code for notice in membership.remove_site(folder, "b").notices} == {
        "shares-change",
        "run-with-other-sites",
    }
    path.write_text(
        path.read_text().replace("# min_replies = 2 ", "min_replies = 2 #").replace("max_share = 0.5\n", "")
    )
    assert [notice.code for notice in membership.add_site(folder, "d").notices] == ["run-with-other-sites"]
    path.write_text(path.read_text().replace("min_replies = 2 ", "min_replies = 3 "))
    codes = [notice.code for notice in membership.remove_site(folder, "d").notices]
    assert codes == ["invalid-settings", "run-with-other-sites"]


@pytest.mark.parametrize(
    ("superlink_port", "others", "port"), [(9095, (9094, 65535), 9096), (9097, (9095, 9096), 9094)]
)
def test_new_site_gets_the_smallest_unused_port(tmp_path, monkeypatch, superlink_port, others, port):
    monkeypatch.setattr(membership, "run_in_progress", lambda _: None)
    root = tmp_path / "fl"
    write(DeploymentPlan(("a", "b"), port=superlink_port, insecure=True), root)
    for name, other in zip("ab", others, strict=True):
        path = root / f"sites/{name}/superlink.env"
        path.write_text("".join(f"{line}\n" for line in path.read_text().split()[:-1]) + f'PORT="{other}"\n')
    added = membership.add_site(DeploymentFolder(root), "c")
    assert (added.folder / "superlink.env").read_text().split()[-1] == f"PORT={port}"
    (root / "sites/a/superlink.env").write_text("".join(f"PORT={port}\n" for port in range(9094, 65536)))
    before = contents(root)
    with refused("out-of-range", "SITE", "65535"):
        membership.add_site(DeploymentFolder(root), "d")
    assert contents(root) == before
    assert not (root / "sites/d").exists()


def test_run_outside_the_folder_with_other_sites_is_reported(superlink, trio, tmp_path):
    path = trio / "server.toml"
    path.write_text(path.read_text().replace('"runs/DATE"', f'"{tmp_path}/results"'))
    (tmp_path / "results").mkdir()
    (notice,) = membership.remove_site(DeploymentFolder(trio), "b").notices
    assert (notice.code, quotes(notice, f"{tmp_path}/results")) == ("run-with-other-sites", True)


def test_invalid_or_uneditable_settings_leave_everything_unchanged(superlink, trio):
    path, folder = trio / "server.toml", DeploymentFolder(trio)
    with refused("invalid-value", "sites.3.rows"):
        membership.add_site(folder, "d", limits={"rows": 0})
    sites = ", ".join(f'{{name = "{name}", public_key = "keys/{name}.pub"}}' for name in "abc")
    path.write_text(f"sites = [{sites}]\ninsecure = false\n[job]\nrounds = 1\n")
    before = contents(trio)
    for change in (lambda: membership.add_site(folder, "d"), lambda: membership.remove_site(folder, "b")):
        with refused("cannot-edit", "server.toml"):
            change()
    assert superlink[0] == []
    assert contents(trio) == before


def test_settings_may_begin_with_a_byte_order_mark(superlink, trio):
    path, folder = trio / "server.toml", DeploymentFolder(trio)
    path.write_text(path.read_text(), encoding="utf-8-sig")
    membership.add_site(folder, "d")
    assert listed(trio) == ["a", "b", "c", "d"]
    path.write_text(path.read_text(), encoding="utf-8-sig")
    membership.remove_site(folder, "d")
    assert listed(trio) == ["a", "b", "c"]
    assert make_keys(trio).returncode == 0


@pytest.mark.long
def test_scripts_read_the_sites_from_server_toml(superlink, trio):
    path = trio / "server.toml"
    path.write_text(path.read_text() + '\n[[sites]]\nname = "e"\npublic_key = "keys/e.pub"\n')
    assert "sites/e/key: made" in make_keys(trio).stdout
    assert call(["deploy", "add-site", str(trio), "e"]) == 0
    assert (trio / "sites/e/start-supernode.sh").stat().st_mode & 0o111
    path.write_text(path.read_text().replace('name = "e"', 'name = "e f"'))
    for script in ("make-keys.sh", "register-sites.sh"):
        environment = {**os.environ, "PATH": f"{trio}:{os.environ['PATH']}"}
        done = subprocess.run(["sh", trio / script], capture_output=True, text=True, env=environment)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert "'e f'" in done.stderr
    path.write_text("sites = 3")
    done = make_keys(trio)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


def test_insecure_deployment_has_sites_without_keys(tmp_path, monkeypatch):
    monkeypatch.setattr(membership, "run_in_progress", lambda _: None)
    root = tmp_path / "fl"
    write(DeploymentPlan(("a", "b"), port=18000, insecure=True), root)
    assert call(["deploy", "add-site", str(root), "c"]) == 0
    assert listed(root) == [*"abc"]
    assert {path.name for path in (root / "sites/c").iterdir()} == {path.name for path in (root / "sites/a").iterdir()}
    check_refusal(["deploy", "add-site", str(root), "d", "--key", "x"], "insecure-deployment", "--key")
    check_refusal(["deploy", "revoke", str(root), "a"], "insecure-deployment")
    assert call(["deploy", "remove-site", str(root), "a"]) == 0
    assert listed(root) == ["b", "c"]
