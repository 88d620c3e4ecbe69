"""All settings of a run: type, bounds, default and explanation of each.

They are defined here only. The configuration validates by them and the command makes its options from them, which is
why this module imports nothing that loads slowly.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

DATA, TRAINING, RUNNING, RESILIENCE = "Data and clients", "Training", "Running", "Faults and guards"


@dataclass(frozen=True)
class Setting:
    """How a setting is explained and called on the command line.

    Args:
        help: An explanation in one or two sentences.
        panel: The heading in the help text; None = the first one.
        none: The default in words, if it is None or depends on another setting.
        flag: The option; None = the name with dashes. ``--yes/--no`` is an option without a value.
        hidden: Whether only TOML files can set it.
    """

    help: str
    panel: str | None = None
    none: str = ""
    flag: str | None = None
    hidden: bool = False


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

    algorithm: Annotated[str, Setting("Algorithm; see 'drfl algorithms'. FILE.py:CLASS for your own.")] = "DRDM"
    cohort: Annotated[
        int | None,
        Ge(1),
        Setting("Clients per round m.", TRAINING, none="all if at most ten, else two thirds; SCAFF-PD: all"),
    ] = None
    steps: Annotated[int | None, Ge(1), Setting("Local steps τ.", TRAINING, none="10")] = None
    batch: Annotated[
        int | Literal["full"] | None, Setting("Samples per local minibatch, or 'full'.", TRAINING, none="32")
    ] = None
    lr: Annotated[
        float | None, Setting("Local step size η.", TRAINING, none="chosen from the curvature of the clients' losses")
    ] = None


@dataclass
class DataFields:
    """The clients' data."""

    data: Annotated[
        tuple[Path, ...] | None,
        Setting(
            "Your own tables: CSV, Parquet or npz files, or a folder of them; without --group each of several files is "
            "a client. Repeatable. Or a folder that save_to_disk of Hugging Face datasets wrote.",
            DATA,
        ),
    ] = None
    target: Annotated[
        tuple[str, ...] | None,
        Setting("Target column. Repeatable for several numbers or labels, see --task.", DATA),
    ] = None
    task: Annotated[
        Literal["classification", "regression", "multi-label"] | None,
        Setting(
            "Kind of target: classification (one class), regression (numbers) or multi-label (0 or 1 per label).",
            DATA,
            none="classification",
        ),
    ] = None
    group: Annotated[
        str | None,
        Setting(
            "Column that names a row's client, in your own tables or in adult.",
            DATA,
            none="one client per file; in adult, whether a person has a doctorate",
        ),
    ] = None
    drop: Annotated[
        tuple[str, ...] | None, Setting("Column that is not an input, such as a name. Repeatable.", DATA)
    ] = None
    dataset: Annotated[
        str,
        Setting("Data set; see 'drfl datasets'. From Hugging Face: hf:NAME or hf:FOLDER, with --target.", DATA),
    ] = "digits"
    data_dir: Annotated[Path | None, Setting("Folder with the data set's files.", DATA, none="the usual places")] = None
    partition: Annotated[
        str,
        Setting(
            "Partition: zipf-dirichlet, one-class, dirichlet-drop, iid, or natural (one client per group of the data "
            "set).",
            DATA,
            none="natural if the data have groups, else zipf-dirichlet; iid if targets are not classes",
        ),
    ] = "zipf-dirichlet"
    clients: Annotated[
        int | None,
        Ge(1),
        Setting(
            "Number of clients N; with natural, the largest groups.",
            DATA,
            none="all groups; for the other partitions 30, 10, 20, 30",
        ),
    ] = None
    alpha: Annotated[
        float | None, Setting("Dirichlet concentration, > 0; smaller means more label skew.", DATA, none="0.1")
    ] = None
    zipf: Annotated[float | None, Setting("Zipf exponent of client sizes; 0 = equal.", DATA, none="0")] = None
    features: Annotated[
        Literal["penultimate", "entk"] | None,
        Setting(
            "Train on a pretrained network's features of the images: penultimate (the input of its last layer, so that "
            "a linear model fine-tunes that layer) or entk (empirical neural tangent features).",
            DATA,
            none="the images",
        ),
    ] = None
    backbone: Annotated[
        str | None,
        Setting(
            "Pretrained network: resnet18-imagenet; efficientnet-lite0-imagenet; resnet18-DATASET or cnn-DATASET, "
            "which drfl trains once; or a file of weights, such as a run's model.safetensors.",
            DATA,
        ),
    ] = None
    feature_count: Annotated[int | None, Ge(1), Setting("Number of features for entk.", DATA, none="50000")] = None
    resize: Annotated[
        int | None,
        Ge(1),
        Le(4096),
        Setting("Side in pixels to which images are resized for the network.", DATA, none="the original size"),
    ] = None
    test_fraction: Annotated[
        float | None,
        Gt(0),
        Lt(1),
        Setting(
            "Redraw the test rows: this share of all rows.",
            DATA,
            none="the data set's own test part; for tables a third",
        ),
    ] = None


