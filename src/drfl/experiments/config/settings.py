"""What can be set about a run: type, bounds, default and explanation of every setting.

The one place that says so. The configuration validates by it, and the command makes its options from it, which is why
nothing heavy is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

DATA, TRAINING, RUNNING, RESILIENCE = "Data and clients", "Training", "Running", "Faults and guards"


@dataclass(frozen=True)
class Setting:
    """How a setting is explained, and what it is called on the command line.

    Args:
        help: what it is, in one or two sentences.
        panel: the heading that it stands under; None = the first one.
        none: the default in words, where it is None or depends on another setting.
        flag: its option; None = its name with dashes. ``--yes/--no`` is one that takes no value.
        hidden: it is in the TOML file only.
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
        form: The type of that text.
    """

    form: object


@dataclass
class AlgorithmFields:
    """The algorithm, and parameters that every algorithm has."""

    algorithm: Annotated[str, Setting("Algorithm; see 'drfl algorithms'. One of your own as FILE.py:CLASS.")] = "DRDM"
    cohort: Annotated[
        int | None,
        Ge(1),
        Setting("Clients per round m.", TRAINING, none="all of up to ten, else two thirds; SCAFF-PD: all"),
    ] = None
    steps: Annotated[int | None, Ge(1), Setting("Local steps τ.", TRAINING, none="10")] = None
    batch: Annotated[
        int | Literal["full"] | None, Setting("Samples per local minibatch, or 'full'.", TRAINING, none="32")
    ] = None
    lr: Annotated[
        float | None, Setting("Local step size η.", TRAINING, none="found from the curvature of the clients' losses")
    ] = None


@dataclass
class DataFields:
    """The clients' data."""

    data: Annotated[
        tuple[Path, ...] | None,
        Setting(
            "Your own tables in place of a data set: CSV, Parquet or npz files or a folder of them; several without "
            "--group are one client each. Repeatable. Or a folder that save_to_disk of Hugging Face datasets wrote.",
            DATA,
        ),
    ] = None
    target: Annotated[
        tuple[str, ...] | None,
        Setting("The column of their classes. Repeatable for several numbers or labels, see --task.", DATA),
    ] = None
    task: Annotated[
        Literal["classification", "regression", "multi-label"] | None,
        Setting(
            "What it holds: classification, a class a row; regression, numbers; multi-label, 0 or 1 for each label.",
            DATA,
            none="classification",
        ),
    ] = None
    group: Annotated[
        str | None,
        Setting(
            "The column that names a row's client, of your own tables or of adult.",
            DATA,
            none="the files; of adult who has a doctorate",
        ),
    ] = None
    drop: Annotated[
        tuple[str, ...] | None, Setting("A column that is nothing to learn from, such as a name. Repeatable.", DATA)
    ] = None
    dataset: Annotated[
        str,
        Setting("Data set; see 'drfl datasets'. Of Hugging Face: hf:NAME or hf:FOLDER, with --target.", DATA),
    ] = "digits"
    data_dir: Annotated[Path | None, Setting("Folder with the data set's files.", DATA, none="the usual places")] = None
    partition: Annotated[
        str,
        Setting(
            "zipf-dirichlet, one-class, dirichlet-drop, iid or natural, which is one client per group that the data "
            "set names.",
            DATA,
            none="natural where there are groups, else zipf-dirichlet; iid where targets are no classes",
        ),
    ] = "zipf-dirichlet"
    clients: Annotated[
        int | None,
        Ge(1),
        Setting(
            "Number of clients N; of natural the largest groups.",
            DATA,
            none="all groups; of other partitions 30, 10, 20, 30",
        ),
    ] = None
    alpha: Annotated[
        float | None, Setting("Dirichlet concentration of classes, > 0; inf = equal shares.", DATA, none="0.1")
    ] = None
    zipf: Annotated[float | None, Setting("Zipf exponent of client sizes; 0 = equal.", DATA, none="0")] = None
    features: Annotated[
        Literal["penultimate", "entk"] | None,
        Setting(
            "Learn from a pretrained network's features of the images: penultimate (its last layer's input, so that a "
            "linear model fine-tunes that layer) or entk (its linearisation's).",
            DATA,
            none="the images",
        ),
    ] = None
    backbone: Annotated[
        str | None,
        Setting(
            "That network: resnet18-imagenet; efficientnet-lite0-imagenet; resnet18-DATASET or cnn-DATASET, trained "
            "here once; or a file of weights, such as a run's model.safetensors.",
            DATA,
        ),
    ] = None
    feature_count: Annotated[int | None, Ge(1), Setting("How many features entk keeps.", DATA, none="50000")] = None
    resize: Annotated[
        int | None,
        Ge(1),
        Le(4096),
        Setting("Side in pixels to which the network's images are resized.", DATA, none="as they are"),
    ] = None
    test_fraction: Annotated[
        float | None,
        Gt(0),
        Lt(1),
        Setting(
            "Draw the test rows anew, this share of all rows.",
            DATA,
            none="the data set's own test part; of tables a third",
        ),
    ] = None


