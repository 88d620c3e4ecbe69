"""Test callbacks."""

from __future__ import annotations

import pytest
import torch

from drfl.core.key import Key
from drfl.federation.algorithm import Info
from drfl.federation.sampling import uniform
from drfl.training.callbacks import Participation, Progress
from drfl.training.history import Metrics, Row
from drfl.training.run_state import RunState

ROW = Row(5, Metrics(0.9, 0.25, 0.1, 0.3, 1.0, 0.4, 0.8), {}, torch.ones(1), 0.0)


def after(r, rounds=100, row=ROW, info=None):
    """Return a run after round r without a state, which the callbacks here do not read."""
    rows = () if row is None else (row._replace(round=r),)
    return RunState(r, 0, None, rows, {}, 0.0, info=info, rounds=rounds)  # pyright: ignore


def test_participation_counts_distinct_clients_that_answered():
    count = Participation()
    assert count.mean == 0.0
    cohort = uniform(9, 4, Key(0))
    for info in (None, Info(cohort, cohort.clients[:3]), Info.without_replies(cohort), Info(cohort, cohort.clients)):
        count(after(0, info=info))
    assert count.mean == pytest.approx((3 + 0 + 4) / 3)


def test_progress_prints_about_ten_lines(capsys):
    show = Progress("DRFA")
    for r in range(101):
        show(after(r))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[-1] == "DRFA: round 100/100, worst 25.0 %, average 90.0 %"


def test_progress_prints_the_last_round_and_never_without_an_evaluation(capsys):
    show = Progress(lines=2)
    for r in range(8):
        show(after(r, rounds=7, row=None if r == 4 else ROW))
    assert [line.split()[2] for line in capsys.readouterr().err.splitlines()] == ["0/7,", "7/7,"]


def test_progress_reports_empty_rounds(capsys):
    Progress()(after(3, row=None, info=Info.without_replies(uniform(4, 2, Key(0)))))
    assert "3/100" in capsys.readouterr().err
