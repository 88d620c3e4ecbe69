import json

import pytest
from tests.support.refusals import refused

from drfl.report import document, load_run, write_html
from drfl.report.groups import group_runs


def test_run_is_read_back(write):
    run = load_run(write("one", "DRFA", 3, clients=4, rounds=2))
    assert (run.label, run.algorithm, run.seed) == ("one", "DRFA", "3")
    assert run.config["algorithm"] == "DRFA"
    assert run.history["round"].tolist() == [0, 1, 2]
    assert run.clients["client"].tolist() == ["c000", "c001", "c002", "c003"]
    assert run.lam.columns.tolist() == ["round", "c000", "c001", "c002", "c003"]
    assert run.lam.iloc[:, 1:].sum(axis=1).tolist() == pytest.approx([1, 1, 1])
    assert run.final("worst_score") == run.history["worst_score"].iloc[-1]
    assert run.ledger("bytes_up") == 40_000_000
    assert not run.has_diverged


def test_names_that_csv_readers_change_are_kept(write):
    names = ["NA", "NA", "round", "007", 'a,"b"\nc\u2028d']
    run = load_run(write("one", clients=5, names=names))
    assert run.clients["client"].tolist() == names


def test_diverged_run_is_read(write):
    final = {"avg_accuracy": 0.1, "worst_accuracy": None, "avg_loss": float("nan")}
    run = load_run(write("one", summary={"final": final}))
    assert run.has_diverged
    assert run.final("avg_accuracy") == 0.1


@pytest.mark.parametrize("name", ["config.toml", "summary.json", "history.csv", "clients.csv", "lambda.csv"])
def test_missing_file_is_refused(write, name):
    directory = write("one")
    (directory / name).unlink()
    with refused("file-not-found", str(directory / name)):
        load_run(directory)


def test_missing_folder_is_refused(tmp_path):
    with refused("not-a-run", str(tmp_path / "nowhere")):
        load_run(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("config.toml", "a = ", ("damaged-file", None, "config.toml")),
        ("summary.json", "{", ("damaged-file", None, "summary.json")),
        ("summary.json", "[]", ("damaged-file", None, "algorithm")),
        ("summary.json", json.dumps({"dataset": "x"}), ("damaged-file", None, "algorithm")),
        ("history.csv", "", ("damaged-file", None, "'round'")),
        ("history.csv", "round,avg_accuracy\n0,1\n", ("damaged-file", None, "'worst_accuracy'")),
        ("clients.csv", "client,accuracy,loss,samples,train_samples,lambda\n", ("damaged-file", None, "no rows")),
        (
            "clients.csv",
            "client,accuracy,loss,samples,train_samples,lambda\na,x,1,1,1,1\n",
            ("damaged-file", None, "could not convert"),
        ),
        ("lambda.csv", "round,c000\n0\n", ("damaged-file", None, "2", "1", "lambda.csv")),
        ("lambda.csv", "round,other\n0,1\n", ("damaged-file", None, "clients.csv")),
        ("lambda.csv", b"round,\xff\n0,1\n", ("damaged-file", None, "utf-8")),
    ],
)
def test_damaged_file_is_refused(write, name, content, error):
    directory = write("one")
    (directory / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with refused(*error) as error:
        load_run(directory)
    assert "\n" not in str(error.value)
    assert name in str(error.value)


def test_additional_columns_are_ignored(write):
    directory = write("one", rounds=1)
    lines = (directory / "history.csv").read_text().splitlines()
    more = [f"{line},{'1.5' if at else 'seconds'}" for at, line in enumerate(lines)]
    (directory / "history.csv").write_text("\n".join(more))
    assert load_run(directory).history["seconds"].tolist() == [1.5, 1.5]


def test_lambda_csv_with_a_selection_of_clients(write, monkeypatch):
    """lambda.csv then has only the clients with the largest λ, and the number of effective clients."""
    directory = write("one", "DRFA", clients=4, rounds=10)
    whole = load_run(directory)
    lines = [line.split(",") for line in (directory / "lambda.csv").read_text().splitlines()]
    some = [[first, "0.5" if at else "effective_clients", b, d] for at, (first, _, b, _, d) in enumerate(lines)]
    (directory / "lambda.csv").write_text("".join(",".join(line) + "\n" for line in some))
    with refused("damaged-file", str(directory / "lambda.csv")):
        load_run(directory)
    monkeypatch.setattr("drfl.training.history.LAMBDA_CLIENTS", 2)
    run = load_run(directory)
    assert run.lam.equals(whole.lam.iloc[:, [0, 2, 4]])
    (group,) = group_runs([run])
    assert group.effective_clients()[1][0, 0] == 0.5
    write_html(document([run]), directory / "report.html")
    assert "first, 2 of 4" in (directory / "report.html").read_text()
