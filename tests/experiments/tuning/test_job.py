"""Test which job is tuned."""

from __future__ import annotations

import pytest
from tests.support.refusals import refused

from drfl.algorithms import ALGORITHMS
from drfl.experiments.tuning.job import TunedMethod, changes_of, chosen_methods, resolve
from drfl_papers.specification import DEFAULTS, PAPERS, load_job

STAND_IN = {"dataset": "kmnist-t10k", "rounds": 60}


def test_every_paper_job_can_be_named():
    for path in (PAPERS / "jobs").glob("*.toml"):
        job = resolve(path.stem.replace("-", "_").upper(), {})
        assert (job.name, job.stand_in) == (path.stem, False)
        assert job.values == {**DEFAULTS, **load_job(path.stem).values, "validation": 0.2}
        assert len(chosen_methods(None, job)) >= 7


def test_stand_in_is_that_of_the_papers_tables():
    job = resolve("kmnist-cnn", {}, stand_in=True)
    assert job.values == {**DEFAULTS, **load_job("kmnist-cnn").values, **STAND_IN, "validation": 0.2}
    assert (job.name, job.stand_in) == ("kmnist-cnn", True)
    with refused("unused-option", "stand_in"):
        resolve("mnist-linear", {}, stand_in=True)


def test_job_from_a_users_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        "dataset = 'digits'\nvalidation = 0.3\nrounds = 7\nseed = 5\nevaluate_every = 2\nuntil = 'avg_accuracy=0.5'\n"
        "select = 'worst'\npatience = 3\n"
        "threads = 2\ndata_dir = '/somewhere'\nalgorithm = 'AFL'\n"
        "[algorithms.drfa]\nsampling = 'everybody'\nbatch = 7\n"
    )
    job = resolve(str(path), {"clients": 5})
    assert job.name == "mine"
    assert job.values == {"dataset": "digits", "validation": 0.3, "rounds": 7, "clients": 5}
    assert str(job.data_dir) == "/somewhere"
    assert chosen_methods(None, job) == ["DRFA"]
    assert chosen_methods("fedavg, DRDM", job) == ["FedAvg", "DRDM"]
    with refused("given-twice", "algorithms", "FedAvg"):
        chosen_methods("fedavg,DRDM,FedAvg", job)
    run = job.config(job.method("DRFA"), {**job.method("DRFA").table, "lr": 0.3}, 1001)
    assert (run.seed, run.evaluate_every, run.rounds, run.until, run.validation) == (1001, 7, 7, None, 0.3)
    assert run.algorithms == {"DRFA": {"sampling": "everybody", "batch": 7, "lr": 0.3}}
    assert resolve(str(path), {"batch": 5}).method("DRFA").table == {"sampling": "everybody"}


def test_job_without_tables_tunes_all_algorithms(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("dataset = 'digits'\n")
    assert chosen_methods(None, resolve(str(path), {})) == list(ALGORITHMS)


def test_papers_methods_are_tuned_as_in_their_tables():
    job = resolve("cifar100-entk", {})
    assert job.method("SCAFF-PD").table == {"ambiguity": "chi-square:rho=0.1"}
    assert job.method("DRFA (everybody)") == TunedMethod("DRFA", {"sampling": "everybody"}, {}, held=True)
    assert chosen_methods("scaff-pd, dual drdm,fedavg,Scaffold", job) == ["SCAFF-PD", "dual DRDM", "FedAvg", "SCAFFOLD"]
    run = resolve("mnist-linear", {}).config(job.method("DRFA (everybody)"), {"lr": 0.3}, 1000)
    assert (run.algorithm, run.rounds) == ("DRFA", 100)


def test_set_changes_keys_of_the_job():
    assert changes_of(["clients=10", "dataset=digits", "batch=full", "feature-count=7", "dtype='float64'"]) == {
        "clients": 10,
        "dataset": "digits",
        "batch": "full",
        "feature_count": 7,
        "dtype": "float64",
    }


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        (["clients"], ("invalid-format", "set", "KEY=VALUE")),
        (["=3"], ("invalid-format", "set", "KEY=VALUE")),
        (["clents=3"], ("unknown-name", "key", "'clients'")),
        (["seed=3"], ("unused-option", "seed")),
        (["evaluate-every=3"], ("unused-option", "evaluate_every")),
        (["algorithms=3"], ("unused-option", "algorithms")),
        (["data_dir=x"], ("unused-option", "data_dir", "`data_dir`")),
        (["threads=2"], ("unused-option", "threads", "`jobs`")),
        (["clients=3", "clients=4"], ("given-twice", "clients")),
    ],
)
def test_invalid_changes_are_refused(texts, error):
    with refused(*error):
        changes_of(texts)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"rounds = 0", ("out-of-range", "rounds")),
        (b"rounds = ", ("damaged-file", None, "TOML")),
        (b"\xff", ("damaged-file", None, "TOML")),
        (b"rounds = -1", ("invalid-value", "rounds")),
        (b"dataset = 'mnits'", ("unknown-name", "dataset", "'mnist'")),
        (b"[grid]\nlr = [0.1, 0.2]", ("unsupported-file", "grid", "'drfl sweep'")),
        (b"colour = 1", ("unknown-name", "option", "'colour'")),
        (b"algorithms = 3", ("invalid-value", "algorithms", "[algorithms.FedAvg]")),
        (b"algorithms = ['DRFA']", ("invalid-value", "algorithms", "[algorithms.FedAvg]")),
        (b"algorithms.DRFA = 3", ("invalid-value", "algorithms", "[algorithms.DRFA]")),
        (b"validation = 1.5", ("invalid-value", "validation")),
    ],
)
def test_invalid_files_are_refused(text, error, tmp_path):
    path = tmp_path / "job.toml"
    path.write_bytes(text)
    with refused(*error):
        resolve(str(path), {})


def test_invalid_names_are_refused(tmp_path):
    for text, error in (
        ("mnist-lienar", ("unknown-name", "job", "'mnist-linear'")),
        (str(tmp_path / "a.toml"), ("file-not-found",)),
    ):
        with refused(*error):
            resolve(text, {})
    with refused("unknown-name", "method or algorithm", "'DRDM'"):
        chosen_methods("DRDN", resolve("mnist-linear", {}))
    with refused("unknown-name", "method or algorithm", "'SCAFF-PD (m=20)'", "'SCAFF-PD (m = 20)'"):
        chosen_methods("SCAFF-PD (m=20)", resolve("mnist-linear", {}))
