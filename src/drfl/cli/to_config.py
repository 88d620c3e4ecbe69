"""From a command's arguments to the configuration's keys."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from drfl.algorithms import ALGORITHMS
from drfl.core.errors import InputError
from drfl.core.user_code import label_of
from drfl.experiments.config.algorithm_settings import COMMON
from drfl.experiments.config.hyperparameters import algorithm_name, canonical, takes


class _Param(NamedTuple):
    """One ``--param``: the text, whom it is for (None = all that run), the parameter and its value."""

    text: str
    algorithm: str | None
    name: str
    value: object


def overrides(
    given: Mapping[str, object], params: Sequence[str] | None, algorithms: Sequence[str]
) -> dict[str, object]:
    """What a command's options change in the configuration of its file.

    Args:
        given: the settings that were given, by name.
        params: the texts of ``--param``.
        algorithms: those that run, whom a ``--param NAME=VALUE`` without an algorithm's name is for. With a name it
            comes before one without, and before the option that stands for the same parameter.

    Raises:
        InputError: a ``--param`` is not of the form NAME=VALUE, for an algorithm that does not run or given twice, or
            an option means nothing to those that run, or would be lost to a ``--param`` in all of them.
    """
    names = [algorithm_name(name) for name in algorithms]
    values = dict(given)
    if "batch" in values:
        values["batch"] = _plain(str(values["batch"]))
    if isinstance(faults := values.get("faults"), list):
        shares: dict[str, float] = {}
        for text in map(str, faults):
            name, _, value = (part.strip() for part in text.partition("="))
            try:
                shares[name] = float(value)
            except ValueError:
                raise InputError(
                    f"--fault '{text}' is not of the form NAME=NUMBER, e.g. drop=0.3",
                    code="invalid-format",
                    field="fault",
                ) from None
        values["faults"] = shares
    parsed = _parsed(params or (), names)
    for option, parameter in COMMON.items():
        if option in values:
            _check_used(option, parameter, names, parsed)
    tables: dict[str, dict[str, object]] = {}
    # values for one algorithm come last, so that they override those for all
    for own in sorted(parsed, key=lambda param: param.algorithm is not None):
        for name in names if own.algorithm is None else [own.algorithm]:
            tables.setdefault(name, {})[own.name] = own.value
    return {**values, "algorithms": tables} if tables else values


def _parsed(texts: Sequence[str], names: Sequence[str]) -> list[_Param]:
    """Parse the values of ``--param``; no two may set the same parameter."""
    params: list[_Param] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(
                f"--param '{text}' is not of the form NAME=VALUE, e.g. mu=1 or DRDM.mu=1",
                code="invalid-format",
                field="param",
            )
        algorithm, dot, own = name.rpartition(".")
        if not dot:
            params.append(_Param(text, None, own, _plain(value)))
            continue
        target = canonical("algorithm", algorithm, {**ALGORITHMS, **{label_of(name): None for name in names}})
        if target not in map(label_of, names):
            raise InputError(
                f"--param '{text}' is for {target}, which does not run: remove it", code="unused-option", field="param"
            )
        params.append(_Param(text, next(name for name in names if label_of(name) == target), own, _plain(value)))
    seen: dict[tuple[str | None, str], str] = {}
    for param in params:
        what = (param.algorithm, param.name)
        if what in seen:
            raise InputError(
                f"--param '{seen[what]}' and --param '{param.text}' set the same parameter: leave one out",
                code="given-twice",
                field="param",
            )
        seen[what] = param.text
    return params


def _check_used(option: str, parameter: str, names: Sequence[str], params: Sequence[_Param]) -> None:
    """Somebody who runs must take the value of an option, or the user would believe in what never comes."""
    takers = [name for name in names if takes(name, parameter)]
    if not takers:
        raise InputError(
            f"--{option} has no effect on {', '.join(names)}: remove it", code="unused-option", field=option
        )
    rivals = [param for param in params if param.name == parameter]
    if all(any(rival.algorithm in (None, name) for rival in rivals) for name in takers):
        texts = " ".join(f"--param {rival.text}" for rival in rivals)
        raise InputError(
            f"--{option} has no effect beside {texts}: leave one of them out", code="unused-option", field=option
        )


def _plain(text: str) -> object:
    """A TOML value where it is one, else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # also of numbers with thousands of digits, and of deep nesting
        return text
