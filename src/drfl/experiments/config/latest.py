"""A cache of one value, for work that often needs the same one several times in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """A cache that keeps only the last value, which may be large."""

    def __init__(self) -> None:
        self._entry: tuple[object, T] | None = None

    def get(self, key: object, make: Callable[[], T]) -> T:
        """Return the value of a key, made by ``make`` unless it is the last one."""
        if self._entry is None or self._entry[0] != key:
            self._entry = None  # free the old value first, because there may be no memory for both
            self._entry = key, make()
        return self._entry[1]

    def __reduce__(self) -> tuple[type[Latest[T]], tuple[()]]:
        """Return an empty copy, for other processes."""
        return type(self), ()
