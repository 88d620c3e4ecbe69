"""Test that no command executes code that only a received folder of results refers to."""

from __future__ import annotations

import builtins
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
import tomli_w
from tests.support.marks import crossed, long_except
from tests.support.refusals import refused

from drfl.cli.app import call
from drfl.core import user_code
from drfl.core.errors import InputError
from drfl.data.tables.columns import Columns
from drfl.data.tables.hugging_face import read_hub
from drfl.experiments.config.config import Config, code_references, config_of, read_file
from drfl.training.callbacks import Progress

SMALL = ["--clients", "4", "--rounds", "2", "--steps", "1", "--engine", "loop", "--threads", "1"]

MINE = """
from dataclasses import dataclass
from torch import nn
import helper_of_mine
import drfl

@dataclass(frozen=True)
class Same(drfl.FedAvg):
    pass

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")

def score(outputs, targets):
    return (outputs.argmax(1) == targets).double().mean()
"""

EVIL = """
from pathlib import Path
Path(r"{mark}").write_text("executed")
from torch import nn
def X(*args):
    Path(r"{mark}").write_text("called")
    return nn.Linear(64, 10)
SHARE = 1
"""


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """Make a finished run and a comparison whose code is next to their folders."""
    home = tmp_path_factory.mktemp("honest")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(home)
        patched.setattr(sys, "path", [*sys.path])
        (home / "mine.py").write_text(MINE)
        (home / "helper_of_mine.py").write_text("SHARE = 1\n")
        own = ["--model", "mine.py:net", "--loss", "mine.py:loss", "--score", "mine.py:score"]
        assert call(["run", *SMALL, "--algorithm", "mine.py:Same", *own, "--out", "run"]) == 0
        assert call(["compare", *SMALL, "--algorithms", "mine.py:Same,FedAvg", "--seeds", "1", "--out", "both"]) == 0
    return home