@dataclass
class TaskFields:
    """The model, its loss and its metrics."""

    model: Annotated[
        str,
        Setting(
            "linear, mlp, cnn, lstm, or one of your own as FILE.py:NAME, a function that gives a torch module from the "
            "shape of an input and the number of classes, or from nothing.",
            TRAINING,
        ),
    ] = "linear"
    loss: Annotated[
        str,
        Setting(
            "cross-entropy, squared, binary-cross-entropy, mse, mae, huber, or one of your own as FILE.py:NAME, a "
            "value per sample.",
            TRAINING,
            none="cross-entropy; regression: mse; multi-label: binary-cross-entropy",
        ),
    ] = "cross-entropy"
    score: Annotated[
        str | None,
        Setting(
            "What says how well a client is served, so which is the worst: accuracy, balanced-accuracy, auc, f1, "
            "log-loss, brier, calibration-error, mae, rmse, r2, or one of your own as FILE.py:NAME, a function of a "
            "client's outputs and targets.",
            TRAINING,
            none="accuracy; rmse where the loss is mse, mae or huber",
        ),
    ] = None
    metrics: Annotated[
        tuple[str, ...] | None,
        Setting("What else is measured on every client's test rows. Repeatable.", TRAINING, flag="--metric"),
    ] = None
    dtype: Annotated[Literal["float32", "float64"], Setting("float32 or float64.", RUNNING)] = "float32"


