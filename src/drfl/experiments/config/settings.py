"""The settings of a run: type, bounds, default and explanation of each.

This is the only place that declares them: the configuration validates by it, and the command makes its options from
it. It therefore imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

DATA, TRAINING, ALGORITHM, EVALUATION = "Data and clients", "Training", "Algorithm", "Evaluation"
FAILURES, EXECUTION, OUTPUT = "Failures and attacks", "Execution", "Output"
PANELS = (DATA, TRAINING, ALGORITHM, EVALUATION, FAILURES, EXECUTION, OUTPUT)
"""Groups of options in the long help, in their order."""


@dataclass(frozen=True)
class Setting:
    """Explanation of a setting, and its option on the command line.

    Args:
        help: Explanation: a noun phrase or an imperative of about 80 characters.
        panel: Group of the option in the long help.
        none: Description of the default, if it is None or depends on another setting.
        flag: Name of the option; by default the setting's name with dashes. ``--yes/--no`` is one that takes no value.
        hidden: Whether only TOML files have the setting.
        common: Whether the short help shows the option.
    """

    help: str
    panel: str | None = None
    none: str = ""
    flag: str | None = None
    hidden: bool = False
    common: bool = False


@dataclass(frozen=True)
class Text:
    """Marks a setting whose value is an object, which files and options give as text.

    Args:
        form: The type of the text.
    """

    form: object


@dataclass
class AlgorithmFields:
    """The algorithm, and parameters that all algorithms have."""

    algorithm: Annotated[
        str, Setting("Algorithm (see 'drfl algorithms'), or your own as FILE.py:CLASS", ALGORITHM, common=True)
    ] = "DualDRDM"
    cohort: Annotated[
        int | None,
        Ge(1),
        Setting(
            "Clients per round m",
            TRAINING,
            none="all if at most 10, else two thirds; ScaffPD, AAggFFS: all",
            common=True,
        ),
    ] = None
    steps: Annotated[int | None, Ge(1), Setting("Local steps τ per round", TRAINING, none="10")] = None
    batch: Annotated[int | Literal["full"] | None, Setting("Local minibatch size, or 'full'", TRAINING, none="32")] = (
        None
    )
    lr: Annotated[
        float | None, Setting("Local step size η", TRAINING, none="from the curvature of the clients' losses")
    ] = None


@dataclass
class DataFields:
    """The clients' data."""

    data: Annotated[
        tuple[Path, ...] | None,
        Setting(
            "Your data: tables, npz files, or a folder of them; repeatable",
            DATA,
            common=True,
        ),
    ] = None
    target: Annotated[
        tuple[str, ...] | None,
        Setting("Target column, or a condition such as 'age > 60'; repeatable", DATA, common=True),
    ] = None
    task: Annotated[
        Literal["classification", "regression", "multi-label"] | None,
        Setting("Kind of target: classification, regression or multi-label", DATA, none="classification"),
    ] = None
    group: Annotated[
        str | None,
        Setting(
            "Column that names the client of each row",
            DATA,
            none="one client per file; for the data set adult: doctorate",
            common=True,
        ),
    ] = None
    drop: Annotated[tuple[str, ...] | None, Setting("Column to exclude, such as a name; repeatable", DATA)] = None
    patient: Annotated[
        str | None,
        Setting(
            "Column that identifies the patient; splits and intervals keep a patient's rows together", DATA, common=True
        ),
    ] = None
    min_rows: Annotated[int | None, Ge(1), Setting("Exclude clients with fewer rows", DATA, none="none")] = None
    strict: Annotated[
        bool | None,
        Setting("Treat warnings about the data as errors", DATA, flag="--strict/--no-strict", none="print them"),
    ] = None
    # Not "schema", which is a method of pydantic's models.
    data_schema: Annotated[
        Path | None,
        Setting("Schema of the columns of --data, from 'drfl data describe'", DATA, flag="--schema", common=True),
    ] = None
    delimiter: Annotated[
        str | None, Setting("Character between cells in text files of --data, or 'tab'", DATA, none="detected")
    ] = None
    decimal: Annotated[Literal[".", ","] | None, Setting("Decimal mark in --data, . or ,", DATA, none="detected")] = (
        None
    )
    thousands: Annotated[
        Literal[",", ".", "'", " "] | None,
        Setting("Mark between thousands in --data: , . ' or a blank", DATA, none="detected"),
    ] = None
    encoding: Annotated[
        str | None, Setting("Encoding of text files of --data, such as latin-1", DATA, none="detected")
    ] = None
    missing: Annotated[
        tuple[str, ...] | None,
        Setting("Text in --data that means a missing value; '' for blank cells only; repeatable", DATA, none="refused"),
    ] = None
    dataset: Annotated[
        str,
        Setting("Data set (see 'drfl datasets'), or hf:NAME or hf:FOLDER with --target", DATA, common=True),
    ] = "digits"
    data_dir: Annotated[
        Path | None, Setting("Folder with the files of the data set", DATA, none="see 'drfl datasets'")
    ] = None
    partition: Annotated[
        str,
        Setting(
            "Division of the data: zipf-dirichlet, one-class, dirichlet-drop, iid or natural",
            DATA,
            none="natural if there are groups, else zipf-dirichlet, or iid if targets are not classes",
        ),
    ] = "zipf-dirichlet"
    clients: Annotated[
        int | None,
        Ge(1),
        Setting(
            "Number of clients N; with natural groups, the N largest",
            DATA,
            none="natural: all; one-class: 10; dirichlet-drop: 20; zipf-dirichlet, iid: 30",
            common=True,
        ),
    ] = None
    alpha: Annotated[
        float | None,
        Setting(
            "Dirichlet concentration, > 0; smaller means more label skew, inf means none",
            DATA,
            none="0.1",
            common=True,
        ),
    ] = None
    zipf: Annotated[float | None, Setting("Zipf exponent of the client sizes; 0 makes them equal", DATA, none="0")] = (
        None
    )
    features: Annotated[
        Literal["penultimate", "entk"] | None,
        Setting(
            "Pretrained features: penultimate (input of the last layer) or entk (linearised network)",
            DATA,
            none="the images",
        ),
    ] = None
    backbone: Annotated[
        str | None,
        Setting(
            "Network for --features: resnet18-imagenet, efficientnet-lite0-imagenet, resnet18-DATASET, cnn-DATASET or "
            "a file of weights",
            DATA,
        ),
    ] = None
    feature_count: Annotated[int | None, Ge(1), Setting("Number of entk features", DATA, none="50000")] = None
    resize: Annotated[
        int | None,
        Ge(1),
        Le(4096),
        Setting("Side in pixels to which images are resized for --features", DATA, none="unchanged"),
    ] = None
    test_fraction: Annotated[
        float | None,
        Gt(0),
        Lt(1),
        Setting(
            "Draw this fraction of all rows as the test set",
            DATA,
            none="the test part of the data set; tables: 0.2",
        ),
    ] = None


