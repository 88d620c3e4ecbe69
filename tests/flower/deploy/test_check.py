"""Test the findings of `drfl deploy check`."""

from __future__ import annotations

import hashlib
import re
import shutil
import socket
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from cryptography import x509
from tests.flower.deploy.servers import serving
from tests.support.refusals import quotes, refused

from drfl.core.errors import DrflError
from drfl.data.tables.schema import Column, TableSchema
from drfl.flower.deploy import check, check_network, flower_cli
from drfl.flower.deploy.init import DeploymentPlan, write
from drfl.flower.deploy.paths import Address, DeploymentFolder, SiteFolder, find_folder
from drfl.flower.settings import read_server

HTTP = b"HTTP/1.1 404 Not Found\r\n\r\n"


def problems(findings):
    return [f"{f.subject}: {f.text}" for f in findings if not f.ok]


def reach(port, folder, insecure=False, host="localhost"):
    return problems(check_network.check_connection(Address(host, port, insecure), folder / "certificates/ca.crt"))


def test_superlink_is_verified_by_its_authority(with_keys):
    with serving(HTTP, with_keys / "certificates") as port:
        assert reach(port, with_keys) == []


def test_other_authority_is_refused(with_keys, tmp_path):
    write(DeploymentPlan(("a",)), tmp_path / "other", keys=True)
    with serving(HTTP, with_keys / "certificates") as port:
        (found,) = reach(port, tmp_path / "other")
    assert all(part in found for part in (f"localhost:{port}", "certificates/ca.crt"))


def test_certificate_for_another_host_is_refused(with_keys, monkeypatch):
    connect = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda a, timeout: connect(("127.0.0.1", a[1]), timeout))
    with serving(HTTP, with_keys / "certificates") as port:
        (found,) = reach(port, with_keys, host="fl.example.org")
    assert all(part in found for part in ("fl.example.org", "make-keys.sh"))


def test_http_instead_of_tls_and_tls_instead_of_http(with_keys):
    with serving(HTTP) as port:
        assert quotes(reach(port, with_keys)[0], f"HTTP at localhost:{port}", "TLS", "./start-superlink.sh")
        assert reach(port, with_keys, insecure=True) == []
    with serving(HTTP, with_keys / "certificates") as port:
        assert quotes(reach(port, with_keys, insecure=True)[0], f"TLS at localhost:{port}", "HTTP", "--insecure")


def test_other_server_is_not_mistaken_for_a_superlink(with_keys):
    with serving(b"SSH-2.0-x\r\n") as port:
        for insecure in (False, True):
            (found,) = reach(port, with_keys, insecure=insecure)
            assert re.search(rf"localhost:{port} [^;]*\bSuperLink \(", found)
    with serving(b"220 hello\r\n", with_keys / "certificates") as port:
        assert re.search(r"\bHTTP\b.*\bSuperLink;", reach(port, with_keys)[0])


