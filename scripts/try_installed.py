"""Try the drfl that is installed for this Python: its command, a comparison, and the import of every module.

Run `PYTHON -I scripts/try_installed.py` in an empty folder, in which it writes files. If something fails, the script
prints one line and exits with another code than 0.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import subprocess
import sys
from pathlib import Path

OF_EXTRAS = {"cryptography", "flwr", "httpx"}
"""Packages that only modules for deployments may import without their extra."""


def command(*words: str) -> str:
    """Return the output of drfl's command."""
    program = Path(sys.executable).parent / "drfl"
    done = subprocess.run([program, *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"drfl {' '.join(words)}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def try_command() -> str:
    """Try the version, a run and its report, and the commands that read the package's specifications and templates."""
    version = importlib.metadata.version("drfl")
    if command("--version").strip() != f"drfl {version}":
        raise SystemExit(f"drfl --version does not say {version}")
    command("run", "--rounds", "3", "--out", "runs/digits")
    command("run", "--dataset", "heart-disease", "--rounds", "3", "--out", "runs/hospitals")
    command("report", "runs/digits", "runs/hospitals", "--out", "report.html")
    command("reproduce")
    command("new", "study")
    wanted = ("runs/digits/model.safetensors", "runs/hospitals/summary.json", "report.html", "study/study.toml")
    if missing := [name for name in wanted if not Path(name).is_file()]:
        raise SystemExit(f"the command has not written {', '.join(missing)}")
    return f"drfl {version}: run, report, reproduce and new"


def try_comparison() -> str:
    """Try ``drfl.compare`` in Python."""
    import torch

    import drfl

    noise = torch.Generator().manual_seed(0)
    inputs = [torch.randn(60, 4, generator=noise) + i / 2 for i in range(4)]
    data = drfl.ClientData.from_arrays({f"site {i}": (x, (x.sum(1) > i).long()) for i, x in enumerate(inputs)})
    algorithms = {"DRFA": drfl.DRFA(m=4), "FedAvg": drfl.FedAvg(m=4)}
    task = drfl.Task(torch.nn.Linear(4, 2))
    result = drfl.compare(algorithms, data, task, rounds=3, seeds=2, out="compared", progress=None)
    if len(result.to_frame()) != 4 or not Path("compared/report.html").is_file():
        raise SystemExit("drfl.compare: 4 runs and a report were expected")
    return f"drfl.compare: {result!r}"


def try_modules() -> str:
    """Import every module, and report those that need a missing extra."""
    import drfl

    if Path(sys.prefix) not in Path(drfl.__file__).parents:
        raise SystemExit(f"drfl is that of {drfl.__file__}, not the installed one")
    imported, left = 0, []
    for module in pkgutil.walk_packages(drfl.__path__, "drfl."):
        if module.name == "drfl.__main__" or ".templates" in module.name:
            continue
        try:
            importlib.import_module(module.name)
            imported += 1
        except ModuleNotFoundError as error:
            if error.name not in OF_EXTRAS:
                raise SystemExit(f"{module.name}: {error}") from None
            left.append(module.name)
    for name in drfl.__all__:
        getattr(drfl, name)
    return f"{imported} modules imported, {len(left)} more need an extra; {len(drfl.__all__)} public names of drfl"


if __name__ == "__main__":
    for trial in (try_command, try_comparison, try_modules):
        print(trial(), flush=True)
