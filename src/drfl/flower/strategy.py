"""Any drfl algorithm as a Flower strategy, for those who have a Flower app of their own.

The server's end, ``server_app.py``::

    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from drfl import DRDM, LocalSGD
    from drfl.flower.strategy import DrflStrategy
    from my_app.task import Net

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = DrflStrategy(DRDM(m=2, local=LocalSGD(steps=5, lr=0.1)), min_available_nodes=4)
        result = strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=3)
        print(result.evaluate_metrics_clientapp[3])

The sites' end, ``client_app.py``::

    from drfl import ClientData, Task
    from drfl.flower.client_app import Site, client_app
    from my_app.task import Net, load_data

    def load(context):
        name = f"site {context.node_config['partition-id']}"
        train, test = load_data(name)  # each is inputs (n, …) and labels (n,)
        return Site(name, ClientData.from_arrays({name: train}, {name: test}), Task(Net()))

    app = client_app(load)
"""

from __future__ import annotations

from collections.abc import Callable
from logging import INFO
from typing import NoReturn

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, MetricRecordValues
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError, unknown
from drfl.engine import ENGINES
from drfl.federation.algorithm import Algorithm, Sized, Wrapping
from drfl.flower.federation import FlowerFederation
from drfl.flower.messages import Model
from drfl.flower.nodes import Named, enrolled
from drfl.flower.transport import Deadline
from drfl.resilience import Protected
from drfl.task.layout import Layout
from drfl.training.callbacks import describe
from drfl.training.loop import run
from drfl.training.run_state import RunState

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
"""Flower's: round and model → what the server finds of it."""

WAIT = 300.0
"""Seconds to wait for the sites, unless told otherwise."""

TELLING = 60.0
"""Seconds at most that a node may take to report its name, however long an exchange may take."""


class DrflStrategy(Strategy):
    """A drfl algorithm as a Flower strategy that runs by ``start``; the ``ClientApp`` is one of drfl.

    Clients are identified by the name that a site reports (``Site.name``), in the order of the names: nodes are trusted
    as Flower's own strategies trust them. Those that are online when it starts are the clients of the whole run. A
    client that goes offline counts as silent until it, or another node of its name, is back.

    Args:
        algorithm: what to run. It is protected as :class:`drfl.resilience.Protected` does by default, unless there is a
            protection around it already.
        min_available_nodes: it starts when so many sites have reported their names; no fewer than a cohort of m.
        wait: seconds until they must be online.
        seed: root of all randomness.
        engine: how the sites compute, see :data:`drfl.engine.ENGINES`.
        table_dir: folder for the files that hold the server's tables, see :func:`drfl.training.loop.run`.

    Raises:
        InputError: a number is out of range, or the engine is unknown.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        min_available_nodes: int = 2,
        wait: float = WAIT,
        seed: int = 0,
        engine: str = "auto",
        table_dir: str | None = None,
    ) -> None:
        protected, core = False, algorithm
        while isinstance(core, Wrapping):
            protected = protected or isinstance(core, Protected)
            core = core.algorithm
        if engine not in ENGINES:
            raise unknown("engine", engine, ENGINES)
        checks.whole("min_available_nodes", min_available_nodes)
        checks.non_negative("wait", wait)
        checks.whole("seed", seed, low=0)
        self.algorithm, self._core, self._protected = algorithm, core, protected
        self.min_available_nodes, self.wait, self.seed, self.engine = min_available_nodes, wait, seed, engine
        self.table_dir = table_dir

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the algorithm.

        Args:
            grid: where the nodes are.
            initial_arrays: the initial model: its trainable parameters in the model's order, all float32 or all
                float64. ``ArrayRecord(model.state_dict())`` is that where the model has no buffers and nothing frozen.
            num_rounds: how many rounds.
            timeout: seconds that an exchange with the sites may take; a round has two or three.
            train_config: none: what the sites do is the strategy's ``local``.
            evaluate_config: none.
            evaluate_fn: called with the round and the model before the first round and after each.

        Returns:
            ``arrays``: the last model, named as ``initial_arrays``.
            ``train_metrics_clientapp``, by round: ``answered``, how many trained, and ``avg_loss`` and ``worst_loss``
            of the reports that moved λ, where there were any.
            ``evaluate_metrics_clientapp``, by round from 0: :class:`drfl.training.history.Metrics` over the sites' test
            data, and ``lambda``, the mixture after that round, in the order of the sites' names.
            ``evaluate_metrics_serverapp``, by round from 0: what evaluate_fn gave.

        Raises:
            DrflError: too few sites, or what they and the algorithm have does not fit; or it diverges.
        """
        if train_config or evaluate_config:
            raise InputError(
                "drfl's sites read no train_config or evaluate_config: give the strategy local=LocalSGD(steps, lr, …)",
                code="unused-option",
                field="train_config",
            )
        checks.whole("num_rounds", num_rounds, low=0)
        checks.positive("timeout", timeout)
        layout, w0 = flat(initial_arrays)
        log(INFO, "Starting %s: %d rounds, %d parameters", type(self).__name__, num_rounds, layout.d)
        self.summary()
        size = self._core.m if isinstance(self._core, Sized) else None
        # The sites that are online at the start are all the clients there will be: no fewer than a cohort.
        least = max(self.min_available_nodes, size or 0)
        told = enrolled(grid, least, self.wait, min(timeout, TELLING))
        # By name, as node ids change from start to start: client i, and so its random draws, stay the same site's.
        members = dict(enumerate(sorted(told.values(), key=lambda member: member.name)))
        names = [member.name for member in members.values()]
        roster = Named(names, min(timeout, TELLING), {node: member.name for node, member in told.items()})
        log(INFO, "%d sites, lambda in this order: %s", len(names), ", ".join(names))
        # The names are empty, as the sites define model and loss.
        dtype = "float64" if layout.dtype == torch.float64 else "float32"
        model = Model("", "", dtype, 0, self.engine)
        fed = FlowerFederation(grid, roster, members, model, w0, Deadline(timeout))
        book = _Book(layout, evaluate_fn)
        algorithm = self.algorithm if self._protected else Protected(self.algorithm, names=tuple(names))
        found = run(algorithm, fed, rounds=num_rounds, seed=self.seed, table_dir=self.table_dir, callbacks=[book])
        book.result.arrays = record(layout, found.state.w)
        return book.result

    def summary(self) -> None:
        """Log the algorithm and its hyperparameters."""
        log(INFO, "\t├──> Algorithm: %s", type(self._core).__name__)
        for name, value in vars(self._core).items():
            log(INFO, "\t│\t├── %s: %s", name, value)
        log(INFO, "\t└──> Nodes: at least %d, seed: %d", self.min_available_nodes, self.seed)

    def _alone(self, *args: object, **kwargs: object) -> NoReturn:
        """One round of a minimax method is two exchanges or more, which Flower's steps of a round cannot say.

        Raises:
            InputError: always.
        """
        raise InputError(
            "drfl's strategies run whole rounds of several exchanges: call start()", code="unsupported-combination"
        )

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _alone


