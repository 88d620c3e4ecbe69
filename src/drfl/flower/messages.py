"""All messages between a server and its sites: every field with its type and its range.

The server asks with :class:`Ask`, one message a client and exchange, and a site answers with :class:`Answer`. Before a
run a site describes itself with :class:`SiteIdentity`. :mod:`drfl.flower.records` writes and reads them.

Nothing that arrives is used before it is checked: numbers of a site go into sums, allocations and files of the server.
The ranges are wide enough for any honest site and narrow enough that no sum over a run overflows an integer of 64 bits.
"""

from __future__ import annotations

import hashlib
import math
import sys
from typing import Annotated, Literal

import torch
from msgspec import Meta
from torch import Tensor

from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.data.standardisation import Moments, Standardisation
from drfl.federation.requests import GradientRequest, LossRequest, Request, TrainRequest
from drfl.flower.records import MOST_FIELDS, TYPES, Message, ProtocolError
from drfl.optim import local_optimizers
from drfl.optim.local import LocalSGD
from drfl.task.metrics import ACCURACY

MOST_ROWS = 2**31
"""Samples that one site may have."""

MOST_CLASSES = 2**16
MOST_INPUT = 2**24
"""Numbers in one input."""

MOST_COLUMNS = 2**12
"""Columns of a table that is standardised."""

MOST_COUNTED = 2**40
"""Samples in one reply's count of work: eight million replies of so many fit the ledger's 64 bits."""

MOST_METRICS = 64
"""What a test may measure beside the score."""

MOST_PARTS = 3
"""Vectors in one reply: a model, a snapshot and an average."""

MOST_NAME = 128
"""Characters of a site's name."""

Short = Annotated[str, Meta(max_length=64)]
Index = Annotated[int, Meta(ge=0, le=2**31)]
Positive = Annotated[int, Meta(ge=1, le=2**31)]
Rows = Annotated[int, Meta(ge=1, le=MOST_ROWS)]
Counted = Annotated[int, Meta(ge=0, le=MOST_COUNTED)]
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
Version = Annotated[str, Meta(pattern=r"\A(zero|[0-9a-f]{24})?\Z")]
"""See :func:`version`; "" for no vector."""

Numbers = Annotated[tuple[float, ...], Meta(max_length=MOST_METRICS)]
"""Any, NaN and infinity too: whether they can be used is decided by the code that uses them."""

Sums = Annotated[tuple[tuple[float, float, float, float, float], ...], Meta(max_length=MOST_METRICS + 1)]
"""Five of each metric over the test rows, see :class:`drfl.federation.federation.Evaluation`."""

Products = Annotated[tuple[tuple[float, float], ...], Meta(max_length=MOST_METRICS + 1)]
"""Two of each metric, see :func:`drfl.data.row_scores.products`."""


class Model(Message, frozen=True):
    """What a site needs to build the model that it trains.

    Args:
        model: its name, see :data:`drfl.task.models.MODELS`; "" where the site has its own.
        loss: its name, see :data:`drfl.task.models.LOSSES`.
        dtype: "float32" or "float64".
        classes: number of outputs.
        engine: see :data:`drfl.engine.ENGINES`.
        metrics: what a test measures, see :data:`drfl.task.metrics.METRICS`; the score first.
    """

    model: Short
    loss: Short
    dtype: Literal["float32", "float64"]
    classes: Annotated[int, Meta(ge=0, le=MOST_CLASSES)]
    engine: Short = "auto"
    metrics: Annotated[tuple[Short, ...], Meta(min_length=1, max_length=MOST_METRICS)] = (ACCURACY.name,)


class Work(Message, tag_field="kind", frozen=True):
    """What a site does with the model sent, see :class:`drfl.federation.requests.Request`.

    The key travels, not numbers drawn from it, so that a site draws the minibatches that a simulation would draw.
    """

    seed: Annotated[int, Meta(ge=0)]
    path: Annotated[tuple[Annotated[int, Meta(ge=0, lt=2**32)], ...], Meta(max_length=256)]
    batch: Rows | None


