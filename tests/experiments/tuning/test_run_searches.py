"""A search, interrupted anywhere, ends as if it had not been."""

from __future__ import annotations

import dataclasses
import shutil

import optuna
import pytest
from tests.support.marks import long_except
from tests.support.refusals import refused
from tests.support.small_search import VALUES, Here, Killed, small_search, tuned

from drfl.experiments.config.build import build
from drfl.experiments.run.runner import execute
from drfl.experiments.tuning.configured import prepare
from drfl.experiments.tuning.job import TunedMethod, TuningJob
from drfl.experiments.tuning.output import write
from drfl.experiments.tuning.run_searches import CELLS, FILE, TrialStore
from drfl.experiments.tuning.spaces import SPACES


def files(search, trials, folder):
    write(search, trials, folder, "drfl tune small")
    return [(folder / name).read_bytes() for name in ("small.toml", "trials.csv")]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """An undisturbed search: what it is, its trials, its folder and its files."""
    search, folder = small_search(), tmp_path_factory.mktemp("done")
    trials = tuned(search, folder)
    return search, trials, folder, files(search, trials, folder)


@pytest.mark.long
def test_every_algorithm_has_as_many_trials_and_begins_with_its_defaults(done):
    _, trials, _, _ = done
    assert list(trials) == ["FedAvg", "DRFA"]
    for algorithm, own in trials.items():
        assert [trial.number for trial in own] == [0, 1, 2]
        assert own[0].table == {}
        assert all(trial.point.keys() == {d.name for d in SPACES[algorithm]} for trial in own[1:])
        assert len({str(trial.table) for trial in own}) == 3
        assert all(len(trial.scores) == 2 for trial in own)


@pytest.mark.parametrize(
    ("criterion", "changes", "column"),
    long_except(
        ["worst20", "loss"],
        [
            ("worst", {}, "worst_accuracy"),
            ("worst20", {"score": "log_loss"}, "worst20_log_loss"),
            ("average", {"score": "f1"}, "avg_f1"),
            ("loss", {}, "worst_loss"),
        ],
        ["worst", "worst20", "average", "loss"],
    ),
)
@pytest.mark.long
def test_a_score_is_the_criterion_on_the_rows_held_out(criterion, changes, column, tmp_path):
    search = small_search(("DRFA",), trials=2, repeats=1, criterion=criterion, **changes)
    for trial in tuned(search, tmp_path)["DRFA"]:
        for seed, score in zip((1000,), trial.scores, strict=True):
            config = search.subjects["DRFA"].job.config(TunedMethod("DRFA"), trial.table, seed)
            job = build(config)
            assert job.data.test_inputs is job.data.inputs  # no test row can be looked at
            last = execute(job).result.history.last
            assert last.round == 2
            own = last.metrics.as_dict(search.criterion.score.name)
            assert score == pytest.approx(own[column], abs=1e-6)


def test_what_a_method_is_made_of_is_not_searched_for(tmp_path):
    table = {"server_lr": 0.9}
    job = TuningJob(
        "small", VALUES, {"held": TunedMethod("SCAFFOLD", table, held=True), "SCAFFOLD": TunedMethod("SCAFFOLD", table)}
    )
    search = prepare(job, list(job.methods), trials=3, repeats=1, criterion="worst", data_dir=None)
    steps = {name: [trial.table["server_lr"] for trial in own] for name, own in tuned(search, tmp_path).items()}
    assert steps["held"] == [0.9, 0.9, 0.9]
    assert steps["SCAFFOLD"][0] == 0.9
    assert len(set(steps["SCAFFOLD"])) == 3


@pytest.mark.long
def test_killed_after_any_run_it_ends_with_the_same_files(done, tmp_path):
    search, trials, _, expected = done
    for limit in (0, 3, 6, 11):  # of twelve runs
        folder = tmp_path / str(limit)
        folder.mkdir()
        with pytest.raises(Killed):
            tuned(search, folder, Here(limit))
        again = Here()
        assert tuned(search, folder, again) == trials
        assert len(again.ran) == 12 - limit, "what had been run was run again"
        assert files(search, trials, folder) == expected


