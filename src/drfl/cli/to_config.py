"""Translation of command-line arguments to configuration keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from drfl.ambiguity.by_name import reference_in
from drfl.core.errors import InputError
from drfl.core.json_toml import toml_value
from drfl.experiments.config.algorithm_settings import COMMON
from drfl.experiments.config.config import code_references
from drfl.experiments.config.guards_and_failures import fault_numbers
from drfl.experiments.config.hyperparameters import algorithm_name, has_parameter


class _Param(NamedTuple):
    """One ``--param``: its text, its algorithm (None for all that run), the parameter and the value."""

    text: str
    algorithm: str | None
    name: str
    value: object


def named_code(settings: Mapping[str, object], params: Sequence[str] | None) -> set[str]:
    """Return the references to the user's code in the options of a command.

    The arguments are those of :func:`overrides`.
    """
    sets = (reference_in(text.partition("=")[2]) for text in params or ())
    return {*code_references(settings), *(reference for reference in sets if reference is not None)}


def overrides(
    given: Mapping[str, object], params: Sequence[str] | None, algorithms: Sequence[str]
) -> dict[str, object]:
    """Return the configuration keys that the options of a command set.

    Args:
        given: Settings that the user gave, by name.
        params: Texts of ``--param``.
        algorithms: Algorithms that run; a ``--param NAME=VALUE`` applies to all of them. ALGORITHM.NAME=VALUE
            overrides it, and both override the option that sets the same parameter.

    Raises:
        InputError: If a ``--param`` is not of the form NAME=VALUE, is for an algorithm that does not run, or is given
            twice, or if an option has no effect on any algorithm that runs or is overridden by ``--param`` in all.
    """
    names = [algorithm_name(name) for name in algorithms]
    values = dict(given)
    if "batch" in values:
        values["batch"] = toml_value(str(values["batch"]))
    if isinstance(faults := values.get("faults"), list):
        values["faults"] = fault_numbers(map(str, faults))
    parsed: list[_Param] = []
    for text in params or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(
                f"--param '{text}': expected NAME=VALUE, e.g. mu=1 or DRDM.mu=1",
                code="invalid-format",
                field="param",
            )
        algorithm, dot, parameter = name.rpartition(".")
        if not dot:
            parsed.append(_Param(text, None, parameter, toml_value(value)))
            continue
        target = algorithm_name(algorithm, names)
        if target not in names:
            raise InputError(
                f"--param '{text}' is for {target}, which does not run: remove it", code="unused-option", field="param"
            )
        parsed.append(_Param(text, target, parameter, toml_value(value)))
    seen: dict[tuple[str | None, str], str] = {}
    for param in parsed:
        key = (param.algorithm, param.name)
        if key in seen:
            raise InputError(
                f"--param '{seen[key]}' and --param '{param.text}' set the same parameter: remove one of them",
                code="given-twice",
                field="param",
            )
        seen[key] = param.text
    for option, parameter in COMMON.items():
        if option not in values:
            continue
        takers = [name for name in names if has_parameter(name, parameter)]
        if not takers:
            raise InputError(
                f"--{option} has no effect on {', '.join(names)}: remove it", code="unused-option", field=option
            )
        rivals = [param for param in parsed if param.name == parameter]
        if all(any(rival.algorithm in (None, name) for rival in rivals) for name in takers):
            texts = " ".join(f"--param {rival.text}" for rival in rivals)
            raise InputError(
                f"--{option} has no effect beside {texts}: remove one of them", code="unused-option", field=option
            )
    tables: dict[str, dict[str, object]] = {}
    # Values for one algorithm come last, so that they override those for all.
    for param in sorted(parsed, key=lambda param: param.algorithm is not None):
        for name in names if param.algorithm is None else [param.algorithm]:
            tables.setdefault(name, {})[param.name] = param.value
    return {**values, "algorithms": tables} if tables else values
