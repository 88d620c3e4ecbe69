"""All messages between a server and its sites, with the type and range of every field.

In an exchange the server sends each client one :class:`Ask`, and the site replies with an :class:`Answer`. Before a run
a site describes itself with a :class:`SiteIdentity`. :mod:`drfl.flower.records` writes and reads these messages.

Everything received is checked before use, because the server uses numbers from a site in sums, allocations and files.
The ranges are wide enough for any honest site, and narrow enough that no sum over a run overflows a 64-bit integer.
"""

from __future__ import annotations

import hashlib
import math
import sys
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from drfl.core.errors import InputError, printable
from drfl.core.key import Key
from drfl.core.user_code import is_reference
from drfl.data import ClientData
from drfl.data.standardisation import Moments, Standardisation
from drfl.data.validation_split import held_out_training
from drfl.federation.requests import GradientRequest, LossRequest, Request, TrainRequest
from drfl.flower.records import MOST_FIELDS, TYPES, Message, ProtocolError
from drfl.flower.site_methods import SentMethod
from drfl.optim import local_optimizers
from drfl.optim.local import LocalSGD
from drfl.task.metrics import ACCURACY

MOST_ROWS = 2**31
"""Maximum number of samples of a site."""

MOST_CLASSES = 2**16
MOST_INPUT = 2**24
"""Maximum number of values in an input."""

MOST_COLUMNS = 2**12
"""Maximum number of columns of a table that is standardised."""

MOST_COUNTED = 2**40
"""Maximum count of processed samples in a reply: eight million replies with this count fit the ledger's 64 bits."""

MOST_METRICS = 64
"""Maximum number of metrics of a test besides the score."""

MOST_VECTORS = 3
"""Maximum number of models in a reply: a model, a snapshot and an average."""

MOST_PARTS = MOST_VECTORS + 2
"""Maximum number of vectors in a reply: a model, a snapshot, an average, the number of a state and a message."""

MOST_TENSORS = 64
"""Maximum number of tensors that a client-side method gets besides the model."""

MOST_NAME = 128
"""Maximum number of characters of the name of a site, a feature or a class, and of a reference to the user's code."""

MOST_NAMED_CLASSES = 1000
"""Maximum number of classes with names."""

MOST_HASHES = 2**17
"""Maximum number of hashes of rows that a site sends. A site with more rows sends the smallest hashes."""

CODE_NAME = r"\A([A-Za-z0-9_-]+/)*[A-Za-z0-9_-]+\.py\Z"
"""Paths of the user's code. Without dots in their parts they cannot lead out of a folder."""

MOST_FILES = 64
"""Maximum number of files of a user's code."""

MOST_MODELS = 8
"""Maximum number of models that are tested together outside a run."""

MOST_MODEL_BYTES = 2**30
"""Maximum size of a model file that is delivered to the sites."""

HASH_BYTES = 8
"""Bytes of the hash of a row. Among a million rows, two different ones collide with probability 3e-8."""

MOST_WARNINGS = 64
"""Maximum number of warnings about its data that a site sends."""

MOST_WARNING = 400
"""Maximum number of characters of the text of such a warning."""

Short = Annotated[str, Meta(max_length=64)]
Code = Annotated[str, Meta(pattern=r"\A[a-z0-9-]{1,64}\Z")]
Index = Annotated[int, Meta(ge=0, le=2**31)]
Positive = Annotated[int, Meta(ge=1, le=2**31)]
Rows = Annotated[int, Meta(ge=1, le=MOST_ROWS)]
Counted = Annotated[int, Meta(ge=0, le=MOST_COUNTED)]
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
SchemaDigest = Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
KeyCheck = Annotated[str, Meta(pattern=r"\A([0-9a-f]{16})?\Z")]
Name = Annotated[str, Meta(max_length=MOST_NAME)]
Version = Annotated[str, Meta(pattern=r"\A(zero|[0-9a-f]{24})?\Z")]
"""A vector's version, see :func:`version`; "" without a vector."""

Numbers = Annotated[tuple[float, ...], Meta(max_length=MOST_METRICS)]
"""Any numbers, NaN and infinity included. The code that uses them decides whether they are valid."""