@pytest.fixture
def home(honest, tmp_path, monkeypatch):
    """Return the user's folder in a process that has not imported its code; ``run`` and ``both`` were received."""
    shutil.copytree(honest, tmp_path / "home", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    forget()
    yield tmp_path / "home"
    forget()


def forget():
    for name in list(sys.modules):
        if name.startswith(("drfl_user_", "helper_of_mine", "evil")):
            del sys.modules[name]
    sys.path_importer_cache.clear()


def mark(home):
    return home.parent / "executed"


def evil(home, path):
    """Write malicious code to a path and return its digest."""
    path = home / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(EVIL.format(mark=mark(home)))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def edit(path, **changes):
    """Change keys of a TOML file; None removes one."""
    content = {**tomllib.loads(path.read_text()), **changes}
    path.write_text(tomli_w.dumps({key: value for key, value in content.items() if value is not None}))


def files(folder):
    return tomllib.loads((folder / "config.toml").read_text())["files"]


def said(arguments, capsys):
    """Return code and field of a refused command, which prints one line."""
    capsys.readouterr()
    assert call([*arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    error = json.loads(out)["error"]
    return error["code"], error["field"]


RUN = ["run", "--resume", "--out", "run"]


def check_refused(home, capsys, field=None, arguments=RUN, code="untrusted-code"):
    found = said(arguments, capsys)
    assert found == (code, field or found[1])
    assert not mark(home).exists()
    assert not [name for name in sys.modules if name.startswith(("drfl_user_", "evil", "helper_of_mine"))]


@pytest.mark.long
def test_honest_folder_needs_no_trust_option(home, capsys):
    assert call(RUN) == 0
    assert call(["compare", "--resume", "--out", "both"]) == 0
    assert call(["run", "both/Same-seed0/config.toml", "--out", "again"]) == 0


@pytest.mark.parametrize(
    ("key", "recorded"), crossed(["model", "loss", "score", "algorithm", "metrics"], [False, True])
)
def test_code_in_the_folder_is_not_loaded(home, key, recorded, capsys):
    digest = evil(home, "run/evil.py")
    value = ["run/evil.py:X"] if key == "metrics" else "run/evil.py:X"
    more = {"run/evil.py": digest} if recorded else {}
    edit(home / "run/config.toml", **{key: value}, files={**files(home / "run"), **more})
    check_refused(home, capsys, key)


def test_algorithm_table_does_not_load_code_from_the_folder(home, capsys):
    digest = evil(home, "run/evil.py")
    edit(home / "run/config.toml", algorithms={"run/evil.py:X": {"m": 3}}, files={"run/evil.py": digest})
    check_refused(home, capsys)


def test_algorithm_table_of_a_comparison_does_not_load_code(home, capsys):
    digest = evil(home, "both/evil.py")
    edit(home / "both/config.toml", algorithms={"both/evil.py:X": {}, "FedAvg": {}}, files={"both/evil.py": digest})
    check_refused(home, capsys, "algorithms", ["compare", "--resume", "--out", "both"])


def test_cell_does_not_load_code_from_its_comparison(home, capsys):
    digest = evil(home, "both/evil.py")
    edit(home / "both/FedAvg-seed0/config.toml", model="both/evil.py:X", files={"both/evil.py": digest})
    check_refused(home, capsys, "model", ["run", "--resume", "--out", "both/FedAvg-seed0"])


def test_configuration_beside_checkpoints_is_checked(home, capsys):
    digest = evil(home, "run/checkpoint/evil.py")
    shutil.copy(home / "run/config.toml", home / "run/checkpoint/config.toml")
    edit(
        home / "run/checkpoint/config.toml", model="run/checkpoint/evil.py:X", files={"run/checkpoint/evil.py": digest}
    )
    check_refused(home, capsys)


def test_absolute_and_indirect_paths_into_the_folder_are_refused(home, capsys):
    digest = evil(home, "run/evil.py")
    for path in (home / "run/evil.py").as_posix(), "run/../run/evil.py", "./run/evil.py":
        edit(home / "run/config.toml", model=f"{path}:X", files={**files(home / "run"), path: digest})
        check_refused(home, capsys, "model")


def test_links_into_and_out_of_the_folder_are_refused(home, capsys):
    digest = evil(home, "run/evil.py")
    (home / "innocent.py").symlink_to(home / "run/evil.py")
    edit(home / "run/config.toml", model="innocent.py:X", files={**files(home / "run"), "innocent.py": digest})
    check_refused(home, capsys, "model")
    (home / "run/out.py").symlink_to(home / "mine.py")
    own = files(home / "run")
    edit(home / "run/config.toml", model="run/out.py:net", files={**own, "run/out.py": own["mine.py"]})
    check_refused(home, capsys, "model")


def test_folder_reached_through_a_link_is_checked(home, capsys):
    digest = evil(home, "run/evil.py")
    (home / "link").symlink_to(home / "run")
    edit(home / "run/config.toml", model="run/evil.py:X", files={**files(home / "run"), "run/evil.py": digest})
    check_refused(home, capsys, "model", ["run", "--resume", "--out", "link"])


def test_working_directory_inside_the_folder_is_checked(home, monkeypatch, capsys):
    digest = evil(home, "run/evil.py")
    edit(home / "run/config.toml", model="evil.py:X", files={"evil.py": digest})
    monkeypatch.chdir(home / "run")
    check_refused(home, capsys, None, ["run", "--resume", "--out", "../run"])


def test_changed_user_file_is_refused(home, capsys):
    (home / "mine.py").write_text(f"{MINE}\nopen(r'{mark(home)}', 'w')\n")
    check_refused(home, capsys)


@pytest.mark.parametrize("change", ["changed", "gone", "unrecorded"])
def test_imported_modules_are_checked_before_any_import(home, change, capsys):
    if change == "changed":
        evil(home, "helper_of_mine.py")
    elif change == "gone":
        (home / "helper_of_mine.py").unlink()
    else:
        (home / "mine.py").write_text(MINE)
        edit(home / "run/config.toml", files={"helper_of_mine.py": files(home / "run")["helper_of_mine.py"]})
    check_refused(home, capsys, "helper_of_mine.py" if change != "unrecorded" else None)


def test_package_in_the_folder_does_not_shadow_a_module(home, capsys):
    """Python imports a package before a module of the same name."""
    (home / "run").rename(home / "helper_of_mine")
    evil(home, "helper_of_mine/__init__.py")
    assert said(["run", "--resume", "--out", "helper_of_mine"], capsys)[0] == "untrusted-code"
    assert not mark(home).exists()


def test_bytecode_in_pycache_is_not_loaded(home, capsys):
    import importlib.util
    import py_compile

    digest = evil(home, "source.py")
    cached = importlib.util.cache_from_source(str(home / "helper_of_mine.py"))
    (home / "run").rename(home / "__pycache__")
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(home / "source.py"), cached, invalidation_mode=mode)
    assert digest
    assert said(["run", "--resume", "--out", "__pycache__"], capsys)[0] == "untrusted-code"
    assert not mark(home).exists()


@pytest.mark.parametrize(
    "reference",
    ["builtins:exec", "builtins:breakpoint", "os:system", "os:abort", "subprocess:run", "subprocess:Popen",
     "antigravity:geohash", "drfl.cli:main", "pip:main", "torch.hub:load", "nothere:X", "torch:nn.Linear",
     f"{os.__file__}:abort", f"{pytest.__file__}:main", "mine.py:", ":X", "mine\0.py:net", "x" * 5000 + ".py:X"],
)  # fmt: skip
@pytest.mark.parametrize("key", long_except(["model"], ["model", "algorithm", "loss"]))
def test_modules_of_python_and_drfl_are_refused(home, reference, key, monkeypatch, capsys):
    monkeypatch.setattr(user_code, "load", lambda kind, name: pytest.fail(f"{name} was loaded"))
    place = reference.rpartition(":")[0]
    digest = hashlib.sha256(Path(place).read_bytes()).hexdigest() if os.path.isfile(place) else "0" * 64
    edit(home / "run/config.toml", **{key: reference}, files={**files(home / "run"), place or "x": digest})
    code, field = said(RUN, capsys)
    assert code in ("untrusted-code", "invalid-reference")
    if code == "invalid-reference":
        assert field == key


@pytest.mark.parametrize("reference", ["os:system", "subprocess:run", "builtins:exec", "mine.py:system", "mine.py:run"])
def test_standard_library_functions_are_never_called(home, reference, monkeypatch, capsys):
    for module, name in ((os, "system"), (subprocess, "run"), (builtins, "breakpoint")):
        assert callable(getattr(module, name))
    with (home / "mine.py").open("a") as file:
        file.write("from os import system\nfrom subprocess import run\n")
    assert said(["run", *SMALL, "--model", reference, "--out", "new"], capsys) == ("standard-library", "model")
    arguments = [*RUN, "--trust"] if ".py" not in reference else [*RUN, "--trust", "--model", reference]
    edit(home / "run/config.toml", model=reference)
    assert said(arguments, capsys) == ("standard-library", "model")


def test_editable_modules_are_found_without_importing_packages(home, monkeypatch, capsys):
    digest = evil(home, "evil_package/__init__.py")
    (home / "evil_package/nets.py").write_text("import evil_package\n")
    monkeypatch.syspath_prepend(str(home))
    own = hashlib.sha256((home / "evil_package/nets.py").read_bytes()).hexdigest()
    for recorded in {}, {"evil_package.nets": "0" * 64}, {"evil_package.nets": own, "evil_package": "0" * 64}:
        edit(home / "run/config.toml", model="evil_package.nets:X", files={**files(home / "run"), **recorded})
        check_refused(home, capsys)
    assert digest


def test_module_in_the_folder_is_not_imported(home, monkeypatch, capsys):
    digest = evil(home, "run/evil_module.py")
    evil(home, "run/evil_package/__init__.py")
    (home / "run/evil_package/nets.py").write_text("")
    monkeypatch.syspath_prepend(str(home / "run"))
    for name in "evil_module", "evil_package", "evil_package.nets":
        edit(home / "run/config.toml", model=f"{name}:X", files={**files(home / "run"), name: digest})
        check_refused(home, capsys, "model")


def test_honest_module_needs_no_trust_option(home, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(home))
    shutil.copy(home / "mine.py", home / "evil_twin.py")
    assert call(["run", *SMALL, "--model", "evil_twin:net", "--out", "new"]) == 0
    assert files(home / "new").keys() == {"evil_twin", "helper_of_mine"}
    forget()
    assert call(["run", "--resume", "--out", "new"]) == 0
    forget()
    (home / "helper_of_mine.py").write_text("SHARE = 2\n")
    check_refused(home, capsys, "helper_of_mine", ["run", "--resume", "--out", "new"])


def test_named_or_trusted_code_is_loaded(home, capsys):
    digest = evil(home, "run/evil.py")
    edit(home / "run/config.toml", model="run/evil.py:X", files={**files(home / "run"), "run/evil.py": digest})
    check_refused(home, capsys, "model", [*RUN, "--loss", "run/evil.py:SHARE"])  # X stays untrusted
    assert call([*RUN, "--model", "run/evil.py:X"]) in (0, 2)
    assert mark(home).read_text() == "called"
    mark(home).unlink()
    forget()
    assert call([*RUN, "--trust"]) in (0, 2)
    assert mark(home).read_text() == "called"


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "run/config.toml", "--out", "new"],
        ["compare", "run/config.toml", "--algorithms", "FedAvg", "--seeds", "1", "--out", "new"],
        ["tune", "run/config.toml", "--algorithms", "FedAvg", "--trials", "1", "--out", "new"],
        ["energy", "run/config.toml", "--out", "new"],
        ["energy", "--runs", "run", "--out", "new"],
    ],
)
def test_every_command_that_reads_a_folders_configuration_checks_it(home, arguments, capsys):
    digest = evil(home, "run/evil.py")
    edit(home / "run/config.toml", model="run/evil.py:X", files={**files(home / "run"), "run/evil.py": digest})
    check_refused(home, capsys, "model", arguments)
    assert not (home / "new").exists()


