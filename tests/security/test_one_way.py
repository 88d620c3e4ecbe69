"""Test that all files are opened by the readers, and all text is printed in one place."""

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest
from tests.report.conftest import write_directory
from tests.support.refusals import refused

import drfl
from drfl.cli.app import call
from drfl.core.audit_log import AuditLog
from drfl.core.files import LIMIT
from drfl.core.json_toml import read_json
from drfl.core.parquet_files import read_parquet
from drfl.core.screen import Screen, ScreenTable

SOURCE = Path(drfl.__file__).parents[1]
BAD = "\x1b]0;x\x07\x9b31m\u202eabc\u200b\nok       forged"

OPENERS = {
    *(
        "open",
        "read_text",
        "read_bytes",
        "safe_open",
        "ZipFile",
        "read_csv",
        "read_parquet",
        "ParquetFile",
        "is_zipfile",
    ),
    *(
        "tomllib.loads",
        "np.load",
        "torch.load",
        "json.loads",
        "json.load",
        "load_from_disk",
        "exec_module",
        "is_zipfile",
    ),
}
"""Calls that open a file, or read text from it."""

READERS = ("files", "json_toml", "csv_files", "parquet_files", "array_files", "tensor_files")
OPENERS_OF_DRFL = {f"drfl/core/{name}.py" for name in READERS}
EXCEPTIONS = {
    "drfl/cli/new/project.py": "a file of the package",
    "drfl/core/atomic_files.py": "writes, and removes what it wrote",
    "drfl/core/audit_log.py": "appends to its own log under a lock",
    "drfl/core/free_memory.py": "files of the kernel",
    "drfl/core/mapped_files.py": "files of the kernel",
    "drfl/core/user_code.py": "runs the file that the user named",
    "drfl/data/datasets/adult.py": "asks of what the opener opened",
    "drfl/data/datasets/archives.py": "reads members of what the opener opened, and lists a folder",
    "drfl/data/datasets/catalogue.py": "a file of the package",
    "drfl/data/datasets/formats.py": "decodes a picture in memory",
    "drfl/data/features/weights.py": "a wheel whose SHA-256 was verified",
    "drfl/data/model_store.py": "locks a folder of its own",
    "drfl/data/tables/hugging_face.py": "the package datasets opens its own folders",
    "drfl/data/tables/table.py": "decodes a workbook that the opener opened",
    "drfl/experiments/compare/comparison_results.py": "its own text",
    "drfl/experiments/execution/records.py": "its own text",
    "drfl/experiments/run/artifacts.py": "its own text",
    "drfl/experiments/run/run_directory.py": "results that it has just written, to sign them",
    "drfl/experiments/tuning/run_searches.py": "a database",
    "drfl/flower/deploy/edit_settings.py": "parses text that the opener read",
    "drfl/flower/deploy/flower_cli.py": "parses what a program printed",
    "drfl/flower/deploy/init.py": "a file of the package",
    "drfl/flower/deploy/membership.py": "parses its own text before it is written",
    "drfl/flower/server_app.py": "a list of its own",
    "drfl/report/html.py": "a file of the package",
    "drfl/report/pdf.py": "a file of the package",
    "drfl/resilience/reply_log.py": "appends to its own list",
    "drfl/training/checkpoint/store.py": "writes and syncs a checkpoint",
    "drfl/training/trackers.py": "a store of its own",
    "drfl_papers/claims/decide.py": "a file of the package",
    "drfl_papers/claims/results.py": "stored results of the repository",
    "drfl_papers/commands/energy.py": "calls a reader of drfl that is called so",
    "drfl_papers/execute.py": "a summary that drfl wrote",
    "drfl_papers/specification.py": "a file of the package",
}