@pytest.mark.long
def test_a_search_that_ended_runs_nothing_and_a_longer_one_goes_on(done, tmp_path):
    search, trials, folder, expected = done
    pool = Here(0)
    assert tuned(search, folder, pool) == trials
    fresh, grown = tmp_path / "fresh", tmp_path / "grown"
    for place in (fresh, grown):
        place.mkdir()
        shutil.copytree(folder / CELLS, place / CELLS)  # what has run need not run again
    longer = dataclasses.replace(search, trials=4)
    whole = tuned(longer, fresh)
    tuned(search, grown)
    assert tuned(longer, grown) == whole
    assert {name: own[:3] for name, own in whole.items()} == trials
    assert tuned(search, grown, pool) == trials
    assert files(search, trials, grown) == expected


@pytest.mark.long
def test_trials_of_others_in_the_file_have_no_say(done, tmp_path):
    search, trials, _, _ = done
    with pytest.raises(Killed):
        tuned(search, tmp_path, Here(5))
    shutil.copytree(done[2] / CELLS, tmp_path / CELLS, dirs_exist_ok=True)
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / FILE}")
    study = optuna.load_study(study_name="FedAvg", storage=storage)
    study.ask()  # left behind as running
    study.add_trial(optuna.trial.create_trial(value=1.0))
    storage.remove_session()
    storage.engine.dispose()
    assert tuned(search, tmp_path) == trials


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"rounds": 3}, ("other-run", "rounds", "2", "3")),
        ({"clients": 5}, ("other-run", "clients", "4", "5")),
        ({"repeats": 1}, ("other-run", "seeds", "2", "1")),
        ({"criterion": "average"}, ("other-run", "metric", "worst_accuracy", "avg_accuracy")),
        ({"validation": 0.5}, ("other-run", "validation", "0.2", "0.5")),
        ({"tables": {"FedAvg": {"by_samples": False}}}, ("other-run", "FedAvg.by_samples", "False")),
    ],
)
def test_the_trials_of_another_search_are_refused(done, changes, error):
    folder = done[2]
    with refused(*error, "--out"):
        tuned(small_search(**changes), folder, Here(0))


def test_another_range_is_refused(done, monkeypatch):
    search, _, folder, _ = done
    narrow = SPACES["FedAvg"][0]._replace(high=0.5)
    monkeypatch.setitem(SPACES, "FedAvg", (narrow,))
    with refused("other-run", None, "FedAvg.lr", "0.25 to 0.5, log"):
        tuned(search, folder, Here(0))


def test_a_run_that_breaks_off_scores_nothing(tmp_path):
    search = small_search(("FedAvg",), trials=2, tables={"FedAvg": {"lr": 1e38}})
    first, second = tuned(search, tmp_path)["FedAvg"]
    assert (first.table, first.point) == ({"lr": 1e38}, {})
    assert (first.scores, first.stopped) == ((0.0, 0.0), ("diverged", "diverged"))
    assert second.stopped == ("rounds", "rounds")


def test_what_is_told_of_each_trial(tmp_path):
    told = []
    trials = tuned(small_search(trials=2), tmp_path, ended=told.append)
    assert [end.finished for end in told] == [1, 2, 3, 4]
    assert {end.total for end in told} == {4}
    assert told[-1].share == pytest.approx(1)
    shares = [end.share for end in told]
    assert shares == sorted(shares)
    for name, own in trials.items():
        assert [end.trial for end in told if end.algorithm == name] == own
        assert [end.best for end in told if end.algorithm == name][-1] == max(trial.score for trial in own)


@pytest.mark.parametrize("name", ["plain", "odd ?{x}#%41"])
def test_the_file_may_lie_anywhere(name, done, tmp_path):
    search, trials, _, _ = done
    folder = tmp_path / name
    folder.mkdir()
    for _ in range(2):
        with TrialStore(folder) as store:
            known = store.open("DRFA", search.fingerprint("DRFA"))
            for trial in trials["DRFA"][len(known) : len(known) + 1]:
                store.add("DRFA", trial)
    with TrialStore(folder) as store:
        assert store.open("DRFA", search.fingerprint("DRFA")) == trials["DRFA"][:2]
    assert (folder / FILE).is_file()


@pytest.mark.parametrize("damage", [b"no database" * 100, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_damaged_file_is_named(damage, tmp_path):
    (tmp_path / FILE).write_bytes(damage)
    with refused("file-unreadable", str(tmp_path / FILE), "--out"), TrialStore(tmp_path):
        pass


def test_algorithms_that_cannot_start_are_told_before_anything_runs():
    with refused("out-of-range", "m", "m=9"):
        small_search(tables={"DRFA": {"m": 9}})
