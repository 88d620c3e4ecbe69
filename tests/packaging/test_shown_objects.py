"""Test how a prompt or a notebook displays a run's objects, and the errors for wrong objects."""

from __future__ import annotations

import io
import re

import pandas as pd
import pytest
import torch
from tests.support.refusals import refused
from torch import nn

import drfl
from drfl.training.certificate import Certifier

with drfl.Key(0).torch_scope():  # one round of a fit must reduce the loss
    INPUTS = [torch.randn(20, 3) for _ in range(40)]
    TASK = drfl.Task(nn.Linear(3, 2))
DATA = drfl.ClientData.from_arrays({f"site {i}": (x, (x[:, 0] > 0).long()) for i, x in enumerate(INPUTS)})
FED = drfl.Simulation(DATA, TASK)


@pytest.fixture(scope="module")
def result():
    return drfl.run(drfl.DRFA(m=5, local=drfl.LocalSGD(lr=0.1)), FED, rounds=3, certify=Certifier(TASK))


def test_repr_is_one_line(result):
    shown = [repr(thing) for thing in (result, result.history, drfl.History(), DATA, FED)]
    assert [line for line in shown if len(line) > 160 or "\n" in line] == []
    assert re.match(r"<Result .*\b3 .*\b8 .*accuracy 0\.", shown[0])
    assert re.fullmatch(r"<History [^\d]*>", shown[2])
    assert all(part in shown[3] for part in ("40", "(site 0, site 1, site 2, …)", "16", "(3,)"))
    assert re.match(r"<Simulation .*\b40 .*\b8 .*Auto>", shown[4])


def test_checkpoints_show_their_folder():
    assert repr(drfl.Checkpoints("x", every=5)) == "Checkpoints('x', every=5)"
    assert "secret" not in repr(drfl.Checkpoints("x", key=b"secret" * 8))


def test_history_frame_equals_the_file(result):
    frame, file = result.history.to_frame(), pd.read_csv(io.StringIO(result.history.to_csv()))
    assert set(frame) == {*file, "seconds"}
    pd.testing.assert_frame_equal(frame[list(file)], file, check_dtype=False, atol=1e-6)
    assert frame["seconds"].is_monotonic_increasing
    assert len(drfl.History().to_frame()) == 0


@pytest.mark.parametrize(
    ("algorithm", "fed", "error"),
    [
        (drfl.FedAvg, FED, ("wrong-type", "algorithm", "FedAvg", "FedAvg(m=10)")),
        ("FedAvg", FED, ("wrong-type", "algorithm", "str")),
        (drfl.LocalSGD(), FED, ("wrong-type", "algorithm", "LocalSGD")),
        (drfl.FedAvg(m=5), DATA, ("wrong-type", "fed", "ClientData")),
        (drfl.FedAvg(m=5), drfl.Simulation, ("wrong-type", "fed", "Simulation")),
        (FED, drfl.FedAvg(m=5), ("wrong-type", "algorithm", "Simulation")),
    ],
)
def test_wrong_object_is_named(algorithm, fed, error):
    with refused(*error):
        drfl.run(algorithm, fed, rounds=1)


def test_html_is_a_small_escaped_table(result):
    names = {f"<b>site</b> {i} {'x' * 200}": (torch.randn(20, 3), torch.arange(20) % 2) for i in range(500)}
    data = drfl.ClientData.from_arrays(names)
    things = (result, result.history, data, drfl.Simulation(data, TASK))
    for thing in things:
        shown = thing._repr_html_()
        assert len(shown) < 5000, type(thing)
        assert "<table" in shown
        assert "<b>" not in shown
    assert "&lt;b&gt;site" in data._repr_html_()
    assert "and 488 more" in data._repr_html_()
    assert re.search(r"\blast iterate\b", result._repr_html_())


def test_html_of_a_fit_a_search_and_a_model_is_a_small_table(result, tmp_path):
    def space(trial):
        return drfl.FedAvg(m=5, local=drfl.LocalSGD(lr=trial.suggest_float("lr", 0.1, 0.2)))

    fitted = drfl.fit(DATA, TASK, budget=1, progress=None, out=tmp_path / "fit")
    tuned = drfl.tune(space, DATA, TASK, rounds=1, trials=2, progress=None)
    model = drfl.load_model(tmp_path / "fit")
    for thing, rows in ((result.evaluation, 12), (fitted, 6), (tuned, 2), (model, len(model.about["metrics"]))):
        shown = thing._repr_html_()
        assert shown.count("<tr") == rows + 1, type(thing)
        assert len(shown) < 5000
    assert "and 28 more" in result.evaluation._repr_html_()


@pytest.mark.long
def test_history_is_plotted_and_saved(result, tmp_path):
    figure = result.plot()
    figure.savefig(tmp_path / "run.pdf")
    assert (tmp_path / "run.pdf").read_bytes().startswith(b"%PDF")
    assert figure._repr_png_().startswith(b"\x89PNG")
    score, loss = figure.axes
    frame = result.history.to_frame()
    (worst, *_) = score.lines
    assert worst.get_ydata().tolist() == pytest.approx((100 * frame["worst_accuracy"]).tolist())
    assert (score.get_ylabel(), loss.get_ylabel()) == ("accuracy (%)", "loss")
    with refused("no-results", "history"):
        drfl.History().plot()


@pytest.mark.long
def test_comparison_is_plotted_with_intervals(tmp_path):
    local = drfl.LocalSGD(lr=0.1)
    found = drfl.compare(
        {"one": drfl.FedAvg(m=5, local=local), "two": drfl.DRFA(m=5, local=local)},
        DATA, TASK, rounds=3, seeds=3, progress=None,
    )  # fmt: skip
    rows = found.to_histories()
    assert len(rows) == 2 * 3 * 4
    clients = found.to_clients()
    assert clients.groupby(["algorithm", "seed"]).size().eq(DATA.n).all()
    worst = clients.groupby(["algorithm", "seed"])["accuracy"].min()
    known = found.to_frame().set_index(["algorithm", "seed"])["worst_accuracy"]
    assert worst.to_dict() == pytest.approx(known.to_dict(), abs=1e-6)
    figure = found.plot("worst", "std")
    assert [axis.get_ylabel() for axis in figure.axes] == [
        "worst accuracy (%)",
        "std of accuracy (%) (lower is better)",
    ]
    ends = rows[(rows["algorithm"] == "two") & (rows["round"] == 3)]["worst_accuracy"] * 100
    assert figure.axes[0].lines[1].get_ydata()[-1] == pytest.approx(ends.mean())
    band = figure.axes[0].collections[1].get_paths()[0].vertices
    low, high = band[band[:, 0] == 3][:, 1].min(), band[band[:, 0] == 3][:, 1].max()
    assert (high - low) / 2 == pytest.approx(4.302653 * ends.std() / 3**0.5, rel=1e-5)
    with refused("unknown-name", "best"):
        found.plot("best")


@pytest.mark.long
def test_bar_shows_rounds_and_scores(capsys):
    drfl.run(drfl.FedAvg(m=5), FED, rounds=3, callbacks=[drfl.ProgressBar("mine")])
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "mine: 100%" in shown.err
    assert "3/3" in shown.err
    assert "worst " in shown.err
    drfl.compare({"one": drfl.FedAvg(m=5)}, DATA, TASK, rounds=2, seeds=2, progress="bar")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "2/2" in shown.err
    assert "one, seed 1: worst" in shown.err
