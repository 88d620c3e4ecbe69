"""Optional packages, which not every installation of drfl has."""

from __future__ import annotations

import importlib.util

from drfl.core.errors import InputError


def require(module: str, message: str, field: str | None = None) -> None:
    """Raise an error with this message unless an optional package is installed; it is not imported.

    Args:
        module: Name under which the package is imported.
        message: The message, which says how to install the package.
        field: Name of the package; None = the module.
    """
    if importlib.util.find_spec(module) is None:
        raise InputError(message, code="package-missing", field=module if field is None else field)
