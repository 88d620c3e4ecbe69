"""Write every hospital's part of the simulation's data to a separate file, for a deployed site.

    python examples/hospitals/prepare.py DIR [--seed 0]

The script writes DIR/<name>.npz with train_inputs, train_targets, test_inputs and test_targets. These are bitwise the
client's data in the simulation at that seed, standardised and in the same order. DIR/order.txt has the clients' names
in the simulation's order, one per line.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from drfl.core.errors import DrflError
from drfl.data import ClientData
from drfl.experiments.config.build import build
from drfl.experiments.config.config import load_config

HERE = Path(__file__).parent


def parts(data: ClientData) -> dict[str, dict[str, np.ndarray]]:
    """Return every client's arrays by name, in the clients' order."""
    return {
        name: {
            "train_inputs": data.inputs[train].numpy(),
            "train_targets": data.targets[train].numpy(),
            "test_inputs": data.test_inputs[test].numpy(),
            "test_targets": data.test_targets[test].numpy(),
        }
        for name, train, test in zip(data.names, data.train, data.test, strict=True)
    }


def prepare(directory: Path, seed: int) -> dict[str, dict[str, np.ndarray]]:
    """Write the files and return their contents. The division of patients does not depend on model and algorithm.

    Raises:
        InputError: If the seed is impossible.
    """
    found = parts(build(load_config(HERE / "linear.toml", {"algorithm": "FedAvg", "seed": seed})).data)
    directory.mkdir(parents=True, exist_ok=True)
    for name, arrays in found.items():
        np.savez(directory / f"{name}.npz", **arrays)
    (directory / "order.txt").write_text("".join(f"{name}\n" for name in found), encoding="utf-8")
    return found


def main() -> None:
    """Write the files and print their contents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        found = prepare(options.directory, options.seed)
    except (DrflError, OSError) as error:
        parser.error(str(error))
    for name, arrays in found.items():
        shapes = ", ".join(f"{key} {'×'.join(map(str, a.shape))} {a.dtype}" for key, a in arrays.items())
        print(f"{options.directory / name}.npz: {shapes}")
    print(f"{options.directory / 'order.txt'}: {', '.join(found)}")


if __name__ == "__main__":
    main()
