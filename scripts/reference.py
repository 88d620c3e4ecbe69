"""The reference of the documentation site: the page of each public name, and the command's page.

Public names are those in ``__all__`` of drfl and its packages, and all names of modules that are public as a whole.
"""

from __future__ import annotations

import importlib
import inspect
from functools import cache
from types import ModuleType
from typing import NamedTuple

import drfl


class ApiPage(NamedTuple):
    """A page of the API.

    Args:
        title: of the page.
        about: a sentence below it, with the guide to read first.
        homes: modules and packages whose public names are on the page.
        whole: modules all of whose names are public.
    """

    title: str
    about: str
    homes: tuple[str, ...]
    whole: tuple[str, ...] = ()


PACKAGES = (
    "drfl",
    "drfl.algorithms",
    "drfl.ambiguity",
    "drfl.training.checkpoint",
    "drfl.data",
    "drfl.engine",
    "drfl.data.features",
    "drfl_papers.energy",
    "drfl.report",
    "drfl.resilience",
    "drfl.testing",
    "drfl.testing.problems",
)
"""Packages that list their public names in ``__all__``."""

DRFLS = dict(drfl._NAMES)
"""The modules that define the names of drfl itself."""

API = {
    "runs": ApiPage(
        "Runs",
        "One run from Python: see [the library](../../library.md).",
        (
            "drfl.training.loop",
            "drfl.training.run_state",
            "drfl.training.run_log",
            "drfl.training.history",
            "drfl.training.averages",
            "drfl.training.model_selection",
            "drfl.training.callbacks",
        ),
        ("drfl.training.trackers",),
    ),
    "comparisons": ApiPage(
        "Comparing, tuning, assessing",
        "Several runs, and what may be said of them: see [own work](../../own.md), "
        "[tuning](../../tuning.md) and [what may be said](../../uncertainty.md).",
        ("drfl.experiments.api", "drfl.experiments", "drfl.experiments.tuning", "drfl.assessment"),
    ),
    "algorithms": ApiPage(
        "Algorithms",
        "The server programs and what they consist of; a page for each paper's is under Algorithms.",
        (
            "drfl.federation.algorithm",
            "drfl.algorithms",
            "drfl.federation.local_method",
            "drfl.task.client_model",
            "drfl.optim.local",
            "drfl.federation.sampling",
        ),
        ("drfl.optim.schedules", "drfl.optim.server_optimizers"),
    ),
    "ambiguity": ApiPage(
        "Ambiguity sets",
        "Where λ may lie, and what it costs: see [the guide](../../ambiguity.md).",
        ("drfl.ambiguity",),
    ),
    "data": ApiPage(
        "Data",
        "Clients, data sets, partitions: see [your data in Python](../../python-data.md) and "
        "[partitions](../../partitions.md).",
        ("drfl.data",),
    ),
    "tasks": ApiPage(
        "Tasks, models, losses, metrics",
        "What is trained and how it is scored: see [models](../../models.md), "
        "[losses](../../losses.md) and [metrics](../../metrics.md).",
        ("drfl.task.task", "drfl.task.losses", "drfl.task.layout", "drfl.task.metrics", "drfl.task.measure"),
        ("drfl.task.models", "drfl.task.augmentations"),
    ),
    "federations": ApiPage(
        "Federations and engines",
        "What an algorithm talks to, and what computes its local steps.",
        (
            "drfl.federation.federation",
            "drfl.federation.requests",
            "drfl.engine",
            "drfl.federation.client_table",
            "drfl.core.key",
        ),
    ),
    "resilience": ApiPage(
        "Resilience",
        "Failure models, guards and robust aggregation: see [client failures](../../client-failures.md) and "
        "[malicious clients](../../malicious-clients.md).",
        ("drfl.resilience",),
        ("drfl.core.audit_log", "drfl.core.audit_signatures"),
    ),
    "checkpoints": ApiPage(
        "Checkpoints", "Going on after a stop: see [runs](../../runs.md).", ("drfl.training.checkpoint",)
    ),
    "testing": ApiPage(
        "Testing",
        "Conformance checks for work of your own: see [the guide](../../testing.md).",
        ("drfl.testing",),
        ("drfl.testing.attacks",),
    ),
    "problems": ApiPage(
        "Problems with known optima", "See [the guide](../../problems.md).", ("drfl.testing.problems",)
    ),
    "theory": ApiPage(
        "Theory and certificate",
        "See [the theorems' step sizes](../../theory.md) and [the certificate](../../certificate.md).",
        (),
        ("drfl.algorithms.theory", "drfl.training.certificate", "drfl.task.convexity"),
    ),
    "features": ApiPage("Features", "See [the guide](../../features.md).", ("drfl.data.features",)),
    "energy": ApiPage("Energy and channel", "See [the guide](../../energy.md).", ("drfl_papers.energy",)),
    "reports": ApiPage("Reports", "See [runs](../../runs.md).", ("drfl.report",)),
    "deployments": ApiPage(
        "Deployments",
        "Flower apps of your own: see [the guide](../../deploy.md).",
        (),
        ("drfl.flower.strategy", "drfl.flower.client_app", "drfl.flower.in_process"),
    ),
    "errors": ApiPage("Errors", "What drfl raises on purpose.", ("drfl.core.errors",)),
}
"""Pages of the API by name."""


