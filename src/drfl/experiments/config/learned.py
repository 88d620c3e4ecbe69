"""Loss and metrics by name, or from the user's code, and the origin of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from torch import nn

from drfl.core import user_code
from drfl.core.errors import InputError
from drfl.task.architecture import takes_both
from drfl.task.losses import SampleFn
from drfl.task.metrics import Metric, MetricFn, check_distinct, metric_of
from drfl.task.models import LOSSES, MODELS
from drfl.task.task import default_score


class Origin(NamedTuple):
    """The origin of a model and its loss, for model files.

    Args:
        module: The class, or the reference with the SHA-256 of its files, and the arguments if they are known.
        loss: The loss's name, reference or class.
        start: Path, SHA-256 and run of the model file from which the model starts; None if it starts at random.
    """

    module: Mapping[str, object]
    loss: str
    start: Mapping[str, str] | None = None


def model_source(name: str, shape: tuple[int, ...], classes: int) -> dict[str, object]:
    """Return the origin of a module for a model file; see :func:`drfl.task.architecture.make_model`."""
    arguments = {"arguments": {"shape": list(shape), "classes": classes}}
    if not user_code.is_reference(name):
        return {"class": f"drfl.models.{MODELS[name].__name__}", **arguments}
    # The digests show a reader of the model file whether the code has changed.
    loaded, files = user_code.load("model", name), {"sha256": user_code.digests(name)}
    called = not isinstance(loaded, nn.Module) and callable(loaded) and takes_both(loaded)
    return {"reference": name, **files, **(arguments if called else {})}


def make_loss(name: str) -> SampleFn:
    """Make a loss from its name, or from the user's function, module or class of modules."""
    if not user_code.is_reference(name):
        return LOSSES[name]
    loaded = user_code.load("loss", name)
    # A class such as torch.nn.CrossEntropyLoss.
    if isinstance(loaded, type):
        loaded = loaded()
    if not callable(loaded):
        raise InputError(
            f"loss '{name}' is a {type(loaded).__name__}: pass a function of outputs and targets",
            code="wrong-type",
            field="loss",
        )
    return cast("SampleFn", loaded)


def make_measures(score: str | None, metrics: Sequence[str], loss: str) -> tuple[Metric, ...]:
    """Return the metrics measured on every client's test rows, the score first.

    Args:
        score: A name of :data:`drfl.task.metrics.METRICS`, or a reference to a function or a
            :class:`drfl.task.metrics.Metric`; None = the loss's default, see :func:`drfl.task.task.default_score`.
        metrics: The other metrics, given in the same way.
        loss: See :func:`make_loss`.
    """
    first = default_score(make_loss(loss)) if score is None else _metric(score)
    measures = (first, *(_metric(name) for name in metrics))
    check_distinct(measures)
    return measures


def _metric(name: str) -> Metric:
    if not user_code.is_reference(name):
        return metric_of(name)
    loaded = user_code.load("metric", name)
    if not (isinstance(loaded, Metric) or (callable(loaded) and not isinstance(loaded, type))):
        raise InputError(
            f"metric '{name}' is a {type(loaded).__name__}: pass a drfl.Metric, or a function of a "
            "client's outputs and targets",
            code="wrong-type",
            field="metric",
        )
    return metric_of(cast("Metric | MetricFn", loaded))


def metric_name(text: str) -> str:
    """Return a metric's name as configurations store it: that in :data:`drfl.task.metrics.METRICS`, or a reference."""
    metric = _metric(text)
    return text.strip() if user_code.is_reference(text) else metric.name
