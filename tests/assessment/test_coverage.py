"""Test that statements hold as often as they claim; ``evidence/assessment_coverage.py`` runs many more settings."""

from __future__ import annotations

import numpy as np
import pytest
from tests.assessment import settings, statements, wrong_ways
from tests.assessment.other_statements import (
    enough_changed,
    enough_rows,
    equal_clients_differ,
    new_client,
    shown_over_seeds,
)
from tests.assessment.statements import (
    ALPHA,
    Tally,
    client_intervals,
    gains_of_clients,
    one_model,
    rejected,
    tallied,
    two_models,
    two_models_at_99,
)
from tests.support.marks import long_beyond

from drfl.assessment.clients import assess_clients
from drfl.assessment.gains import assess_gain
from drfl.core.key import Key
from drfl.task.measure import Measure, Rows

FEW = (
    (settings.BINARY[2], two_models, 120),
    (settings.HOSPITALS_4, two_models, 120),
    (settings.UNEQUAL_5, one_model, 400),
    (settings.RARE, one_model, 200),
    (settings.RANKS[0], one_model, 200),
    *((settings.DELONG[i], client_intervals, 1_000) for i in (3, 8, 10, 12, 13, 14)),
    (settings.DELONG[1], one_model, 20),
    *((settings.TWO_RANKS[i], gains_of_clients, 1_000) for i in (0, 3, 7, 8, 9)),
    (settings.RATES[0], one_model, 100),
    (settings.HOSPITALS_4, two_models_at_99, 120),
    (next(iter(settings.EQUAL)), equal_clients_differ, 300),
    (settings.NEW[2], new_client, 2_000),
    (settings.SIZES[1], enough_rows, 10_000),
    (settings.CHANGED[0], enough_changed, 10_000),
    (settings.SEEDS[1], shown_over_seeds, 2_000),
)
WRONG = (
    *((settings.ALIKE_20, way) for way in wrong_ways.OF_COUNTS),
    (settings.RARE, wrong_ways.students_t),
    (settings.DELONG[4], wrong_ways.delong_normal),
    (settings.TWO_RANKS[5], wrong_ways.delong_normal_gain),
    (settings.NEW[1], wrong_ways.smallest_seen),
    (settings.SEEDS[0], wrong_ways.bootstrap_over_seeds),
)


def named(part):
    return part.__name__ if callable(part) else getattr(part, "name", None)


@pytest.mark.long
@pytest.mark.parametrize(("setting", "way", "federations"), long_beyond(4, FEW, map(str, range(len(FEW)))))
def test_statements_hold_as_often_as_claimed(setting, way, federations):
    assert rejected(tallied(setting, [way], federations, Key(1))) == []


@pytest.mark.parametrize(("setting", "way"), WRONG, ids=named)
def test_invalid_methods_are_detected(setting, way):
    federations = 10_000 if way is wrong_ways.smallest_seen else 300
    assert rejected(tallied(setting, [way], federations, Key(1)))


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_statements_hold_on_all_settings(part):
    cases = [case for case in settings.OURS if case.demanded and case.setting not in settings.LARGE][part::4]
    found = [tallied(c.setting, c.ways, min(100, c.federations // 100), Key(1)) for c in cases]
    assert rejected([tally for tallies in found for tally in tallies]) == []


@pytest.mark.parametrize(("misses", "too_many"), [(0, False), (50, False), (65, False), (100, True), (1000, True)])
def test_too_many_misses_are_rejected(misses, too_many):
    others = [Tally("other", str(k), 1000, 10, ALPHA) for k in range(30)]
    found = Tally("one", "interval", 1000, misses, ALPHA)
    assert rejected([*others, found]) == ([found] if too_many else [])
    assert rejected([found._replace(demanded=False), *others]) == []


@pytest.mark.long
def test_counted_statements_equal_those_of_assess(monkeypatch):
    alpha, setting = 0.9, settings.BINARY[3]  # such that many intervals miss
    monkeypatch.setattr(statements, "ALPHA", alpha)
    drawn, (first, second) = setting.draw(np.random.default_rng(0), 60), setting.truth
    counted = {name: wrong for (name, _), wrong in (one_model(setting, drawn) | two_models(setting, drawn)).items()}
    worst, told = int(np.argmin(first)), {name: [] for name in counted}
    for one in drawn.each():
        sums = [np.stack([own.n, own.count, own.count], 1) for own in (one.a, one.b)]
        measure, names = Measure("accuracy", percent=True, rows=Rows.BINARY), ["first", "second"]
        found = assess_clients(measure, names, sums[0], one.a.n.astype(int), level=1 - alpha)
        gain = assess_gain(measure, names, *sums, one.a.count - one.gains.worse, level=1 - alpha)
        told["client intervals"].append(((found.low > first) | (found.high < first)).any())
        told["worst client's interval"].append(not found.worst.low <= first.min() <= found.worst.high)
        told["could be the worst"].append(not found.candidates[worst])
        told["gains' intervals"].append(((gain.low > second - first) | (gain.high < second - first)).any())
        told["worst client's gain, interval"].append(not gain.worst.low <= 0 <= gain.worst.high)
        told["worst client said to be better"].append(gain.worst.shown == "better")
        told["worst client said to be worse"].append(gain.worst.shown == "worse")
        truth = second - first
        better, worse = ({names[i] for i in np.flatnonzero(own > statements.EQUAL)} for own in (truth, -truth))
        told["gains and losses shown"].append(not (set(gain.better) <= better and set(gain.worse) <= worse))
    for name, wrong in told.items():
        assert wrong == list(counted[name]), name
        assert any(wrong), name
