"""What a parser may do with an input: take it, or refuse it in one line. Everything else is a failure."""

from __future__ import annotations

import ctypes
import random
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drfl.errors import DrflError

MEMORY = 2**30
"""Bytes."""


@dataclass(frozen=True)
class Parser:
    """Something of drfl that reads what a user gives.

    Args:
        name: what it reads.
        make: an input, drawn with the generator.
        parse: reads it, using a folder that is empty at first for its files; what it gives does not matter.
        cost: how much longer than others an input takes; so many times fewer inputs are made.
        seconds: of processor time that an input may take; other programs on the machine do not count.
    """

    name: str
    make: Callable[[random.Random], Any]
    parse: Callable[[Any, Path], object]
    cost: int = 1
    seconds: float = 2.0


@dataclass
class Tally:
    """What a parser did with its inputs."""

    accepted: int = 0
    refused: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def inputs(self) -> int:
        """All of them."""
        return self.accepted + self.refused + len(self.failures)


def fuzz(parser: Parser, folder: Path, *, inputs: int, seed: int = 0, first: int = 0) -> Tally:
    """Inputs number `first` and on; each depends on the seed, the parser's name and its number alone."""
    tally, start = Tally(), time.perf_counter()
    for number in range(first, first + inputs):
        item = parser.make(random.Random(f"{seed}/{parser.name}/{number}"))
        verdict = judge(parser, item, folder)
        if verdict == "accepted":
            tally.accepted += 1
        elif verdict == "refused":
            tally.refused += 1
        else:
            tally.failures.append(f"{parser.name} {seed}/{number}: {verdict}; input {shown(item)}")
    tally.seconds = time.perf_counter() - start
    return tally


def judge(parser: Parser, item: Any, folder: Path) -> str:
    """ "accepted", "refused", or what is wrong."""
    forget_peak()
    before, start = peak(), time.process_time()
    try:
        with warnings.catch_warnings(action="error"):
            parser.parse(item, folder)
        verdict = "accepted"
    except DrflError as error:
        verdict = "refused" if one_line(str(error)) else f"message of several lines or none: {str(error)!r}"
    except Exception as error:
        verdict = f"{type(error).__module__}.{type(error).__qualname__}: {str(error)[:200]}"
    if time.process_time() - start > parser.seconds:
        return f"took {time.process_time() - start:.1f} s ({verdict})"
    if peak() - before > MEMORY:
        return f"took {(peak() - before) / 2**20:.0f} MiB ({verdict})"
    return verdict


def one_line(message: str) -> bool:
    """Whether it is one line of text."""
    return len(message.splitlines()) == 1 and bool(message.strip())


def peak() -> int:
    """The most memory that this process held since :func:`forget_peak`, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def forget_peak() -> None:
    """From now on the peak is what is held now, or more."""
    # What was freed and is still this process's own would hold an array without the peak rising.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def shown(item: Any) -> str:
    """An input, or as much of it as fits a line."""
    text = repr(item)
    return text if len(text) <= 400 else f"{text[:200]} … {text[-100:]} ({len(text)} characters)"
