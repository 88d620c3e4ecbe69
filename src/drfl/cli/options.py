"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar, get_args

import typer

LISTS: Mapping[str, Mapping[str, bool]] = {
    "energy": {"--snr": True, "--bandwidth": True, "--steps": True, "--runs": False},
}
"""Command → the options that take several values → whether these are numbers."""


def expand(arguments: Sequence[str]) -> list[str]:
    """The arguments with such an option repeated before each of its values, as the parser wants it.

    The values end at the next option, at ``--``, and where numbers are wanted at whatever is none: so a file's name may
    follow them. A negative number is a value, not an option. Other commands and options stay as they are.

    Args:
        arguments: the command's words, its name first.
    """
    options = LISTS.get(arguments[0], {}) if arguments else {}
    words, found, at = list(arguments), list[str](), 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return [*found, *words[at:]]
        name, equals, first = word.partition("=")
        at += 1
        if name not in options:
            found.append(word)
            continue
        fits = _is_number if options[name] else _is_value
        values = [first] if equals else []
        while at < len(words) and fits(words[at]):
            values.append(words[at])
            at += 1
        found += [f"{name}={value}" for value in values] or [word]
    return found


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _is_value(word: str) -> bool:
    return not word.startswith("-")


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
Zipf = Annotated[float | None, _option("Zipf exponent of client sizes; 0 = equal. (default: 0)", DATA)]
Features = Annotated[
    str | None,
    _option(
        "Learn from a pretrained network's features of the images: penultimate (its last layer's input, so that a "
        "linear model fine-tunes that layer) or entk (its linearisation's). (default: the images)",
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
CohortSize = Annotated[
    int | None,
    _option("Clients per round m. (default: all of up to ten, else two thirds; SCAFF-PD: all)", TRAINING, "--cohort"),
]
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
OverSelect = Annotated[
    float | None, _option("Ask so many times the cohort's size, and go on with the first that answer.", RESILIENCE)
]
MinReplies = Annotated[int | None, _option("A round that fewer clients answer does not count.", RESILIENCE)]
Repeats = Annotated[
    int | None, _option("It is repeated up to so many times then. (default: it is skipped)", RESILIENCE)
]
EvaluateEvery = Annotated[int | None, _option("Test every so many rounds. (default: 1)", RUNNING)]
Until = Annotated[str | None, _option("Stop early, e.g. worst_accuracy=0.5.", RUNNING)]
Averaged = Annotated[
    bool | None,
    _option("Also keep the averaged solution of the theorems: clients send one more vector.", RUNNING, "--averaged"),
]
TableDir = Annotated[
    Path | None,
    _option("Folder for files with the server's tables of client vectors. (default: in memory)", RUNNING),
]
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
    _option("bf16 computes local steps in bfloat16: faster, less exact. (default: full)", RUNNING),
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
    "zipf": Zipf,
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
    "averaged": Averaged,
    "table_dir": TableDir,
    "certificate": CertificateOption,
    "precision": Precision,
    "guards": Guard,
    "max_norm": MaxNorm,
    "faults": Fault,
    "over_select": OverSelect,
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


MEASURING, CHANNELS, DEVICES = "Rounds to the target", "Channels", "Devices"


AlgorithmName = Annotated[
    str | None, _option("Algorithm; see 'drfl algorithms'. (default: DRDM)", MEASURING, "--algorithm")
]
TargetWorst = Annotated[float | None, _option("Worst client's accuracy to reach, in (0, 1]. (default: 0.8)", MEASURING)]
StepsList = Annotated[
    list[int] | None, _option("Local steps τ to try, e.g. 1 5 10. (default: 1 5 10 15 20 25 30)", MEASURING, "--steps")
]
SeedsText = Annotated[
    str | None, _option("How many (from 0), a list 0,1,2 or a range 10..14. (default: 3)", MEASURING, "--seeds")
]
MostRounds = Annotated[
    int | None, _option("A run that takes more never reaches the target. (default: 300)", MEASURING, "--rounds")
]
Measurements = Annotated[
    Path | None,
    _option("CSV file with columns tau, seed, rounds (empty = never) in place of runs made now.", MEASURING),
]
RunsList = Annotated[
    list[Path] | None, _option("Run directories, one a τ and seed, in place of runs made now.", MEASURING, "--runs")
]
Snr = Annotated[
    list[float] | None, _option("Signal-to-noise ratios in dB, e.g. 0 10. (default: 0 5 10 15 20)", CHANNELS, "--snr")
]
Bandwidth = Annotated[
    list[float] | None, _option("Bandwidths in Hz a client. (default: 1e5 1e6 1e7)", CHANNELS, "--bandwidth")
]
Fading = Annotated[bool, _option("Rayleigh fading with outage; needs --rate-min.", CHANNELS, "--fading")]
RateMin = Annotated[float | None, _option("Rate in bit/s below which a client is in outage.", CHANNELS)]
Power = Annotated[float | None, _option("Transmit power in W. (default: 0.2, a handset's 23 dBm)", DEVICES)]
Downlink = Annotated[
    float | None, _option("Power in W while receiving. (default: the downlink does not count)", DEVICES)
]
Frequency = Annotated[float | None, _option("CPU frequency in Hz. (default: 1e9)", DEVICES)]
Capacitance = Annotated[float | None, _option("Effective switched capacitance κ. (default: 1e-28)", DEVICES)]
CyclesPerSample = Annotated[
    float | None, _option("CPU cycles for a sample's gradient. (default: one a floating-point operation)", DEVICES)
]
JoulesPerStep = Annotated[float | None, _option("Measured energy of a local step, in place of κf²·cycles.", DEVICES)]
