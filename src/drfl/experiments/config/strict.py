"""The base class of all settings, and errors for wrong ones."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from drfl.core.errors import InputError


class StrictSettings(BaseModel):
    """Settings that cannot change and refuse unknown keys."""

    # Defaults given as texts become objects, too.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    def to_plain(self) -> dict[str, object]:
        """Return all settings that are not None, as plain values that a file can hold."""
        return {name: value for name, value in self.model_dump(mode="json").items() if value is not None}


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
            f"{what} is not a single value: give a number, true, false or a text such as 'cvar:alpha=0.2'",
            code="wrong-type",
            field=f"{path[0]}.{path[1]}",
        )
    where = ".".join(str(part) for part in first["loc"][:1])
    reason = first["msg"]
    return InputError(
        f"{where} = {first['input']!r}: {reason[0].lower()}{reason[1:]}", code="invalid-value", field=where
    )
