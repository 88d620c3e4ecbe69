"""The command: parse, build, run, print."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of ``drfl``; ends the process with 0, 1 (diverged), 2 (the user's mistake) or 130 (Ctrl-C)."""
    from drfl.cli.app import call

    sys.exit(call(sys.argv[1:]))


__all__ = ["main"]
