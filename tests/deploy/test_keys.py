"""Keys of sites that may not take part any more, and new ones."""

from __future__ import annotations

import subprocess

import pytest

from drfl.cli.app import call
from drfl.deploy import keys
from drfl.deploy.init import DeploymentPlan, write
from drfl.errors import DrflError


@pytest.fixture
def superlink(copy, monkeypatch):
    """Sites a and b are registered as 11 and 12; gives what was asked of the SuperLink, which a test may have fail."""
    for name, node in (("a", "11"), ("b", "12")):
        (copy / f"keys/{name}.node").write_text(f"{node}\n")
    asked: list[list[str]] = []
    failing: list[str] = []

    def ask(home, arguments):
        assert home == copy / "flwr"
        asked.append(list(arguments))
        if arguments[1] in failing:
            raise DrflError("[code: 23] Public key already in use.")
        return {"success": True, "node-id": "99"}

    monkeypatch.setattr(keys, "ask", ask)
    return asked, failing


@pytest.fixture
def new_key(tmp_path):
    path = tmp_path / "new"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(path)], check=True)
    return path.with_suffix(".pub")


def files(copy):
    return sorted(path.name for path in (copy / "keys").iterdir() if path.is_file())


def test_a_revoked_key_is_refused_and_kept_where_it_is_not_registered_again(superlink, copy, capsys):
    before = (copy / "keys/b.pub").read_text()
    assert call(["deploy", "revoke", str(copy), "b"]) == 0
    assert superlink[0] == [["supernode", "unregister", "12"]]
    assert files(copy) == ["a.node", "a.pub"]
    (kept,) = (copy / "keys/revoked").iterdir()
    assert kept.read_text() == before
    assert str(kept) in capsys.readouterr().out
    assert call(["deploy", "revoke", str(copy), "b"]) == 2
    assert "b is not registered" in capsys.readouterr().err


def test_a_new_key_is_registered_before_the_old_one_is_revoked(superlink, copy, new_key, capsys):
    assert call(["deploy", "rotate", str(copy), "b", "--key", str(new_key)]) == 0
    assert superlink[0] == [["supernode", "register", str(new_key)], ["supernode", "unregister", "12"]]
    assert (copy / "keys/b.pub").read_text() == new_key.read_text()
    assert (copy / "keys/b.node").read_text() == "99\n"
    assert len(list((copy / "keys/revoked").iterdir())) == 1
    assert "as 99" in capsys.readouterr().out


def test_a_site_that_was_revoked_comes_back_with_a_new_key(superlink, copy, new_key):
    assert call(["deploy", "revoke", str(copy), "b"]) == 0
    assert call(["deploy", "rotate", str(copy), "b", "--key", str(new_key)]) == 0
    assert [arguments[1] for arguments in superlink[0]] == ["unregister", "register"]
    assert files(copy) == ["a.node", "a.pub", "b.node", "b.pub"]


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
        (["revoke", "z"], "unknown site 'z': known are a, b"),
        (["rotate", "a", "--key", "/dev/null"], "/dev/null is a device"),
        (["rotate", "a", "--key", "/no/key"], "there is no file /no/key"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line_and_nothing_is_asked(superlink, copy, arguments, said, capsys):
    verb, *rest = arguments
    assert call(["deploy", verb, str(copy), *rest]) == 2
    assert said in capsys.readouterr().err
    assert superlink[0] == []


def test_an_insecure_deployment_has_no_keys(tmp_path, capsys):
    write(DeploymentPlan(("a", "b"), port=18000, insecure=True), tmp_path / "fl", keys=False)
    assert call(["deploy", "revoke", str(tmp_path / "fl"), "a"]) == 2
    assert "its sites have no keys" in capsys.readouterr().err
