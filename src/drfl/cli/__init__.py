"""The command: parse, build, run, print."""

from __future__ import annotations

import sys

from drfl.cli import signals


def main() -> None:
    """Entry point of ``drfl``; ends the process with 0, 1 (diverged), 2 (a mistake), 130 (SIGINT) or 143 (SIGTERM)."""
    signals.at_once().set()
    from drfl.cli.app import call

    code = call(sys.argv[1:])
    signals.ignore()
    sys.exit(code)


__all__ = ["main"]
