"""What all settings have in common: they are strict, and wrong ones are refused in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from drfl.core.errors import InputError, unknown


class Strict(BaseModel):
    """Settings that refuse unknown keys and do not change.

    Raises:
        InputError: A key is unknown, or a value is impossible.
    """

    # Defaults given as texts become objects too.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    if not TYPE_CHECKING:  # type checkers know the fields by the annotations

        def __init__(self, **values: object) -> None:
            for name in values:
                if name not in type(self).model_fields:
                    raise unknown("setting", name, type(self).model_fields)
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise input_error(error) from None


def input_error(error: ValidationError) -> InputError:
    """The first fault that pydantic found, as an error of drfl."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause
    table, *own = first["loc"][:3]
    if table == "algorithms" and len(own) == 2:
        what = f"{own[0]}.{own[1]} = {first['input']!r}"
        return InputError(
            f"{what} is no single value: give a number, true, false or a text such as 'cvar:alpha=0.2'",
            code="wrong-type",
            field=f"{own[0]}.{own[1]}",
        )
    where = ".".join(str(part) for part in first["loc"][:1])
    reason = first["msg"]
    return InputError(
        f"{where} = {first['input']!r}: {reason[0].lower()}{reason[1:]}", code="invalid-value", field=where
    )
