"""Test trackers by the files that the libraries write."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from tests.support.problems import federation
from tests.support.refusals import refused

import drfl
from drfl.algorithms import DRFA
from drfl.optim.local import LocalSGD
from drfl.training.trackers import MLflow, TensorBoard, WandB, parse

ALGORITHM = DRFA(m=2, local=LocalSGD(steps=2, lr=0.1))

# MLflow uses features that SQLAlchemy 2.1 deprecates
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def go(tracker, rounds=4, **options):
    return drfl.run(ALGORITHM, federation(), rounds=rounds, evaluate_every=2, callbacks=[tracker], **options)


def stop(step):
    return step.round == 3


def fail(step):
    if step.round == 3:
        raise RuntimeError("broken")


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {name: [(e.step, e.value) for e in found.Scalars(name)] for name in found.Tags()["scalars"]}


def logged(tracker, name):
    return [(m.step, m.value) for m in client(tracker).get_metric_history(tracker.run_id, name)]


def client(tracker):
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracker.uri)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.mark.long
def test_tensorboard_has_the_history(tmp_path):
    frame = go(TensorBoard(tmp_path)).history.to_frame()
    found = events(tmp_path)
    for name in ("worst_accuracy", "avg_loss", "bytes_up", "gradient_evaluations", "last_worst_accuracy"):
        assert found[name] == [(r, pytest.approx(v)) for r, v in zip(frame["round"], frame[name], strict=True)], name
    assert len(found["largest_lambda"]) == 3


@pytest.mark.long
def test_resumed_run_hides_values_of_repeated_rounds(tmp_path):
    with TensorBoard(tmp_path) as first:
        drfl.run(ALGORITHM, federation(), rounds=8, callbacks=[first, stop])
    again = TensorBoard(tmp_path)
    again(drfl.RunState(2, 0, None, (), {}, 0.0, rounds=8))  # like a run resumed from round 2
    again.close()
    assert [step for step, _ in events(tmp_path)["worst_accuracy"]] == [0, 1]


@pytest.mark.long
def test_mlflow_has_history_and_params(store):
    tracker = MLflow("study", uri=store, name="mine", params={"gamma": 0.01})
    frame = go(tracker).history.to_frame()
    for name in ("worst_accuracy", "avg_loss", "bytes_down"):
        assert logged(tracker, name) == [
            (r, pytest.approx(v)) for r, v in zip(frame["round"], frame[name], strict=True)
        ]
    run = client(tracker).get_run(tracker.run_id)
    assert (run.info.status, run.info.run_name, run.data.params) == ("FINISHED", "mine", {"gamma": "0.01"})

    again = MLflow("study", uri=store, run_id=tracker.run_id)
    go(again, rounds=6)  # existing rounds are not logged again
    assert [step for step, _ in logged(again, "worst_accuracy")] == [0, 2, 4, 6]

    with pytest.raises(RuntimeError, match="broken"), MLflow("study", uri=store) as broken:
        drfl.run(ALGORITHM, federation(), rounds=4, callbacks=[broken, fail])
    assert client(broken).get_run(broken.run_id).info.status == "FAILED"
    assert [step for step, _ in logged(broken, "worst_accuracy")] == [0, 1, 2, 3]

    with MLflow("study", uri=store) as early:
        drfl.run(ALGORITHM, federation(), rounds=9, callbacks=[early, stop])
    assert client(early).get_run(early.run_id).info.status == "FINISHED"
    with refused("tracker-failed", "study", "MLflow", "abc"):
        go(MLflow("study", uri=store, run_id="abc"))


def test_tracked_names_are_those_of_the_files():
    fed = federation()
    rows = drfl.run(ALGORITHM, fed, rounds=2).history
    found = drfl.trackers.scalars(rows.last, rows.score)
    shown = rows.to_frame().iloc[-1]
    assert {*shown.index} - {*found} == {"round"}
    assert all(math.isclose(found[name], shown[name]) for name in shown.index if name != "round")


@pytest.mark.long
def test_tracker_serves_one_run(tmp_path):
    tracker = TensorBoard(tmp_path)
    go(tracker)
    with refused("already-closed", None, "TensorBoard"):
        go(tracker)


@pytest.mark.parametrize(("make", "module"), [(TensorBoard, "torch.utils.tensorboard"), (MLflow, "mlflow")])
def test_missing_library_names_the_extra(make, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.tracking", None)
    with refused("package-missing", make.__name__.lower(), f"'drfl[{make.__name__.lower()}]'"):
        make("x")


@pytest.mark.long
def test_impossible_folder_is_a_one_line_error(tmp_path):
    (tmp_path / "file").write_text("")
    with refused("cannot-write", str(tmp_path / "file/tb"), "Not a directory"):
        go(TensorBoard(tmp_path / "file" / "tb"))


class StandIn:
    """A stand-in for wandb, which the test environment does not have."""

    def __init__(self):
        self.calls = []

    def init(self, **options):
        self.calls.append(("init", options))
        return self

    def log(self, data, step):
        self.calls.append(("log", step, data))

    def finish(self, exit_code):
        self.calls.append(("finish", exit_code))


def test_weights_and_biases_gets_the_history_offline(tmp_path, monkeypatch):
    wandb = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    result = go(WandB(tmp_path / "w", name="one"))
    (_, options), *logs, end = wandb.calls
    assert options["mode"] == "offline"
    assert (options["name"], options["dir"]) == ("one", str(tmp_path / "w"))
    assert [step for _, step, _ in logs] == [0, 2, 4]
    assert logs[-1][2]["worst_accuracy"] == result.history.last.metrics.worst_score
    assert end == ("finish", 0)
    with pytest.raises(RuntimeError), WandB(tmp_path / "w") as tracker:
        drfl.run(ALGORITHM, federation(), rounds=4, callbacks=[tracker, fail])
    assert wandb.calls[-1] == ("finish", 1)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("tensorboard", ("invalid-format", "track")),
        ("tensorboard:", ("invalid-format", "track")),
        ("tensorbord:x", ("unknown-name", "track", "tensorbord", "tensorboard")),
        ("wandb:x", ("package-missing", "wandb")),
    ],
)
def test_invalid_tracker_text_is_refused(text, error, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with refused(*error):
        parse(text, "run")


def test_comparison_tracks_each_run(tmp_path):
    generator = torch.Generator().manual_seed(0)
    x = [torch.randn(40, 3, generator=generator) for _ in range(3)]
    data = drfl.ClientData.from_arrays([(rows, (rows.sum(1) > 0).long()) for rows in x])
    algorithms, task = {"a": ALGORITHM, "b": drfl.FedAvg(m=2, local=ALGORITHM.local)}, drfl.Task(torch.nn.Linear(3, 2))
    found = drfl.compare(algorithms, data, task, rounds=2, seeds=1, track=f"tensorboard:{tmp_path}", progress=None)
    frame = found.to_histories()
    for name in ("a", "b"):
        steps = events(tmp_path / f"{name}-seed0")["worst_accuracy"]
        expected = frame[frame["algorithm"] == name]["worst_accuracy"].tolist()
        assert [value for _, value in steps] == pytest.approx(expected, abs=1e-6)
