"""The base class of all settings, and errors for wrong ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from drfl.core.errors import InputError


class StrictSettings(BaseModel):
    """Immutable settings that reject unknown keys."""

    # Defaults given as texts become objects, too.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @classmethod
    def checked(cls, values: Mapping[str, object]) -> Self:
        """Return the settings with these values, or raise pydantic's first error as an error of drfl."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise input_error(error) from None

    def to_plain(self) -> dict[str, object]:
        """Return all settings that are not None, as plain values that a file can hold."""
        return {name: value for name, value in self.model_dump(mode="json").items() if value is not None}


def one_or_more(value: object) -> object:
    """Return the values of a setting that takes several, for which the user may give a single one."""
    return [value] if isinstance(value, str | Path) else value


def input_error(error: ValidationError) -> InputError:
    """Return the first error that pydantic found as an error of drfl."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause
    table, *path = first["loc"][:3]
    if table == "algorithms" and len(path) == 2:
        what = f"{path[0]}.{path[1]} = {first['input']!r}"
        return InputError(
            f"{what} is not a single value: use a number, true, false or a text such as 'cvar:alpha=0.2'",
            code="wrong-type",
            field=f"{path[0]}.{path[1]}",
        )
    if table == "algorithms" and first["type"] == "dict_type":
        name = path[0] if path else "FedAvg"
        return InputError(
            f"`algorithms` needs a table of parameters for each algorithm, got {first['input']!r:.80}. Write "
            f"[algorithms.{name}]; the table may be empty",
            code="invalid-value",
            field="algorithms",
        )
    where = ".".join(str(part) for part in first["loc"][:1])
    return InputError(f"`{where}` {value_problem(error)}", code="invalid-value", field=where)


REQUIREMENTS = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a table",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "path_type": "a path",
    "string_type": "a text",
    "tuple_type": "a list",
}
"""Kind of pydantic's error → what the value must be."""

NO_VALUE = {"missing": "is missing", "extra_forbidden": "is not a known key"}
"""Kind of pydantic's error about a key, which has no value to quote → the problem."""


def value_problem(error: ValidationError) -> str:
    """Describe what is wrong with the first value that pydantic rejected, such as "must be at least 1, got 0"."""
    first, *more = error.errors()
    if first["type"] in NO_VALUE:
        return NO_VALUE[first["type"]]
    # A setting of several types has an error per type.
    same = [first, *(each for each in more if each["loc"][:1] == first["loc"][:1] and each["input"] == first["input"])]
    texts = list[str]()
    for each in same:
        bounds = {
            name: f"{value:g}" if isinstance(value, float) else value for name, value in each.get("ctx", {}).items()
        }
        if each["type"] in REQUIREMENTS:
            texts.append(REQUIREMENTS[each["type"]].format(**bounds))
    requirement = f"must be {' or '.join(dict.fromkeys(texts))}" if texts else f"is not valid ({first['msg']})"
    return f"{requirement}, got {first['input']!r:.80}"
