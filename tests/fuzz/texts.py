"""Texts: configuration files, values of options, tables."""

from __future__ import annotations

import functools
import json

import torch
from tests.support.results import trained
from tests.support.small_spec import small_spec

from drfl import ambiguity
from drfl.algorithms import ALGORITHMS
from drfl.cli.options import expand
from drfl.cli.to_config import overrides
from drfl.errors import InputError
from drfl.experiments import cells
from drfl.experiments.artifacts import config_toml, json_text
from drfl.experiments.config import Config, load_config
from drfl.experiments.manifest import Manifest
from drfl.experiments.runner import parse_seeds
from drfl.metrics import ACCURACY
from drfl.model_selection import Target
from drfl.papers import convergence, output
from drfl.papers.energy.measurements import read_csv
from drfl.papers.energy.planner import check_complete
from drfl.papers.execute import check_place
from drfl.papers.plan import Scale, collect, plan
from drfl.papers.tuning_jobs import resolve
from drfl.tuning.job import changes_of

from .judge import Parser
from .mutate import NUMBERS, WORDS, reworded, written

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
"""Of TOML, of every type that it has."""


def toml(rng):
    """A configuration file: a valid one with faults, or keys with values of any type."""
    if rng.random() < 0.6:
        return written(rng, CONFIG)
    keys = rng.sample(sorted(Config.model_fields), rng.choice((1, 1, 2, 5)))
    lines = [f"{key} = {rng.choice(VALUES)}" for key in keys]
    if "algorithms" not in keys and rng.random() < 0.5:
        name = rng.choice([*ALGORITHMS, "drdm", "FedSplit", '"a\\nb"', '"\\u0000"'])
        own = ("m", "mu", "gamma", "sampling", "ambiguity", "steps", "batch", "lr", "theta", '"a\\nb"')
        lines += [
            f"[algorithms.{name}]",
            *(f"{key} = {rng.choice(VALUES)}" for key in rng.sample(own, rng.choice((1, 2)))),
        ]
    return "\n".join(lines).encode()


def read_config(item, folder):
    """As `drfl run` reads it, and written as a run does."""
    (folder / "config.toml").write_bytes(item)
    config_toml(load_config(folder / "config.toml", {}), 4)


def read_job(item, folder):
    """As `drfl tune` reads it."""
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


def options(rng):
    """An algorithm and option values, as the command's parser gives them."""
    given, params = {"until": "worst_accuracy=0.5", "model": "linear"}, [rng.choice(PARAMS)]
    for name in rng.choices(["param", "batch", *given], k=rng.choice((1, 1, 2))):
        if name == "param":
            params.append(_text(rng, rng.choice(PARAMS)))
        else:
            given[name] = _text(rng, given.get(name, "full"))
    return rng.choice(("DRDM", "DRDM", *ALGORITHMS)), given, params


def read_options(item, folder):
    """As `drfl run` and `drfl tune` read them."""
    algorithm, given, params = item
    load_config(None, overrides({**given, "algorithm": algorithm}, params, [algorithm]))


def sets(rng):
    """What follows --set."""
    return [_text(rng, rng.choice(("clients=10", "alpha=0.5", "dataset=digits"))) for _ in range(rng.randrange(1, 3))]


def read_sets(item, folder):
    """Read, and put into a configuration."""
    load_config(None, changes_of(item))


def _text(rng, text):
    """One argument with faults."""
    return rng.choice(
        (text, reworded(rng, text), rng.choice(WORDS), text.partition("=")[0] + "=" + rng.choice(VALUES + WORDS))
    )


def one_of(*texts):
    """Maker of a text like one of these."""
    return lambda rng: _text(rng, rng.choice(texts))


def read_ambiguity(item, folder):
    """Parsed and used."""
    ambiguity.parse(item).worst_case(torch.tensor([0.5, 2.0, 1.0, 0.1, 1.0], dtype=torch.float64))


@functools.cache
def spec():
    """A small table whose hyperparameters are in a file."""
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


def tuned(rng):
    """A hyperparameter file."""
    text = (
        TUNED
        if rng.random() < 0.7
        else TUNED.replace("[algorithms.Fed-Avg]", "[x]\nalgorithms.Fed-Avg = " + rng.choice(VALUES))
    )
    if rng.random() < 0.2:
        text = f"algorithms = {rng.choice(VALUES)}\nprovenance = {rng.choice(VALUES)}"
    elif rng.random() < 0.3:
        text = f"[algorithms]\nDRDM = {rng.choice(VALUES)}\nFed-Avg = {rng.choice(VALUES)}"
    return written(rng, text)


def read_tuned(item, folder):
    """As `drfl reproduce` reads it, and written into its summary."""
    (folder / "mnist-linear.toml").write_bytes(item)
    found = plan(spec(), Scale(tuned=folder))
    json_text({name: table.get("provenance") for name, table in found.hyperparameters.items()})