@dataclass
class TaskFields:
    """The model, its loss and its metrics."""

    model: Annotated[
        str,
        Setting(
            "linear, mlp, cnn, lstm, or FILE.py:NAME for your own: a function that returns a torch module from the "
            "shape of an input and the number of classes, or from no arguments.",
            TRAINING,
        ),
    ] = "linear"
    loss: Annotated[
        str,
        Setting(
            "cross-entropy, squared, binary-cross-entropy, mse, mae, huber, or FILE.py:NAME for your own: a function "
            "that returns a value per sample.",
            TRAINING,
            none="cross-entropy; regression: mse; multi-label: binary-cross-entropy",
        ),
    ] = "cross-entropy"
    score: Annotated[
        str | None,
        Setting(
            "Metric that defines the worst client: accuracy, balanced-accuracy, auc, f1, log-loss, brier, "
            "calibration-error, mae, rmse, r2, or FILE.py:NAME for your own: a function of a client's outputs and "
            "targets.",
            TRAINING,
            none="accuracy; rmse if the loss is mse, mae or huber",
        ),
    ] = None
    metrics: Annotated[
        tuple[str, ...] | None,
        Setting("Further metric on every client's test rows. Repeatable.", TRAINING, flag="--metric"),
    ] = None
    dtype: Annotated[Literal["float32", "float64"], Setting("float32 or float64.", RUNNING)] = "float32"


