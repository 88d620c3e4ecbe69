"""Requests to a deployment besides training, each with its results in a folder: evaluations and deliveries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import tomli_w

from drfl.core.errors import InputError
from drfl.core.files import reading
from drfl.core.json_toml import read_json
from drfl.core.screen import Screen, ScreenTable, say
from drfl.core.user_code import split
from drfl.data.model_file import read_model_file
from drfl.data.model_store import find_model
from drfl.flower.deploy.dated_folders import timestamp
from drfl.flower.deploy.paths import DeploymentFolder

REQUEST_FILE = "request.toml"
FOLDERS = {"evaluate": "evaluations", "deliver": "deliveries"}
"""Folder of the requests of each task in the deployment's folder."""


def write_request(
    folder: DeploymentFolder, task: Literal["evaluate", "deliver"], models: Sequence[Path], code: Sequence[str] = ()
) -> Path:
    """Write a request, and return its folder, to which the server writes the results.

    ``code`` are references to models of the user's code, besides that of the job.

    Raises:
        InputError: If a file is not a model file, a folder has none or several, a file is given twice, or a reference
            is not to a file.
    """
    models = [find_model(model).file for model in models]
    for model in models:
        read_model_file(model)  # an error is cheaper here than in a run
    if len({model.resolve() for model in models}) < len(models):
        raise InputError("the same model is named twice", code="duplicate-name", field="MODEL")
    located = list[str]()
    for reference in code:
        place, name = split("model", reference)
        if not Path(place).is_file():
            raise InputError(
                f"'{reference}' is not a reference FILE.py:NAME to a file that exists",
                code="invalid-reference",
                field="--model",
            )
        located.append(f"{Path(place).resolve()}:{name}")
    request = folder.root / FOLDERS[task] / timestamp()
    request.mkdir(parents=True)
    content = {"task": task, "models": [str(model.resolve()) for model in models], "code": located}
    (request / REQUEST_FILE).write_text(tomli_w.dumps(content), encoding="utf-8")
    return request


def read_results(request: Path, name: str) -> Mapping[str, Any]:
    """Read the results of a request."""
    content = read_json(request / name)
    with reading(request / name, "is damaged"):
        if not isinstance(content, dict):
            raise ValueError("expected an object")
    return cast("Mapping[str, Any]", content)


def print_evaluation(results: Mapping[str, Any], request: Path) -> None:
    """Print the score of each model at each site, with its interval, and the comparisons with the first model."""
    score, models, out = results["measures"][0], results["models"], Screen()
    scale, digits = (100.0, 1) if score["percent"] else (1.0, 3)

    def number(value: object, sign: str = "") -> str:
        # JSON has no NaN, so an undefined value is a text.
        known = isinstance(value, int | float) and math.isfinite(value)
        return format(scale * float(cast("float", value)), f"{sign}.{digits}f") if known else "–"

    unit = ", %" if score["percent"] else ""
    title = f"{score['name']}{unit}, with simultaneous 95 % intervals"
    table = ScreenTable("site", "test rows", title=title, text=("site",))
    for model in models:
        table.add_column(model["label"], justify="right")
    by_model = [{site["site"]: site for site in model["sites"]} for model in models]
    for name, first in by_model[0].items():
        cells = []
        for site in (sites.get(name) for sites in by_model):
            ends = "" if site is None else f" [{number(site['low'])}, {number(site['high'])}]"
            cells.append("" if site is None else number(site[score["name"]]) + ends)
        table.add_row(name, str(first["samples"]), *cells)
    ends = [model["worst_interval"] or (None, None) for model in models]
    worst = [
        f"{number(model['worst_' + score['name']])} [{number(low)}, {number(high)}]"
        for model, (low, high) in zip(models, ends, strict=True)
    ]
    missing = results["missing"]
    table.add_row(f"worst of {len(by_model[0])} tested" if missing else "worst site", "", *worst)
    out.print(table)
    for gain in results["gains"]:
        low, high = (number(gain["worst"][end], "+") for end in ("low", "high"))
        lists = ((what, ", ".join(gain[what])) for what in ("better", "worse"))
        shown = "; ".join(f"significantly {what} at {names}" for what, names in lists if names)
        say(
            f"{gain['model']} against {gain['over']}: the worst site's gain is between {low} and {high}; "
            f"{shown or 'no significant difference at a single site'}"
        )
    for name, reason in missing.items():
        say(f"drfl: {name} is not in the evaluation: {reason}", err=True)
    out.print(f"folder: {request}", markup=False, soft_wrap=True)