class TrainWork(Work, tag=TrainRequest.kind, frozen=True):
    """See :class:`drfl.federation.requests.TrainRequest`, and :class:`drfl.optim.local.LocalSGD`, which has the ranges
    of the hyperparameters.

    η is that of the round: a schedule stays at the server. The shift travels apart, as the site may hold it.
    """

    steps: Positive | None
    epochs: Positive | None
    optimizer: Annotated[str, Meta(max_length=128)]
    lr: float | None
    momentum: float
    weight_decay: float
    radius: float | None
    prox: Finite
    snapshot: Positive | None
    average: bool


class LossWork(Work, tag=LossRequest.kind, frozen=True):
    """See :class:`drfl.federation.requests.LossRequest`."""


class GradientWork(Work, tag=GradientRequest.kind, frozen=True):
    """See :class:`drfl.federation.requests.GradientRequest`."""


class Ask(Message, frozen=True):
    """A message to one client.

    Args:
        client: its index.
        model: what it trains.
        w: (d,) the model sent.
        work: what to do with it; None = only the test.
        test: whether ``w`` is to be tested on the client's test rows too, before anything else.
        version: the shift's; "" where the work has none.
        shift: (d,) the shift; None where there is none or the site holds it.
        standardisation: by which the site scales its inputs; None = they are taken as they are.
        also: (d,) a second model to test, along with ``w``.
    """

    client: Index
    model: Model
    w: Tensor
    work: TrainWork | LossWork | GradientWork | None = None
    test: bool = False
    version: Version = ""
    shift: Tensor | None = None
    standardisation: Standardisation | None = None
    also: Tensor | None = None

    def __post_init__(self) -> None:
        for name, vector in (("shift", self.shift), ("second model", self.also)):
            if vector is not None and (vector.shape != self.w.shape or vector.dtype != self.w.dtype):
                raise ValueError(f"the {name} is of another shape or type than the model")
        if self.also is not None and not self.test:
            raise ValueError("there is a second model, and nothing is to be tested")


class SiteTest(Message, frozen=True):
    """What a test of a model gave.

    Args:
        score: the first of the model's metrics.
        loss: mean loss.
        samples: number of test rows.
        others: the other metrics.
        sums: of every metric; nothing of a single row.
    """

    score: float
    loss: float
    samples: Annotated[int, Meta(ge=0, le=MOST_ROWS)]
    others: Numbers = ()
    sums: Sums = ()


class Answer(Message, frozen=True):
    """A client's answer.

    Args:
        parts: the fields of the reply to the request, after ``clients``: a model (d,), a loss ().
        test: of the test rows, where it was asked for.
        gradients: samples whose gradient was computed.
        losses: samples whose loss was computed without.
        seconds: working time of the site.
        version: of the shift that the site keeps for next time; "" where it keeps none.
        lacking: whether the site does not hold the shift that the message refers to: nothing was computed.
        digest: of the site's data, as in its identity before the run.
        also: the same as ``test`` of the second model.
        products: sums of the products of both models' values. None where there was no second model.
    """

    parts: Annotated[tuple[Tensor, ...], Meta(max_length=MOST_PARTS)] = ()
    test: SiteTest | None = None
    gradients: Counted = 0
    losses: Counted = 0
    seconds: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    version: Version = ""
    lacking: bool = False
    digest: Digest = "0" * 32
    also: SiteTest | None = None
    products: Products | None = None

    def __post_init__(self) -> None:
        if (self.also is None) != (self.products is None):
            raise ValueError("products are those of two tests")


