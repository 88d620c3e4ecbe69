"""The measured frameworks: their versions, their installation, and the settings to try.

Each has its own virtual environment with the same CPU build of PyTorch. A framework that requires torchvision, whose
build on the package index is for CUDA, is installed without dependencies; they are listed here. No code that runs here
uses torchvision. FedLab imports it nevertheless, and gets empty modules with that name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from peer.job import Setting

TORCH = "torch==2.13.0"
ONE, TWO, PAIR = Setting(1, 1), Setting(1, 2), Setting(2, 1)
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray's default of 15 would give all other processes priority
}


@dataclass(frozen=True)
class Framework:
    """A framework.

    Args:
        module: the adapter, ``peer.<module>``.
        settings: workers × threads of torch in each; ``engine`` for drfl alone.
        package: packages to install with pip, the framework first; empty = drfl's environment.
        needs: dependencies to install if ``package`` is installed without its declared ones.
        empty: modules that it imports but no code here uses, created as empty files.
        workers: the kind of its workers.
    """

    module: str
    settings: tuple[Setting, ...]
    package: str = ""
    needs: str = ""
    empty: tuple[str, ...] = ()
    workers: str = "one process"

    def python(self, venvs: Path) -> Path:
        """Return the interpreter that runs the adapter."""
        return venvs / self.module / "bin" / "python" if self.package else Path(sys.executable)


FRAMEWORKS = {
    "drfl": Framework(
        "drfl",
        (Setting(1, 2, "default"), Setting(1, 1, "stacked"), Setting(2, 2, "threads")),
        workers="worker threads of the threads engine, with one thread of torch each while they train",
    ),
    "plain PyTorch": Framework("plain", (ONE, TWO)),
    "Flower": Framework("flower", (PAIR, TWO), "flwr[simulation]==1.41.0", workers="ray actors"),
    "pfl": Framework(
        "pfl",
        (PAIR, TWO),
        # Includes drfl's dependencies, because model_jobs.py, which defines the models, imports drfl.
        "pfl==0.6.0 cloudpickle pydantic safetensors tomli-w",
        workers="worker processes",
    ),
    "fluke": Framework(
        "fluke",
        (ONE, TWO),
        "fluke-fl==0.8.1",
        needs="numpy pandas scikit-learn torchmetrics rich typer wandb datasets psutil tensorboard clearml matplotlib "
        "seaborn diskcache opacus cerberus hydra-core requests pyyaml omegaconf",
    ),
    "FedLab": Framework(
        "fedlab",
        (ONE, TWO),
        "fedlab==1.3.0",
        needs="numpy pandas scikit-learn pynvml tqdm munch pillow",
        empty=("torchvision", "torchvision.transforms"),
    ),
    "FLGo": Framework(
        "flgo",
        (PAIR, TWO),
        "flgo==0.4.4",
        needs="tqdm scipy matplotlib prettytable ujson pynvml pyyaml networkx requests toolz",
        workers="threads that train clients",
    ),
}


def install(framework: Framework, venvs: Path) -> str:
    """Create the environment unless it exists; return the reason of a failure, or an empty text."""
    home, done = venvs / framework.module, venvs / framework.module / "installed"
    wanted = f"{TORCH} {framework.package} {framework.needs} {' '.join(framework.empty)}"
    if not framework.package or (done.exists() and done.read_text() == wanted):
        return ""
    venvs.mkdir(parents=True, exist_ok=True)
    pins = venvs / "constraints.txt"
    pins.write_text(TORCH + "\n")
    pip = [str(framework.python(venvs)), "-m", "pip", "install", "--quiet", "-c", str(pins)]
    steps = [[sys.executable, "-m", "venv", "--clear", str(home)], [*pip, TORCH]]
    if framework.needs:
        steps += [[*pip, *framework.needs.split()], [*pip, "--no-deps", framework.package]]
    else:
        steps += [[*pip, *framework.package.split()]]
    for step in steps:
        made = subprocess.run(step, capture_output=True, text=True, check=False)
        if made.returncode:
            return f"{' '.join(step[-2:])}: {_last(made.stderr)}"
    (site,) = home.glob("lib/python*/site-packages")
    for module in framework.empty:
        place = site.joinpath(*module.split("."))
        place.mkdir()
        (place / "__init__.py").touch()
    done.write_text(wanted)
    return ""


def versions(framework: Framework, venvs: Path) -> dict[str, str]:
    """Return the versions of the framework and of its numerical libraries."""
    listed = [str(framework.python(venvs)), "-m", "pip", "list", "--format", "json"]
    found = json.loads(subprocess.run(listed, capture_output=True, text=True, check=True).stdout)
    wanted = {"drfl", "torch", "numpy", "ray", framework.package.partition("==")[0].partition("[")[0]}
    return {package["name"]: package["version"] for package in found if package["name"].lower() in wanted}


def environment(setting: Setting, scratch: Path) -> dict[str, str]:
    """Return the environment variables of an adapter's process."""
    found = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONHOME")}
    home = {"PYTHONPATH": str(Path(__file__).parents[1]), "FLWR_HOME": str(scratch), "WANDB_MODE": "offline"}
    return {**found, **QUIET, **home, "OMP_NUM_THREADS": str(setting.threads)}


def _last(text: str) -> str:
    """Return the last line that is not empty, preferably an error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no message"])[-1]
