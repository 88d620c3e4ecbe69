"""Strategies for texts: configuration files, values of options, tables."""

from __future__ import annotations

import functools
import json

import torch
from hypothesis.strategies import booleans, composite, deferred, lists, one_of, sampled_from, tuples
from tests.support.results import trained
from tests.support.small_spec import small_spec

from drfl import ambiguity
from drfl.algorithms import ALGORITHMS
from drfl.cli.options import expand
from drfl.cli.to_config import overrides
from drfl.core.errors import InputError
from drfl.experiments.config.about_run import run_toml
from drfl.experiments.config.config import Config, load_config
from drfl.experiments.execution import cells
from drfl.experiments.run.artifacts import json_text
from drfl.experiments.run.manifest import Manifest
from drfl.experiments.run.runner import parse_seeds
from drfl.experiments.tuning.job import changes_of, resolve
from drfl.task.metrics import ACCURACY
from drfl.training.model_selection import Target
from drfl_papers import convergence, output
from drfl_papers.energy.measurements import read_csv
from drfl_papers.energy.planner import check_complete
from drfl_papers.execute import check_place
from drfl_papers.plan import Scale, collect, plan

from .judge import Parser
from .strategies import NUMBERS, WORDS, mutated_file, mutated_json, mutated_text

CONFIG = """algorithm = "DRDM"
dataset = "digits"
partition = "zipf-dirichlet"
clients = 4
alpha = 0.1
zipf = 0.5
model = "linear"
rounds = 3
seed = 1
evaluate_every = 2
until = "worst_accuracy=0.5"
certificate = true
engine = "auto"
threads = 1

[algorithms.DRDM]
m = 3
steps = 2
batch = "full"
lr = 0.1
mu = 1.0
ambiguity = "cvar:alpha=0.5"
sampling = "with-replacement"
"""
VALUES = [
    "1",
    "-1",
    "0.5",
    "nan",
    "inf",
    "true",
    '"full"',
    '"none"',
    '""',
    '"x\\ny"',
    '"\\u0000"',
    '"\\u2028"',
    "[]",
    "[1]",
    "{}",
    "{a = 1}",
    "1979-05-27",
    "1979-05-27T07:32:00Z",
    "07:32:00",
    "9223372036854775808",
    "9" * 5000,
    "0xff",
    "[[]]",
    '"../x"',
    "0o17",
    "-inf",
    "1e400",
    "'''\na\n'''",
    "[[1, [2]], {b = [3]}]",
    '"cvar:alpha=0.2"',
    '"a\\u0000.pth"',
    '"x\\n.pth"',
]
"""Values of every TOML type."""


@composite
def table(draw, keys, most):
    """Draw lines of TOML with some of the keys and values of any type."""
    chosen = draw(lists(sampled_from(keys), min_size=1, max_size=most, unique=True))
    return [f"{key} = {draw(sampled_from(VALUES))}" for key in chosen]


@composite
def made_up(draw):
    """Draw a configuration file of keys with values of any type."""
    lines = draw(table(sorted(Config.model_fields), 5))
    if not any(line.startswith("algorithms") for line in lines) and draw(booleans()):
        name = draw(sampled_from([*ALGORITHMS, "drdm", "FedSplit", '"a\\nb"', '"\\u0000"']))
        own = ("m", "mu", "gamma", "sampling", "ambiguity", "steps", "batch", "lr", "theta", '"a\\nb"')
        lines += [f"[algorithms.{name}]", *draw(table(own, 2))]
    return "\n".join(lines).encode()


toml = one_of(mutated_file(CONFIG), made_up())
"""Strategy of configuration files: a valid one with faults, or an invented one."""


def read_config(item, folder):
    """Read a configuration like `drfl run`, and write it like a run."""
    (folder / "config.toml").write_bytes(item)
    config = load_config(folder / "config.toml", {})
    run_toml(config.about(config.build_algorithm(config.algorithm, 4), 4))


def read_job(item, folder):
    """Read a job like `drfl tune`."""
    (folder / "job.toml").write_bytes(item)
    resolve(str(folder / "job.toml"), {})