class SiteIdentity(Message, frozen=True):
    """A site's description of itself.

    Args:
        name: of the site.
        shape: of an input.
        classes: number of classes that its labels need.
        train: number of training samples.
        test: number of test samples.
        digest: of its data.
        majority: share of the most frequent class among its test rows; None where its targets are not class labels.
        columns: mean and variance (p,) float64 of the columns of its training rows; None where its inputs are not
            vectors, or too long ones. Whether rows with these can exist is checked by
            :meth:`drfl.data.standardisation.Moments.check`.
    """

    name: str
    shape: Annotated[tuple[Annotated[int, Meta(ge=1, le=MOST_INPUT)], ...], Meta(max_length=8)]
    classes: Annotated[int, Meta(ge=1, le=MOST_CLASSES)]
    train: Rows
    test: Rows
    digest: Digest
    majority: Annotated[float, Meta(ge=0, le=1)] | None = None
    columns: tuple[Tensor, Tensor] | None = None

    def __post_init__(self) -> None:
        site_name(self.name)
        if math.prod(self.shape) > MOST_INPUT:
            raise ValueError(f"an input has at most {MOST_INPUT} numbers")
        # Only inputs that are vectors have columns.
        length = self.shape if len(self.shape) == 1 and self.shape[0] <= MOST_COLUMNS else None
        for vector in self.columns or ():
            if vector.dtype != torch.float64 or vector.shape != length:
                raise ValueError("mean and variance are not a float64 number each for every column")

    @property
    def moments(self) -> Moments | None:
        """Statistics of the columns of its training rows; None where it reports none."""
        return None if self.columns is None else Moments(self.train, *self.columns)


def site_name(text: str) -> str:
    """The text, if it can be a site's name.

    Raises:
        ValueError: it is empty or too long, or a terminal would not print it.
    """
    if not 1 <= len(text) <= MOST_NAME or not text.isprintable():
        raise ValueError(f"a site's name must have 1 to {MOST_NAME} printable characters")
    return text


def version(vector: Tensor) -> str:
    """Names the bytes of a vector; "zero" for one of zeros, which need not be sent at all."""
    # Before the first round all shifts are 0: without this each client would be sent a vector of zeros.
    if not bool(vector.any()):
        return "zero"
    return hashlib.blake2b(vector.detach().cpu().contiguous().numpy().data, digest_size=12).hexdigest()


def work_of(request: Request) -> TrainWork | LossWork | GradientWork:
    """What a site has to do for a request."""
    key = request.key
    if isinstance(request, LossRequest):
        return LossWork(key.seed, key.path, request.batch)
    if isinstance(request, GradientRequest):
        return GradientWork(key.seed, key.path, request.batch)
    assert isinstance(request, TrainRequest)
    local = request.local
    return TrainWork(
        key.seed,
        key.path,
        local.batch,
        steps=local.steps,
        epochs=local.epochs,
        optimizer=str(local.optimizer),
        lr=None if local.lr is None else float(local.lr),
        momentum=float(local.momentum),
        weight_decay=float(local.weight_decay),
        radius=None if local.radius is None else float(local.radius),
        prox=float(request.prox),
        snapshot=request.snapshot,
        average=request.average,
    )


def request_of(ask: Ask) -> Request | None:
    """The request in a message, to a cohort of this client alone and without its shift; None if it asks for no work.

    Raises:
        ProtocolError: it cannot be met.
    """
    work, cohort = ask.work, torch.tensor([ask.client])
    if work is None:
        return None
    key = Key(work.seed, work.path)
    if isinstance(work, LossWork):
        return LossRequest(cohort, ask.w, key, work.batch)
    if isinstance(work, GradientWork):
        return GradientRequest(cohort, ask.w, key, work.batch)
    try:
        local = LocalSGD(
            work.steps,
            work.lr,
            work.batch,
            work.momentum,
            work.weight_decay,
            work.radius,
            work.epochs,
            local_optimizers.parse(work.optimizer),
        )
        if work.snapshot is not None and work.snapshot > local.tau:
            raise InputError(
                f"there is no step {work.snapshot} of {local.tau} to take a snapshot after",
                code="out-of-range",
                field="snapshot",
            )
    except InputError as error:
        raise ProtocolError(f"a request cannot be met: {error}") from error
    return TrainRequest(cohort, ask.w, key, local, work.prox, None, work.snapshot, work.average)


def most_bytes(w: Tensor) -> int:
    """The size in bytes of the largest valid reply for a model w (d,)."""
    return MOST_PARTS * w.numel() * w.element_size() + MOST_FIELDS


def most_identity_bytes() -> int:
    """The size in bytes of the largest valid description of a site."""
    return MOST_FIELDS + 2 * MOST_COLUMNS * TYPES["float64"]
