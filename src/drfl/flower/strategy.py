"""Any drfl algorithm as a Flower strategy, for use in your own Flower app.

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
from drfl.federation.algorithm import Algorithm, Wrapping
from drfl.flower.claims import agree
from drfl.flower.deployed_federation import FlowerFederation
from drfl.flower.messages import ModelRecipe
from drfl.flower.nodes import NameRoster, gather_sites
from drfl.flower.transport import Deadline
from drfl.resilience import Protected
from drfl.task.layout import Layout
from drfl.training.callbacks import describe
from drfl.training.loop import run
from drfl.training.run_state import RunState

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
"""Flower's type of a function that evaluates a model at the server, given the round and the model."""

WAIT = 300.0
"""Default time in seconds to wait for the sites."""

NAME_TIMEOUT = 60.0
"""Longest time in seconds for a node to report its name, even if the timeout of an exchange is longer."""


class DrflStrategy(Strategy):
    """A drfl algorithm as a Flower strategy. Run it with ``start``; the sites run drfl's ``ClientApp``.

    Clients are identified by the names that the sites report (``Site.name``) and ordered by name. Like Flower's own
    strategies, this one trusts the nodes. The sites that are online at the start are the clients of the whole run. A
    client that goes offline drops out until it, or another node with its name, is back.

    Args:
        algorithm: The algorithm to run. It is wrapped in :class:`drfl.resilience.Protected` with default settings,
            unless it is protected already.
        min_available_nodes: Number of sites that must have reported their names before the start; at least the size of
            a cohort.
        wait: Seconds within which they must be online.
        seed: Seed of all randomness.
        engine: Engine of the sites, see :data:`drfl.engine.ENGINES`.
        table_dir: Folder for the files of the server's tables, see :func:`drfl.training.loop.run`.

    Raises:
        InputError: If a number is out of range or the engine is unknown.
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
        is_protected, core = False, algorithm
        while isinstance(core, Wrapping):
            is_protected = is_protected or isinstance(core, Protected)
            core = core.algorithm
        if engine not in ENGINES:
            raise unknown("engine", engine, ENGINES)
        checks.integer("min_available_nodes", min_available_nodes)
        checks.non_negative("wait", wait)
        checks.integer("seed", seed, low=0)
        self.algorithm, self._core, self._is_protected = algorithm, core, is_protected
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
            grid: Flower's grid.
            initial_arrays: The initial model: its trainable parameters in the order of the model, all float32 or all
                float64. Use ``ArrayRecord(model.state_dict())`` if the model has no buffers and no frozen parameters.
            num_rounds: Number of rounds.
            timeout: Seconds that an exchange with the sites may take. A round has two or three exchanges.
            train_config: Not supported; set the algorithm's ``local`` instead.
            evaluate_config: Not supported.
            evaluate_fn: Function of the round and the model, called before the first round and after every round.

        Returns:
            A result with these entries:

            - ``arrays``: the last model, with the names of ``initial_arrays``.
            - ``train_metrics_clientapp``, by round: ``answered``, the number of clients that trained, and ``avg_loss``
                and ``worst_loss`` of the reported losses in the dual update, if there was one.
            - ``evaluate_metrics_clientapp``, by round from 0: :class:`drfl.training.history.Metrics` over the sites'
                test data, and ``lambda``, the client weights after that round in the order of the sites' names.
            - ``evaluate_metrics_serverapp``, by round from 0: the values of ``evaluate_fn``.

        Raises:
            DrflError: If there are too few sites, if the sites and the algorithm do not fit together, or if the run
                diverges.
        """
        if train_config or evaluate_config:
            raise InputError(
                "train_config and evaluate_config are not supported. Set the algorithm's local=LocalSGD(steps, lr, …)",
                code="unused-option",
                field="train_config",
            )
        checks.integer("num_rounds", num_rounds, low=0)
        checks.positive("timeout", timeout)
        layout, w0 = flatten_arrays(initial_arrays)
        log(INFO, "Starting %s: %d rounds, %d parameters", type(self).__name__, num_rounds, layout.d)
        self.summary()
        # The sites that are online at the start are the clients of the whole run, so there must be enough for a cohort.
        least = max(self.min_available_nodes, getattr(self._core, "m", None) or 0)
        nodes = gather_sites(grid, least, self.wait, min(timeout, NAME_TIMEOUT))
        # Sort by name, because node IDs change from start to start: client i keeps its site, and so its random draws.
        members = dict(enumerate(sorted(nodes.values(), key=lambda member: member.name)))
        names = [member.name for member in members.values()]
        agree(members, names)
        roster = NameRoster(names, min(timeout, NAME_TIMEOUT), {node: member.name for node, member in nodes.items()})
        log(INFO, "%d sites, in the order of lambda: %s", len(names), ", ".join(names))
        # The names are empty, because the sites define model and loss.
        dtype = "float64" if layout.dtype == torch.float64 else "float32"
        model = ModelRecipe("", "", dtype, 0, self.engine)
        fed = FlowerFederation(grid, roster, members, model, w0, Deadline(timeout))
        recorder = _Recorder(layout, evaluate_fn)
        algorithm = self.algorithm if self._is_protected else Protected(self.algorithm, names=tuple(names))
        result = run(algorithm, fed, rounds=num_rounds, seed=self.seed, table_dir=self.table_dir, callbacks=[recorder])
        recorder.result.arrays = array_record(layout, result.state.w)
        return recorder.result

    def summary(self) -> None:
        """Log the algorithm and its hyperparameters."""
        log(INFO, "\t├──> Algorithm: %s", type(self._core).__name__)
        for name, value in vars(self._core).items():
            log(INFO, "\t│\t├── %s: %s", name, value)
        log(INFO, "\t└──> Nodes: at least %d, seed: %d", self.min_available_nodes, self.seed)

    def _unsupported(self, *args: object, **kwargs: object) -> NoReturn:
        # A round of a minimax method has two or more exchanges, which Flower's steps of a round cannot express.
        raise InputError(
            "drfl's strategies run whole rounds of several exchanges. Call start() instead",
            code="unsupported-combination",
        )

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _unsupported


