"""Test the folder that `drfl deploy init` writes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from tests.support.refusals import quotes, refused

from drfl.core.errors import DrflError
from drfl.flower.deploy import init as module
from drfl.flower.deploy.init import DeploymentPlan, files, write

from .programs import needed

ROOT = Path("/srv/drfl folder")
PLANS = {
    "secure": DeploymentPlan(("cleveland", "long-beach"), "fl.example.org", 8443),
    "insecure": DeploymentPlan(("cleveland", "long-beach"), insecure=True),
}


@pytest.fixture(params=PLANS)
def plan(request):
    return PLANS[request.param]


def test_all_promised_files_exist(plan):
    site = ("site.toml", "start-supernode.sh", "superlink.env")
    assert set(files(plan, ROOT)) == {
        "README.md", ".gitignore", "server.toml", "superlink.env", "start-superlink.sh", "register-sites.sh",
        "make-keys.sh", "app/pyproject.toml", "flwr/config.toml", "compose.yaml", "image/Dockerfile",
        "systemd/drfl-superlink.service", "systemd/drfl-supernode@.service",
        *(f"sites/{name}/{file}" for name in plan.sites for file in site),
    }  # fmt: skip


def test_private_files_are_not_committed(with_keys):
    private = (
        "certificates/ca.key", "sites/a/key", "sites/a/key.old", "sites/a/drfl-clients/a/key", "sites/a/audit.jsonl",
        "sites/a/drfl-clients/a/1.safetensors", "sites/a/models/1.safetensors", "sites/a/flwr/x", "flwr/superlink.db",
        "sites/a/rows.key", "runs/DATE/model.safetensors",
    )  # fmt: skip
    public = ("server.toml", "keys/a.pub", "sites/a/key.pub", "certificates/ca.crt", "flwr/config.toml")
    command = [needed("git", "git"), "check-ignore", "--no-index", "--stdin"]
    environment = {**os.environ, "GIT_DIR": str(with_keys.parent / "git"), "GIT_WORK_TREE": str(with_keys)}
    subprocess.run([command[0], "init", "-q"], cwd=with_keys, env=environment, check=True)
    ignored = subprocess.run(
        command, cwd=with_keys, env=environment, input="\n".join((*private, *public)), capture_output=True, text=True
    )
    assert ignored.stdout.splitlines() == list(private)


def test_no_placeholder_remains(plan):
    for name, text in files(plan, ROOT).items():
        for word in text.replace("drfl-supernode@", "").split():
            assert word.count("@") < 2, (name, word)


def test_settings_contain_the_plan(plan):
    made = {name: text for name, text in files(plan, ROOT).items() if name.endswith(".toml")}
    settings = {name: tomllib.loads(text) for name, text in made.items()}
    server = settings["server.toml"]
    assert (server["out"], server["timeout"], server["wait"], server["insecure"]) == (
        "runs/DATE",
        600,
        300,
        plan.insecure,
    )
    assert server["job"]["algorithm"] == "DRDM"
    keys = [{} if plan.insecure else {"public_key": f"keys/{name}.pub"} for name in plan.sites]
    assert server["sites"] == [{"name": name, **key} for name, key in zip(plan.sites, keys, strict=True)]
    assert settings["sites/cleveland/site.toml"]["name"] == "cleveland"
    assert settings["sites/cleveland/site.toml"]["data"] == {"npz": "data.npz"}
    app = settings["app/pyproject.toml"]["tool"]["flwr"]["app"]
    assert app["config"] == {"deployment": str(ROOT / "server.toml"), "wait": "", "request": ""}
    assert app["components"] == {"serverapp": "drfl.flower.server_app:app", "clientapp": "drfl.flower.client_app:app"}
    link = settings["flwr/config.toml"]["superlink"][settings["flwr/config.toml"]["superlink"]["default"]]
    trust = {"insecure": True} if plan.insecure else {"root-certificates": str(ROOT / "certificates/ca.crt")}
    assert link == {"address": plan.address, **trust}


def test_scripts_use_tls_or_state_that_they_are_insecure(plan):
    made = files(plan, ROOT)
    superlink, supernode = made["start-superlink.sh"], made["sites/cleveland/start-supernode.sh"]
    for flag in ("--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile", "--enable-supernode-auth"):
        assert (flag in superlink) is not plan.insecure
    for flag in ("--root-certificates", "--auth-supernode-private-key"):
        assert (flag in supernode) is not plan.insecure
    assert ("--insecure" in superlink) is ("--insecure" in supernode) is plan.insecure
    for text in (superlink, supernode):
        assert "FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1" in text
        assert "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1" in text
        assert str(Path(sys.executable).parent) in text


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_scripts_are_valid_shell(plan, shell, tmp_path):
    write(plan, tmp_path / "fl")
    scripts = sorted((tmp_path / "fl").rglob("*.sh"))
    assert len(scripts) == 5
    for script in scripts:
        assert script.stat().st_mode & 0o111
        subprocess.run([shell, "-n", script], check=True)


def test_sites_on_one_machine_use_different_ports():
    made = files(PLANS["secure"], ROOT)
    assert [made[f"sites/{name}/superlink.env"].split()[-1] for name in PLANS["secure"].sites] == [
        "PORT=9094",
        "PORT=9095",
    ]


def test_sites_do_not_use_the_port_of_the_superlink():
    assert DeploymentPlan.of("a,b,c", None, 9095, False).site_ports == (9094, 9096, 9097)


@pytest.mark.parametrize(
    ("host", "address", "bind", "name"),
    [
        ("localhost", "localhost:8000", "127.0.0.1", "DNS:localhost"),
        ("127.0.0.1", "127.0.0.1:8000", "127.0.0.1", "IP:127.0.0.1"),
        ("fl.example.org", "fl.example.org:8000", "0.0.0.0", "DNS:fl.example.org"),
        ("192.0.2.7", "192.0.2.7:8000", "0.0.0.0", "IP:192.0.2.7"),
        ("2001:db8::7", "[2001:db8::7]:8000", "::", "IP:2001:db8::7"),
    ],
)
def test_hosts_are_validated(host, address, bind, name):
    plan = DeploymentPlan(("a",), host)
    assert (plan.address, plan.bind, plan.names[0]) == (address, bind, name)
    assert {"DNS:localhost", "IP:127.0.0.1"} <= set(plan.names)


@pytest.mark.parametrize(
    ("sites", "host", "port", "error"),
    [
        ("", None, None, ("empty", "sites", "--sites")),
        ("a,,b", None, None, ("invalid-name", "sites", "''")),
        ("a,../b", None, None, ("invalid-name", "sites", "'../b'")),
        ("a,-b", None, None, ("invalid-name", "sites", "'-b'")),
        ("a,A", None, None, ("duplicate-name", "sites")),
        ("superlink", None, None, ("invalid-name", "sites", "superlink")),
        ("a", "fl example", None, ("invalid-value", "host", "'fl example'")),
        ("a", "x;y", None, ("invalid-value", "host", "'x;y'")),
        ("a", None, 0, ("out-of-range", "port", "--port")),
    ],
)
def test_impossible_plans_are_refused(sites, host, port, error):
    with refused(*error):
        DeploymentPlan.of(sites, host, port, False)


def test_non_empty_folder_is_unchanged(tmp_path):
    (tmp_path / "mine").write_text("x")
    with refused("folder-not-empty", str(tmp_path)):
        write(PLANS["secure"], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    with refused("not-a-folder", str(tmp_path / "mine")):
        write(PLANS["secure"], tmp_path / "mine")
    with refused("invalid-name", str(tmp_path / "a$b")):
        write(PLANS["secure"], tmp_path / "a$b")


def test_empty_folder_is_used(tmp_path):
    (tmp_path / "fl").mkdir()
    write(PLANS["secure"], tmp_path / "fl")
    assert (tmp_path / "fl/server.toml").is_file()


def test_folder_is_written_completely_or_not_at_all(tmp_path, monkeypatch):
    def fails(command, cwd, **_):
        assert (cwd / "server.toml").is_file()
        return subprocess.CompletedProcess(command, 1, "", "no openssl")

    monkeypatch.setattr(module.subprocess, "run", fails)
    with refused("command-failed", "make-keys.sh", "no openssl", kind=DrflError):
        write(PLANS["secure"], tmp_path / "new/fl", keys=True)
    assert not list(tmp_path.iterdir())


def test_keys_are_private_and_never_overwritten(copy):
    secret = [copy / "certificates/ca.key", copy / "certificates/superlink.key", copy / "sites/a/key"]
    assert [path.stat().st_mode & 0o777 for path in secret] == [0o600] * 3
    assert (copy / "keys/a.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    done = subprocess.run(["sh", copy / "make-keys.sh"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["all keys and certificates are in place"]
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_make_keys_fills_gaps_or_reports_why_not(copy):
    run = ["sh", str(copy / "make-keys.sh")]
    kept = (copy / "keys/a.pub").read_text()
    (copy / "keys/a.pub").unlink()  # lost: it follows from the private key
    (copy / "sites/b/key").unlink()  # the site keeps its own
    (copy / "certificates/superlink.crt").unlink()
    (copy / "certificates/superlink.key").unlink()
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert (copy / "keys/a.pub").read_text().split()[:2] == kept.split()[:2]
    assert "keys/b.pub: kept" in done.stdout
    assert not (copy / "sites/b/key").exists()
    assert (copy / "certificates/superlink.crt").is_file()
    (copy / "certificates/superlink.crt").unlink()
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 1
    assert quotes(done.stderr, "superlink.key", "superlink.crt")
    assert not list(copy.glob(".keys*"))


def test_scripts_refuse_to_start_without_keys(tmp_path):
    write(PLANS["secure"], tmp_path / "fl")
    for script, missing in (("start-superlink.sh", "ca.crt"), ("sites/cleveland/start-supernode.sh", "ca.crt")):
        done = subprocess.run(["sh", tmp_path / "fl" / script], capture_output=True, text=True)
        assert (done.returncode, missing in done.stderr, "make-keys.sh" in done.stderr) == (1, True, True)
    assert "sites/cleveland" in done.stderr


def test_insecure_deployment_has_no_keys_to_make_or_register(tmp_path):
    write(PLANS["insecure"], tmp_path / "fl", keys=True)
    done = subprocess.run(["sh", tmp_path / "fl/register-sites.sh"], capture_output=True, text=True, check=True)
    assert "nothing to register" in done.stdout
    assert not (tmp_path / "fl/certificates").exists()


def test_paths_in_the_compose_file_are_quoted():
    text = files(PLANS["secure"], ROOT)["compose.yaml"]
    assert f"volumes: [{json.dumps(f'.:{ROOT}')}]" in text


def test_coloured_output_of_flower_is_parsed(tmp_path):
    """Notebooks and continuous integration force colours, and rich then puts control codes into JSON."""
    write(PLANS["secure"], tmp_path / "fl")
    for name in PLANS["secure"].sites:
        (tmp_path / "fl/keys").mkdir(exist_ok=True)
        (tmp_path / f"fl/keys/{name}.pub").write_text("a key")
    program = tmp_path / "bin" / "flwr"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport rich, sys\n"
        'rich.print_json(data={"success": True, "nodes": []} if "list" in sys.argv else {"node-id": 7})\n'
    )
    program.chmod(0o755)
    forced = {**os.environ, "DRFL_BIN": str(program.parent), "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}
    command = ["sh", tmp_path / "fl/register-sites.sh"]
    done = subprocess.run(command, env=forced, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["cleveland: registered as 7", "long-beach: registered as 7"]


def started(copy, tmp_path, program, port=0, script="sites/a/start-supernode.sh", name="flower-supernode"):
    """Start a script, by default that of site a, with a stand-in for Flower's program; port 0 is never taken."""
    path = tmp_path / "bin" / name
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o755)
    environment = {**os.environ, "DRFL_BIN": str(path.parent), "DRFL_PREFORK": "0", "DRFL_PORT": str(port)}
    command = ["sh", copy / script, "--more"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_secrets_and_results_are_ignored_by_git(copy):
    subprocess.run(["git", "init", "-q", copy], check=True)
    names = ["sites/a/key", "sites/a/rows.key", "sites/a/models/x", "runs/x/model.safetensors", "server.lock"]
    shown = subprocess.run(["git", "-C", copy, "check-ignore", *names], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == names


def test_supernode_does_not_start_on_a_port_that_is_taken(copy, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        process = started(copy, tmp_path, f"touch {tmp_path}/called", port)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert quotes(err, str(port), "DRFL_PORT")
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_superlink_does_not_start_on_a_port_that_is_taken(copy, tmp_path, host):
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as other:
        port = other.getsockname()[1]
        (copy / "superlink.env").write_text(f"ADDRESS=localhost:{port}\nINSECURE=no\nBIND={host}\nPORT={port}\n")
        process = started(
            copy, tmp_path, f'touch {tmp_path}/called; echo "$@"', script="start-superlink.sh", name="flower-superlink"
        )
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert quotes(err, str(port))
    assert not (tmp_path / "called").exists()
    command = ["sh", copy / "start-superlink.sh", "--more"]
    out = subprocess.check_output(command, env={**os.environ, "DRFL_BIN": str(tmp_path / "bin")}, text=True)
    assert f"--host {host} --port {port}" in out


@pytest.mark.parametrize("code", [pytest.param(0, marks=pytest.mark.long), 1])
def test_supernode_that_ends_names_possible_causes(copy, tmp_path, code):
    process = started(copy, tmp_path, f'echo "$@"; echo "Failed to activate SuperNode" >&2; exit {code}')
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out.strip().endswith("--more")
    lines = err.splitlines()
    assert quotes(lines[1], "a", str(code))
    assert [quotes(line, "2004") for line in lines[2:]] == [True] * 3 + [False] * 2
    assert quotes(lines[5], "CERTIFICATE_VERIFY_FAILED")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_supernode_ends_with_its_script(copy, tmp_path, number):
    process = started(copy, tmp_path, f"echo $$ >{tmp_path}/pid; exec sleep 60")
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "2004" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