Sums = Annotated[tuple[tuple[float, float, float, float, float], ...], Meta(max_length=MOST_METRICS + 1)]
"""Five sums over the test rows for each metric, see :class:`drfl.federation.federation.Evaluation`."""

Products = Annotated[tuple[tuple[float, float], ...], Meta(max_length=MOST_METRICS + 1)]
"""Two sums of products for each metric, see :func:`drfl.data.row_scores.products`."""


class CodeFile(Message, frozen=True):
    """A Python file that the server uses. It is not sent: a site uses its own copy, if its policy approves the digest.

    Args:
        name: Path relative to the folder of ``server.toml``, and of ``site.toml``.
        sha256: Digest of its content.
    """

    name: Annotated[str, Meta(max_length=MOST_NAME, pattern=CODE_NAME)]
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class ModelRecipe(Message, frozen=True):
    """The description from which a site builds the model that it trains.

    Args:
        model: Name of the model, see :data:`drfl.task.models.MODELS`, or a reference ``FILE.py:NAME`` to one of the
            files; "" if the site supplies the model.
        loss: Name of the loss, see :data:`drfl.task.models.LOSSES`, or a reference.
        dtype: "float32" or "float64".
        classes: Number of outputs.
        engine: Name of the engine, see :data:`drfl.engine.ENGINES`.
        metrics: Names of the metrics of a test, the score first, see :data:`drfl.task.metrics.METRICS`, or references.
        code: The files of all references, with the modules that they import from their folder.
    """

    model: Name
    loss: Name
    dtype: Literal["float32", "float64"]
    classes: Annotated[int, Meta(ge=0, le=MOST_CLASSES)]
    engine: Short = "auto"
    metrics: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MOST_METRICS)] = (ACCURACY.name,)
    code: Annotated[tuple[CodeFile, ...], Meta(max_length=MOST_FILES)] = ()

    def __post_init__(self) -> None:
        files = {file.name for file in self.code}
        # Sites approve code by the digests of these files, so no reference may name any other.
        for name in (self.model, self.loss, *self.metrics):
            if is_reference(name) and name.rpartition(":")[0] not in files:
                raise ValueError("a reference is not to one of the files")


class Work(Message, tag_field="kind", frozen=True):
    """The work that a site does with the model, see :class:`drfl.federation.requests.Request`.

    The message contains the random key, so that the site draws the same minibatches as a simulation.
    """

    seed: Annotated[int, Meta(ge=0)]
    path: Annotated[tuple[Annotated[int, Meta(ge=0, lt=2**32)], ...], Meta(max_length=256)]
    batch: Rows | None