class _Recorder:
    def __init__(self, layout: Layout, evaluate_fn: EvaluateFn | None) -> None:
        self.layout, self.evaluate_fn, self.result = layout, evaluate_fn, Result()

    def __call__(self, progress: RunState) -> None:
        if progress.info is not None:
            training: dict[str, MetricRecordValues] = {"answered": progress.info.answered.numel()}
            if progress.info.losses is not None and progress.info.losses.clients.numel():
                values = progress.info.losses.values
                training |= {"avg_loss": float(values.mean()), "worst_loss": float(values.max())}
            self.result.train_metrics_clientapp[progress.round] = MetricRecord(training)
        if progress.row is not None:
            tests: dict[str, MetricRecordValues] = {
                **progress.row.metrics.as_dict(progress.score.name),
                f"undefined_{progress.score.name}": progress.row.undefined[0],
                "lambda": progress.row.lam.tolist(),
            }
            self.result.evaluate_metrics_clientapp[progress.round] = MetricRecord(tests)
            text = describe(progress.row.metrics, progress.score, progress.row.note)
            log(INFO, "[ROUND %d/%d] %s", progress.round, progress.rounds, text)
        # Evaluate at the server after the sites' results have arrived, like Flower's strategies.
        if self.evaluate_fn is not None:
            metrics = self.evaluate_fn(progress.round, array_record(self.layout, progress.state.w))
            if metrics is not None:
                self.result.evaluate_metrics_serverapp[progress.round] = metrics


def flatten_arrays(arrays: ArrayRecord) -> tuple[Layout, Tensor]:
    """Concatenate a model's arrays into one vector.

    Returns:
        The layout of the arrays in the vector, and the vector (d,).

    Raises:
        InputError: If there are no arrays, or they are neither all float32 nor all float64.
    """
    values = {name: torch.tensor(array.numpy()) for name, array in arrays.items()}
    types = {value.dtype for value in values.values()}
    if len(types) != 1 or not types <= {torch.float32, torch.float64}:
        raise InputError(
            "initial_arrays must be all float32 or all float64, got "
            f"{sorted(map(str, types)) or 'no arrays'}. Pass the trainable parameters without buffers. "
            "Replace layers with running statistics by nn.GroupNorm",
            code="wrong-type",
            field="initial_arrays",
        )
    layout = Layout(tuple(values), tuple(tuple(value.shape) for value in values.values()), types.pop())
    return layout, torch.cat([value.flatten() for value in values.values()])


def array_record(layout: Layout, w: Tensor) -> ArrayRecord:
    """Split the vector w (d,) into a model's arrays."""
    return ArrayRecord({name: Array(value.detach().cpu().numpy()) for name, value in layout.views(w).items()})
