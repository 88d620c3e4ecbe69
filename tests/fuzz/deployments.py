"""Files that a deployment reads: its settings and a site's data."""

from __future__ import annotations

import numpy as np
from hypothesis.strategies import one_of

from drfl.flower.settings import read_server, read_site
from drfl.flower.site_data import load_site

from .judge import Parser
from .strategies import mutated_file, mutated_npz

SERVER = """
out = "run"
timeout = 600.0
wait = 300.0
insecure = false
[job]
algorithm = "DRDM"
rounds = 5
cohort = 2
guards = ["robust:k=3"]
[job.algorithms.DRDM]
mu = 0.1
[[sites]]
name = "a"
public_key = "keys/a.pub"
[[sites]]
name = "b"
public_key = "keys/b.pub"
"""
SITE = """
name = "a"
timeout = 300.0
dtype = "float32"
threads = 1
[data]
npz = "data.npz"
test_fraction = 0.25
"""
CSV = "age,ill,dose\n" + "".join(f"{i},{i % 2},{i / 7:.3f}\n" for i in range(12))


def read_server_file(item, folder):
    """Read server.toml."""
    (folder / "server.toml").write_bytes(item)
    read_server(folder / "server.toml")


def read_site_file(item, folder):
    """Read site.toml."""
    (folder / "site.toml").write_bytes(item)
    read_site(folder / "site.toml")


ROWS, ILL = np.arange(24, dtype=np.float32).reshape(8, 3), np.arange(8) % 2
ARRAYS = {"train_inputs": ROWS, "train_targets": ILL, "test_inputs": ROWS[:3], "test_targets": ILL[:3]}
DATA = one_of(
    mutated_npz(ARRAYS).map(lambda data: ("data.npz", data)), mutated_file(CSV).map(lambda data: ("data.csv", data))
)
"""Strategy of the name and bytes of a data file."""


def load_data(item, folder):
    """Load the data of a site."""
    name, content = item
    (folder / name).write_bytes(content)
    source = 'npz = "data.npz"' if name == "data.npz" else 'csv = "data.csv"\ntarget = "ill"'
    (folder / "site.toml").write_text(f'name = "a"\n[data]\n{source}\n')
    load_site(folder / "site.toml")


DEPLOYMENTS = (
    Parser("server.toml", mutated_file(SERVER), read_server_file),
    Parser("site.toml", mutated_file(SITE), read_site_file),
    Parser("data of a site", DATA, load_data),
)