class _Book:
    def __init__(self, layout: Layout, evaluate_fn: EvaluateFn | None) -> None:
        self.layout, self.evaluate_fn, self.result = layout, evaluate_fn, Result()

    def __call__(self, progress: RunState) -> None:
        if progress.info is not None:
            trained: dict[str, MetricRecordValues] = {"answered": progress.info.answered.numel()}
            if progress.info.losses is not None and progress.info.losses.clients.numel():
                values = progress.info.losses.values
                trained |= {"avg_loss": float(values.mean()), "worst_loss": float(values.max())}
            self.result.train_metrics_clientapp[progress.round] = MetricRecord(trained)
        if progress.row is not None:
            found: dict[str, MetricRecordValues] = {
                **progress.row.metrics.named(progress.score.name),
                f"undefined_{progress.score.name}": progress.row.undefined[0],
                "lambda": progress.row.lam.tolist(),
            }
            self.result.evaluate_metrics_clientapp[progress.round] = MetricRecord(found)
            told = describe(progress.row.metrics, progress.score, progress.row.note)
            log(INFO, "[ROUND %d/%d] %s", progress.round, progress.rounds, told)
        # Flower's strategies also evaluate centrally after they have the sites' results.
        if self.evaluate_fn is not None:
            central = self.evaluate_fn(progress.round, record(self.layout, progress.state.w))
            if central is not None:
                self.result.evaluate_metrics_serverapp[progress.round] = central


def flat(arrays: ArrayRecord) -> tuple[Layout, Tensor]:
    """A model's arrays as one vector, in their order.

    Returns:
        Where each lies, and the vector (d,).

    Raises:
        InputError: there are none, or they are not all float32 or all float64.
    """
    values = {name: torch.tensor(array.numpy()) for name, array in arrays.items()}
    types = {value.dtype for value in values.values()}
    if len(types) != 1 or not types <= {torch.float32, torch.float64}:
        raise InputError(
            f"initial_arrays must be all float32 or all float64, not {sorted(map(str, types)) or 'empty'}: give the "
            "trainable parameters, without buffers (running statistics cannot be averaged: use nn.GroupNorm)",
            code="wrong-type",
            field="initial_arrays",
        )
    layout = Layout(tuple(values), tuple(tuple(value.shape) for value in values.values()), types.pop())
    return layout, torch.cat([value.flatten() for value in values.values()])


def record(layout: Layout, w: Tensor) -> ArrayRecord:
    """The vector w (d,) as a model's arrays."""
    return ArrayRecord({name: Array(value.detach().cpu().numpy()) for name, value in layout.views(w).items()})