@dataclass
class RunFields:
    """The settings of a run, whatever its data, task and algorithm."""

    seed: Annotated[int, Ge(0), Lt(2**63), Setting("Seed of all random draws.")] = 0
    rounds: Annotated[int, Ge(0), Setting("Number of rounds.", TRAINING)] = 100
    validation: Annotated[
        float | None,
        Gt(0),
        Lt(1),
        Setting(
            "Share of each client's training rows held out for --select, --patience, --until and thresholds.",
            DATA,
            none="0.2 with --select, --patience or --until, else none",
        ),
    ] = None
    judged_on: Annotated[
        Literal["test", "validation", "training"],
        Setting(
            "Rows to test models on: test; validation, for tuning without the test rows; or training, for the fit.",
            hidden=True,
        ),
    ] = "test"
    guards: Annotated[
        Any,
        Text(tuple[str, ...]),
        Setting(
            "Filter applied to reported losses before the dual update: robust:k=3,floor=0.1, clip:bound=3, trim:f=2, "
            "peers:peers=5, probe:rows=16, or none. Repeatable.",
            RESILIENCE,
            none="robust, with wide bounds",
            flag="--guard",
        ),
    ] = None
    max_norm: Annotated[float | None, Setting("Reject updates and gradients longer than this.", RESILIENCE)] = None
    step_bound: Annotated[
        Any,
        Text(float),
        Setting(
            "Reject updates and gradients longer than this multiple of the cohort median; 0 for no bound.",
            RESILIENCE,
        ),
    ] = 100.0
    aggregator: Annotated[
        Any,
        Text(str),
        Setting(
            "Robust aggregation rule for models and gradients: median-clip:factor=1, trimmed-mean:f=1, median, "
            "geometric-median, krum:f=1,used=0, centred-clip:factor=1,momentum=0.9 or "
            "probe:rows=16,cosine=0.2,length=2.",
            RESILIENCE,
            none="the algorithm's own mean",
        ),
    ] = None
    faults: Annotated[
        Any,
        Text(dict[str, float]),
        Setting(
            "How clients fail: NAME=VALUE with drop, crash, outage, groups, outage_rounds, slow, slowdown, deadline, "
            "jitter or duplicate, e.g. drop=0.3. Repeatable.",
            RESILIENCE,
            flag="--fault",
        ),
    ] = None
    over_select: Annotated[
        float | None,
        Ge(1),
        Le(1000),
        Setting("Contact this multiple of the cohort and use the first replies.", RESILIENCE),
    ] = None
    min_replies: Annotated[int | None, Ge(1), Setting("Do not count rounds with fewer replies.", RESILIENCE)] = None
    repeats: Annotated[
        int | None,
        Ge(1),
        Le(1000),
        Setting("Repeat such a round up to this number of times.", RESILIENCE, none="skip it"),
    ] = None
    evaluate_every: Annotated[int, Ge(1), Setting("Rounds between tests.", RUNNING)] = 1
    until: Annotated[
        str | None,
        Setting(
            "Stop when validation rows reach METRIC=VALUE, e.g. worst_accuracy=0.5. test:METRIC=VALUE stops by test "
            "rows; then results have no intervals.",
            RUNNING,
            none="never",
        ),
    ] = None
    returned: Annotated[
        Literal["average", "last", "best"],
        Setting(
            "Model that the run returns and reports: average (the decaying average of the server's models), last (the "
            "last iterate), or best (of these two, the one whose largest training loss is smaller at the end).",
            RUNNING,
        ),
    ] = "average"
    select: Annotated[
        str | None,
        Setting(
            "Return the model of the round that is best on the clients' validation rows, by worst, worst20 or average "
            "(of the score), or loss (the worst client's).",
            RUNNING,
            none="the model of the last round",
        ),
    ] = None
    patience: Annotated[
        int | None,
        Ge(1),
        Setting(
            "Stop after this number of rounds without a gain on validation rows, by --select or the worst client.",
            RUNNING,
            none="never",
        ),
    ] = None
    averaged: Annotated[
        bool,
        Setting(
            "Also compute the averaged solution of the theorems; clients then send one more vector.",
            RUNNING,
            flag="--averaged/--no-averaged",
        ),
    ] = False
    certificate: Annotated[
        Literal["pooled", "gradient"] | None,
        Setting(
            "Compute a duality gap certificate at every test; linear models only. In a file also certificate = "
            "'gradient': a looser bound from one exchange.",
            RUNNING,
            flag="--certificate/--no-certificate",
        ),
    ] = None
    engine: Annotated[
        Any,
        Text(str),
        Setting("auto, stacked (all clients' models in one tensor), threads (one per client) or loop.", RUNNING),
    ] = "auto"
    device: Annotated[str, Setting("Torch device, e.g. cuda.", RUNNING)] = "cpu"
    precision: Annotated[
        Literal["full", "bf16"], Setting("bf16 computes local steps in bfloat16: faster, less exact.", RUNNING)
    ] = "full"
    # torch crashes with tens of thousands of threads
    threads: Annotated[int | None, Ge(1), Le(1024), Setting("Torch threads.", RUNNING, none="torch's default")] = None
    table_dir: Annotated[
        Path | None, Setting("Folder for the server's tables of client vectors.", RUNNING, none="in memory")
    ] = None
    checkpoint_every: Annotated[
        int | None,
        Ge(0),
        Setting("Rounds between checkpoints; 0 = none.", RUNNING, none="as often as takes at most 5 % of the time"),
    ] = None
    checkpoint_key: Annotated[
        Path | None,
        Setting(
            "File with a key of 32 bytes or more. It signs checkpoints, and --resume accepts only those with its "
            "signature.",
            RUNNING,
            none="unsigned",
        ),
    ] = None


@dataclass
class Settings(RunFields, AlgorithmFields, TaskFields, DataFields):
    """All settings of a run, the data's first. None = the default of the code that uses the value."""
