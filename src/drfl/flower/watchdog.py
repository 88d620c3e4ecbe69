"""An end to what hangs: a client that never answers would block its SuperNode for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class HungError(TimeoutError):
    """A request took longer than the site allows."""


def within(seconds: float, work: Callable[[], T]) -> T:
    """What ``work()`` gives, if that takes no longer than so many seconds.

    It runs in a thread of its own, as nothing can stop one that hangs in foreign code: it is left behind, and dies with
    the process, which Flower starts anew for each message.

    Raises:
        HungError: it takes longer.
    """
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True, name="drfl-site")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise HungError(f"the request took longer than {seconds:g} s and was given up; raise 'timeout' in site.toml")
    if failed:
        raise failed[0]
    return found[0]