@pytest.mark.parametrize("manifest", ["{", '{"k\\u0069nd": "run", "dr\\u0066l": "1"}', '{"kind": 1, "drfl": 2}'])
def test_manifest_that_looks_foreign_is_still_checked(home, manifest, capsys):
    evil(home, "run/evil.py")
    edit(home / "run/config.toml", model="run/evil.py:X")
    (home / "run/manifest.json").write_text(manifest)
    check_refused(home, capsys, "model", ["run", "run/config.toml", "--out", "new"])


def test_user_file_beside_a_foreign_manifest_is_loaded(home):
    (home / "manifest.json").write_text('{"name": "my web page"}')
    (home / "study.toml").write_text('model = "mine.py:net"\n')
    assert read_file(home / "study.toml") == {"model": "mine.py:net"}


def test_names_in_other_files_are_never_loaded(home, capsys):
    """identity.json, records, outcomes.json, manifest.json and summary.json are read as data or refused."""
    evil(home, "both/evil.py")
    (home / "both/checkpoint").mkdir(exist_ok=True)
    bad = {"config": {"model": "both/evil.py:X", "algorithms": {"both/evil.py:X": {}}}, "algorithm": "both/evil.py:X"}
    more = {"data": "", "model": "both/evil.py:X", "versions": {"both/evil.py:X": "1"}}
    for name in "checkpoint/identity.json", "checkpoint/FedAvg-seed0.json", "outcomes.json", "summary.json":
        (home / "both" / name).write_text(json.dumps({**bad, **more}))
    shutil.copy(home / "both/config.toml", home / "both/checkpoint/config.toml")
    assert call(["compare", "--resume", "--out", "both"]) == 2
    for name in "files", "cells":
        content = json.loads((home / "run/manifest.json").read_text())
        (home / "run/manifest.json").write_text(json.dumps({**content, name: ["evil.py:X"]}))
        assert call(RUN) == 2
        (home / "run/manifest.json").write_text(json.dumps(content))
    assert not mark(home).exists()


