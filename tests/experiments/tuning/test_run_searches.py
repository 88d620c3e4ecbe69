"""Test that an interrupted search ends like an uninterrupted one."""

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
    """Return an uninterrupted search: its definition, trials, folder and files."""
    search, folder = small_search(), tmp_path_factory.mktemp("done")
    trials = tuned(search, folder)
    return search, trials, folder, files(search, trials, folder)


@pytest.mark.long
def test_algorithms_have_equal_numbers_of_trials_and_start_with_defaults(done):
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
def test_score_is_the_criterion_on_validation_rows(criterion, changes, column, tmp_path):
    search = small_search(("DRFA",), trials=2, repeats=1, criterion=criterion, **changes)
    for trial in tuned(search, tmp_path)["DRFA"]:
        for seed, score in zip((1000,), trial.scores, strict=True):
            config = search.subjects["DRFA"].job.config(TunedMethod("DRFA"), trial.table, seed)
            job = build(config)
            assert job.data.test_inputs is job.data.inputs  # the job has no test rows
            last = execute(job).result.history.last
            assert last.round == 2
            own = last.metrics.as_dict(search.criterion.score.name)
            assert score == pytest.approx(own[column], abs=1e-6)


@pytest.mark.long
def test_defining_values_of_a_method_are_not_searched(tmp_path):
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
def test_killed_search_ends_with_the_same_files(done, tmp_path):
    search, trials, _, expected = done
    for limit in (0, 3, 6, 11):  # runs out of twelve
        folder = tmp_path / str(limit)
        folder.mkdir()
        with pytest.raises(Killed):
            tuned(search, folder, Here(limit))
        again = Here()
        assert tuned(search, folder, again) == trials
        assert len(again.ran) == 12 - limit, "what had been run was run again"
        assert files(search, trials, folder) == expected


@pytest.mark.long
def test_finished_search_runs_nothing_and_longer_one_continues(done, tmp_path):
    search, trials, folder, expected = done
    pool = Here(0)
    assert tuned(search, folder, pool) == trials
    fresh, grown = tmp_path / "fresh", tmp_path / "grown"
    for place in (fresh, grown):
        place.mkdir()
        shutil.copytree(folder / CELLS, place / CELLS)  # finished cells are not run again
    longer = dataclasses.replace(search, trials=4)
    whole = tuned(longer, fresh)
    tuned(search, grown)
    assert tuned(longer, grown) == whole
    assert {name: own[:3] for name, own in whole.items()} == trials
    assert tuned(search, grown, pool) == trials
    assert files(search, trials, grown) == expected


@pytest.mark.long
def test_foreign_trials_in_the_file_are_ignored(done, tmp_path):
    search, trials, _, _ = done
    with pytest.raises(Killed):
        tuned(search, tmp_path, Here(5))
    shutil.copytree(done[2] / CELLS, tmp_path / CELLS, dirs_exist_ok=True)
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / FILE}")
    study = optuna.load_study(study_name="FedAvg", storage=storage)
    study.ask()  # a trial that stays "running"
    study.add_trial(optuna.trial.create_trial(value=1.0))
    storage.remove_session()
    storage.engine.dispose()
    assert tuned(search, tmp_path) == trials


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"rounds": 3}, ("other-run", "rounds", "2", "3")),
        pytest.param(
            {"criterion": "average"}, ("other-run", "metric", "worst_accuracy", "avg_accuracy"), marks=pytest.mark.long
        ),
        pytest.param({"clients": 5}, ("other-run", "clients", "4", "5"), marks=pytest.mark.long),
        pytest.param({"repeats": 1}, ("other-run", "seeds", "2", "1"), marks=pytest.mark.long),
        pytest.param({"validation": 0.5}, ("other-run", "validation", "0.2", "0.5"), marks=pytest.mark.long),
        pytest.param(
            {"tables": {"FedAvg": {"by_samples": False}}},
            ("other-run", "FedAvg.by_samples", "False"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_trials_of_another_search_are_refused(done, changes, error):
    folder = done[2]
    with refused(*error, "`out`"):
        tuned(small_search(**changes), folder, Here(0))


def test_other_range_is_refused(done, monkeypatch):
    search, _, folder, _ = done
    narrow = SPACES["FedAvg"][0]._replace(high=0.5)
    monkeypatch.setitem(SPACES, "FedAvg", (narrow,))
    with refused("other-run", None, "FedAvg.lr", "0.25 to 0.5, log"):
        tuned(search, folder, Here(0))


@pytest.mark.long
def test_failed_run_gets_the_worst_score(tmp_path):
    search = small_search(("FedAvg",), trials=2, tables={"FedAvg": {"lr": 1e38}})
    first, second = tuned(search, tmp_path)["FedAvg"]
    assert (first.table, first.point) == ({"lr": 1e38}, {})
    assert (first.scores, first.stopped) == ((0.0, 0.0), ("diverged", "diverged"))
    assert second.stopped == ("rounds", "rounds")


@pytest.mark.long
def test_progress_line_of_each_trial(tmp_path):
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


@pytest.mark.parametrize("name", [pytest.param("plain", marks=pytest.mark.long), "odd ?{x}#%41"])
def test_study_file_can_be_anywhere(name, done, tmp_path):
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
def test_damaged_file_is_named(damage, tmp_path):
    (tmp_path / FILE).write_bytes(damage)
    with refused("file-unreadable", str(tmp_path / FILE), "`out`"), TrialStore(tmp_path):
        pass


def test_unstartable_algorithms_are_refused_before_any_run():
    with refused("out-of-range", "m", "m=9"):
        small_search(tables={"DRFA": {"m": 9}})
