"""Test metrics over clients and the files of a run's history."""

from __future__ import annotations

import csv
import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drfl.core.csv_cells import csv_text, escape_formula, unescape_formula
from drfl.federation.federation import Evaluation
from drfl.training.certificate import Certificate
from drfl.training.history import History, Metrics, Row

LEDGER = {"bytes_up": 5, "bytes_down": 6, "messages": 9, "gradient_evaluations": 7, "loss_evaluations": 8}


def evaluation(accuracy, loss=None):
    accuracy = torch.tensor(accuracy, dtype=torch.float64)
    loss = 1 - accuracy if loss is None else torch.tensor(loss, dtype=torch.float64)
    return Evaluation(accuracy, loss, torch.full((len(accuracy),), 3))


def test_statistics_by_hand():
    metrics = Metrics.of(evaluation([0.9, 0.1, 0.5, 0.7, 0.3], [1.0, 5.0, 2.0, 3.0, 4.0]))
    assert metrics == pytest.approx((0.5, 0.1, 0.08**0.5, 0.1, 0.9, 3.0, 5.0))


@pytest.mark.parametrize(("n", "fifth"), [(1, 1), (4, 1), (9, 1), (10, 2), (14, 2), (15, 3), (100, 20)])
def test_worst_and_best_fifth_of_clients(n, fifth):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).double()
    metrics = Metrics.of(evaluation((order / n).tolist()))
    assert metrics.worst20_score == pytest.approx(sum(range(fifth)) / fifth / n)
    assert metrics.best20_score == pytest.approx((n - 1) / n - sum(range(fifth)) / fifth / n)


def test_statistics_of_one_client():
    assert Metrics.of(evaluation([0.25])) == pytest.approx((0.25, 0.25, 0.0, 0.25, 0.25, 0.75, 0.75))


@given(accuracy=st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_metrics_are_in_order(accuracy):
    m = Metrics.of(evaluation(accuracy))
    low, high = min(accuracy) - 1e-12, max(accuracy) + 1e-12
    assert m.worst_score == min(accuracy)
    assert low <= m.worst20_score <= m.avg_score + 1e-12
    assert m.avg_score <= m.best20_score + 1e-12
    assert m.best20_score <= high
    assert 0 <= m.std_score <= 0.5 + 1e-12
    assert m.worst_loss + 1e-12 >= m.avg_loss


def test_evaluation_is_not_modified():
    given = evaluation([0.9, 0.1])
    Metrics.of(given)
    assert given.score.tolist() == [0.9, 0.1]


def history():
    metrics = Metrics(0.5, 0.1, 0.2828427124, 0.1, 0.9, 3.0, 5.0)
    lam = torch.tensor([0.25, 0.75], dtype=torch.float64)
    ledger, last = {k: 10 * v for k, v in LEDGER.items()}, metrics._replace(avg_score=0.25, worst_loss=7.0)
    later = Row(12, metrics._replace(avg_loss=1 / 3), ledger, lam.flip(0), 1.23456, last=last)
    return History((Row(0, metrics, LEDGER, lam, 0.0), later))


def test_history_csv():
    assert history().to_csv() == (
        "round,avg_accuracy,worst_accuracy,std_accuracy,worst20_accuracy,best20_accuracy,avg_loss,worst_loss,"
        "bytes_up,bytes_down,gradient_evaluations,flagged_mass,last_avg_accuracy,last_worst_accuracy,last_std_accuracy,"
        "last_worst20_accuracy,last_best20_accuracy,last_avg_loss,last_worst_loss\n"
        "0,0.500000,0.100000,0.282843,0.100000,0.900000,3.000000,5.000000,5,6,7,0.000000,"
        "0.500000,0.100000,0.282843,0.100000,0.900000,3.000000,5.000000\n"
        "12,0.500000,0.100000,0.282843,0.100000,0.900000,0.333333,5.000000,50,60,70,0.000000,"
        "0.250000,0.100000,0.282843,0.100000,0.900000,3.000000,7.000000\n"
    )


def test_returned_model_defaults_to_the_last_iterate():
    first, last = history().rows
    assert first.last is None
    assert first.last_metrics == first.metrics
    assert last.last_metrics == last.last != last.metrics


def test_history_csv_with_certificates():
    """Values have nine decimals, because a gap tends to 0, and nan without a certificate;

    other columns are unchanged.
    """
    plain = history()
    first, last = plain.rows
    certified = History((first, last._replace(certificate=Certificate(0.5, 0.5 - 1.2e-8, 3.0, True))), certified=True)
    cells = ("primal,lower,gap", "nan,nan,nan", "0.500000000,0.499999988,0.000000012")
    lines = [line.split(",") for line in plain.to_csv().splitlines()]
    expected = [[*a[:12], *b.split(","), *a[12:]] for a, b in zip(lines, cells, strict=True)]
    assert [line.split(",") for line in certified.to_csv().splitlines()] == expected


def test_lambda_csv_has_a_row_per_evaluation():
    text = history().lambda_csv(("a", 'the "b", quoted'))
    rows = list(csv.reader(io.StringIO(text)))
    assert rows == [
        ["round", "a", 'the "b", quoted'],
        ["0", "0.250000000", "0.750000000"],
        ["12", "0.750000000", "0.250000000"],
    ]
    assert "\r" not in text


def test_timing_csv_has_a_row_per_round():
    assert history().timing_csv() == "round,seconds\n0,0.000\n12,1.235\n"


def test_last_row():
    assert history().last.round == 12


def test_history_without_rows():
    assert History().to_csv().count("\n") == 1


@pytest.mark.parametrize("name", ["=1+1", "+1-555", "-x", "@sum(a1)", "\t=1", "'=1", "''@"])
def test_csv_text_is_never_a_formula_and_is_read_back(name):
    cell = next(csv.reader(io.StringIO(csv_text((name,), []), newline="")))[0]
    assert cell == f"'{name}"
    assert unescape_formula(cell) == name


@given(st.text(alphabet="'=+-@\t1ae.", max_size=5))
def test_quoting_is_lossless(text):
    assert unescape_formula(str(escape_formula(text))) == text


@pytest.mark.parametrize("cell", ["-1.5", "+3", "-inf", "-1e-05", "a=b", "", "'quoted'", "hungary", -2, 0.5])
def test_numbers_and_other_texts_are_unchanged(cell):
    assert escape_formula(cell) == cell
    assert unescape_formula(str(cell)) == str(cell)


def test_lambda_csv_of_very_many_clients(monkeypatch):
    """The file has the clients with the largest λ in any round, in order, and the number of effective clients."""
    monkeypatch.setattr("drfl.training.history.LAMBDA_CLIENTS", 2)
    metrics = Metrics.of(evaluation([0.5]))
    lams = [[0.5, 0.3, 0.1, 0.1], [0.0, 0.2, 0.2, 0.6]]
    rows = (Row(r, metrics, LEDGER, torch.tensor(lam, dtype=torch.float64), 0.0) for r, lam in enumerate(lams))
    assert History(tuple(rows)).lambda_csv(("a", "b", "c", "d")).splitlines() == [
        "round,effective_clients,a,d",
        f"0,{1 / 0.36:.6f},0.500000000,0.100000000",
        f"1,{1 / 0.44:.6f},0.000000000,0.600000000",
    ]