class TrainWork(Work, tag=TrainRequest.kind, frozen=True):
    """Local training, see :class:`drfl.federation.requests.TrainRequest`.

    :class:`drfl.optim.local.LocalSGD` checks the ranges of the hyperparameters. ``lr`` is the learning rate of the
    round; schedules stay at the server. The shift is a field of :class:`Ask`, because the site may already hold it.
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
    """Computation of a loss, see :class:`drfl.federation.requests.LossRequest`."""


class GradientWork(Work, tag=GradientRequest.kind, frozen=True):
    """Computation of a gradient, see :class:`drfl.federation.requests.GradientRequest`."""


class HoldOut(Message, frozen=True):
    """A share of a site's training rows that is used to select a model instead of training it.

    Args:
        fraction: The share, see :meth:`drfl.data.ClientData.with_validation`.
        seed: Seed of the run, so that the site holds out the same rows in every message.
        tested: Whether these rows take the place of the test rows, so that no test row is used.
    """

    fraction: Annotated[float, Meta(gt=0, lt=1)]
    seed: Annotated[int, Meta(ge=0)]
    tested: bool = False

    def apply(self, data: ClientData) -> ClientData:
        """Return the data with validation rows, or with these as test rows, the same ones as in a simulation."""
        if self.tested:
            return held_out_training(data, self.fraction, Key(self.seed))
        return data.with_validation(self.fraction, Key(self.seed))


class AskIdentity(Message, frozen=True):
    """A request for a site's description of itself.

    ``holdout`` are the validation rows of the run; None for none.
    """

    holdout: HoldOut | None = None


class SentTensor(Message, frozen=True):
    """A tensor for a client-side method."""

    name: Short
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=2**31)], ...], Meta(max_length=8)]
    values: Tensor

    def __post_init__(self) -> None:
        # Vectors in a message are one-dimensional, and reshape() must not fail in the middle of a request.
        if math.prod(self.shape) != self.values.numel() or not self.values.dim():
            raise ValueError("a tensor does not have as many values as its shape says")

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> SentTensor:
        """Describe a tensor; whole numbers become floats."""
        values = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.double()
        return cls(name, tuple(tensor.shape), values.reshape(-1))


class Ask(Message, frozen=True):
    """A request to one client.

    Args:
        client: Index of the client.
        model: Description of the model.
        w: (d,) parameters of the model.
        work: The work to do with the model; None to only test it.
        test: Whether to test ``w`` on the client's test rows, before any work.
        version: Version of the shift; "" if the work has no shift.
        shift: (d,) the shift; None if there is none or the site already holds it.
        standardisation: Mean and scale with which the site standardises its inputs; None to use the inputs unchanged.
        also: (d,) parameters of a second model to test together with ``w``.
        holdout: Validation rows, which are not used for training; None for none. A test then includes them.
        method: The client-side method of the work, or of the own model to test; None for the task's loss.
        start: (d,) parameters from which the client starts; None for ``w``.
        context: The tensors of the method.
        own: Whether to test the client's own model instead of ``w``.
        keep: Whether the site keeps this own model, because the run has ended.
    """

    client: Index
    model: ModelRecipe
    w: Tensor
    work: TrainWork | LossWork | GradientWork | None = None
    test: bool = False
    version: Version = ""
    shift: Tensor | None = None
    standardisation: Standardisation | None = None
    also: Tensor | None = None
    holdout: HoldOut | None = None
    method: SentMethod | None = None
    start: Tensor | None = None
    context: Annotated[tuple[SentTensor, ...], Meta(max_length=MOST_TENSORS)] = ()
    own: bool = False
    keep: bool = False

    def __post_init__(self) -> None:
        for name, vector in (("shift", self.shift), ("second model", self.also), ("start model", self.start)):
            if vector is not None and (vector.shape != self.w.shape or vector.dtype != self.w.dtype):
                raise ValueError(f"the {name} does not have the shape and type of the model")
        if self.also is not None and not self.test:
            raise ValueError("there is a second model, but no test is requested")
        if self.own and (self.method is None or not self.test or self.work is not None or self.also is not None):
            raise ValueError("a test of an own model needs a method and nothing else")
        if self.keep and not self.own:
            raise ValueError("an own model to keep needs a test of it")
        if self.method is not None and not self.own and not isinstance(self.work, TrainWork):
            raise ValueError("a method needs work")

    @property
    def validates(self) -> bool:
        """Whether a test on validation rows is requested beside that on test rows."""
        return self.test and self.holdout is not None and not self.holdout.tested


class FinishedModel(Message, frozen=True):
    """A model in a request for tests outside a run.

    Args:
        model: Description of the model; all models of a request have the same metrics.
        w: (d,) its parameters.
        standardisation: Mean and scale with which it was trained; None if its inputs are not standardised.
    """

    model: ModelRecipe
    w: Tensor
    standardisation: Standardisation | None = None


class AskTests(Message, frozen=True):
    """A request to test finished models, without training."""

    models: Annotated[tuple[FinishedModel, ...], Meta(min_length=1, max_length=MOST_MODELS)]

    def __post_init__(self) -> None:
        if len({each.model.metrics for each in self.models}) > 1:
            raise ValueError("the models have different metrics")


class SiteTest(Message, frozen=True):
    """The result of testing a model.

    Args:
        score: The first of the model's metrics.
        loss: Mean loss.
        samples: Number of test rows.
        others: The other metrics.
        sums: For every metric, sums over the test rows; they contain no value of a single row.
    """

    score: float
    loss: float
    samples: Annotated[int, Meta(ge=0, le=MOST_ROWS)]
    others: Numbers = ()
    sums: Sums = ()

    def undefined(self) -> SiteTest:
        """Return the result with undefined metrics; the loss remains, because a run needs a number."""
        nan = math.nan
        others, sums = (nan,) * len(self.others), ((nan, nan, nan, nan, nan),) * len(self.sums)
        return SiteTest(nan, self.loss, self.samples, others, sums)


class Answer(Message, frozen=True):
    """A client's reply.

    Args:
        parts: The fields of the reply to the request without ``clients``, such as a model (d,) or a loss ().
        test: Result of the test, if one was requested.
        gradients: Number of samples whose gradient was computed.
        losses: Number of samples whose loss was computed without a gradient.
        seconds: Working time of the site.
        version: Version of the shift that the site keeps for the next request; "" if it keeps none.
        lacking: Whether the site lacks the shift that the request refers to. It has computed nothing then.
        digest: Digest of the site's data, as in its :class:`SiteIdentity`.
        also: Test result of the second model.
        products: Sums of the products of both models' values; None without a second model.
        validation: Test result of the last model on the validation rows; None if there are none.
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
    validation: SiteTest | None = None

    def __post_init__(self) -> None:
        if (self.also is None) != (self.products is None):
            raise ValueError("sums of products require two tests, and two tests require sums of products")


