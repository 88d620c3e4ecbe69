"""Assert that drfl refuses something, by code and field and not by the wording of its message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import pytest

from drfl.cli import app, console
from drfl.core.errors import DrflError, InputError, Notice


@contextmanager
def refused(
    code: str, field: str | None = None, *quoted: str, kind: type[DrflError] = InputError
) -> Iterator[pytest.ExceptionInfo]:
    """Fail unless the block raises an error of this kind with this code and field; field None accepts any field.

    ``quoted`` are names, numbers and values that the message has to quote, such as the nearest known name.
    """
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert (error.code, error.field) == (code, error.field if field is None else field), error
    assert not [value for value in quoted if value not in str(error)], error


def refusal(arguments: Sequence[str], *, exit_code: int = 2) -> DrflError:
    """The error that ends a command of drfl with this exit code."""
    with mock.patch.object(app, "_complain", wraps=app._complain) as complain:
        assert app.call(arguments) == exit_code
    return complain.call_args.args[0]


def check_refusal(
    arguments: Sequence[str], code: str, field: str | None = None, *quoted: str, exit_code: int = 2
) -> None:
    """Assert that a command of drfl is refused; see :func:`refused` for the code, the field and what is quoted."""
    error = refusal(arguments, exit_code=exit_code)
    assert (error.code, error.field) == (code, error.field if field is None else field), error
    assert not [value for value in quoted if value not in str(error)], error


def notices(arguments: Sequence[str], *, exit_code: int = 0) -> list[Notice]:
    """The notices that a command of drfl prints, which ends with this exit code."""
    found: list[Notice] = []
    shown = console.err.print

    def print_(*texts: object, **options: object) -> None:
        found.extend(text for text in texts if isinstance(text, Notice))
        shown(*texts, **options)

    with mock.patch.object(console.err, "print", print_):
        assert app.call(arguments) == exit_code
    return found


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str | None]]:
    """Code and field of the notices in the log."""
    return [(record.msg.code, record.msg.field) for record in caplog.records if isinstance(record.msg, Notice)]


def notice_codes(arguments: Sequence[str], *, exit_code: int = 0) -> list[str]:
    """The codes of these notices."""
    return [notice.code for notice in notices(arguments, exit_code=exit_code)]
