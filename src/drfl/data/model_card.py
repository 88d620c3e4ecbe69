"""The card of a model: its target, its inputs, its results, and what is unknown (Mitchell et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drfl.core.errors import listing
from drfl.data.model import Model
from drfl.task.metrics import METRICS

Card = dict[str, list[str]]
"""Sections in the order of Mitchell et al. (2019), each with its sentences."""

MOST = 8
"""Number of columns, and of classes, that a card names."""


def card(model: Model) -> Card:
    """Return the card of a model.

    drfl writes what the file contains. The authors must state who may use the model for which decision.

    References:
        Mitchell et al. (2019), "Model cards for model reporting".
    """
    about = model.about
    task, training, metrics = about.get("task", {}), about.get("training", {}), about.get("metrics", {})
    rows = f"{training.get('rows', '?'):,} rows" if isinstance(training.get("rows"), int) else "rows"
    start = training.get("init_from")
    seen = "."
    if "test_rows" in training:
        seen = ", which the training did not see."
    elif start:
        seen = ". The model from which the training started may have been trained on them, so results may be too good."
    where = f"{metrics.get('clients', training.get('clients', '?'))} clients"
    module = about.get("module", {})
    name = str(module.get("reference", module.get("class", "a module")))
    if "architecture" not in about:
        name += " (code that is not in the file)"
    inputs = "its inputs"
    if hasattr(model, "feature_names_in_"):
        inputs = listing([*map(str, model.feature_names_in_)], "column", MOST)
    target = "" if model.schema is None else f" of {', '.join(column.name for column in model.schema.targets)}"
    # The targets of a multi-label task are its labels; each is 0 or 1.
    classes = f" ({', '.join(map(str, model.classes_[:MOST]))})" if model.kind == "classification" else ""
    if model.kind == "multi-label" and not target:
        target = f" of {len(model.classes_)} labels"
    threshold, cut = list[str](), model.threshold
    if about.get("positive_class") is not None:
        how = "this is the default"
        if cut.chosen_on is not None:
            how = f"it maximises sensitivity plus specificity on {cut.chosen_on} rows"
        positive = f"'{about['positive_class']}' is predicted above a probability of {cut.probability:.4g}"
        threshold = [f"Threshold: {positive}; {how}."]
    preparation, sensitive = list[str](), ""
    if model.schema is not None:
        names = [column.name for column in model.schema.columns if column.role == "sensitive"]
        sensitive = f", such as those of {listing(names, 'column', MOST)}" if names else ""
        origin = " that drfl inferred from the training rows" if model.schema.inferred else ""
        preparation.append(f"{len(model.schema.features)} columns, encoded by a schema{origin}.")
        missing = [column for column in model.schema.columns if column.is_feature and column.missing]
        for columns, value in (
            ([column.name for column in missing if column.type != "category"], "the mean"),
            ([column.name for column in missing if column.type == "category"], "0 for every level"),
        ):
            if columns:
                preparation.append(
                    f"Missing values become {value}, with an indicator, in {listing(columns, 'column', MOST)}."
                )
    if model.standardisation is not None:
        preparation.append("Columns are standardised by mean and standard deviation of the training rows.")
    if about["preparation"].get("features") is not None:
        preparation.append(f"Inputs are features of images: {about['preparation']['features']}.")
    return {
        "Model details": [
            f"{name}, {sum(value.numel() for value in model.weights.values()):,} numbers",
            f"trained by drfl {about.get('drfl', '?')} with {training.get('algorithm', '?')}, "
            f"{training.get('rounds', '?')} rounds, seed {training.get('seed', '?')}",
            f"run {about.get('run', '?')}" + (f", schema {about['schema'][:12]}" if about.get("schema") else ""),
        ],
        "Intended use": [
            f"{model.kind.capitalize()}{target}{classes} from {inputs}.",
            "The file does not say who may use the model for which decision.",
        ],
        "Factors": [f"Metrics are per client, over {where}. drfl computed none for other groups{sensitive}."],
        "Metrics": [f"Score: {task.get('score', '?')}; loss: {task.get('loss', '?')}.", *threshold],
        "Evaluation data": [f"Test rows of the same {where}{seen}"],
        "Training data": [
            f"{training.get('data', '?')}: {rows} of {training.get('clients', '?')} clients.",
            *([f"The model started from the file with the SHA-256 {start}."] if start else []),
            *preparation,
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


def _results(model: Model, metrics: Mapping[str, Any]) -> list[str]:
    score = str(model.about.get("task", {}).get("score"))
    percent = METRICS[score].percent if score in METRICS else False

    def shown(name: str) -> str:
        value = metrics.get(name)
        if not isinstance(value, int | float):
            return "unknown"
        # A loss is never in per cent, even if the score is.
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
        count = int(metrics["undefined"])
        found.append(f"These numbers exclude {count} client{'s' * (count > 1)} at which the score is undefined.")
    return found
