"""Test a malicious site, a veto, a revoked key, changed logs and a stranger on a real deployment on this machine.

    OMP_NUM_THREADS=1 python scripts/try_security.py [--keep]

The SuperLink and the SuperNodes of the four heart-disease hospitals are separate processes. The sites reach the
SuperLink through nginx, with TLS at both ends, and nginx only forwards the requests of SuperNodes. In one run of dual
DRDM with the rule "probe", one site flips the sign of its updates, one withdraws its approval, and the key of one is
revoked. The script writes evidence/results/deployment/security.json and exits with 1 if a test fails. It leaves no
process running.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import numpy as np
import tomli_w
from trial_folder import BIN, Trial, free_port, listens, wait_for
from try_deployment import HOSPITALS, RESULTS, ROOT, VERSIONS, Rows, event

from drfl.core.audit_log import FORMAT
from drfl.core.audit_signatures import read_signing_key

HONEST, LIAR, VETO, REVOKED = HOSPITALS
ROUNDS, HELD = 6, 48
JOB = {
    "algorithm": "DualDRDM", "model": "linear", "lr": 0.05, "seed": 0, "rounds": ROUNDS,
    "aggregator": f"probe:rows={HELD}",
    "algorithms": {"DualDRDM": {"sampling": "everybody", "ambiguity": "cvar:alpha=0.5"}},
}  # fmt: skip

PROXY = """
daemon off; pid @/nginx.pid; error_log @/nginx.err; events {}
http {
    access_log @/nginx.log; client_max_body_size 0; proxy_request_buffering off;
    client_body_temp_path @/1; proxy_temp_path @/2; fastcgi_temp_path @/3; uwsgi_temp_path @/4; scgi_temp_path @/5;
    server {
        listen 127.0.0.1:PORT ssl;
        ssl_certificate @/certificates/superlink.crt; ssl_certificate_key @/certificates/superlink.key;
        location /v1/fleet/ {
            proxy_pass https://127.0.0.1:LINK; proxy_read_timeout 3600s;
            proxy_ssl_verify on; proxy_ssl_trusted_certificate @/certificates/ca.crt; proxy_ssl_name localhost;
        }
        location / { return 403; }
    }
}
"""


class Proxied(Trial):
    """A trial whose sites connect only to the proxy."""

    def start_link(self) -> None:
        """Start the SuperLink, and nginx in front of it."""
        super().start_link()
        self.proxy = free_port()
        text = PROXY.replace("@", str(self.folder)).replace("PORT", str(self.proxy)).replace("LINK", str(self.port))
        (self.folder / "nginx.conf").write_text(text)
        script = self.folder / "start-nginx.sh"
        script.write_text(f'exec nginx -c "{self.folder}/nginx.conf" -p "{self.folder}" -e "{self.folder}/nginx.err"\n')
        self.start("nginx", script)
        wait_for(lambda: listens(self.proxy), "nginx")
        os.environ["DRFL_SUPERLINK"] = f"localhost:{self.proxy}"


def rows_of_the_server(trial: Trial) -> None:
    """Give the server some rows of each site as probes, and name them in server.toml."""
    path = trial.folder / "server.toml"
    settings = tomllib.loads(path.read_text())
    for site in settings["sites"]:
        with np.load(trial.folder / "sites" / site["name"] / "data.npz") as found:
            held = {name: found[name][:HELD] for name in ("train_inputs", "train_targets")}
        np.savez(trial.folder / f"probe-{site['name']}.npz", **held)
        site["probe"] = {"npz": f"probe-{site['name']}.npz"}
    path.write_text(tomli_w.dumps(settings))


def run_with_a_liar_a_veto_and_a_revoked_key(trial: Trial) -> str:
    """Run the job with all three events, and return the outcome."""
    liar, veto = (trial.folder / "sites" / name for name in (LIAR, VETO))
    shutil.copy(ROOT / "scripts" / "trial_site.py", liar / "trial_site.py")
    (liar / "mode").write_text("flip")
    trial.site(LIAR, data={"loader": "trial_site:load"})
    trial.site(VETO, policy={"approved": "approved.txt"})
    trial.job("run", timeout=60.0, **JOB)
    rows_of_the_server(trial)
    run = trial.submit()

    def reached(text: str, seconds: float = 240) -> None:
        wait_for(lambda: trial.log_has(text) or run.poll() is not None, text, seconds)

    reached("is not approved")
    number = re.search(r"run (\d+) submitted", (trial.folder / "run.log").read_text())
    assert number is not None
    (veto / "approved.txt").write_text(f"{number[1]}\n")
    reached(f"round 2 of {ROUNDS}")
    (veto / "approved.txt").write_text("")
    reached(f"round 4 of {ROUNDS}", 600)
    trial.drfl("revoke", trial.folder, REVOKED)
    code = run.wait(1200)
    summary = json.loads((trial.folder / "run" / "summary.json").read_text())
    sites = json.loads((trial.folder / "run" / "traffic.json").read_text())["sites"]
    left_out = ", ".join(f"{name} in {rounds}" for name, rounds in summary["left_out_rounds"].items())
    return (
        f"exit code {code}; before its approval {VETO} sent nothing; of {ROUNDS} rounds the rule excluded {left_out}; "
        f"{VETO} refused {sites[VETO]['failed']} requests after its veto"
    )


def who_was_used(trial: Trial) -> str:
    """Return the number of rounds in which each site's model was used, according to the server's log."""
    records = [json.loads(line) for line in (trial.folder / "audit.jsonl").read_text().splitlines()]
    used = [r["sites"] for r in records if r["event"] == "used" and r["what"] == "train"]
    return ", ".join(f"{name} {sum(name in names for names in used)}" for name in trial.sites)


def audited(trial: Trial, server: Path, *sites: str) -> str:
    """Run `drfl deploy audit` on logs of the server and the sites; return its first problems, or the logs that pass."""
    logs = [trial.folder / "sites" / name / "audit.jsonl" for name in sites]
    found = trial.drfl("audit", server, *logs, check=False)
    lines = [line.replace(str(trial.folder), "").replace("'/", "'") for line in found.stdout.strip().splitlines()]
    told = [re.sub(r"[0-9a-f]{32,}", lambda digest: f"{digest[0][:8]}…", line) for line in lines]
    problems = [line for line in told if line.startswith("problem")]
    return f"exit code {found.returncode}: " + "; ".join(problems[:2] or told)


def with_a_changed_line(trial: Trial) -> str:
    """Change one word in the middle of the server's log."""
    lines = (trial.folder / "audit.jsonl").read_text().splitlines()
    middle = next(n for n in range(len(lines) // 2, len(lines)) if '"event": "received"' in lines[n])
    lines[middle] = lines[middle].replace(f'"site": "{json.loads(lines[middle])["site"]}"', '"site": "nobody"')
    path = trial.folder / "changed.jsonl"
    path.write_text("\n".join([*lines, ""]))
    return audited(trial, path)


def with_a_rewritten_log(trial: Trial) -> str:
    """Remove a malicious site's messages from its log, and chain and sign the rest again."""
    path, before = trial.folder / "sites" / LIAR / "audit.jsonl", "0" * 64
    whole, kept, key = path.read_text(), [], read_signing_key(path.parent / "key")
    for line in whole.splitlines():
        record = json.loads(line)
        if record["event"] != "sent":
            plain = {name: value for name, value in record.items() if name != "signature"}
            plain |= {"n": len(kept) + 1, "previous": before}
            before = hashlib.sha256(json.dumps(plain, ensure_ascii=False).encode()).hexdigest()
            signature = key.sign(f"drfl audit log {FORMAT}, line {plain['n']}, {before}".encode())
            kept.append(json.dumps({**plain, "signature": signature}, ensure_ascii=False))
    path.write_text("\n".join([*kept, ""]))
    told = audited(trial, trial.folder / "audit.jsonl", *HOSPITALS)
    path.write_text(whole)
    return told


def stranger(trial: Trial, *command: str) -> str:
    """Run a command as a stranger who has the CA certificate and can reach the proxy."""
    home = trial.folder / "stranger"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "there"\n[superlink.there]\naddress = "localhost:{trial.proxy}"\n'
        f'root-certificates = "{trial.folder}/certificates/ca.crt"\n'
    )
    environment = {**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}
    found = subprocess.run([BIN / "flwr", *command], env=environment, capture_output=True, text=True, timeout=120)
    told = " ".join(re.sub(r"[│╭╮╰╯─]", " ", found.stdout + found.stderr).split())
    reason = re.search(r"Client error '403 Forbidden' for url '[^']*'", told)
    return f"exit code {found.returncode}: {reason[0].replace(str(trial.proxy), 'PORT') if reason else told[-200:]}"


def key_exchanged(trial: Trial) -> str:
    """Replace a revoked key, and let the site join again."""
    site = trial.folder / "sites" / REVOKED
    trial.kill(REVOKED)
    old = trial.start_site(REVOKED, "--max-retries", "1")
    wait_for(lambda: old.poll() is not None, "the refusal of the old key", 120)
    trial.programs.pop(REVOKED)
    for part in ("key", "key.pub"):
        (site / part).unlink()
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", site / "key"], check=True)
    trial.drfl("rotate", trial.folder, REVOKED, "--key", site / "key.pub")
    trial.start_site(REVOKED)
    trial.wait_online()
    return f"started again with the old key it ended with exit code {old.returncode}; with the new one it is online"


def through_the_proxy(trial: Trial) -> str:
    """Return the requests that the proxy accepted and refused."""
    lines = (trial.folder / "nginx.log").read_text().splitlines()
    asked = [m for m in (re.search(r'"[A-Z]+ (\S+) \S+" (\d+)', line) for line in lines) if m]
    fleet = [m for m in asked if m[1].startswith("/v1/fleet/")]
    others = [m for m in asked if not m[1].startswith("/v1/fleet/")]
    refused = sum(m[2] == "403" for m in others)
    return f"{len(fleet)} requests to /v1/fleet/ let through; of {len(others)} others {refused} refused"


def tried(trial: Trial) -> Rows:
    """Run all tests in order."""
    rows: Rows = []
    server = trial.folder / "audit.jsonl"
    what = (
        f"{LIAR} flips the sign of its updates, {VETO} withdraws its approval after round 2, "
        f"the key of {REVOKED} is revoked"
    )
    must = ("exit code 0", f"{LIAR} in {ROUNDS}")
    event(rows, what, must, lambda: run_with_a_liar_a_veto_and_a_revoked_key(trial))
    what = "rounds in which each site's model was used, by the server's log"
    event(rows, what, (f"{HONEST} ", f"{LIAR} 0"), lambda: who_was_used(trial))
    agrees = tuple(f"{name}: " for name in trial.sites)
    what = "drfl deploy audit, all five logs"
    event(rows, what, ("exit code 0", *agrees), lambda: audited(trial, server, *trial.sites))
    what = "the same after a word of the server's log was changed"
    event(rows, what, ("exit code 1", "it does not follow"), lambda: with_a_changed_line(trial))
    what = f"after {LIAR} removed its replies from its log, and chained and signed the rest again"
    event(rows, what, ("exit code 1", f"{LIAR}/audit.jsonl"), lambda: with_a_rewritten_log(trial))
    app = str(trial.folder / "app")
    event(rows, "a stranger's flwr run", ("403",), lambda: stranger(trial, "run", app, "there"))
    event(rows, "a stranger's flwr supernode list", ("403",), lambda: stranger(trial, "supernode", "list", "there"))
    event(rows, f"{REVOKED} returns with a new key", ("exit code 1", "is online"), lambda: key_exchanged(trial))
    event(rows, "the proxy's log", ("let through",), lambda: through_the_proxy(trial))
    return rows


def main() -> None:
    """Run the tests and store the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    options = parser.parse_args()
    if shutil.which("nginx") is None:
        parser.error("there is no nginx here: install it (apt-get install nginx-light)")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all processes are stopped
    place = Path(tempfile.mkdtemp(prefix="drfl-security-"))
    sys.path.insert(0, str(ROOT / "examples" / "hospitals"))
    from prepare import prepare  # pyright: ignore[reportMissingImports]

    prepare(place / "data", 0)
    sites = {name: place / "data" / f"{file}.npz" for name, file in HOSPITALS.items()}
    try:
        with Proxied(place / "deployment", sites, timeout=120.0) as trial:
            rows = tried(trial)
    finally:
        if not options.keep:
            shutil.rmtree(place, ignore_errors=True)
    nginx = subprocess.run(["nginx", "-v"], capture_output=True, text=True).stderr.strip().rpartition("/")[2]
    about = {
        "command": "python scripts/try_security.py", "device": f"cpu, {os.cpu_count()} cores, loopback",
        "versions": {**VERSIONS, "nginx": nginx, "flwr": importlib.metadata.version("flwr")}, "events": rows,
    }  # fmt: skip
    (RESULTS / "security.json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    print("all as it should be")


if __name__ == "__main__":
    main()