def read_settings(item, folder):
    """As `drfl reproduce` reads it."""
    plan(small_spec(repeats=1), Scale(settings=tuple(part.strip() for part in item.split(","))))


MEASURED = "tau,seed,rounds,outage\n1,0,30,0\n1,1,,0\n5,0,12,0.1\n5,1,14,0.1\n"


def measured(rng):
    """A file of energy measurements."""
    return written(rng, MEASURED)


def read_measured(item, folder):
    """As `drfl energy` reads it."""
    (folder / "measurements.csv").write_bytes(item)
    check_complete(read_csv(folder / "measurements.csv"))


@functools.cache
def planned():
    """A plan of two cells, and the record that each should have."""
    made = plan(small_spec(repeats=1, rounds=1), Scale(settings=("alpha = 0.1",)))
    return made, [json.loads(json_text({"key": c.cell.key, **trained(0.1, 0.5)})) for c in made.cells]


def record(rng):
    """A file in .cells: damaged, or with a value of another type."""
    text = json.dumps(planned()[1][0])
    if rng.random() < 0.5:
        return written(rng, text)
    content = json.loads(text)
    part = rng.choice((content, content["rows"][-1], content["rows"][0], content["parameters"]))
    name = rng.choice(list(part))
    if rng.random() < 0.3:
        del part[name]
    else:
        part[name] = rng.choice((None, "x", -1, 1e999, [], {}, [1], {"a": 1}, True, "inf", "nan", 10**400, [[]]))
    return json.dumps(content).encode()


def read_record(item, folder):
    """As `drfl reproduce` reads it: a damaged one is run again, which counts as refused here."""
    made, right = planned()
    first, second = (planned.cell for planned in made.cells)
    (folder / f"{first.key}.json").write_bytes(item)
    found = cells.read(folder, first)
    if found is None:
        raise InputError("it will be run again")
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


def distance(rng):
    """A distance record in .cells."""
    cell = cells.Cell("distance", {"seed": 0}, 1.0)
    content = {"key": cell.key, **json.loads(json.dumps(DISTANCE))}
    if rng.random() < 0.5:
        return written(rng, json.dumps(content))
    content[rng.choice(list(content))] = rng.choice(
        (None, "x", -1, 1e999, [], {}, [1], ["a"], {"a": "b"}, True, "nan", [[]])
    )
    return json.dumps(content).encode()


def read_distance(item, folder):
    """Read, and summed up."""
    cell = cells.Cell("distance", {"seed": 0}, 1.0)
    (folder / f"{cell.key}.json").write_bytes(item)
    found = cells.read(folder, cell)
    if found is None:
        raise InputError("it will be run again")
    errors = found["errors"] if found["stopped"] == "rounds" else ()
    way = convergence.ErrorCurve(0, str(found["stopped"]), tuple(map(float, errors)), found["chosen"])
    convergence.summary([way])
    dict(found["versions"]), dict(found["parameters"])


def result(rng):
    """The summary.json of a result that is there already."""
    return written(rng, json.dumps({"repeats": 1, "rounds": 1, "settings": ["α = 0.1"], "stand_in": False}))


def read_result(item, folder):
    """As `drfl reproduce` looks at it."""
    (folder / "small-table-1").mkdir(exist_ok=True)
    (folder / "small-table-1" / "summary.json").write_bytes(item)
    Manifest.new("reproduction", ("summary.json",)).write(folder / "small-table-1")
    check_place(planned()[0], folder, False)


def words(rng):
    """The command's words."""
    names = ["--snr", "--bandwidth", "--steps", "--runs", "--snr=", "--", *NUMBERS[:12], *WORDS[:12]]
    return [rng.choice(("energy", "energy", "run", "")), *(rng.choice(names) for _ in range(rng.randrange(8)))]


TEXTS = (
    Parser("configuration files", toml, read_config),
    Parser("job files of drfl tune", toml, read_job),
    Parser("--param and its like", options, read_options),
    Parser("--set", sets, read_sets),
    Parser(
        "--until",
        one_of("worst_accuracy=0.5", "test:avg_loss=1"),
        lambda item, folder: Target.parse(item, ACCURACY),
    ),
    Parser("--seeds", one_of("5", "0,1,2", "10..14"), lambda item, folder: parse_seeds(item)),
    Parser("--settings", one_of("alpha = 0.1", "alpha = 0.1, alpha = 0.5"), read_settings),
    Parser(
        "ambiguity sets",
        one_of(
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
    Parser("hyperparameter files", tuned, read_tuned),
    Parser("energy measurements", measured, read_measured),
    Parser("records of training cells", record, read_record),
    Parser("records of distance cells", distance, read_distance),
    Parser("results in the way", result, read_result),
)