def test_closed_port_is_reported(with_keys, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert quotes(reach(port, with_keys)[0], f"localhost:{port}", "./start-superlink.sh")

    def unknown(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unknown)
    assert quotes(reach(1, with_keys, host="nowhere.example")[0], "nowhere.example", "superlink.env")

    def silent(*_, **__):
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", silent)
    assert quotes(reach(1, with_keys)[0], "localhost:1", "firewall")


def certificate_problems(root, host="localhost"):
    folder = DeploymentFolder(root)
    look = check_network.run_check(
        "certificate", lambda: check_network.check_superlink(folder, Address(host, 1, False))
    )
    return problems(look)


def test_valid_certificates_pass(with_keys):
    assert certificate_problems(with_keys) == []
    assert certificate_problems(with_keys, "127.0.0.1") == []


def test_invalid_certificates_are_reported(copy, tmp_path):
    (found,) = certificate_problems(copy, "fl.example.org")
    assert all(name in found for name in ("fl.example.org", "localhost"))
    place = copy / "certificates"
    place.joinpath("superlink.key").chmod(0o644)
    assert "chmod 600" in certificate_problems(copy)[0]
    shutil.copy(place / "ca.key", place / "superlink.key")
    assert quotes(certificate_problems(copy)[0], "superlink.key", "superlink.crt")
    write(DeploymentPlan(("a",)), tmp_path / "other", keys=True)
    shutil.copy(tmp_path / "other/certificates/ca.crt", place / "ca.crt")
    assert quotes(certificate_problems(copy)[0], "superlink.crt", "ca.crt", "superlink.*")
    (place / "superlink.crt").write_text("nonsense")
    assert str(place / "superlink.crt") in certificate_problems(copy)[0]
    (place / "superlink.crt").unlink()
    assert quotes(certificate_problems(copy)[0], str(place / "superlink.crt"), "./make-keys.sh")
    (place / "ca.crt").write_text("nonsense")
    assert quotes(certificate_problems(copy)[0], str(place / "ca.crt"), "of a site")


@pytest.mark.parametrize(
    ("days", "message"),
    [
        (1, "superlink.crt expired on"),
        (-5, "superlink.crt expires in 5 days"),
        (-1, "superlink.crt expires tomorrow"),
        (-31, None),
        (-900, "only from"),
    ],
)
def test_expiring_certificates_are_reported(with_keys, monkeypatch, days, message):
    text = (with_keys / "certificates/superlink.crt").read_bytes()
    moment = x509.load_pem_x509_certificate(text).not_valid_after_utc + timedelta(days=days)

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return moment.astimezone(tz)

    monkeypatch.setattr(check_network, "datetime", Clock)
    found = [text for text in certificate_problems(with_keys) if "superlink.crt" in text]
    assert [message in text for text in found] == ([] if message is None else [True])


def test_mismatched_keys_are_reported(copy):
    folder = DeploymentFolder(copy)
    assert problems(check_network.check_keys(folder, folder.sites())) == []
    shutil.copy(copy / "keys/a.pub", copy / "keys/b.pub")
    (found,) = problems(check_network.check_keys(folder, folder.sites()))
    assert re.match(r"b: .*\ba\b", found)
    shutil.copy(copy / "sites/b/key.pub", copy / "keys/a.pub")
    found = problems(check_network.check_keys(folder, folder.sites()))
    assert re.match(rf"a: {copy}/sites/a/key .*{copy}/keys/a\.pub;", found[0])
    (copy / "keys/a.pub").unlink()
    assert quotes(problems(check_network.check_keys(folder, folder.sites()))[0], "a.pub", "./make-keys.sh")
    (copy / "keys/a.pub").write_text("ssh-rsa nonsense")
    assert "ECDSA" in problems(check_network.check_keys(folder, folder.sites()))[0]


def nodes(monkeypatch, **states):
    answer = {"nodes": [{"node-id": number.lstrip("n"), "status": state} for number, state in states.items()]}
    monkeypatch.setattr(flower_cli, "run_flwr", lambda home, arguments: answer)


def test_online_sites_are_listed(copy, monkeypatch):
    folder = DeploymentFolder(copy)
    (copy / "keys/a.node").write_text("11\n")
    nodes(monkeypatch, n11="online")
    a, b = check.check_online(folder, folder.sites(), False)
    assert a.ok
    assert "11" in a.text
    assert not b.ok
    assert "run ./register-sites.sh" in b.text
    (copy / "keys/b.node").write_text("12\n")
    nodes(monkeypatch, n11="offline", n12="registered")
    first, second = problems(check.check_online(folder, folder.sites(), False))
    assert "offline" in first
    assert "offline" not in second
    assert all("./start-supernode.sh" in text for text in (first, second))
    nodes(monkeypatch, n13="online")
    assert quotes(problems(check.check_online(folder, folder.sites(), False))[0], "11", "./register-sites.sh")


def test_online_sites_are_listed_without_keys(copy, monkeypatch):
    folder = DeploymentFolder(copy)
    nodes(monkeypatch, n1="online", n2="offline")
    (found,) = check.check_online(folder, folder.sites(), True)
    assert not found.ok
    assert all(part in found.text for part in ("1 of 2", "./start-supernode.sh"))
    nodes(monkeypatch, n1="online", n2="online")
    assert problems(check.check_online(folder, folder.sites(), True)) == []


def test_moved_deployment_is_reported(copy, monkeypatch):
    monkeypatch.setattr(check_network, "check_connection", lambda address, authority: iter(()))

    def fails(home, arguments):
        raise DrflError("no SuperLink")

    monkeypatch.setattr(flower_cli, "run_flwr", fails)
    found = problems(check.check_deployment(find_folder(copy)))
    assert [text.split(":")[0] for text in found] == ["flwr/config.toml", "sites"]
    assert f'root-certificates = "{copy / "certificates/ca.crt"}"' in found[0]
    assert found[1] == "sites: no SuperLink"


def test_broken_superlink_env_is_named(copy):
    (copy / "superlink.env").write_text("ADDRESS=nowhere\n")
    found = problems(check.check_deployment(find_folder(copy)))
    assert [text.partition(":")[0] for text in found] == ["superlink.env"]


def test_broken_server_toml_is_one_problem(copy):
    for text, message in (("x =", "is not valid TOML"), ("", "names no sites"), ("[[sites]]", "needs a name")):
        (copy / "server.toml").write_text(text)
        (found,) = problems(check.check_deployment(find_folder(copy)))
        assert message in found


def test_probe_rows_of_the_server_are_loaded(copy):
    folder, path = DeploymentFolder(copy), copy / "server.toml"
    assert list(check.check_probes(folder, read_server(folder.settings))) == []
    (copy / "rows.csv").write_text("age,sick\n61,1\n47,0\n58,1\n")
    text = path.read_text().replace('public_key = "', 'probe = {csv = "rows.csv", target = "sick"}\npublic_key = "')
    path.write_text(text)
    with refused("invalid-value", None, "job.aggregator"):
        list(check.check_probes(folder, read_server(folder.settings)))
    text = text.replace("\n[job]", '\n[job]\naggregator = "probe"', 1)
    path.write_text(text)
    (found,) = check.check_probes(folder, read_server(folder.settings))
    assert found.ok
    assert "3 of a, 3 of b" in found.text
    path.write_text(text.replace("rows.csv", "none.csv", 1))
    with refused("file-not-found", str(copy / "none.csv"), "none.csv"):
        list(check.check_probes(folder, read_server(folder.settings)))


def test_other_folders_are_not_deployments(tmp_path):
    with refused("not-a-deployment", str(tmp_path), "server.toml", "drfl deploy init"):
        find_folder(tmp_path)


def test_folder_without_its_settings_is_recognised(copy):
    site = copy / "sites/a"
    for root, name in ((copy, "server.toml"), (site, "site.toml")):
        (root / name).unlink()
        with refused("not-a-deployment", str(root), name) as caught:
            find_folder(root)
        assert "drfl deploy init" not in str(caught.value)
    for name in ("start-supernode.sh", "ca.crt"):
        (site / name).unlink()
        with refused("not-a-deployment", str(site), "site.toml"):
            find_folder(site)


def site_problems(root, monkeypatch):
    monkeypatch.setattr(check_network, "check_connection", lambda address, authority: iter(()))
    return [text for text in problems(check.check_site(SiteFolder(root))) if not text.startswith("data: ")]


def test_unusable_keys_of_a_site_are_reported(copy, monkeypatch):
    root = copy / "sites/a"
    key, server = (root / "key").read_bytes(), root / "superlink.pub"
    assert site_problems(root, monkeypatch) == []
    shutil.copy(copy / "sites/b/key", root / "key")
    (found,) = site_problems(root, monkeypatch)
    assert quotes(found, str(root / "key"), str(root / "key.pub"))
    (root / "key").write_text("no key")
    (found,) = site_problems(root, monkeypatch)
    assert quotes(found, str(root / "key"))
    (root / "key").write_bytes(key)
    server.write_text("no key")
    (found,) = site_problems(root, monkeypatch)
    assert quotes(found, str(server), "ECDSA")
    server.unlink()
    (found,) = site_problems(root, monkeypatch)
    assert quotes(found, str(server), "certificates/audit.pub")
    (root / "key").unlink()
    found = site_problems(root, monkeypatch)[0]
    assert quotes(found, str(root / "key"), "ssh-keygen", "drfl deploy rotate")


def test_unusable_authority_of_a_site_is_copied_again(copy, monkeypatch):
    root = copy / "sites/a"
    for change in (lambda: (root / "ca.crt").write_text("no certificate"), (root / "ca.crt").unlink):
        change()
        (found,) = site_problems(root, monkeypatch)
        assert quotes(found, str(root / "ca.crt"), "certificates/ca.crt")
        assert "make-keys.sh" not in found


def test_site_with_the_key_of_another_site_is_reported(copy, monkeypatch):
    root = copy / "sites/a"
    text = (root / "site.toml").read_text()
    (root / "site.toml").write_text(text.replace('name = "a"', 'name = "b"', 1))
    (found,) = site_problems(root, monkeypatch)
    assert re.match(rf"site\.toml: .*\bb\b.* {root}/key\.pub .*\ba\b", found)
    # A site that makes its own key does not name itself.
    kind, key, _ = (root / "key.pub").read_text().split()
    for comment in ("", " someone@host", " some one@host"):
        (root / "key.pub").write_text(f"{kind} {key}{comment}\n")
        assert site_problems(root, monkeypatch) == [], comment


@pytest.mark.parametrize("text", ["name =", 'name = "a"\n[data]\ncvs = "x"\n', '[data]\ncsv = "x"\ntarget = "y"\n'])
def test_broken_site_toml_is_one_problem(copy, monkeypatch, text):
    (copy / "sites/a/site.toml").write_text(text)
    monkeypatch.setattr(check_network, "check_connection", lambda address, authority: iter(()))
    (found,) = problems(check.check_site(SiteFolder(copy / "sites/a")))
    assert found.startswith("site.toml: ")


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ('init_from = "runs/DATE/model.safetensors"', ("init_from", "runs/DATE/model.safetensors")),
        ("cohort = 3", ("server.toml", "job.cohort", "3", "2")),
        ("[job.algorithms.DRDM]\nm = 3", ("server.toml", "job.cohort", "3", "2")),
        ("min_replies = 3", ("server.toml", "job.min_replies", "3", "2")),
    ],
)
def test_impossible_settings_of_the_job_are_reported(copy, monkeypatch, more, error):
    monkeypatch.setattr(check_network, "check_connection", lambda address, authority: iter(()))
    monkeypatch.setattr(check, "check_online", lambda *_: iter(()))
    path = copy / "server.toml"
    path.write_text(path.read_text().replace("\n[[sites]]", f"\n{more}\n\n[[sites]]", 1))
    subject, *named = error
    (found,) = [text for text in problems(check.check_deployment(DeploymentFolder(copy))) if text.startswith(subject)]
    assert quotes(found, *named)


