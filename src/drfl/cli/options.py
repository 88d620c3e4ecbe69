"""The options that commands share; each is a key of the TOML file too.

Nothing here needs more than typer: help and wrong usage are told before torch is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar, get_args

import typer

Command = TypeVar("Command", bound=Callable[..., int])

DATA, TRAINING, RUNNING, RESILIENCE = "Data and clients", "Training", "Running", "Faults and guards"


def _option(help_text: str, panel: str, *names: str) -> object:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, show_default=False)


File = Annotated[Path | None, typer.Argument(help="TOML file with the options below; options given here override it.")]
Dataset = Annotated[str | None, _option("Data set; see 'drfl datasets'. (default: digits)", DATA)]
DataDir = Annotated[Path | None, _option("Folder with the data set's files.", DATA)]
PartitionName = Annotated[
    str | None,
    _option(
        "zipf-dirichlet, one-class, dirichlet-drop, iid or natural, which is one client a group that the data set "
        "names. (default: natural where there are groups, else zipf-dirichlet)",
        DATA,
        "--partition",
    ),
]
Clients = Annotated[int | None, _option("Number of clients N. (default: the partition's: 30, 10, 20, 30)", DATA)]
Alpha = Annotated[
    float | None, _option("Dirichlet concentration of classes, > 0; inf = equal shares. (default: 0.1)", DATA)
]
Sigma = Annotated[float | None, _option("Zipf exponent of client sizes; 0 = equal. (default: 0)", DATA)]
Features = Annotated[
    str | None,
    _option(
        "Learn from what a trained network makes of the images: penultimate (its last layer's input, so that a linear "
        "model fine-tunes that layer) or entk (its linearisation's). (default: the images)",
        DATA,
    ),
]
Backbone = Annotated[
    str | None,
    _option(
        "That network: resnet18-imagenet; resnet18-DATASET or cnn-DATASET, trained here once; or a file of weights, "
        "such as a run's model.safetensors.",
        DATA,
    ),
]
FeatureCount = Annotated[int | None, _option("How many features entk keeps. (default: 50000)", DATA)]
Resize = Annotated[int | None, _option("Side in pixels to which its images are brought. (default: as they are)", DATA)]
Model = Annotated[str | None, _option("linear, mlp or cnn. (default: linear)", TRAINING)]
Loss = Annotated[str | None, _option("cross-entropy or squared. (default: cross-entropy)", TRAINING)]
CohortSize = Annotated[int | None, _option("Clients per round m. (default: two thirds of N)", TRAINING, "--cohort")]
Steps = Annotated[int | None, _option("Local steps τ. (default: 10)", TRAINING)]
Batch = Annotated[str | None, _option("Samples per local minibatch, or 'full'. (default: 32)", TRAINING)]
Lr = Annotated[float | None, _option("Local step size η.", TRAINING)]
Rounds = Annotated[int | None, _option("Rounds of communication. (default: 100)", TRAINING)]
Param = Annotated[
    list[str] | None,
    _option(
        "An algorithm's parameter: NAME=VALUE for all that run, or ALGORITHM.NAME=VALUE for one, which then wins, "
        "also over --cohort, --steps, --batch and --lr. Repeatable; see 'drfl algorithms'.",
        TRAINING,
    ),
]
Guard = Annotated[
    list[str] | None,
    _option(
        "What looks at loss reports before the algorithm does: robust:k=3,floor=0.1, clip:bound=3, trim:f=2, "
        "peers:peers=5, probe:rows=16, or none. Repeatable. (default: robust, which is wide)",
        RESILIENCE,
        "--guard",
    ),
]
MaxNorm = Annotated[
    float | None, _option("Reject models that are farther from the one sent, and longer gradients.", RESILIENCE)
]
Fault = Annotated[
    list[str] | None,
    _option(
        "How clients fail: NAME=VALUE with drop, crash, outage, groups, outage_rounds, slow, slowdown, deadline, "
        "jitter or duplicate, e.g. drop=0.3. Repeatable.",
        RESILIENCE,
        "--fault",
    ),
]
Oversample = Annotated[
    float | None, _option("Ask so many times the cohort's size, and go on with the first that answer.", RESILIENCE)
]
MinReplies = Annotated[int | None, _option("A round that fewer clients answer does not count.", RESILIENCE)]
Repeats = Annotated[
    int | None, _option("It is repeated up to so many times then. (default: it is skipped)", RESILIENCE)
]
EvaluateEvery = Annotated[int | None, _option("Test every so many rounds. (default: 1)", RUNNING)]
Until = Annotated[str | None, _option("Stop early, e.g. worst_accuracy=0.5.", RUNNING)]
CertificateOption = Annotated[
    bool | None,
    _option(
        "Also bound the distance to the saddle point, the duality gap, at every test; linear models only. In the file "
        "also certificate = 'gradient': a looser bound from one exchange.",
        RUNNING,
        "--certificate/--no-certificate",
    ),
]
EngineName = Annotated[
    str | None,
    _option(
        "auto, stacked (all clients' models side by side), threads (a client a thread) or loop. (default: auto)",
        RUNNING,
        "--engine",
    ),
]
Device = Annotated[str | None, _option("Torch device, e.g. cuda. (default: cpu)", RUNNING)]
Dtype = Annotated[str | None, _option("float32 or float64. (default: float32)", RUNNING)]
Precision = Annotated[
    str | None,
    _option("bf16 works the local steps' products out in bfloat16: faster, less exact. (default: full)", RUNNING),
]
Threads = Annotated[int | None, _option("Torch threads.", RUNNING)]
CheckpointEvery = Annotated[
    int | None,
    _option("Keep the progress every so many rounds; 0 = never. (default: as often as takes 5 % of the time)", RUNNING),
]
CheckpointKey = Annotated[
    Path | None,
    _option(
        "File with a key of 32 bytes or more: checkpoints are signed with it, and --resume takes only those that are. "
        "(default: unsigned)",
        RUNNING,
    ),
]
Resume = Annotated[
    bool,
    _option(
        "Go on with the run in --out that was stopped or killed, and start it if there is none; its options need not "
        "be given again.",
        RUNNING,
        "--resume",
    ),
]
Out = Annotated[Path | None, _option("Folder for the results; must be new or empty.", RUNNING)]
Overwrite = Annotated[bool, _option("Replace what is in --out.", RUNNING, "--overwrite")]
Json = Annotated[bool, _option("Print one JSON object on stdout and nothing else.", RUNNING, "--json")]

JOB: Mapping[str, object] = {
    "dataset": Dataset,
    "data_dir": DataDir,
    "partition": PartitionName,
    "clients": Clients,
    "alpha": Alpha,
    "sigma": Sigma,
    "model": Model,
    "cohort": CohortSize,
    "batch": Batch,
    "lr": Lr,
    "param": Param,
    "engine": EngineName,
    "device": Device,
    "dtype": Dtype,
    "threads": Threads,
}
"""What every command that trains needs to know."""

TRIAL: Mapping[str, object] = {
    "features": Features,
    "backbone": Backbone,
    "feature_count": FeatureCount,
    "resize": Resize,
    "loss": Loss,
    "steps": Steps,
    "rounds": Rounds,
    "evaluate_every": EvaluateEvery,
    "until": Until,
    "certificate": CertificateOption,
    "precision": Precision,
    "guards": Guard,
    "max_norm": MaxNorm,
    "faults": Fault,
    "oversample": Oversample,
    "min_replies": MinReplies,
    "repeats": Repeats,
}
"""What goes with it where local steps and rounds are given."""

RESULTS: Mapping[str, object] = {"out": Out, "overwrite": Overwrite, "as_json": Json}
"""Where results go."""


def taking(*groups: Mapping[str, object]) -> Callable[[Command], Command]:
    """Adds options to a command's own: it gets their values by name in ``**shared``."""

    def add(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        parameters = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        for name, annotation in (item for group in groups for item in group.items()):
            default = False if get_args(annotation)[0] is bool else None
            parameters.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            )
        vars(command).update(__signature__=own.replace(parameters=parameters))
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return add