class AskLosses(Message, frozen=True):
    """A request for sums of the losses of models on a site's validation rows, to choose one of the models.

    Args:
        model: Description of the models.
        models: (d,) parameters of each model.
        holdout: The validation rows, in the place of the test rows.
        standardisation: Mean and scale with which the site standardises its inputs; None for no standardisation.
    """

    model: ModelRecipe
    models: Annotated[tuple[Tensor, ...], Meta(min_length=1, max_length=MOST_MODELS)]
    holdout: HoldOut
    standardisation: Standardisation | None = None

    def __post_init__(self) -> None:
        if not self.holdout.tested:
            raise ValueError("the validation rows must be those that are tested")


class LossSums(Message, frozen=True):
    """The moments of a value over a site's validation rows, see :class:`drfl.assessment.row_moments.RowMoments`.

    Args:
        mean: Mean over the rows.
        squares: Sum of squared differences from the mean, of patients if the site has some.
        cross: Sum of these differences times the number of the patient's rows.
    """

    mean: float
    squares: float
    cross: float


class AnswerLosses(Message, frozen=True):
    """A site's answer to a :class:`AskLosses`.

    Args:
        rows: Number of validation rows.
        units: Number of patients among them, or of rows.
        sizes: Sum of the squared numbers of rows of the patients.
        losses: Sums of each model's losses.
        gains: Sums of the first model's losses minus those of each other model, row by row.
        digest: Digest of the site's data, as in its :class:`SiteIdentity`.
    """

    rows: Rows
    units: Rows
    sizes: Annotated[float, Meta(ge=1, le=float(MOST_ROWS) ** 2)]
    losses: Annotated[tuple[LossSums, ...], Meta(min_length=1, max_length=MOST_MODELS)]
    gains: Annotated[tuple[LossSums, ...], Meta(max_length=MOST_MODELS)]
    digest: Digest

    def __post_init__(self) -> None:
        if len(self.gains) != len(self.losses) - 1:
            raise ValueError("differences of losses are missing, or were not requested")
        if not self.units <= self.rows <= self.sizes <= self.rows**2:
            raise ValueError("its numbers of rows and patients contradict each other")


class SiteWarning(Message, frozen=True):
    """A warning about a site's data.

    Args:
        code: Kind of problem, see :class:`drfl.core.errors.Notice`.
        column: The feature that it concerns; "" if it concerns none or several.
        text: The warning with its figures; "" if the site's policy keeps them at the site.
    """

    code: Code
    column: Name = ""
    text: Annotated[str, Meta(max_length=MOST_WARNING)] = ""

    def __post_init__(self) -> None:
        if not (self.column + self.text).isprintable():
            raise ValueError("a warning must be printable")


class AnswerTests(Message, frozen=True):
    """The results of a :class:`AskTests`.

    Args:
        tests: Result of each model.
        scores: Result of the site's own scores, see ``policy.score_column``; None if it has none.
        products: Sums of the products of the first model's values with those of each further model and of the site's
            own scores.
        digest: Digest of the site's data, as in its :class:`SiteIdentity`.
    """

    tests: Annotated[tuple[SiteTest, ...], Meta(min_length=1, max_length=MOST_MODELS)]
    scores: SiteTest | None
    products: Annotated[tuple[Products, ...], Meta(max_length=MOST_MODELS)]
    digest: Digest

    def __post_init__(self) -> None:
        if len(self.products) != len(self.tests) - 1 + (self.scores is not None):
            raise ValueError("sums of products are missing, or were not requested")