@pytest.mark.long
def test_search_executes_nothing_from_its_folder(home, capsys):
    pytest.importorskip("optuna")
    (home / "job.toml").write_text('clients = 3\nrounds = 1\nengine = "loop"\n[algorithms.FedAvg]\n')
    tune = ["tune", "job.toml", "--trials", "1", "--seeds", "1", "--jobs", "1", "--out", "search"]
    assert call(tune) == 0
    evil(home, "search/evil.py")
    with sqlite3.connect(home / "search/study.db") as base:
        base.execute("UPDATE studies SET study_name = 'search/evil.py:X'")
        base.execute(
            'UPDATE trial_user_attributes SET value_json = \'[0, {"model": "search/evil.py:X"}, [1], ["rounds"]]\''
        )
    edit(home / "search/job.toml", algorithms={"search/evil.py:X": {}}, model="search/evil.py:X")
    call(tune)
    edit(home / "search/job.toml", provenance=None, scores=None, algorithms={"search/evil.py:X": {}})
    check_refused(home, capsys, None, ["tune", "search/job.toml", "--trials", "1", "--out", "new"])
    assert not mark(home).exists()


def test_read_only_commands_import_nothing(home, monkeypatch, capsys):
    """`report`, `assess`, `deploy audit`, `algorithms` and `datasets` never execute code that a folder names."""
    evil(home, "run/evil.py")
    for folder in "run", "both/FedAvg-seed0":
        edit(
            home / folder / "config.toml",
            model="run/evil.py:X", loss="run/evil.py:X", score="run/evil.py:X", metrics=["run/evil.py:X"],
            algorithm="run/evil.py:X", algorithms={"run/evil.py:X": {}},
        )  # fmt: skip
        path = home / folder / "summary.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "model": "run/evil.py:X"}))
    (home / "log.jsonl").write_text('{"event": "run/evil.py:X"}\n')
    monkeypatch.setattr(user_code, "load", lambda kind, name: pytest.fail(f"{name} was loaded"))
    monkeypatch.syspath_prepend(str(home / "run"))
    codes = [
        call(["report", "run", "--out", "page.html"]),
        call(["assess", "run"]),
        call(["deploy", "audit", "log.jsonl"]),
        call(["algorithms"]),
        call(["datasets"]),
    ]
    assert codes[:2] == codes[3:] == [0, 0]
    assert not mark(home).exists()
    assert not [name for name in sys.modules if name.startswith(("drfl_user_", "evil"))]