PARAMS = [
    "mu=1",
    "DRDM.mu=2.5",
    "gamma=0",
    "m=3",
    "ambiguity=cvar:alpha=0.2",
    "sampling=everybody",
    "batch=full",
    "lr=1e-2",
]


def argument(*texts):
    """Draw one argument like these, with or without faults."""
    names, values = sampled_from(texts).map(lambda text: text.partition("=")[0]), sampled_from((*VALUES, *WORDS))
    right = sampled_from(texts)
    return one_of(right, right.flatmap(mutated_text), sampled_from(WORDS), tuples(names, values).map("=".join))


@composite
def options(draw):
    """Draw an algorithm and option values in the form of the command's parser."""
    given, params = {"until": "worst_accuracy=0.5", "model": "linear"}, [draw(sampled_from(PARAMS))]
    for name in draw(lists(sampled_from(["param", "batch", *given]), min_size=1, max_size=2)):
        if name == "param":
            params.append(draw(argument(*PARAMS)))
        else:
            given[name] = draw(argument(given.get(name, "full")))
    return draw(sampled_from(("DRDM", "DRDM", *ALGORITHMS))), given, params


def read_options(item, folder):
    """Read options like `drfl run` and `drfl tune`."""
    algorithm, given, params = item
    load_config(None, overrides({**given, "algorithm": algorithm}, params, [algorithm]))


def read_sets(item, folder):
    """Read the values of --set into a configuration."""
    load_config(None, changes_of(item))


def read_ambiguity(item, folder):
    """Parse and use an ambiguity set."""
    ambiguity.parse(item).worst_case(torch.tensor([0.5, 2.0, 1.0, 0.1, 1.0], dtype=torch.float64))


@functools.cache
def spec():
    """Return a small table whose hyperparameters are in a file."""
    return small_spec(job="mnist-linear", repeats=1, rounds=1)


TUNED = """[provenance]
command = "drfl tune small"
trials = 2
seeds = [0, 1]

[provenance.job]
dataset = "digits"

[algorithms.DRDM]
lr = 0.1
mu = 1.0

[algorithms.Fed-Avg]
lr = 0.2
"""


@composite
def tuned(draw):
    """Draw a hyperparameter file."""
    value, other = draw(sampled_from(VALUES)), draw(sampled_from(VALUES))
    texts = (
        *(TUNED,) * 5, TUNED.replace("[algorithms.Fed-Avg]", f"[x]\nalgorithms.Fed-Avg = {value}"),
        f"algorithms = {value}\nprovenance = {other}", f"[algorithms]\nDRDM = {value}\nFed-Avg = {other}",
    )  # fmt: skip
    return draw(mutated_file(draw(sampled_from(texts))))


def read_tuned(item, folder):
    """Read hyperparameters like `drfl reproduce`, and write them into its summary."""
    (folder / "mnist-linear.toml").write_bytes(item)
    found = plan(spec(), Scale(tuned=folder))
    json_text({name: table.get("provenance") for name, table in found.hyperparameters.items()})


def read_settings(item, folder):
    """Read names of settings like `drfl reproduce`."""
    plan(small_spec(repeats=1), Scale(settings=tuple(part.strip() for part in item.split(","))))


MEASURED = "tau,seed,rounds,outage\n1,0,30,0\n1,1,,0\n5,0,12,0.1\n5,1,14,0.1\n"


def read_measured(item, folder):
    """Read measurements like `drfl energy`."""
    (folder / "measurements.csv").write_bytes(item)
    check_complete(read_csv(folder / "measurements.csv"))


@functools.cache
def planned():
    """Return a plan of two cells, and the correct record of each."""
    made = plan(small_spec(repeats=1, rounds=1), Scale(settings=("alpha = 0.1",)))
    return made, [json.loads(json_text({"key": c.cell.key, **trained(0.1, 0.5)})) for c in made.cells]


def mutated_record(content):
    """Draw a JSON file that is damaged or has a value of another type."""
    changed = mutated_json(content).map(lambda changed: json.dumps(changed).encode())
    return one_of(mutated_file(json.dumps(content)), changed)


