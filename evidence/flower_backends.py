"""Compare one run on three backends: drfl's simulation, an in-process Flower grid, and Flower's simulation (Ray).

    python evidence/flower_backends.py [--smoke]

The job is a linear model on the four heart-disease hospitals: five rounds of five algorithms at one seed. It requires
flwr[simulation]; without it, Ray is skipped with a message. A fourth backend, processes that communicate over TLS, is
tested by ``scripts/try_deployment.sh``. The script writes results/deployment/backends.json with the largest differences
in w and λ.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import drfl
import script
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.engine import Loop, Simulation
from drfl.experiments.config.build import build
from drfl.experiments.config.config import Config
from drfl.experiments.run.artifacts import versions
from drfl.federation.algorithm import Algorithm
from drfl.flower.client_app import Site, client_app
from drfl.flower.deployed_federation import FlowerFederation
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import ModelRecipe
from drfl.flower.nodes import NameRoster, gather_members
from drfl.flower.site_task import task_of
from drfl.flower.transport import Deadline
from drfl.optim.local import LocalSGD
from drfl.training.loop import Result, run

RESULTS = Path(__file__).parent / "results" / "deployment"
LOCAL = LocalSGD(steps=10, lr=0.05, batch=32)
ALGORITHMS: dict[str, Algorithm] = {
    "FedAvg": drfl.FedAvg(m=3, local=LOCAL),
    "DRFA": drfl.DRFA(m=3, local=LOCAL),
    "ScaffPD": drfl.ScaffPD(m=4, local=LOCAL),
    "DRDM": drfl.DRDM(m=3, local=LOCAL),
    "DualDRDM": drfl.DualDRDM(m=3, local=LOCAL),
}
WITH_RAY = tuple(ALGORITHMS)[: script.sized(None, 1)]
"""Algorithms that also run in Flower's simulation, each with a new start of Ray."""
ROUNDS, SEED = script.sized(5, 2), 0
MODEL = ModelRecipe("linear", "cross-entropy", "float32", 2, "loop")


def hospitals() -> ClientData:
    return build(Config(dataset="heart-disease", algorithm="FedAvg")).data


def one(data: ClientData, i: int) -> ClientData:
    """Return the data of a single client."""
    rows, held = data.train[i], data.test[i]
    train = {data.names[i]: (data.inputs[rows], data.targets[rows])}
    return ClientData.from_arrays(train, {data.names[i]: (data.test_inputs[held], data.test_targets[held])})


def load(context: Context) -> Site:
    """Load the hospital of a node."""
    data, i = hospitals(), int(str(context.node_config["partition-id"]))
    return Site(data.names[i], one(data, i))


def initial() -> drfl.Task:
    with Key(SEED).fold("model").torch_scope():
        return task_of(MODEL, (13,))


def over(grid: Grid, algorithm: Algorithm) -> Result:
    roster = NameRoster(hospitals().names)
    members = {client: member.identity for client, member in gather_members(grid, roster, 60.0, 60.0).items()}
    fed = FlowerFederation(grid, roster, members, MODEL, initial().w0, Deadline(120.0))
    return run(algorithm, fed, rounds=ROUNDS, seed=SEED)


def simulated(algorithm: Algorithm) -> Result:
    return run(algorithm, Simulation(hospitals(), initial(), engine=Loop()), rounds=ROUNDS, seed=SEED)


def in_process(algorithm: Algorithm) -> Result:
    return over(InProcessGrid(client_app(load), [{"partition-id": i} for i in range(4)]), algorithm)


def with_ray(algorithm: Algorithm) -> Result:
    from flwr.simulation import run_simulation

    found: list[Result] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        found.append(over(grid, algorithm))

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client_app(load), num_supernodes=4, backend_config=resources)
    return found[0]


def main() -> None:
    options = script.parser(__doc__, RESULTS).parse_args()
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    torch.set_num_threads(1)
    ways: dict[str, Callable[[Algorithm], Result]] = {"in-process grid": in_process}
    if importlib.util.find_spec("ray") is None:
        print("Ray is not installed (pip install 'flwr[simulation]'): left out")
    else:
        ways["Flower simulation (Ray)"] = with_ray
    rows = []
    for name, algorithm in ALGORITHMS.items():
        there = simulated(algorithm)
        for way, play in ways.items():
            if play is with_ray and name not in WITH_RAY:
                continue
            here = play(algorithm)
            w, lam = float((here.state.w - there.state.w).abs().max()), float((here.lam - there.lam).abs().max())
            rows.append({"algorithm": name, "way": way, "max |w - w_sim|": w, "max |lambda - lambda_sim|": lam})
            print(rows[-1], flush=True)
            assert max(w, lam) <= 1e-6
    about = {"command": "python evidence/flower_backends.py", "device": "cpu", "seed": SEED, "rounds": ROUNDS}
    script.store(options.out, {"backends.json": {**about, "versions": versions(), "rows": rows}})


if __name__ == "__main__":
    main()