@pytest.mark.parametrize(("version", "more"), [("2.19.0", {"trust_remote_code": False}), ("5.2.0", {})])
def test_data_set_scripts_are_not_executed(version, more, monkeypatch):
    datasets = pytest.importorskip("datasets")
    calls = []
    monkeypatch.setattr(datasets, "__version__", version)
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, **options: calls.append((names, options)))
    with refused("unsupported-data", "dataset"):
        read_hub("hf:run/evil", Columns(targets=["label"]))
    assert calls == [(("run/evil", None), {"revision": None, **more})]


def test_every_key_that_loads_code_is_checked(home, monkeypatch):
    """:func:`code_references` finds every object that a configuration loads."""
    loaded = []

    def load(kind, reference):
        loaded.append(reference)
        raise InputError("stop", code="stop")

    monkeypatch.setattr(user_code, "load", load)
    for key in Config.model_fields:
        for value in (
            "evil.py:X", ["evil.py:X"], {"evil.py:X": {}}, {"x": "evil.py:X"}, {"DRFA": {"ambiguity": "evil.py:X"}},
            {"DRFA": {"ambiguity": " evil.py:X : a=1"}}, {"drfa": {"ambiguity": "evil:X"}},
        ):  # fmt: skip
            loaded.clear()
            with suppress(InputError):
                config_of({key: value}, {})
            assert set(loaded) <= code_references({key: value}).keys(), key


def test_own_stopped_run_resumes(home, monkeypatch):
    monkeypatch.setattr(Progress, "__call__", lambda self, step: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Progress, "__call__", lambda self, step: os.kill(os.getpid(), 2) if step.round == 0 else None)
        call(["run", *SMALL, "--model", "mine.py:net", "--out", "mine"])
    monkeypatch.undo()
    monkeypatch.chdir(home)
    forget()
    assert call(["run", "--resume", "--out", "mine"]) == 0
    assert (home / "mine/summary.json").is_file()