class SiteIdentity(Message, frozen=True):
    """A site's description of itself.

    Args:
        name: Name of the site.
        shape: Shape of an input.
        classes: Number of classes that its labels need.
        train: Number of training samples.
        test: Number of test samples.
        digest: Digest of its data.
        majority: Share of the most frequent class among its test rows; None if its targets are not class labels.
        columns: Mean and variance (p,) float64 of the columns of its training rows; None if its inputs are not vectors
            or have too many columns. :meth:`drfl.data.standardisation.Moments.check` checks whether they are possible.
        counts: (p,) float64, values of each column that are not missing; None if none is.
        features: (p,) names of its inputs; empty if they have none, or too many.
        schema: Digest of its :class:`drfl.TableSchema`; "" without one.
        class_names: Names of its classes; empty if they have none.
        row_key: Check value of the key with which it hashes its rows for comparison with other sites; "" if it does not
            take part.
        warnings: Warnings about its data, as far as its policy allows.
        held_out: Number of its training samples that are only used for validation.
    """

    # Names of many columns take more space than the fields of other messages.
    limit: ClassVar[int] = 2**22
    name: str
    shape: Annotated[tuple[Annotated[int, Meta(ge=1, le=MOST_INPUT)], ...], Meta(max_length=8)]
    classes: Annotated[int, Meta(ge=1, le=MOST_CLASSES)]
    train: Rows
    test: Rows
    digest: Digest
    majority: Annotated[float, Meta(ge=0, le=1)] | None = None
    columns: tuple[Tensor, Tensor] | None = None
    counts: Tensor | None = None
    features: Annotated[tuple[Name, ...], Meta(max_length=MOST_COLUMNS)] = ()
    schema: SchemaDigest = ""
    class_names: Annotated[tuple[Name, ...], Meta(max_length=MOST_NAMED_CLASSES)] = ()
    row_key: KeyCheck = ""
    warnings: Annotated[tuple[SiteWarning, ...], Meta(max_length=MOST_WARNINGS)] = ()
    held_out: Counted = 0

    def __post_init__(self) -> None:
        site_name(self.name)
        if self.held_out >= self.train:
            raise ValueError("it holds out all of its training samples")
        if self.features and self.shape != (len(self.features),):
            raise ValueError("features must be one name for each column")
        if self.class_names and len(self.class_names) != self.classes:
            raise ValueError("class_names must be one name for each class")
        if not all(name.isprintable() for name in (*self.features, *self.class_names)):
            raise ValueError("names of features and classes must be printable")
        if math.prod(self.shape) > MOST_INPUT:
            raise ValueError(f"an input must have at most {MOST_INPUT} values")
        # Only inputs that are vectors have columns.
        length = self.shape if len(self.shape) == 1 and self.shape[0] <= MOST_COLUMNS else None
        for vector in (*(self.columns or ()), *(() if self.counts is None else (self.counts,))):
            if vector.dtype != torch.float64 or vector.shape != length:
                raise ValueError("mean, variance and counts must have one float64 number for each column")

    @property
    def trained(self) -> int:
        """Number of samples that it trains on."""
        return self.train - self.held_out

    @property
    def moments(self) -> Moments | None:
        """Mean and variance of the columns of its training rows; None if it reports none."""
        return None if self.columns is None else Moments(self.train, *self.columns, self.counts)


class SharedRows(Message, frozen=True):
    """Keyed hashes of a site's rows, see :func:`drfl.flower.row_hashes.hash_rows`.

    Args:
        rows: Number of rows.
        distinct: Number of distinct rows.
        hashes: The smallest hashes, at most ``MOST_HASHES``, in ascending order.
    """

    limit: ClassVar[int] = HASH_BYTES * MOST_HASHES + 2**10
    rows: Rows
    distinct: Rows
    hashes: Annotated[bytes, Meta(max_length=HASH_BYTES * MOST_HASHES)]

    def __post_init__(self) -> None:
        if self.distinct > self.rows or len(self.hashes) != HASH_BYTES * min(self.distinct, MOST_HASHES):
            raise ValueError("the number of hashes does not match the number of rows")
        values = np.frombuffer(self.hashes, dtype=f">u{HASH_BYTES}")
        if (values[1:] <= values[:-1]).any():
            raise ValueError("hashes must be distinct and in ascending order")


