"""Test the lowest and the highest versions of the dependencies that pyproject.toml allows, and store the results.

`python scripts/versions.py` creates an environment for each of six sets of versions, runs the tests of ``TESTS`` in it,
and writes evidence/results/dependency_versions/summary.json. All sets use the locked torch, because no CPU build of
another version is available. `--only NAME` tests one set and keeps the stored results of the others. It needs uv.

``flower`` has separate sets, because flwr requires newer versions than the lowest and older ones than the highest.
``onnx`` has separate sets too, because only one test file needs it.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.tables import markdown, paragraph
from scripts.empty_venv import ROOT, CommandFailedError, EmptyVenv, outside, pins

SUMMARY = ROOT / "evidence" / "results" / "dependency_versions" / "summary.json"
TORCH = ROOT / "constraints-torch.txt"
LOCKS = [ROOT / "constraints.txt", ROOT / "constraints-dev.txt"]
TOOLS = ("hypothesis", "pypdfium2", "pytest")
"""Packages that the tests need besides drfl, in their locked versions."""

EXTRAS = ("excel", "experiments", "hf", "mlflow", "pdf", "ray", "tensorboard")
FLOWER = ("flower", "pdf")
ONNX = ("onnx",)
SETS = {
    "lowest": ("lowest-direct", EXTRAS),
    "lowest, flower": ("lowest-direct", FLOWER),
    "lowest, onnx": ("lowest-direct", ONNX),
    "highest": ("highest", EXTRAS),
    "highest, flower": ("highest", FLOWER),
    "highest, onnx": ("highest", ONNX),
}
"""Name → uv's resolution strategy, and the extras."""

SHARED = (
    "tests/cli/test_options.py",
    "tests/cli/test_report.py",
    "tests/cli/test_run.py",
    "tests/training/checkpoint",
    "tests/data/test_client_data.py",
    "tests/data/datasets/test_fetch.py",
    "tests/data/test_standardisation.py",
    "tests/data/tables/test_table_files.py",
    "tests/experiments/compare/test_compare_objects.py",
    "tests/experiments/config/test_config.py",
    "tests/report/test_html.py",
    "tests/packaging/test_imports.py",
    "tests/task/test_metrics.py",
    "tests/packaging/test_shown_objects.py",
)
TESTS = {
    EXTRAS: (
        *SHARED,
        "tests/data/tables/test_hugging_face.py",
        "tests/data/tables/test_workbooks.py",
        "tests/engine/test_ray_workers.py",
        "tests/papers/test_plots.py",
        "tests/report/test_pdf.py",
        "tests/training/test_trackers.py",
        "tests/experiments/tuning",
    ),
    FLOWER: (
        "tests/cli/test_options.py",
        "tests/cli/test_run.py",
        "tests/flower/deploy/test_check.py",
        "tests/flower/deploy/test_init.py",
        "tests/flower/test_messages.py",
        "tests/flower/test_same_as_simulation.py",
        "tests/flower/test_server_app.py",
        "tests/flower/test_strategy.py",
    ),
    ONNX: ("tests/cli/test_model_export.py",),
}
"""Extras → the tests that use them and every package that drfl needs anyway."""


def project() -> dict:
    """Return the table ``[project]`` of ``pyproject.toml``."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def named(extras: Iterable[str], table: dict) -> list[str]:
    """Return the requirements of drfl and of these extras, each once."""
    lines = [*table["dependencies"], *(line for extra in extras for line in table["optional-dependencies"][extra])]
    return list(dict.fromkeys(lines))


def asked(how: str, extras: Iterable[str], table: dict, locked: str) -> list[str]:
    """Return the requirements for uv, with exact lowest versions of an extra, so that no other package raises them.

    The lowest versions of drfl itself are not exact, because an extra may need newer ones.
    """
    lines = named(extras, table)
    if how == "lowest-direct":
        lines = [line if line in table["dependencies"] else lowest(line) for line in lines]
    tools = [line for line in locked.splitlines() if line.partition("==")[0] in TOOLS]
    return [*lines, *tools]


def lowest(line: str) -> str:
    """Convert a requirement to the lowest version that it allows."""
    one = Requirement(line)
    (bound,) = (part.version for part in one.specifier if part.operator == ">=")
    return f"{one.name}=={bound}"


def lines_of(output: str) -> dict[str, str]:
    """Return versions by name, from lines ``name==version``."""
    found = re.findall(r"^([\w.-]+)==(\S+)", output, flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def prepared(folder: Path, how: str, extras: tuple[str, ...], table: dict) -> EmptyVenv:
    """Create an environment with these versions and drfl from this checkout."""
    env, wanted, torch = EmptyVenv(folder), folder / "wanted.txt", folder / "torch.txt"
    wanted.write_text("\n".join(asked(how, extras, table, pins(*LOCKS))) + "\n")
    torch.write_text(pins(TORCH))
    env.uv("install", "--quiet", "--no-deps", "-r", torch)
    torch.write_text(env.uv("freeze"))  # 2.13.0+cpu if it exists; 2.13.0 is PyPI's and counts as lower
    env.uv("install", "--quiet", "--resolution", how, "--only-binary", ":all:", "-r", wanted, "-r", torch)
    env.uv("install", "--quiet", "--no-deps", "--editable", ROOT)
    return env


def tests_of(report: Path) -> tuple[dict[str, dict[str, int]], list[str]]:
    """Return the numbers of outcomes per folder or file of tests, and the failed tests, from pytest's XML report."""
    counts: dict[str, Counter[str]] = {}
    failed = []
    for case in ElementTree.parse(report).iter("testcase"):
        how = next((part.tag for part in case if part.tag in ("failure", "error", "skipped")), "passed")
        counts.setdefault(case.attrib["classname"] or case.attrib["name"], Counter())[how] += 1
        if how in ("failure", "error"):
            failed.append(f"{case.attrib['classname']}::{case.attrib['name']}")
    return {module: dict(counts[module]) for module in sorted(counts)}, sorted(failed)