def test_files_of_a_sites_policy_are_checked(copy, monkeypatch):
    root = copy / "sites/a"
    digest = hashlib.sha256(b"x = 1").hexdigest()
    policy = f'\n[policy]\nshared_rows_key = "rows.key"\n[policy.code]\n"net.py" = "{digest}"\n'
    (root / "site.toml").write_text((root / "site.toml").read_text() + policy)
    (root / "rows.key").write_text("ab" * 32)
    (root / "rows.key").chmod(0o644)
    exposed, missing = site_problems(root, monkeypatch)
    assert quotes(exposed, str(root / "rows.key"), "chmod 600")
    assert quotes(missing, "net.py")
    (root / "rows.key").chmod(0o600)
    (root / "net.py").write_text("x = 2")
    (other,) = site_problems(root, monkeypatch)
    assert quotes(other, "net.py", "SHA-256")
    (root / "net.py").write_text("x = 1")
    assert site_problems(root, monkeypatch) == []


@pytest.mark.parametrize(
    ("old", "new", "subject", "named"),
    [
        ('audit = "audit.jsonl"', 'audit = "logs/audit.jsonl"', "audit", "logs/audit.jsonl"),
        ('key = "', 'key = "lost-', "audit", "lost-"),
        ('audit = "audit', 'previous_key = "old"\naudit = "audit', "audit", "old"),
        ("\n[data]", '\npolicy.models = "site.toml/models"\n[data]', "policy.models", "site.toml/models"),
        ('out = "runs', 'out = "README.md/runs', "out", "README.md/runs/DATE"),
    ],
)
def test_files_that_a_run_needs_are_checked(copy, monkeypatch, old, new, subject, named):
    monkeypatch.setattr(check_network, "check_connection", lambda address, authority: iter(()))
    monkeypatch.setattr(check, "check_online", lambda *_: iter(()))
    ends = [
        (copy / "server.toml", lambda: check.check_deployment(DeploymentFolder(copy))),
        (copy / "sites/a/site.toml", lambda: check.check_site(SiteFolder(copy / "sites/a"))),
    ]
    for path, run in ends:
        text = path.read_text()
        if old not in text:
            continue
        path.write_text(text.replace(old, new, 1))
        (found,) = [text for text in problems(run()) if text.startswith(f"{subject}: ")]
        assert named in found
        path.write_text(text)
        assert [text for text in problems(run()) if text.startswith(f"{subject}: ")] == []