def public() -> dict[str, str]:
    """Return the shortest import path and the module of each public name."""
    found: dict[tuple[str, int], tuple[str, str]] = {}
    for package in sorted(PACKAGES, key=lambda name: (name.count("."), name)):
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            # An object with the same name in two packages is listed once; a module is public as a whole.
            if not isinstance(value, ModuleType) and (name, id(value)) not in found:
                # A constant has no __module__; drfl lists the modules of its own constants.
                home = getattr(value, "__module__", "") if callable(value) else DRFLS.get(name, "")
                found[name, id(value)] = f"{package}.{name}", home if home.startswith("drfl") else package
    return dict(found.values())


@cache
def named() -> dict[str, str]:
    """Return the path in the reference for every path that a docstring may use."""
    found = {}
    for path, home in public().items():
        found |= dict.fromkeys((path, f"{home}.{path.rpartition('.')[2]}"), path)
        # A package exports a name that the reference lists under a shorter path.
        found |= {f"{package}.{path.rpartition('.')[2]}": path for package in PACKAGES if home.startswith(package)}
    for page in API.values():
        for module in page.whole:
            found |= {f"{module}.{name}": f"{module}.{name}" for name in own_names(module)}
    return found


def page_of(home: str) -> str:
    """Return the API page for names from a module.

    Raises:
        LookupError: If no page lists the module.
    """
    known = [(len(own), name) for name, page in API.items() for own in page.homes if f"{home}.".startswith(f"{own}.")]
    if not known:
        raise LookupError(f"no page of the reference is for {home}: add it to scripts/reference.py")
    return max(known)[1]


def api() -> dict[str, str]:
    """Return the API's pages in Markdown, by their place in the site."""
    names: dict[str, list[str]] = {name: [] for name in API}
    for path, home in public().items():
        names[page_of(home)].append(path)
    found = {}
    for name, page in API.items():
        parts = [f"# {page.title}", page.about]
        for path in sorted(names[name], key=lambda path: (path.rpartition(".")[2].lower(), path)):
            parts.append(f"::: {path}")
        for module in page.whole:
            parts += [f"## `{module}`", summary(module), *(f"::: {module}.{own}" for own in own_names(module))]
        found[f"reference/api/{name}.md"] = "\n\n".join([*parts, ""])
    return found


def summary(module: str) -> str:
    """Return the first line of a module's docstring."""
    return (importlib.import_module(module).__doc__ or "").strip().splitlines()[0]


def own_names(module: str) -> list[str]:
    """Return the public classes and functions that a module defines, in their order."""
    found = importlib.import_module(module)
    return [
        name
        for name, value in vars(found).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module
    ]


def command() -> str:
    """Write the command's page from its help."""
    import typer
    from typer.cli import get_docs_for_click

    from drfl.cli.app import add_plugins, app

    add_plugins(["--help"])
    click = typer.main.get_command(app)
    context = typer.Context(click, info_name="drfl")
    return get_docs_for_click(obj=click, ctx=context, name="drfl", title="The command")
