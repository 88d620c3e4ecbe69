"""Test that modules are imported only when they are used."""

from __future__ import annotations

import pickle
import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest
from tests.support.marks import long_beyond

import drfl

PLOTTING = {"pandas", "sklearn", "scipy", "jinja2"}
COMMAND = {"typer", "rich", "pydantic"}


def loaded(code: str) -> set[str]:
    """Return the modules of a fresh interpreter after this code."""
    told = f"{code}\nimport sys\nprint('modules:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("modules: ")[2].split())


def called(*arguments: str) -> set[str]:
    """Return the modules that are loaded when the command ends."""
    return loaded(f"from drfl.cli.app import call\ncall({list(arguments)!r})")


def test_importing_the_package_loads_nothing():
    modules = loaded("import drfl")
    assert not {"torch", "numpy"} & modules
    assert {name for name in modules if name.startswith("drfl")} == {"drfl"}


@pytest.mark.long
def test_modules_that_messages_name_are_attributes():
    assert "drfl.resilience" in loaded("import drfl\ndrfl.resilience.FailureModel(drop=0.3)")


def test_whole_library_loads_only_torch_and_numpy():
    modules = loaded("from drfl import *\nimport drfl\ndrfl.theory, drfl.certificate, drfl.testing")
    assert {"torch", "numpy", "drfl.engine.stacked", "drfl.testing"} <= modules
    assert not (PLOTTING | COMMAND) & modules


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "algorithm"), [("Loop()", "DRDM(m=2)"), ("Stacked()", "DRDM(m=2)"), ("Stacked()", "Ditto()")]
)
def test_run_in_the_library_loads_no_more(engine, algorithm):
    modules = loaded(
        "import torch, drfl\n"
        "data = drfl.ClientData.from_arrays([(torch.randn(8, 2), torch.arange(8) % 2) for _ in range(3)])\n"
        f"fed = drfl.Simulation(data, drfl.Task(torch.nn.Linear(2, 2)), engine=drfl.engine.{engine})\n"
        f"drfl.run(drfl.{algorithm}, fed, rounds=1)"
    )
    assert {"drfl.engine.loop_engine", "drfl.engine.stacked"} & modules
    # Each of torch's compiler, SymPy and SciPy's statistics takes half a second or more to load.
    assert not (PLOTTING | COMMAND | {"torch._dynamo", "sympy"}) & modules


@pytest.mark.long
def test_run_of_the_command_loads_no_slow_packages(tmp_path):
    modules = called("run", "--dataset", "digits", "--rounds", "1", "--out", str(tmp_path / "run"))
    assert (tmp_path / "run" / "report.html").exists()
    assert not {"sklearn", "scipy.stats", "torch._dynamo", "sympy"} & modules


@pytest.mark.parametrize(
    "arguments",
    long_beyond(
        1,
        [
            "",
            "--help",
            "--version",
            "run --help",
            "run --help-all",
            "run --lr x",
            "rum",
        ],
    ),
)
def test_help_and_usage_errors_load_few_modules(arguments):
    modules = called(*arguments.split())
    assert "typer" in modules
    # newer versions of typer import pydantic, so it is not checked here
    assert not ({"torch", "numpy"} | PLOTTING) & modules
    ours = {name for name in modules if name.startswith("drfl")}
    grammar = ("app", "command_help", "data", "deploy", "model", "options", "signals")
    settings = ("drfl.experiments", "drfl.experiments.config", "drfl.experiments.config.settings")
    core = ("drfl.core", *(f"drfl.core.{name}" for name in ("errors", "plugins", "screen", "unicode_form")))
    papers = {"drfl_papers", *(f"drfl_papers.commands{name}" for name in ("", ".app", ".options"))}
    listed = arguments in ("", "--help", "rum")  # these list all commands, including those of other packages
    expected = {"drfl", "drfl.cli", *(f"drfl.cli.{name}" for name in grammar), *core, *settings}
    assert ours == expected | (papers if listed else set())


@pytest.mark.long
@pytest.mark.parametrize("arguments", long_beyond(1, [["algorithms"], ["run", "--algorithm", "DRDN"]]))
def test_lists_and_errors_load_no_matplotlib(arguments):
    modules = called(*arguments)
    assert "drfl.algorithms" in modules
    assert not PLOTTING & modules


def test_python_m_drfl_is_the_command():
    done = subprocess.run([sys.executable, "-m", "drfl", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()[0]) == (0, "drfl")


@pytest.mark.parametrize(("name", "home"), {**drfl._NAMES, **drfl._MODULES}.items(), ids=[*drfl._NAMES, *drfl._MODULES])
def test_every_name_matches_the_stub(name, home):
    module = import_module(home)
    expected = module if name in drfl._MODULES else getattr(module, name)
    assert getattr(drfl, name) is expected


def test_no_package_shadows_a_name():
    packages = {module.name for module in pkgutil.iter_modules(drfl.__path__)}
    assert not packages & set(drfl.__all__)
    assert all(drfl._MODULES[name] == f"drfl.{name}" for name in packages & set(drfl._MODULES))


@pytest.mark.long
def test_names_stay_the_same_in_any_import_order():
    code = (
        "import drfl.federation.algorithm, drfl.cli.run, drfl.algorithms.drdm, drfl\n"
        "assert drfl.run is drfl.training.loop.run and drfl.sampling.uniform and drfl.DRDM is drfl.algorithms.DRDM\n"
        "import drfl.core.key, drfl.task.layout, drfl.report, drfl.data.partition.partition\n"
        "from drfl import *\n"
        "assert Key is drfl.core.key.Key and run is drfl.run and callable(run) and Partition is drfl.data.Partition"
    )
    assert "drfl.cli.run" in loaded(code)


def test_names_are_listed_before_use():
    code = "import drfl\nassert {*drfl.__all__, 'theory', '__doc__'} <= {*dir(drfl)}, dir(drfl)"
    assert "torch" not in loaded(code)


def test_missing_name_raises_attribute_error():
    with pytest.raises(AttributeError, match=r"'DRDN'.*'DRDM'"):
        print(drfl.DRDN)
    with pytest.raises(ImportError, match="DRDN"):
        exec("from drfl import DRDN")
    assert not hasattr(drfl, "__main__")  # importing that would run the command


@pytest.mark.long
def test_pickles_load_before_anything_is_imported():
    text = pickle.dumps([drfl.LocalSGD(steps=3), drfl.Key(1).fold("x"), drfl.run, drfl.DRDM(m=2)])
    modules = loaded(
        f"import pickle\nfound = pickle.loads({text!r})\nassert found[0].steps == 3 and callable(found[2])"
    )
    assert "drfl.algorithms.drdm" in modules


FIRST = """
import importlib, os, pkgutil, sys
import numpy, pydantic, torch  # which the children share, as it is the order of our own modules that is tried
import drfl
assert sorted(m for m in sys.modules if m.startswith("drfl")) == ["drfl"]
names = [m.name for m in pkgutil.iter_modules(drfl.__path__, "drfl.") if "__main__" not in m.name]
for name in names:
    if os.fork() == 0:
        importlib.import_module(name)
        os._exit(0)
    if os.wait()[1]:
        print("failed:", name)
print(len(names), "tried")
"""


@pytest.mark.long
def test_any_module_can_be_imported_first():
    """Each module is imported in its own process, so no import between packages is circular."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=300)
    assert "failed" not in done.stdout, done.stderr
    assert int(done.stdout.split()[-2]) >= 16, done.stderr
