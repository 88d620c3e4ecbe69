"""Start a run with the client weights of an earlier one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from drfl.core.csv_files import read_results
from drfl.core.errors import InputError
from drfl.data.model_store import find_model
from drfl.experiments.config.run_settings import RunSettings
from drfl.federation.algorithm import Algorithm


def with_kept_weights(algorithm: Algorithm, settings: RunSettings, names: Sequence[str]) -> Algorithm:
    """Return the algorithm with the client weights at the end of the run from which the new one starts.

    Returns:
        The algorithm itself if the settings do not ask for it, or the algorithm has no λ.
    """
    if not settings.keep_weights or not hasattr(algorithm, "lam0") or not dataclasses.is_dataclass(algorithm):
        return algorithm
    assert settings.init_from is not None  # the settings were checked
    path = find_model(settings.init_from).file.parent / "clients.csv"
    remedy = "remove `keep_weights`, or start from a model in the folder of its run"
    frame = read_results(path, "client", remedy=remedy)
    if not {"client", "lambda"} <= set(frame.columns) or frame["lambda"].dtype.kind not in "if":
        raise InputError(f"{path} has no client weights: {remedy}", code="damaged-file", field=str(path))
    weights = dict(zip(frame["client"], frame["lambda"].astype(float), strict=True))
    if set(weights) != set(names):
        odd = sorted(set(weights) ^ set(names))
        raise InputError(
            f"`keep_weights`: '{odd[0]}' is a client of only one of the two runs: remove `keep_weights`",
            code="clients-differ",
            field="keep_weights",
        )
    return dataclasses.replace(algorithm, lam0=tuple(weights[name] for name in names))