def read_record(item, folder):
    """Read a record like `drfl reproduce`; a damaged one would be run again, which counts as refused here."""
    made, right = planned()
    first, second = (planned.cell for planned in made.cells)
    (folder / f"{first.key}.json").write_bytes(item)
    found = cells.read(folder, first)
    if found is None:
        raise InputError("it will be run again", code="damaged-file")
    (folder / "out").mkdir(exist_ok=True)
    output.write(
        collect(made, {first.key: found, second.key: right[1]}), folder / "out", "drfl reproduce small-table-1"
    )


DISTANCE = {
    "stopped": "rounds",
    "reason": "",
    "rounds": 2,
    "errors": [1.0, 0.1, 0.01],
    "chosen": {"reach": 0.5},
    "grid": 1,
    "failed": 0,
    "parameters": {"lr": 0.1},
    "versions": {"python": "3"},
    "seconds": 0.1,
}


DISTANCE_CELL = cells.Cell("distance", {"seed": 0}, 1.0)
DISTANCE_RECORD = {"key": DISTANCE_CELL.key, **DISTANCE}
RESULT = {"repeats": 1, "rounds": 1, "settings": ["α = 0.1"], "stand_in": False}
"""The summary.json of an existing result."""


def read_distance(item, folder):
    """Read a record of distances, and summarise it."""
    (folder / f"{DISTANCE_CELL.key}.json").write_bytes(item)
    found = cells.read(folder, DISTANCE_CELL)
    if found is None:
        raise InputError("it will be run again", code="damaged-file")
    errors = found["errors"] if found["stopped"] == "rounds" else ()
    way = convergence.ErrorCurve(0, str(found["stopped"]), tuple(map(float, errors)), found["chosen"])
    convergence.summary([way])
    dict(found["versions"]), dict(found["parameters"])


def read_result(item, folder):
    """Check an existing result like `drfl reproduce`."""
    (folder / "small-table-1").mkdir(exist_ok=True)
    (folder / "small-table-1" / "summary.json").write_bytes(item)
    Manifest.new("reproduction", ("summary.json",)).write(folder / "small-table-1")
    check_place(planned()[0], folder, False)


words = lists(
    one_of(
        sampled_from(("energy", "run", "", "--snr", "--bandwidth", "--steps", "--runs", "--snr=", "--")),
        sampled_from(NUMBERS), sampled_from(WORDS),
    ),
    max_size=8,
)  # fmt: skip
"""Strategy of the words of a command."""


TEXTS = (
    Parser("configuration files", toml, read_config),
    Parser("job files of drfl tune", toml, read_job),
    Parser("--param and its like", options(), read_options),
    Parser("--set", lists(argument("clients=10", "alpha=0.5", "dataset=digits"), min_size=1, max_size=2), read_sets),
    Parser(
        "--until",
        argument("worst_accuracy=0.5", "test:avg_loss=1"),
        lambda item, folder: Target.parse(item, ACCURACY),
    ),
    Parser("--seeds", argument("5", "0,1,2", "10..14"), lambda item, folder: parse_seeds(item)),
    Parser("--settings", argument("alpha = 0.1", "alpha = 0.1, alpha = 0.5"), read_settings),
    Parser(
        "ambiguity sets",
        argument(
            "simplex",
            "cvar:alpha=0.2",
            "box:cap=0.5",
            "kl:rho=0.1",
            "chi-square-ball:radius=1",
            "simplex:floor=0.01",
            "kl-ball:radius=0.1",
            "chi-square:rho=0.1",
        ),
        read_ambiguity,
    ),
    Parser("lists of values", words, lambda item, folder: expand(item)),
    Parser("hyperparameter files", tuned(), read_tuned),
    Parser("energy measurements", mutated_file(MEASURED), read_measured),
    Parser("records of training cells", deferred(lambda: mutated_record(planned()[1][0])), read_record),
    Parser(
        "records of distance cells",
        mutated_record(DISTANCE_RECORD),
        read_distance,
    ),
    Parser("results in the way", mutated_record(RESULT), read_result),
)
