"""Functions of scikit-learn as metrics."""

from __future__ import annotations

import functools
import inspect
import math
import sys
import warnings
from collections.abc import Callable
from typing import cast

from torch import Tensor

from drfl.core.errors import InputError
from drfl.task.outputs import are_classes, flat_positions, log_odds, probabilities_and_truth

SMALLER_IS_BETTER = ("_error", "_loss", "_deviance")
"""Endings of the names of functions of :mod:`sklearn.metrics` for which smaller values are better."""

TRUE = ("y_true", "y1", "labels_true")
"""Names of the first parameter of those functions of :mod:`sklearn.metrics` that compare predictions with targets."""


def scikit_learn_function(function: object) -> Callable[..., object] | None:
    """Return the public function of :mod:`sklearn.metrics` that this is, or is a partial of; None if it is neither."""
    function = function.func if isinstance(function, functools.partial) else function
    # A user with such a function has imported the module.
    known = getattr(sys.modules.get("sklearn.metrics"), str(getattr(function, "__name__", "")), None)
    return known if known is function else None


def takes_outputs(known: Callable[..., object]) -> bool:
    """Return whether a function of :mod:`sklearn.metrics` is for regression, or for graded relevances."""
    return known.__module__ == "sklearn.metrics._regression" or known.__name__ in ("dcg_score", "ndcg_score")


def scikit_learn_value(function: Callable[..., object], name: str, outputs: Tensor, targets: Tensor) -> float:
    """Call a function of :mod:`sklearn.metrics` as it expects, with the targets first.

    Its second parameter determines how outputs are converted. Functions for regression receive them unchanged. For
    classes and labels, ``y_pred`` receives the predicted ones, and ``y_proba`` the probabilities, which for two classes
    are those of the second. ``y_score`` receives log-odds, or probabilities if there are more than two classes.

    Args:
        function: The function, or a partial of it.
        name: Name of the metric, for messages.
        outputs: Outputs (n, …), float64 on the CPU.
        targets: Targets (n, …) on the CPU.

    Raises:
        InputError: If the function is not defined for several classes or labels.
    """
    known, parameters = scikit_learn_function(function), inspect.signature(function).parameters
    assert known is not None
    defaults, options = {name: parameter.default for name, parameter in parameters.items()}, dict[str, object]()
    if takes_outputs(known):
        predicted = outputs
    else:
        outputs, targets = flat_positions(outputs, targets)
        classes, role = are_classes(outputs, targets), list(parameters)[1]
        several, many = not classes and outputs[:1].numel() > 1, classes and outputs.shape[1] > 2
        is_proba = role in ("y_prob", "y_proba") or known.__name__ in ("log_loss", "d2_log_loss_score")
        if (several and is_proba) or (many and defaults.get("average") == "binary"):
            remedy = (
                f"functools.partial({known.__name__}, average='macro')"
                if many
                else "the built-in 'log_loss' or 'brier'"
            )
            raise InputError(
                f"metric '{name}': sklearn.metrics.{known.__name__} is not defined for "
                f"{outputs.shape[1]} {'classes' if many else 'labels per row'}. Use {remedy}.",
                code="unsupported-metric",
                field=name,
            )
        is_negative = not several and not many and defaults.get("pos_label") == 0
        if is_proba:
            predicted = probabilities_and_truth(outputs, targets)[0]
            predicted = 1 - predicted if is_negative else predicted
        elif role == "y_score":
            predicted = outputs.softmax(1) if many else log_odds(outputs, targets)
            predicted = -predicted if is_negative else predicted
        elif role == "pred_decision":
            predicted = outputs if many else log_odds(outputs, targets)
        else:
            predicted = outputs.argmax(1) if classes else (outputs > 0).long()
        # A client may lack classes, which scikit-learn would not know.
        if predicted.is_floating_point() and not several and defaults.get("labels", 0) is None:
            options["labels"] = list(range(outputs.shape[1] if many else 2))
        elif many and role == "y_score" and "average" in defaults and "labels" not in defaults:
            # A function without that option averages over the classes that occur.
            occurring = targets.unique()
            if len(occurring) < 2:
                return math.nan
            predicted, targets = predicted[:, occurring], (targets[:, None] == occurring).long()
    columns = (values.reshape(len(values), -1) for values in (targets, predicted))
    arrays = [(values[:, 0] if values.shape[1] == 1 else values).numpy() for values in columns]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns if a metric is undefined.
        call = cast("Callable[..., float]", function)
        return float(call(*arrays, **options))