def test_schema_of_the_server_is_read(copy):
    folder, path = DeploymentFolder(copy), copy / "server.toml"
    assert list(check.check_schema(folder, read_server(folder.settings))) == []
    path.write_text('schema = "nix.toml"\n' + path.read_text())
    found = [one for one in check.check_deployment(folder) if one.subject == "schema"]
    assert [one.ok for one in found] == [False]
    assert "nix.toml" in found[0].text


def test_invalid_setting_of_the_job_is_one_problem(copy, monkeypatch):
    monkeypatch.setattr(check_network, "check_connection", lambda address, authority: iter(()))
    monkeypatch.setattr(check, "check_online", lambda *_: iter(()))
    path = copy / "server.toml"
    path.write_text(path.read_text().replace("rounds =", "rouns ="))
    found = [text for text in problems(check.check_deployment(DeploymentFolder(copy))) if "rouns" in text]
    assert [text.partition(":")[0] for text in found] == ["server.toml"]


def test_site_is_not_asked_to_scale_columns_of_any_size(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(60, 9, 90), "admitted": rng.normal(1.7e9, 1e7, 90), "ill": [0, 1] * 45})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "site.toml").write_text('name = "a"\n[data]\ncsv = "rows.csv"\ntarget = "ill"\n')
    found = [*check.check_data(SiteFolder(tmp_path))]
    assert all(each.ok for each in found)
    assert "e+06" in next(each.text for each in found if each.subject == "columns")
    assert not [each for each in found if "standardise" in each.text]


