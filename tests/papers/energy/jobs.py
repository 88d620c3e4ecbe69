"""A small federation on digits, and the algorithms of the papers."""

from __future__ import annotations

from drfl import DRDM, DRFA, FedAvg, LocalSGD, ScaffPD, Simulation
from drfl.experiments.config.build import build
from drfl.experiments.config.config import Config

LOCAL = LocalSGD(steps=2, lr=0.1, batch=8)
ALGORITHMS = {
    "FedAvg": FedAvg(m=6, local=LOCAL),
    "DRFA": DRFA(m=6, local=LOCAL),
    "DRDM": DRDM(m=6, local=LOCAL),
    "ScaffPD": ScaffPD(m=6, local=LOCAL),
}


def digits(clients: int = 8) -> Simulation:
    """Return clients with a Dirichlet draw of digits, and a linear model of 650 parameters in float32."""
    return build(Config(clients=clients, engine="loop")).fed