@dataclass
class TaskFields:
    """The model, its loss and its metrics."""

    model: Annotated[
        str,
        Setting(
            "Model: linear, mlp, cnn, lstm, or FILE.py:NAME, a function of input shape and class count",
            TRAINING,
            common=True,
        ),
    ] = "linear"
    loss: Annotated[
        str,
        Setting(
            "Loss per sample: cross-entropy, squared, binary-cross-entropy, mse, mae, huber or FILE.py:NAME",
            TRAINING,
            none="cross-entropy; regression: mse; multi-label: binary-cross-entropy",
        ),
    ] = "cross-entropy"
    score: Annotated[
        str | None,
        Setting(
            "Metric that decides which client is worst: accuracy, balanced-accuracy, auc, f1, log-loss, brier, "
            "calibration-error, mae, rmse, r2 or FILE.py:NAME",
            EVALUATION,
            none="accuracy; rmse if the loss is mse, mae or huber",
        ),
    ] = None
    metrics: Annotated[
        tuple[str, ...] | None,
        Setting("Further metric on each client's test rows; repeatable", EVALUATION, flag="--metric"),
    ] = None
    dtype: Annotated[Literal["float32", "float64"], Setting("Number type: float32 or float64", EXECUTION)] = "float32"


@dataclass
class RunFields:
    """The course of a run, independent of its data, task and algorithm."""

    seed: Annotated[int, Ge(0), Lt(2**63), Setting("Seed of all random draws", EXECUTION, common=True)] = 0
    rounds: Annotated[int, Ge(0), Setting("Rounds of communication", TRAINING, common=True)] = 100
    init_from: Annotated[
        Path | None,
        Setting("Model file or run to start from, of the same columns and classes", TRAINING, none="a random model"),
    ] = None
    keep_weights: Annotated[
        bool,
        Setting(
            "Start the client weights λ from the run of --init-from",
            TRAINING,
            flag="--keep-weights/--no-keep-weights",
        ),
    ] = False
    validation: Annotated[
        float | None,
        Gt(0),
        Lt(1),
        Setting(
            "Fraction of training rows held out for --select, --patience, --until and thresholds",
            DATA,
            none="0.2 with --select, --patience or --until, else none",
        ),
    ] = None
    judged_on: Annotated[
        Literal["test", "validation", "training"],
        Setting(
            "Rows to evaluate models on: test, validation (for tuning) or training",
            EVALUATION,
            hidden=True,
        ),
    ] = "test"
    guards: Annotated[
        Any,
        Text(tuple[str, ...]),
        Setting(
            "Filter on reported losses before the dual update: robust:k=3,floor=0.1, clip:bound=3, trim:f=2, "
            "peers:peers=5, probe:rows=16 or none; repeatable",
            FAILURES,
            none="robust, which leaves honest reports unchanged",
            flag="--guard",
        ),
    ] = None
    max_norm: Annotated[
        float | None, Gt(0), Setting("Reject updates and gradients longer than this norm", FAILURES)
    ] = None
    step_bound: Annotated[
        Any,
        Text(float),
        Setting("Reject updates and gradients above this multiple of the cohort median; 0 for no bound", FAILURES),
    ] = 100.0
    aggregator: Annotated[
        Any,
        Text(str),
        Setting(
            "Robust aggregation rule: median-clip:factor=1, trimmed-mean:f=1, median, geometric-median, "
            "krum:f=1,used=0, centred-clip:factor=1,momentum=0.9 or probe:rows=16,cosine=0.2,length=2",
            FAILURES,
            none="none",
        ),
    ] = None
    faults: Annotated[
        Any,
        Text(dict[str, float]),
        Setting(
            "Simulated failure, e.g. drop=0.3: NAME=VALUE with drop, crash, outage, groups, outage_rounds, slow, "
            "slowdown, deadline, jitter or duplicate; repeatable",
            FAILURES,
            flag="--fault",
        ),
    ] = None
    over_select: Annotated[
        float | None,
        Ge(1),
        Le(1000),
        Setting("Contact this multiple of the cohort and use the first replies", FAILURES),
    ] = None
    min_replies: Annotated[int | None, Ge(1), Setting("Number of replies that a round needs to count", FAILURES)] = None
    repeats: Annotated[
        int | None,
        Ge(1),
        Le(1000),
        Setting("Repetitions of a round with too few replies", FAILURES, none="skip the round"),
    ] = None
    evaluate_every: Annotated[int, Ge(1), Setting("Evaluate every N rounds", EVALUATION)] = 1
    until: Annotated[
        str | None,
        Setting(
            "Stop at METRIC=VALUE on validation rows, e.g. worst_accuracy=0.5, or test:METRIC=VALUE",
            EVALUATION,
            none="never",
        ),
    ] = None
    returned: Annotated[
        Literal["average", "last", "best"],
        Setting(
            "Model to return: average (decaying), last, or best (smaller largest training loss)",
            EVALUATION,
        ),
    ] = "average"
    safeguard: Annotated[
        Literal["best", "start"],
        Setting(
            "Model to return to if the step size that drfl found is too large: best so far, or the initial one (start)",
            EVALUATION,
        ),
    ] = "best"
    select: Annotated[
        str | None,
        Setting(
            "Return the best model on validation rows: worst, worst20, average or loss (worst client)",
            EVALUATION,
            none="the last round",
        ),
    ] = None
    patience: Annotated[
        int | None,
        Ge(1),
        Setting(
            "Stop after this many rounds without a validation gain, by --select or else worst",
            EVALUATION,
            none="never",
        ),
    ] = None
    as_published: Annotated[
        bool | None,
        Setting(
            "Run as in the papers: last iterate, no guards, your step sizes",
            ALGORITHM,
            none="no",
            flag="--as-published/--no-as-published",
        ),
    ] = None
    averaged: Annotated[
        bool,
        Setting(
            "Also return the averaged solution of the theorems; clients send one more vector",
            EVALUATION,
            flag="--averaged/--no-averaged",
        ),
    ] = False
    certificate: Annotated[
        Literal["pooled", "gradient"] | None,
        Setting(
            "Bound the duality gap at every evaluation; linear models only",
            EVALUATION,
            flag="--certificate/--no-certificate",
        ),
    ] = None
    engine: Annotated[
        Any,
        Text(str),
        Setting("Engine: auto, stacked (all clients in one batch), threads (one per client) or loop", EXECUTION),
    ] = "auto"
    device: Annotated[str, Setting("Torch device, e.g. cuda", EXECUTION)] = "cpu"
    precision: Annotated[
        Literal["full", "bf16"], Setting("Precision of local steps: full or bf16 (faster, less exact)", EXECUTION)
    ] = "full"
    # Tens of thousands of threads crash torch.
    threads: Annotated[int | None, Ge(1), Le(1024), Setting("Torch threads", EXECUTION, none="torch's default")] = None
    table_dir: Annotated[
        Path | None, Setting("Folder for the server's tables of client vectors", EXECUTION, none="in memory")
    ] = None
    checkpoint_every: Annotated[
        int | None,
        Ge(0),
        Setting(
            "Write a checkpoint every N rounds; 0 for none",
            EXECUTION,
            none="as often as 5 % of the time allows",
        ),
    ] = None
    checkpoint_key: Annotated[
        Path | None,
        Setting(
            "File with a key of 32 bytes or more that signs checkpoints and verifies them on resuming",
            EXECUTION,
            none="unsigned",
        ),
    ] = None


@dataclass
class Settings(RunFields, AlgorithmFields, TaskFields, DataFields):
    """All settings of a run. ``None`` means the default of the code that uses the setting."""
