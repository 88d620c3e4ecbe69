"""Test the file of a model's scores on every test row: written, damaged, and paired between two runs."""

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from tests.support.refusals import refused

import drfl
from drfl.core.errors import InputError
from drfl.data.row_scores import RowScores
from drfl.report.test_rows import content, read

DATA = "ab" * 16
GOOD = {
    "starts": torch.tensor([0, 2, 3]),
    "rows": torch.tensor([4, 0, 7]),
    "accuracy": torch.tensor([1, 0, 1], dtype=torch.uint8),
    "brier": torch.tensor([0.25, 0.5, float("nan")], dtype=torch.float64),
    "auc.output": torch.tensor([0.1, 0.9, 0.5], dtype=torch.float64),
    "auc.positive": torch.tensor([0, 1, 1], dtype=torch.uint8),
}


def test_scores_are_read_back_and_written_reproducibly(tmp_path):
    scores = {name: values for name, values in GOOD.items() if name not in ("starts", "rows")}
    given = RowScores(GOOD["starts"], GOOD["rows"], scores, DATA)
    (tmp_path / "a").write_bytes(content(given))
    (tmp_path / "b").write_bytes(content(given._replace(scores=dict(reversed(scores.items())))))
    found = read(tmp_path / "a")
    assert found.same_rows(given)
    assert set(found.scores) == set(scores)
    for name, values in scores.items():
        assert found.scores[name].dtype == values.dtype
        assert found.scores[name].equal(values) or name == "brier"
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"starts": None}, ("damaged-file", None, "'starts', 'rows'")),
        ({"data": "x"}, ("damaged-file", None, "'starts', 'rows'")),
        ({"starts": torch.tensor([0, 2])}, ("damaged-file", None, "'starts'")),
        ({"starts": torch.tensor([0, 0, 3])}, ("damaged-file", None, "'starts'")),
        ({"starts": torch.tensor([0.0, 2, 3])}, ("damaged-file", None, "'starts' and 'rows'")),
        ({"rows": torch.tensor([4, -1, 7])}, ("damaged-file", None, "'rows'")),
        ({"accuracy": torch.tensor([1, 2, 1], dtype=torch.uint8)}, ("damaged-file", None, "'accuracy'")),
        ({"accuracy": torch.tensor([1, 1], dtype=torch.uint8)}, ("damaged-file", None, "'accuracy'")),
        ({"brier": torch.tensor([1, 1, float("inf")], dtype=torch.float64)}, ("damaged-file", None, "'brier'")),
        ({"brier": torch.ones(3)}, ("damaged-file", None, "'brier'")),
        ({"auc.output": None}, ("damaged-file", None, "'auc.positive'")),
        ({"auc.positive": None}, ("damaged-file", None, "'auc.output'")),
        ({"A b": torch.ones(3, dtype=torch.float64)}, ("damaged-file", None, "'A b'")),
    ],
)
def test_damaged_file_is_a_one_line_error(change, error, tmp_path):
    tensors = {name: values for name, values in {**GOOD, **change}.items() if isinstance(values, torch.Tensor)}
    (tmp_path / "a").write_bytes(save(tensors, {"data": str(change.get("data", DATA))}))
    with refused(*error) as raised:
        read(tmp_path / "a")
    assert "\n" not in str(raised.value)


def test_random_bytes_are_one_line_errors(tmp_path):
    whole, draw = save(GOOD, {"data": DATA}), random.Random(0)
    for cut in (b"", whole[:7], whole[:200], b"\xff" * 64, b"{}"):
        (tmp_path / "a").write_bytes(cut)
        with refused("damaged-file", str(tmp_path / "a")):
            read(tmp_path / "a")
    for _ in range(300):
        changed = bytearray(whole)
        changed[draw.randrange(len(changed))] = draw.randrange(256)
        (tmp_path / "a").write_bytes(changed)
        try:
            read(tmp_path / "a")
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017 - a change may leave a file that can be read
    with refused("file-not-found", str(tmp_path / "none")):
        read(tmp_path / "none")


def data(seed=0):
    x = torch.randn(120, 4, generator=torch.Generator().manual_seed(seed))
    return drfl.ClientData.from_arrays([(part, (part[:, 0] > 0).long()) for part in x.split(40)], test_fraction=0.5)


@pytest.mark.long
def test_runs_write_the_file_and_are_paired_by_it(tmp_path):
    algorithms = {
        "FedAvg": drfl.FedAvg(m=3),
        "LocalOnly": drfl.LocalOnly(),
        "FineTuned": drfl.FineTuned(fine_steps=2, m=3),
    }
    task = drfl.Task(torch.nn.Linear(4, 2), metrics=("auc",))
    options = {"rounds": 2, "seeds": 1, "progress": None}
    drfl.compare(algorithms, data(), task, out=tmp_path / "a", **options)
    drfl.compare({"FedAvg": drfl.FedAvg(m=3)}, data(1), task, out=tmp_path / "b", **options)
    found = {name: read(path(tmp_path / "a", name)) for name in algorithms}
    assert found["FedAvg"].same_rows(found["LocalOnly"])
    assert found["FedAvg"].same_rows(found["FineTuned"])
    assert not found["FedAvg"].same_rows(read(path(tmp_path / "b", "FedAvg")))
    for name, scores in found.items():  # the model that serves each client, which can be its own
        rows = (tmp_path / "a" / f"{name}-seed0" / "clients.csv").read_text().splitlines()
        column = rows[0].split(",").index("accuracy_count")
        counts = [int(row.split(",")[column]) for row in rows[1:]]
        assert [int(part.sum()) for part in scores.scores["accuracy"].split(scores.starts.diff().tolist())] == counts
    assert not torch.equal(found["FedAvg"].scores["auc.output"], found["LocalOnly"].scores["auc.output"])


def path(folder: Path, name: str) -> Path:
    return folder / f"{name}-seed0" / "test-rows.safetensors"
