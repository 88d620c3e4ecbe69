"""The card of a model: what it predicts, from what, how well, and what is not known (Mitchell et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drfl.data.model import Model
from drfl.task.metrics import METRICS

Card = dict[str, list[str]]
"""Sections in the order of Mitchell et al. (2019), each with its sentences."""


def card(model: Model) -> Card:
    """Return the card of a model.

    drfl writes what the file contains. Who may use the model for which decision is for its authors to say.

    References:
        Mitchell et al. (2019), "Model cards for model reporting".
    """
    about = model.about
    task, training, metrics = about.get("task", {}), about.get("training", {}), about.get("metrics", {})
    rows = f"{training.get('rows', '?'):,} rows" if isinstance(training.get("rows"), int) else "rows"
    start = training.get("init_from")
    where = f"{metrics.get('clients', training.get('clients', '?'))} clients"
    return {
        "Model details": [
            f"{_module(about)}, {sum(value.numel() for value in model.weights.values()):,} numbers",
            f"trained by drfl {about.get('drfl', '?')} with {training.get('algorithm', '?')}, "
            f"{training.get('rounds', '?')} rounds, seed {training.get('seed', '?')}",
            f"run {about.get('run', '?')}" + (f", schema {about['schema'][:12]}" if about.get("schema") else ""),
        ],
        "Intended use": [_use(model), "The file does not say who may use the model for which decision."],
        "Factors": [f"Metrics are per client, over {where}. Other groups were not tested."],
        "Metrics": [f"Score: {task.get('score', '?')}; loss: {task.get('loss', '?')}.", *_threshold(model)],
        "Evaluation data": [f"Test rows of the same {where}, which the training did not see."],
        "Training data": [
            f"{training.get('data', '?')}: {rows} of {training.get('clients', '?')} clients.",
            *([f"The model started from the file with the SHA-256 {start}."] if start else []),
            *_preparation(model),
        ],
        "Quantitative analyses": _results(model, metrics),
        "Ethical considerations": [
            "Names of columns and levels in this file come from the training tables. Weights can reveal facts about "
            "training rows; drfl adds no noise to them.",
        ],
        "Caveats and recommendations": [
            "Intervals hold for other rows of the same clients, not for other clients. Evaluate the model at a new "
            "client before it is used there.",
        ],
    }


def _module(about: Mapping[str, Any]) -> str:
    module = about.get("module", {})
    name = str(module.get("reference", module.get("class", "a module")))
    return f"{name} (code that is not in the file)" if "architecture" not in about else name


def _use(model: Model) -> str:
    names = "its inputs"
    if hasattr(model, "feature_names_in_"):
        shown = [str(name) for name in model.feature_names_in_[:8]]
        names = ", ".join(shown) + (f" and {model.n_features_in_ - 8} more columns" if model.n_features_in_ > 8 else "")
    target = "" if model.schema is None else f" of {', '.join(column.name for column in model.schema.targets)}"
    classes = "" if model.kind == "regression" else f" ({', '.join(map(str, model.classes_[:8]))})"
    return f"{model.kind.capitalize()}{target}{classes} from {names}."


def _threshold(model: Model) -> list[str]:
    positive, cut = model.about.get("positive_class"), model.threshold
    if positive is None:
        return []
    how = "this is the default"
    if cut.chosen_on is not None:
        how = f"it maximises sensitivity plus specificity on {cut.chosen_on} rows"
    return [f"Threshold: '{positive}' is predicted above a probability of {cut.probability:.4g}; {how}."]


def _preparation(model: Model) -> list[str]:
    found = []
    if model.schema is not None:
        inferred = "inferred from the training rows" if model.schema.inferred else "given"
        missing = [column.name for column in model.schema.columns if column.is_feature and column.missing]
        found.append(f"{len(model.schema.features)} encoded columns by a schema that was {inferred}.")
        if missing:
            found.append(f"Missing values become the mean, with an indicator, in {', '.join(missing[:8])}.")
    if model.standardisation is not None:
        found.append("Columns are standardised by mean and standard deviation of the training rows.")
    features = model.about["preparation"].get("features")
    return found if features is None else [*found, f"Inputs are features of images: {features}."]


def _results(model: Model, metrics: Mapping[str, Any]) -> list[str]:
    score = str(model.about.get("task", {}).get("score"))
    percent = METRICS[score].percent if score in METRICS else False

    def shown(name: str) -> str:
        value = metrics.get(name)
        if not isinstance(value, int | float):
            return "unknown"
        return f"{100 * value:.1f} %" if percent and not name.endswith("loss") else f"{value:.4g}"

    if not metrics:
        return ["This file has no test results."]
    low, high = shown(f"worst_{score}_low"), shown(f"worst_{score}_high")
    interval = f" (true value {low} to {high} with 95 % confidence)" if "unknown" not in (low, high) else ""
    found = [
        f"Worst client: {score} {shown(f'worst_{score}')}{interval}.",
        f"Average over clients: {score} {shown(f'avg_{score}')}, standard deviation {shown(f'std_{score}')}.",
        f"Loss: worst {shown('worst_loss')}, average {shown('avg_loss')}.",
    ]
    if metrics.get("undefined"):
        found.append(f"The score is undefined at {metrics['undefined']} clients, which these numbers leave out.")
    return found