def tried(name: str, folder: Path) -> dict[str, object]:
    """Create the environment of a set, run its tests, and return the result to store."""
    (how, extras), table = SETS[name], project()
    env, report = prepared(folder, how, extras, table), folder / "report.xml"
    versions = lines_of(env.uv("freeze"))
    # Old packages use functions that newer packages deprecate, which drfl cannot change.
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore::DeprecationWarning", f"--junitxml={report}"]
    command = [str(env.python), "-m", "pytest", *options, *TESTS[extras]]
    code = subprocess.run(command, cwd=ROOT, env={**outside(), "OMP_NUM_THREADS": "1"}).returncode
    if code not in (0, 1):
        raise CommandFailedError(f"{name}: pytest ended with exit code {code}")
    modules, failed = tests_of(report)
    direct = [canonicalize_name(Requirement(line).name) for line in named(extras, table)]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "extras": list(extras),
        "requirements": named(extras, table),
        "versions": {one: versions[one] for one in direct},
        "others": {one: version for one, version in versions.items() if one not in direct},
        "tests": list(TESTS[extras]),
        "modules": modules,
        "failed": failed,
    }


def stored() -> dict[str, dict]:
    """Return the stored results of every set."""
    return json.loads(SUMMARY.read_text(encoding="utf-8"))["sets"] if SUMMARY.exists() else {}


def store(sets: dict[str, dict]) -> None:
    """Write the results in the order of the sets."""
    content = {"command": "python scripts/versions.py", "sets": {name: sets[name] for name in SETS if name in sets}}
    SUMMARY.parent.mkdir(parents=True, exist_ok=True)
    SUMMARY.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def table() -> str:
    """Write the table of docs/start/install.md: the tested versions of each package, and the number of passed tests."""
    sets, asked_for, users = stored(), project(), dict[str, str]()
    for extra in ("", *EXTRAS, "flower", *ONNX):
        for line in asked_for["optional-dependencies"][extra] if extra else asked_for["dependencies"]:
            users.setdefault(line, f"`drfl[{extra}]`" if extra else "")
    rows = []
    for line, extra in users.items():
        one = Requirement(line)
        name = canonicalize_name(one.name)
        found = [
            " and ".join(dict.fromkeys(result["versions"][name] for result in sets_of(end, name, sets)))
            for end in ("lowest", "highest")
        ]
        rows.append([one.name, extra, f"`{one.specifier}`", *found])
    counts = [str(sum(counts["passed"] for counts in result["modules"].values())) for result in sets.values()]
    said = paragraph(f"""
        `python scripts/versions.py` tested these versions on {max(result["date"] for result in sets.values())} with
        Python {sets["lowest"]["python"]}. It runs the tests that use the packages. With the lowest versions,
        {counts[0]} tests passed, {counts[1]} tests with flwr, and {counts[2]} with onnx. With the highest versions,
        {counts[3]} tests passed, plus {counts[4]} with flwr and {counts[5]} with onnx.
    """)
    return f"{markdown(['package', 'extra', 'required', 'lowest tested', 'highest tested'], rows, text=5)}\n\n{said}"


def sets_of(end: str, name: str, sets: dict[str, dict]) -> list[dict]:
    """Return the sets of the lowest, or of the highest, versions that have a package."""
    return [result for key, result in sets.items() if key.startswith(end) and name in result["versions"]]


def main(arguments: list[str] | None = None) -> int:
    """Test the sets and store the results; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=SETS, action="append", help="this set; repeatable")
    failed = False
    for name in parser.parse_args(arguments).only or SETS:
        print(f"{name}:", flush=True)
        try:
            with tempfile.TemporaryDirectory() as folder:
                result = tried(name, Path(folder) / "venv")
        except CommandFailedError as error:
            print(f"versions: {error}", file=sys.stderr)
            return 1
        store({**stored(), name: result})
        failed = failed or bool(result["failed"])
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
