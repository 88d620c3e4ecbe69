"""The name of the run in log lines, which could otherwise belong to any run of a comparison."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from drfl.core.errors import Notice

_NAME: ContextVar[str | None] = ContextVar("run", default=None)


@contextmanager
def named_run(name: str) -> Iterator[None]:
    """Let log lines of drfl begin with the name of a run in this context. An outer name has precedence."""
    # Filters of a logger ignore the records of its children, so each child needs its own.
    for logger in ("drfl", *(name for name in logging.root.manager.loggerDict if name.startswith("drfl."))):
        logging.getLogger(logger).addFilter(_add_name)  # which adds it once only
    token = _NAME.set(_NAME.get() or name)
    try:
        yield
    finally:
        _NAME.reset(token)


def _add_name(record: logging.LogRecord) -> bool:
    name = _NAME.get()
    if name is not None and isinstance(record.msg, Notice):
        record.msg = record.msg.within(name)
    elif name is not None:
        record.msg = f"{name.replace('%', '%%') if record.args else name}: {record.msg}"
    return True