@pytest.mark.parametrize(
    ("column", "named"), [("age", ("'age'",)), ("old_skore", ("'old_skore'", "'old_score'")), ("words", ("'words'",))]
)
def test_unusable_scores_of_a_site_are_reported(tmp_path, column, named):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(60, 9, 60), "old_score": rng.random(60), "words": "x", "ill": [0, 1] * 30})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    columns = (
        Column("age", "number"),
        Column("old_score", "number", role="excluded"),
        Column("words", "text", role="excluded"),
        Column("ill", "yes/no", levels=("0", "1"), role="target"),
    )
    TableSchema(columns).write(tmp_path / "schema.toml")
    text = 'name = "a"\n[data]\ncsv = "rows.csv"\nschema = "schema.toml"\n[policy]\nscore_column = '
    (tmp_path / "site.toml").write_text(f'{text}"{column}"\n')
    (found,) = problems(check.check_data(SiteFolder(tmp_path)))
    assert found.startswith("policy.score_column: ")
    assert quotes(found, *named)
    (tmp_path / "site.toml").write_text(f'{text}"old_score"\n')
    assert problems(check.check_data(SiteFolder(tmp_path))) == []


@pytest.mark.parametrize(("rows", "is_revealed"), [(1, True), (2, True), (3, False)])
def test_site_with_few_training_rows_reveals_them(tmp_path, rows, is_revealed):
    pd.DataFrame({"age": np.arange(rows) + 50.5, "ill": 0}).to_csv(tmp_path / "rows.csv", index=False)
    pd.DataFrame({"age": [1.0, 2.0], "ill": [0, 1]}).to_csv(tmp_path / "test.csv", index=False)
    (tmp_path / "site.toml").write_text('name = "a"\n[data]\ncsv = "rows.csv"\ntest_csv = "test.csv"\ntarget = "ill"\n')
    found = [each.text for each in check.check_data(SiteFolder(tmp_path)) if each.subject == "columns"]
    assert ["revealed-rows" in getattr(text, "code", "") for text in found[1:]] == [True] * is_revealed
