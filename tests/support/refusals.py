"""Assert that drfl refuses something, by code and field and not by the wording of its message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from drfl.errors import DrflError, InputError


@contextmanager
def refused(code: str, field: str | None = None, kind: type[DrflError] = InputError) -> Iterator[pytest.ExceptionInfo]:
    """Fail unless the block raises an error of this kind with this code and field; field None accepts any field."""
    with pytest.raises(kind) as caught:
        yield caught
    found = caught.value.code, caught.value.field
    assert found == (code, field if field is not None else caught.value.field), caught.value
