"""The command line of drfl."""

from __future__ import annotations

import sys

from drfl.cli import signals


def main() -> None:
    """Run ``drfl`` and end the process.

    The exit code is 0, 1 (a run diverged), 2 (a user's mistake), 130 (SIGINT) or 143 (SIGTERM).
    """
    signals.end_at_once().set()
    from drfl.cli.app import call

    code = call(sys.argv[1:])
    signals.ignore()
    sys.exit(code)


__all__ = ["main"]