@dataclass
class RunFields:
    """How a run goes, whatever its data, task and algorithm."""

    seed: Annotated[int, Ge(0), Lt(2**63), Setting("Root of all randomness.")] = 0
    rounds: Annotated[int, Ge(0), Setting("Rounds of communication.", TRAINING)] = 100
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
            "Rows to test models on: validation leaves the test rows alone, for tuning; training tells of the fit.",
            hidden=True,
        ),
    ] = "test"
    guards: Annotated[
        Any,
        Text(tuple[str, ...]),
        Setting(
            "What looks at loss reports before the algorithm does: robust:k=3,floor=0.1, clip:bound=3, trim:f=2, "
            "peers:peers=5, probe:rows=16, or none. Repeatable.",
            RESILIENCE,
            none="robust, which is wide",
            flag="--guard",
        ),
    ] = None
    max_norm: Annotated[
        float | None, Setting("Reject models farther than this from the one sent, and longer gradients.", RESILIENCE)
    ] = None
    step_bound: Annotated[
        Any,
        Text(float),
        Setting(
            "Reject models whose step is more than so many times the usual one of a cohort, and such gradients; 0 for "
            "no such bound.",
            RESILIENCE,
        ),
    ] = 100.0
    aggregator: Annotated[
        Any,
        Text(str),
        Setting(
            "Byzantine-robust rule for models and gradients: median-clip:factor=1, trimmed-mean:f=1, median, "
            "geometric-median, krum:f=1,used=0, centred-clip:factor=1,momentum=0.9 or "
            "probe:rows=16,cosine=0.2,length=2.",
            RESILIENCE,
            none="they are used as they come",
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
        Setting("Ask so many times the cohort's size, and go on with the first that answer.", RESILIENCE),
    ] = None
    min_replies: Annotated[
        int | None, Ge(1), Setting("A round that fewer clients answer does not count.", RESILIENCE)
    ] = None
    repeats: Annotated[
        int | None,
        Ge(1),
        Le(1000),
        Setting("Repeat such a round up to so many times.", RESILIENCE, none="it is skipped"),
    ] = None
    evaluate_every: Annotated[int, Ge(1), Setting("Test every so many rounds.", RUNNING)] = 1
    until: Annotated[
        str | None,
        Setting(
            "Stop when validation rows reach METRIC=VALUE, e.g. worst_accuracy=0.5. test:METRIC=VALUE stops by test "
            "rows, and the results have no intervals.",
            RUNNING,
            none="never",
        ),
    ] = None
    returned: Annotated[
        Literal["average", "last", "best"],
        Setting(
            "The model that the run returns, judges and reports: average, the decaying one of the server's models, "
            "last, the last one, or best, the one whose largest training loss is smaller at the end.",
            RUNNING,
        ),
    ] = "average"
    select: Annotated[
        str | None,
        Setting(
            "Return the model of the round that does best on the clients' validation rows, by worst, worst20 or "
            "average (score), or loss (the worst client's).",
            RUNNING,
            none="the last round's",
        ),
    ] = None
    patience: Annotated[
        int | None,
        Ge(1),
        Setting(
            "Stop when validation rows have shown no gain, by --select, else the worst client, in so many rounds.",
            RUNNING,
            none="never",
        ),
    ] = None
    averaged: Annotated[
        bool,
        Setting(
            "Also keep the averaged solution of the theorems: clients send one more vector.",
            RUNNING,
            flag="--averaged/--no-averaged",
        ),
    ] = False
    certificate: Annotated[
        Literal["pooled", "gradient"] | None,
        Setting(
            "Also bound the distance to the saddle point, the duality gap, at every test; linear models only. In the "
            "file also certificate = 'gradient': a looser bound from one exchange.",
            RUNNING,
            flag="--certificate/--no-certificate",
        ),
    ] = None
    engine: Annotated[
        Any,
        Text(str),
        Setting("auto, stacked (all clients' models side by side), threads (a client a thread) or loop.", RUNNING),
    ] = "auto"
    device: Annotated[str, Setting("Torch device, e.g. cuda.", RUNNING)] = "cpu"
    precision: Annotated[
        Literal["full", "bf16"], Setting("bf16 computes local steps in bfloat16: faster, less exact.", RUNNING)
    ] = "full"
    # torch dies of tens of thousands
    threads: Annotated[int | None, Ge(1), Le(1024), Setting("Torch threads.", RUNNING, none="torch's")] = None
    table_dir: Annotated[
        Path | None, Setting("Folder for files with the server's tables of client vectors.", RUNNING, none="in memory")
    ] = None
    checkpoint_every: Annotated[
        int | None,
        Ge(0),
        Setting(
            "Write a checkpoint every so many rounds; 0 = never.", RUNNING, none="as often as takes 5 % of the time"
        ),
    ] = None
    checkpoint_key: Annotated[
        Path | None,
        Setting(
            "File with a key of 32 bytes or more: checkpoints are signed with it, and --resume takes only those that "
            "are.",
            RUNNING,
            none="unsigned",
        ),
    ] = None


@dataclass
class Settings(RunFields, AlgorithmFields, TaskFields, DataFields):
    """All settings of a run, the data's first. ``None`` means: the default of whoever takes the value."""
