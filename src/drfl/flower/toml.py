"""TOML files that are read into a model of what may stand in them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from drfl.errors import InputError

M = TypeVar("M", bound=BaseModel)


def read(path: Path, kind: type[M]) -> M:
    """What stands in a file.

    Raises:
        InputError: it is not there, or something in it is wrong; names it.
    """
    try:
        return kind.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        told = str(first.get("ctx", {}).get("error", first["msg"]))
        raise InputError(f"'{path}'{f', {where}' if where else ''}: {told}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"'{path}' is no TOML file: {error}") from None
