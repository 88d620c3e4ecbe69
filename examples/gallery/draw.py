"""Draw the pictures of the gallery, and store their settings.

    python examples/gallery/draw.py              # all pictures
    python examples/gallery/draw.py weights      # one or several

The script writes NAME.png for each NAME.py in this folder, and pictures.json with command, versions and device. For
each picture it also has the script's settings, its SHA-256, and the CPU time.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch

from drfl.experiments.run.artifacts import versions

HERE = Path(__file__).parent
RECORD = HERE / "pictures.json"


def scripts() -> list[Path]:
    """List the scripts of the gallery."""
    return [path for path in sorted(HERE.glob("*.py")) if path.name != Path(__file__).name]


def settings(path: Path) -> dict[str, int]:
    """Return the script's numeric constants, such as ROUNDS and SEEDS."""
    names = runpy.run_path(str(path))
    return {name: value for name, value in names.items() if name.isupper() and isinstance(value, int)}


def drawn(path: Path) -> dict[str, object]:
    """Draw a script's picture in a separate process, and return its record."""
    before = os.times()
    subprocess.run([sys.executable, path, path.with_suffix(".png")], check=True)
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"settings": settings(path), "sha256": digest, "cpu_seconds": round(seconds, 1)}


def main() -> None:
    """Draw the named pictures, or all."""
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {"pictures": {}}
    chosen = [path for path in scripts() if len(sys.argv) == 1 or path.stem in sys.argv[1:]]
    about = {
        "command": "python examples/gallery/draw.py",
        "versions": {**versions(), "matplotlib": version("matplotlib")},
        "device": "cpu",
        "threads": torch.get_num_threads(),
    }
    pictures = {**record["pictures"], **{path.stem: {**drawn(path), **about} for path in chosen}}
    kept = {path.stem: pictures[path.stem] for path in scripts() if path.stem in pictures}
    RECORD.write_text(json.dumps({"pictures": kept}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
