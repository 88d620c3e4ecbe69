"""The minimax algorithms as Flower strategies, for those who have a Flower app of their own.

The server's end, ``server_app.py``::

    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from drfl import LocalSGD
    from drfl.flower.strategy import DRDMStrategy
    from my_app.task import Net

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = DRDMStrategy(m=2, local=LocalSGD(steps=5, lr=0.1), min_available_nodes=4)
        result = strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=3)
        print(result.evaluate_metrics_clientapp[3])

The sites' end, ``client_app.py``::

    from drfl import ClientData, Task
    from drfl.flower.client import client_app
    from drfl.flower.site import Site
    from my_app.task import Net, load_data

    def load(context):
        name = f"site {context.node_config['partition-id']}"
        train, test = load_data(name)  # each is inputs (n, …) and labels (n,)
        return Site(name, ClientData.from_arrays({name: train}, {name: test}), Task(Net()))

    app = client_app(load)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Required, TypedDict, Unpack, cast

from drfl.algorithms import AFL, DRDM, DRFA, DualDRDM, ScaffPD
from drfl.ambiguity import AmbiguitySet
from drfl.cohort import Sampling
from drfl.flower.drfl_strategy import DrflStrategy
from drfl.local import LocalSGD


class Options(TypedDict, total=False):
    """What every strategy takes: see :class:`DrflStrategy`."""

    min_available_nodes: int
    wait: float
    seed: int
    engine: str


class DualParameters(Options, total=False):
    """What they all take of their algorithms."""

    local: LocalSGD
    dual_batch: int | None
    ambiguity: AmbiguitySet


class AFLParameters(DualParameters, total=False):
    """Those of :class:`drfl.algorithms.AFL`."""

    gamma: float | None
    dual_after: bool


class DRFAParameters(DualParameters, total=False):
    """Those of :class:`drfl.algorithms.DRFA`."""

    m: Required[int]
    gamma: float | None
    sampling: Sampling


class DRDMParameters(DRFAParameters, total=False):
    """Those of :class:`drfl.algorithms.DRDM` and :class:`drfl.algorithms.DualDRDM`."""

    mu: float | None
    table_dir: str | None


class ScaffPDParameters(DualParameters, total=False):
    """Those of :class:`drfl.algorithms.ScaffPD`."""

    m: int | None
    sigma: float | None
    theta: float
    mu: float
    server_lr: float
    table_dir: str | None


def _parted(parameters: Mapping[str, object]) -> tuple[dict, Options]:
    """The algorithm's parameters and the strategy's."""
    options = {name: value for name, value in parameters.items() if name in Options.__annotations__}
    return {name: value for name, value in parameters.items() if name not in options}, cast("Options", options)


class DRDMStrategy(DrflStrategy):
    """:class:`drfl.algorithms.DRDM` for a Flower app; takes its parameters and those of :class:`DrflStrategy`."""

    def __init__(self, **parameters: Unpack[DRDMParameters]) -> None:
        own, options = _parted(parameters)
        super().__init__(DRDM(**own), **options)


class DualDRDMStrategy(DrflStrategy):
    """:class:`drfl.algorithms.DualDRDM` for a Flower app; takes its parameters and those of :class:`DrflStrategy`."""

    def __init__(self, **parameters: Unpack[DRDMParameters]) -> None:
        own, options = _parted(parameters)
        super().__init__(DualDRDM(**own), **options)


class DRFAStrategy(DrflStrategy):
    """:class:`drfl.algorithms.DRFA` for a Flower app; takes its parameters and those of :class:`DrflStrategy`."""

    def __init__(self, **parameters: Unpack[DRFAParameters]) -> None:
        own, options = _parted(parameters)
        super().__init__(DRFA(**own), **options)


class ScaffPDStrategy(DrflStrategy):
    """:class:`drfl.algorithms.ScaffPD` for a Flower app; takes its parameters and those of :class:`DrflStrategy`."""

    def __init__(self, **parameters: Unpack[ScaffPDParameters]) -> None:
        own, options = _parted(parameters)
        super().__init__(ScaffPD(**own), **options)


class AFLStrategy(DrflStrategy):
    """:class:`drfl.algorithms.AFL` for a Flower app; takes its parameters and those of :class:`DrflStrategy`."""

    def __init__(self, **parameters: Unpack[AFLParameters]) -> None:
        own, options = _parted(parameters)
        super().__init__(AFL(**own), **options)


__all__ = [
    "AFLStrategy",
    "DRDMStrategy",
    "DRFAStrategy",
    "DrflStrategy",
    "DualDRDMStrategy",
    "ScaffPDStrategy",
]