def dotted(node):
    """Return the same as ``ast.unparse`` for a name with attributes, in a tenth of the time."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ast.unparse(node)


@cache
def calls():
    """Return all calls in each file, as function name and first argument."""
    found = {}
    for path in (path for package in SOURCE.glob("drfl*") for path in package.rglob("*.py")):
        nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        found[path.relative_to(SOURCE).as_posix()] = [(dotted(node.func), node.args[:1]) for node in nodes]
    return found


def test_only_the_readers_open_files():
    found = set()
    imports = re.compile(rf"from drfl\.core\.(?:{'|'.join(READERS)}) import (\([^)]*\)|.*)")
    for name, all_calls in calls().items():
        text = (SOURCE / name).read_text(encoding="utf-8")
        through_files = " ".join(imports.findall(text))
        for call_, _ in all_calls:
            last = call_.rpartition(".")[2]
            own = call_ == last and last in through_files
            if (call_ in OPENERS or last in OPENERS) and not own:
                found.add(name)
    assert found - OPENERS_OF_DRFL - set(EXCEPTIONS) == set()
    assert set(EXCEPTIONS) - found == set(), "an exception that is not needed any more"


def test_only_one_module_prints():
    allowed = {
        "drfl/cli/command_help.py",  # prints typer's help
        "drfl/core/screen.py",
        "drfl/training/callbacks.py",
    }  # callbacks filter their own output, because notebooks also use them
    folders = ("drfl/testing/", "drfl/cli/new/templates/", "drfl/data/datasets/embedded/")
    for name, all_calls in calls().items():
        if name in allowed or name.startswith(folders):
            continue
        for called, first in all_calls:
            assert called not in ("typer.echo", "Console", "sys.stdout.write", "sys.stderr.write"), name
            if called == "print":
                assert ast.unparse(first[0]).startswith(("json_text(", "json.dumps(")), name


def test_printed_text_has_no_control_characters(capsys):
    screen = Screen()
    screen.print(f"client {BAD}")
    table = ScreenTable(BAD, title=f"[red]{BAD}")
    table.add_row(f"[link=https://x.y]{BAD}")
    screen.print(table)
    text = capsys.readouterr().out
    assert text.splitlines()[0].endswith("ok       forged")
    assert "[red]" in text
    assert all(c.isprintable() for c in text.replace("\n", ""))


def test_names_with_escape_codes_are_not_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = write_directory(tmp_path, "run", clients=2)
    for name in ("clients.csv", "lambda.csv"):
        text = (folder / name).read_text(encoding="utf-8")
        first = text.splitlines()[1].split(",")[0] if name == "clients.csv" else text.splitlines()[0].split(",")[1]
        (folder / name).write_text(text.replace(first, f'"{BAD}"', 1), encoding="utf-8", newline="")
    Path("bad.csv").write_text(
        "a,y,g\n" + "".join(f'{k},{k % 2},"{BAD}{k % 3}"\n' for k in range(90)), encoding="utf-8"
    )
    AuditLog(Path("server.log"), "server", BAD).add("started", run="1", sites=[BAD])
    asked = {"site": BAD, "run": BAD, "what": BAD, "digest": "d", "server": None}
    AuditLog(Path("site.log"), "site", BAD).add("asked", **asked)
    data = ["--data", "bad.csv", "--target", "y", "--group", "g", "--rounds", "1"]
    for words in (
        ["run", *data, "--out", "one"],
        ["compare", *data, "--algorithms", "FedAvg", "--seeds", "1", "--out", "two"],
        ["assess", "run"],
        ["assess", "one"],
        ["report", "run", "--out", "page.html"],
        ["deploy", "audit", "server.log", "site.log"],
        ["run", *data, "--group", BAD],
        ["datasets"],
        ["algorithms"],
        ["tune", BAD],
    ):
        call(words)
        said = capsys.readouterr()
        for text in (said.out, said.err):
            assert all(c.isprintable() for c in text.replace("\n", "")), words
            assert not any(line.startswith("ok       forged") for line in text.splitlines()), words


def test_honest_compressible_data_are_read(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": [0.0] * 10**6, "y": [0] * 10**6}), tmp_path / "a.parquet")
    assert read_parquet(tmp_path / "a.parquet").shape == (10**6, 2)


def test_size_limit_can_be_changed(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([[] for _ in range(10**5)]))
    assert len(read_json(path)) == 10**5
    monkeypatch.setenv(LIMIT, "1M")
    with refused("file-too-large", str(path)):
        read_json(path)
    monkeypatch.setenv(LIMIT, "much")
    with refused("invalid-value", LIMIT):
        read_json(path)
