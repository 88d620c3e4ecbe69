"""Let the scripts of the examples import the modules beside them, as they do when they are run."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "examples" / "hospitals"))
