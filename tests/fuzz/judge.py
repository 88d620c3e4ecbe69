"""Judge a parser on an input, which it may accept or refuse in one line. Everything else is a failure."""

from __future__ import annotations

import ctypes
import faulthandler
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis.errors import HypothesisWarning
from hypothesis.strategies import SearchStrategy

from drfl.core.errors import DrflError, DrflWarning

MEMORY = 2**30
"""Bytes that a parser may allocate."""

HOPELESS = 600
"""Seconds after which the process ends, because the parser cannot be interrupted."""


@dataclass(frozen=True)
class Parser:
    """A part of drfl that reads user input.

    Args:
        name: name of the input.
        inputs: strategy of inputs, most of them wrong.
        parse: reads one input, using an empty folder for its files; its result is ignored.
        seconds: processor time after which an input counts as hanging.
    """

    name: str
    inputs: SearchStrategy[Any]
    parse: Callable[[Any, Path], object]
    seconds: float = 5.0


@dataclass
class Tally:
    """Counts of a parser's verdicts, and its failures."""

    accepted: int = 0
    refused: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def inputs(self) -> int:
        """Draw all inputs."""
        return self.accepted + self.refused + len(self.failures)


class HangError(BaseException):
    """The parser took too long. It is a BaseException, so that drfl does not handle it as a fault of the input."""


def fuzz(parser: Parser, folder: Path, how: settings, *, collect: bool = False, number: int | None = None) -> Tally:
    """Judge the inputs that Hypothesis draws.

    Args:
        parser: the parser.
        folder: folder for its files.
        how: settings, with the number of inputs.
        collect: note failures and continue; otherwise fail with the smallest input that Hypothesis finds.
        number: seed of the inputs; None = that of the settings.
    """
    tally, start = Tally(), time.perf_counter()

    @settings(how, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(parser.inputs)
    def accepts_or_refuses(item):
        verdict = judge(parser, item, folder)
        if verdict == "accepted":
            tally.accepted += 1
        elif verdict == "refused":
            tally.refused += 1
        else:
            assert collect, verdict
            tally.failures.append(f"{verdict}; input {shown(item)}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisWarning)  # the warning that a printed input is long
        (accepts_or_refuses if number is None else seed(number)(accepts_or_refuses))()
    tally.seconds = time.perf_counter() - start
    return tally


def judge(parser: Parser, item: Any, folder: Path) -> str:
    """Return "accepted", "refused", or a description of the failure."""
    forget_peak()
    before, handler = peak(), signal.signal(signal.SIGPROF, _hangs)
    signal.setitimer(signal.ITIMER_PROF, parser.seconds)
    # a loop in C does not handle signals
    faulthandler.dump_traceback_later(HOPELESS, exit=True, file=sys.__stderr__)
    try:
        with warnings.catch_warnings(action="error", record=True) as notices:
            warnings.simplefilter("always", DrflWarning)  # an input that is accepted with a warning for its user
            parser.parse(item, folder)
        several = [str(notice.message) for notice in notices if not one_line(str(notice.message))]
        verdict = f"warning of several lines or none: {several[0]!r}" if several else "accepted"
    except DrflError as error:
        verdict = "refused" if one_line(str(error)) else f"message of several lines or none: {str(error)!r}"
        if error.code == DrflError.code:
            verdict = f"an error without a code of its own: {str(error)!r}"
    except HangError:
        verdict = f"took more than {parser.seconds} s"
    except Exception as error:
        verdict = f"{type(error).__module__}.{type(error).__qualname__}: {str(error)[:200]}"
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
    return verdict if peak() - before <= MEMORY else f"took {(peak() - before) / 2**20:.0f} MiB ({verdict})"


def _hangs(signum: int, frame: object) -> None:
    raise HangError


def one_line(message: str) -> bool:
    """Return whether a message is one line of text."""
    return len(message.splitlines()) == 1 and bool(message.strip())


def peak() -> int:
    """Return this process's peak memory since :func:`forget_peak`, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def forget_peak() -> None:
    """Reset the peak to the current memory."""
    # Return freed memory to the system. Otherwise an array could use it without raising the peak.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def shown(item: Any) -> str:
    """Return an input, shortened to a line."""
    text = repr(item)
    return text if len(text) <= 400 else f"{text[:200]} … {text[-100:]} ({len(text)} characters)"
