"""All parsers of user input, by name."""

from __future__ import annotations

from .binaries import BINARIES
from .checkpoints import CHECKPOINTS
from .commands import COMMAND
from .deployments import DEPLOYMENTS
from .messages import MESSAGES
from .rundirs import RUNS
from .texts import TEXTS

PARSERS = {
    parser.name: parser for parser in (*BINARIES, *TEXTS, *RUNS, *DEPLOYMENTS, *CHECKPOINTS, *MESSAGES, *COMMAND)
}
