"""Tables of the stored results of real deployments, for docs/results/deployments.md and the hospitals' page.

`make pages` writes them into the pages. The results are those of scripts/try_deployment.sh,
scripts/try_security.py, evidence/flower_backends.py and examples/hospitals/deployment.py.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.tables import markdown

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "results" / "deployment"

Row = dict[str, str | float]


def stored(name: str) -> dict[str, list[Row]]:
    """Read a file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def events() -> str:
    """Format events and their outcomes."""
    summary = stored("summary")
    rows = [
        [str(row["event"]), str(row["what happened"]), str(row["seconds"])]
        for part in ("killed", "faults", "quorum", "servers", "refusals")
        for row in summary.get(part, [])
    ]
    return markdown(["event", "what happened", "seconds"], rows, text=2)


def same() -> str:
    """Format the differences between the results of runs."""
    far = {(row["algorithm"], row["way"]): row for row in stored("backends")["rows"]}
    far |= {(row["algorithm"], DEPLOYED): row for row in stored("summary")["same"]}
    ways = list(dict.fromkeys(way for _, way in far))
    rows = []
    for name in dict.fromkeys(name for name, _ in far):
        numbers = [float(far[name, way][f"max |{of} - {of}_sim|"]) for way in ways for of in ("w", "lambda")]
        rows.append([str(name), *(f"{x:.0e}" if x else "0" for x in numbers)])
    return markdown(["largest difference", *(f"{way}, {of}" for way in ways for of in ("w", "λ"))], rows)


def security() -> str:
    """Format the outcomes of malicious sites, vetoes, revoked keys, changed logs and strangers."""
    rows = [
        [str(row["event"]), textwrap.shorten(str(row["what happened"]), 330, placeholder=" …"), str(row["seconds"])]
        for row in stored("security")["events"]
    ]
    return markdown(["event", "what happened", "seconds"], rows, text=2)


DEPLOYED = "SuperLink and SuperNodes, TLS"


def seconds() -> str:
    """Format the costs of an exchange."""
    summary, rows = stored("summary"), []
    for part, more in (("same", ""), ("cold", ", DRFL_PREFORK=0")):
        for row in summary[part]:
            rows.append([f"{row['algorithm']}{more}", *(str(row[name]) for name in SECONDS)])
    return markdown(["five rounds of", *SECONDS.values()], rows)


SECONDS = {
    "exchanges": "exchanges",
    "seconds an exchange": "seconds each",
    "site's process, seconds a message": "seconds of the site's process",
    "site's work, seconds a message": "seconds of its work",
}


def large() -> str:
    """Format the costs of a model of 100 MB."""
    rows = []
    for row in stored("summary")["large"]:
        for direction, names in BYTES.items():
            millions = [f"{float(row[name]) / 1e6:.2f}" for name in names]
            rows.append([f"{row['algorithm']}, {row['rounds']}", direction, str(row["seconds"]), *millions])
    heads = ["algorithm, rounds", "direction", "seconds", "ledger", "training", "with tests", "Flower's count"]
    return markdown(heads, rows, text=2)


BYTES = {
    "to the sites": ("ledger's bytes down", "of these for training", "bytes down", "Flower's bytes down"),
    "from the sites": ("ledger's bytes up", "of these from training", "bytes up", "Flower's bytes up"),
}
"""Direction → the stored numbers, in the order of the columns."""


def hospitals() -> str:
    """Return the first table of the hospitals' deployment."""
    page = ROOT / "examples" / "hospitals" / "results" / "deployed.md"
    return page.read_text(encoding="utf-8").split("\n\n")[0]


BLOCKS: dict[str, Callable[[], str]] = {
    "deployments.events": events,
    "deployments.security": security,
    "deployments.same": same,
    "deployments.seconds": seconds,
    "deployments.bytes": large,
    "hospitals.deployed": hospitals,
}
"""Page and block → function that writes it."""