class Delivery(Message, frozen=True):
    """A model for use at a site.

    Args:
        model: Content of the model file.
        signed: Time of the signature in UTC.
        signature: The server's signature of :attr:`statement`; "" if the server has no key.
    """

    limit: ClassVar[int] = MOST_MODEL_BYTES + 2**10
    model: Annotated[bytes, Meta(min_length=1, max_length=MOST_MODEL_BYTES)]
    signed: Annotated[str, Meta(pattern=r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}\+00:00\Z")]
    signature: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64,300})?\Z")] = ""

    @property
    def statement(self) -> bytes:
        """The signed bytes. They contain the time, so that a site can refuse a repeated old delivery."""
        # The first words distinguish them from the lines of audit logs, which the same key signs.
        return f"drfl model\n{self.sha256}\n{self.signed}".encode()

    @property
    def sha256(self) -> str:
        """Digest of the model file."""
        return hashlib.sha256(self.model).hexdigest()


class Receipt(Message, frozen=True):
    """A site's confirmation that it uses a delivered model.

    Args:
        sha256: Digest of the model file.
        new: Whether the model replaced another one, or was the first; False if the site had it already.
    """

    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    new: bool


def site_name(text: str) -> str:
    """Return the text if it is a valid name of a site.

    Raises:
        ValueError: If it is empty, too long or has unprintable characters.
    """
    if not 1 <= len(text) <= MOST_NAME or not text.isprintable():
        raise ValueError(f"a site's name must have 1 to {MOST_NAME} printable characters")
    return text


def short_name(text: str) -> str:
    """Return the name of a feature or a class as messages have it: printable, and short with a digest if it is long."""
    if len(text) <= MOST_NAME and text.isprintable():
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{printable(text, MOST_NAME - 20)} #{digest}"


def version(vector: Tensor) -> str:
    """Return a digest of a vector's bytes, or "zero" for a vector of zeros, which need not be sent."""
    # Before the first round all shifts are 0. Without this case each client would receive a vector of zeros.
    if not bool(vector.any()):
        return "zero"
    return hashlib.blake2b(vector.detach().cpu().contiguous().numpy().data, digest_size=12).hexdigest()


def work_of(request: Request) -> TrainWork | LossWork | GradientWork:
    """Convert a request to the work that a site has to do for it."""
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
        # Optimizers travel as text that the site parses, so that no code crosses the network.
        optimizer=str(local.optimizer),
        # Convert to plain floats, because a user may have set numbers of other types.
        lr=None if local.lr is None else float(local.lr),
        momentum=float(local.momentum),
        weight_decay=float(local.weight_decay),
        radius=None if local.radius is None else float(local.radius),
        prox=float(request.prox),
        snapshot=request.snapshot,
        average=request.average,
    )


def request_of(ask: Ask) -> Request | None:
    """Convert a message to a request, with a cohort of this client only and without the shift.

    Returns:
        The request; None if the message only requests a test.

    Raises:
        ProtocolError: If the request is impossible.
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
        # LocalSGD checks every range again, because these numbers come from the network.
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
                f"cannot take a snapshot after step {work.snapshot}, because there are only {local.tau} local steps",
                code="out-of-range",
                field="snapshot",
            )
    except InputError as error:
        raise ProtocolError(f"a request is invalid: {error}") from error
    start = None if ask.start is None else ask.start[None]
    return TrainRequest(cohort, ask.w, key, local, work.prox, None, work.snapshot, work.average, start)


def max_reply_bytes(w: Tensor) -> int:
    """Return the size in bytes of the largest valid reply for a model w (d,), without the message of a method."""
    return MOST_VECTORS * w.numel() * w.element_size() + MOST_FIELDS


MOST_IDENTITY_BYTES = SiteIdentity.limit + 3 * MOST_COLUMNS * TYPES["float64"]
"""Size in bytes of the largest valid description of a site."""
