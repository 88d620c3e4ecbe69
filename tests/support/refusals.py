"""Assert that drfl refuses something, by code and field and not by the wording of its message."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import pytest

from drfl.cli import app, console
from drfl.core.errors import DrflError, InputError, Notice


def quotes(text: str, *values: str) -> bool:
    """Return whether the text has all these names, numbers and values; "7" is not found in "17", "7.5" or "f7"."""
    return all(re.search(rf"(?<![\w−-])(?<!\d[.,]){re.escape(value)}(?!\w)(?![.,]\d)", text) for value in values)


@contextmanager
def refused(
    code: str, field: str | None = None, *quoted: str, kind: type[DrflError] = InputError
) -> Iterator[pytest.ExceptionInfo]:
    """Fail unless the block raises an error of this kind with this code and field.

    The field None accepts any field. ``quoted`` are names, numbers and values that the message must contain, such as
    the nearest known name.
    """
    with pytest.raises(kind) as caught:
        yield caught
    _check(caught.value, code, field, quoted)


def refusal(arguments: Sequence[str], *, exit_code: int = 2) -> DrflError:
    """Return the error of a command of drfl, which must end with this exit code."""
    with mock.patch.object(app, "_complain", wraps=app._complain) as complain:
        assert app.call(arguments) == exit_code
    return complain.call_args.args[0]


def check_refusal(
    arguments: Sequence[str], code: str, field: str | None = None, *quoted: str, exit_code: int = 2
) -> None:
    """Assert that a command of drfl is refused; see :func:`refused` for ``code``, ``field`` and ``quoted``."""
    _check(refusal(arguments, exit_code=exit_code), code, field, quoted)


def _check(error: DrflError, code: str, field: str | None, quoted: Sequence[str]) -> None:
    assert (error.code, error.field) == (code, error.field if field is None else field), error
    assert quotes(str(error), *quoted), error


def notices(arguments: Sequence[str], *, exit_code: int = 0) -> list[Notice]:
    """Return the notices that a command of drfl prints; it must end with this exit code."""
    found: list[Notice] = []
    shown = console.err.print

    def print_(*texts: object, **options: object) -> None:
        found.extend(text for text in texts if isinstance(text, Notice))
        shown(*texts, **options)

    with mock.patch.object(console.err, "print", print_):
        assert app.call(arguments) == exit_code
    return found


def notice_codes(arguments: Sequence[str], *, exit_code: int = 0) -> list[str]:
    """Return the codes of the notices that a command of drfl prints."""
    return [notice.code for notice in notices(arguments, exit_code=exit_code)]


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str | None]]:
    """Return code and field of the notices in the log."""
    return [(record.msg.code, record.msg.field) for record in caplog.records if isinstance(record.msg, Notice)]
