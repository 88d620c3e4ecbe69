"""Test that the next point depends only on the earlier trials."""

from __future__ import annotations

import math
import sys

from tests.support.refusals import refused

from drfl.core.key import Key
from drfl.experiments.tuning.criterion import Criterion
from drfl.experiments.tuning.spaces import SPACES, draw, round_value
from drfl.experiments.tuning.suggestion import STARTUP, SearchPoint, Trial, best, import_optuna, suggest
from drfl.task.metrics import ACCURACY

SPACE = SPACES["DRDM"]


def asked(trial):
    return SearchPoint(draw(SPACE, trial), {})


def closeness(point):
    """Return a score that increases towards lr = 0.1, mu = 0.3, gamma = 1e-4."""
    return 1 / (1 + sum(math.log10(point[n] / x) ** 2 for n, x in (("lr", 0.1), ("mu", 0.3), ("gamma", 1e-4))))


def searched(count, seed=0):
    trials = []
    for number in range(count):
        point = suggest(asked, trials, Key(seed).fold("trial", number))
        trials.append(Trial(number, point.values, {}, (closeness(point.values),), ("rounds",), point.places))
    return trials


def test_next_point_depends_only_on_the_trials():
    trials = searched(12)
    assert searched(12) == trials
    key = Key(0).fold("trial", 12)
    point = suggest(asked, trials, key)
    assert suggest(asked, list(trials), key) == point
    assert suggest(asked, trials[:-1], key) != point
    assert suggest(asked, trials, key.fold("x")) != point


def test_points_are_in_the_space_and_have_few_digits():
    for trial in searched(12):
        assert trial.point.keys() == {d.name for d in SPACE}
        for dimension in SPACE:
            value = trial.point[dimension.name]
            assert dimension.low <= value <= dimension.high
            assert round_value(value) == value


def test_search_finds_the_optimum():
    random, guided = [], []
    for seed in range(3):
        trials = searched(36, seed)
        random += [t.score for t in trials[:STARTUP]]
        guided += [t.score for t in trials[-STARTUP:]]
    assert sum(guided) / len(guided) > 1.3 * sum(random) / len(random)


def test_trial_outside_the_space_is_skipped():
    trials = searched(10)
    rule = Trial(0, {}, {"lr": 0.1}, (1.0,), ("rounds",))
    key = Key(5)
    assert suggest(asked, [rule, *trials], key) == suggest(asked, trials, key)


def test_earliest_of_equal_trials_is_best():
    trials = [Trial(n, {}, {}, scores, ("rounds",) * 2) for n, scores in enumerate([(0, 0.2), (0.3, 0.4), (0.4, 0.3)])]
    assert best(trials).number == 1
    assert trials[0].score == 0.1


def test_trial_that_fails_at_any_seed_is_excluded():
    good = Trial(0, {}, {}, (0.5, 0.5), ("rounds", "rounds"))
    half = Trial(1, {}, {}, (1.0, 0.0), ("rounds", "diverged"))
    assert half.score == 0.0
    assert best([good, half]) is good
    low, lost = good._replace(scores=(9.0, 9.0)), half._replace(scores=(1.0, math.inf))
    assert best([low, lost], smaller=True) is low


def test_run_that_halves_its_step_size_counts_with_its_returned_model():
    record = {"stopped": "rounds", "rows": [{"worst_accuracy": 0.8}], "halved": 1, "rollbacks": 1}
    criterion = Criterion("worst", ACCURACY)
    assert (criterion.end(record), criterion.of(record)) == ("rounds", 0.8)


def test_missing_optuna_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with refused("package-missing", "optuna", "'drfl[experiments]'"):
        import_optuna()
