"""Test a whole deployment in this process: its files, and resuming after a stop."""

import csv
import html
import json
import logging
import re
from contextlib import suppress

import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from tests.support.marks import long_except
from tests.support.refusals import logged, quotes, refused
from tests.support.rollbacks import set_back_once
from tests.support.run_files import different, results_in

import drfl
from drfl.algorithms import ALGORITHMS, FULL_PARTICIPATION
from drfl.cli.app import call
from drfl.core.errors import DivergedError, InputError, Notice
from drfl.core.run_end import ON_TEST
from drfl.data import ClientData
from drfl.experiments.assess.assess_runs import assess_run
from drfl.experiments.config.wrap import wrap_algorithm
from drfl.flower import server_app, session
from drfl.flower.client_app import Site, client_app
from drfl.flower.deployment import Sites
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import SiteIdentity
from drfl.flower.settings import ServerSettings, read_server
from drfl.report import load_run
from drfl.report.evidence import gather_evidence
from drfl.report.run_gains import gain_over_last
from drfl.resilience import Replayed, read_replies
from drfl.task.measure import undefined_note
from drfl.training.step_size import REQUESTS

from .conftest import clients, grid_of, simulation, site

SETTINGS = """
out = "run"
timeout = 5.0
wait = 0.05
insecure = true
[job]
algorithm = "DualDRDM"
rounds = {rounds}
cohort = 4
lr = 0.05
checkpoint_every = 1
{more}
[[sites]]
name = "a"
[[sites]]
name = "b"
[[sites]]
name = "c"
[[sites]]
name = "d"
"""


def settings(folder, rounds=4, more=""):
    path = folder / "server.toml"
    path.write_text(SETTINGS.format(rounds=rounds, more=more))
    return path


def test_deployment_writes_the_files_of_a_run(tmp_path):
    grid = grid_of()
    out = server_app.serve(grid, settings(tmp_path))
    # two identity requests, four rounds of training with a test, four of losses, and the last test
    assert dict(grid.count) == dict.fromkeys((1, 2, 3, 4), 2 + 4 + 4 + 1)
    names = {path.name for path in out.iterdir()}
    assert {"summary.json", "history.csv", "clients.csv", "lambda.csv", "model.safetensors", "report.html"} <= names
    assert "partition.json" not in names
    assert "checkpoint" not in names
    with (out / "clients.csv").open() as file:
        assert [(row["client"], row["train_samples"]) for row in csv.DictReader(file)] == [
            ("a", "30"), ("b", "18"), ("c", "41"), ("d", "12"),
        ]  # fmt: skip
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["rounds"], summary["dataset"], summary["stopped"]) == (4, "own data", "rounds")
    traffic = json.loads((out / "traffic.json").read_text())
    assert (traffic["since_round"], traffic["exchanges"], traffic["answers"]) == (0, 4 + 4 + 1, 4 * (4 + 4 + 1))
    assert traffic["messages"] == 2 * traffic["answers"]
    vectors = summary["ledger"]["bytes_down"] // (21 * 4)
    trained = (vectors - 4 * 4) // 2  # training sends a model and a shift, a loss request sends a model
    models = (vectors - trained) * 21 * 4  # the sites keep the shifts
    assert models < traffic["bytes_down"] - traffic["test_bytes_down"] < models + 600 * 4 * 8


@pytest.mark.long
def test_deployment_can_stop_by_test_rows_and_has_no_intervals(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "drfl"):
        out = server_app.serve(grid_of(), settings(tmp_path, more='until = "test:avg_loss=100"'))
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["stopped"], summary["stopped_on"]) == ("target", "test")
    assert any(ON_TEST in record.getMessage() for record in caplog.records)
    with (out / "clients.csv").open(newline="") as file:
        assert not any(name.endswith("_low") for name in next(csv.reader(file)))
    (run,) = gather_evidence([load_run(out)]).runs
    assert (run.assessment, run.gain_over_last) == (None, None)
    assert ON_TEST in run.missing_reason
    with refused("no-results"):
        drfl.assess(out)


@pytest.mark.long
def test_last_two_models_are_paired_per_client(tmp_path):
    path = settings(tmp_path, more='metrics = ["log_loss", "f1"]')
    out = server_app.serve(grid_of(), path)
    with (out / "paired.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["client"], row["measure"]) for row in rows] == [
        (n, m) for n in "abcd" for m in ("accuracy", "log_loss")
    ]
    with (out / "clients.csv").open(newline="") as file:
        clients = {row["client"]: row for row in csv.DictReader(file)}
    for row in rows:
        own, n = clients[row["client"]], int(row["samples"])
        last = float(row["last_sum"]) / n
        if row["measure"] == "accuracy":
            assert row["returned_sum"] == row["returned_squares"] == own["accuracy_count"]
            assert last == pytest.approx(float(own["last_accuracy"]), abs=1e-6)
            assert 0 <= int(row["products"]) <= min(int(row["returned_sum"]), int(row["last_sum"]))
        else:
            assert (row["returned_sum"], row["returned_squares"]) == (own["log_loss_sum"], own["log_loss_squares"])
            product = float(row["returned_squares"]) * float(row["last_squares"])
            assert 0 < float(row["products"]) <= product**0.5 * (1 + 1e-9)
    (tmp_path / "last").mkdir()
    out = server_app.serve(grid_of(), settings(tmp_path / "last", more='returned = "last"'))
    assert not (out / "paired.csv").exists()


@pytest.mark.long
def test_auc_is_paired_and_rates_use_one_half(tmp_path, caplog):
    """Both sites have two classes, and the smallest site has a single positive row."""
    generator = torch.Generator().manual_seed(0)
    sites = {}
    for name, rows in (("a", 40), ("b", 30), ("c", 60), ("d", 12)):
        x = torch.randn(rows, 4, generator=generator)
        y = (x.sum(1) > (2.5 if name == "d" else 1.5)).long()
        y[0] = 1
        sites[name] = Site(name, ClientData.from_arrays({name: (x, y)}, {name: (x, y)}))
    caplog.set_level(logging.INFO, logger="drfl")
    path = settings(tmp_path, more='score = "auc"\nmetrics = ["accuracy", "sensitivity"]')
    out = server_app.serve(grid_of(load=lambda context: sites[context.node_config["name"]]), path)
    with (out / "paired.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["measure"] == "auc"]
    assert [(row["client"], row["class"]) for row in rows] == [(n, c) for n in "abcd" for c in ("positive", "negative")]
    found = assess_run(out)
    gain = gain_over_last(found)
    assert gain.values == pytest.approx(found.assessment.values - auc_of_the_last(out), abs=1e-6)
    assert (gain.low <= gain.values).all()
    assert (gain.values <= gain.high).all()
    own = [sites[name].data.test_targets for name in "abcd"]
    assert drfl.assess(out, measure="sensitivity").samples.tolist() == [int(y.sum()) for y in own]
    assert json.loads((out / "summary.json").read_text())["threshold"] == {"probability": 0.5, "chosen_on": None}
    assert any(quotes(r.getMessage(), "rates", "0.5") for r in caplog.records)
    damaged = (out / "paired.csv").read_text().splitlines()
    cells = damaged[1].split(",")
    damaged[1] = ",".join([*cells[:-1], str(10 * float(cells[-1]) + 1e6)])
    (out / "paired.csv").write_text("\n".join(damaged) + "\n")
    with refused("damaged-run"):
        gain_over_last(found)


def auc_of_the_last(out):
    with (out / "clients.csv").open(newline="") as file:
        return [float(row["last_auc"]) for row in csv.DictReader(file)]


@pytest.mark.long
def test_site_of_one_class_is_excluded_from_the_auc_and_named(tmp_path, caplog):
    train, test = clients()
    test["d"] = (test["d"][0], torch.zeros(15, dtype=torch.int64))
    sites = {name: Site(name, ClientData.from_arrays({name: train[name]}, {name: test[name]})) for name in "abcd"}
    caplog.set_level(logging.INFO, logger="drfl")
    path = settings(tmp_path, more='score = "auc"')
    out = server_app.serve(grid_of(load=lambda context: sites[context.node_config["name"]]), path)
    assert json.loads((out / "summary.json").read_text())["undefined"] == {"auc": 1}
    (notice,) = (r.msg for r in caplog.records if getattr(r.msg, "code", "") == "undefined-metric")
    assert (notice.field, notice.count("(d)")) == ("auc", 1)
    rounds = [r.getMessage() for r in caplog.records if ": round " in r.getMessage()]
    assert rounds
    assert all(undefined_note([1], [4]) in line for line in rounds)


@pytest.mark.long
def test_folder_gives_a_pdf_report(tmp_path):
    folder = server_app.serve(grid_of(), settings(tmp_path))
    (run,) = gather_evidence([load_run(folder)]).runs
    assert (run.is_deployed, run.data, run.shared) == (True, "", None)
    assert run.gain_over_last is not None
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "The returned model compared with the last iterate" in page
    assert "drfl deploy run" in page


class Dying(InProcessGrid):
    """Kill the server program at its n-th batch of messages."""

    left = 7

    def push_messages(self, messages):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return super().push_messages(messages)


class Leaving(InProcessGrid):
    """Site b goes offline at the first test that is sent without a request, which is the last one."""

    def push_messages(self, messages):
        messages = list(messages)
        if len(messages) == 4 and all(message.metadata.message_type == "evaluate" for message in messages):
            self.offline.add(2)
        return super().push_messages(messages)


@pytest.mark.long
def test_site_that_misses_the_last_test_has_no_result_in_any_file(tmp_path, caplog):
    out = server_app.serve(grid_of(grid=Leaving), settings(tmp_path))
    with (out / "clients.csv").open(newline="") as file:
        rows = {row["client"]: row for row in csv.DictReader(file)}
    assert [name for name, row in rows.items() if row["accuracy"] == "nan"] == ["b"]
    assert rows["b"]["accuracy_low"] == rows["b"]["accuracy_high"] == "nan"
    known = [float(row["accuracy"]) for name, row in rows.items() if name != "b"]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["final"]["avg_accuracy"] == pytest.approx(sum(known) / 3, abs=1e-6)
    with (out / "paired.csv").open(newline="") as file:
        assert {row["client"] for row in csv.DictReader(file)} == {"a", "c", "d"}
    (warning,) = [text for text in summary["warnings"] if text.startswith("b did not")]
    assert html.escape(warning)[:40] in (out / "report.html").read_text()
    assert ("site-untested", "b") in logged(caplog)
    assert call(["assess", str(out)]) == 0


def test_killed_server_resumes_to_the_same_bytes(tmp_path):
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    whole = server_app.serve(grid_of(), settings(tmp_path / "one"))
    with pytest.raises(KeyboardInterrupt):
        server_app.serve(grid_of(grid=Dying), settings(tmp_path / "two"))
    kept = tmp_path / "two" / "run" / "checkpoint"
    assert any(kept.glob("round-*"))
    again = server_app.serve(grid_of(), settings(tmp_path / "two"))
    assert different(results_in(again), results_in(whole)) == []
    traffic = [json.loads((folder / "traffic.json").read_text()) for folder in (again, whole)]
    assert [one["since_round"] for one in traffic] == [1, 0]


@pytest.mark.long
def test_finished_run_can_be_served_again_unchanged(tmp_path, caplog):
    out = server_app.serve(grid_of(), settings(tmp_path))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    caplog.clear()
    grid = grid_of()
    assert server_app.serve(grid, settings(tmp_path)) == out
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert dict(grid.count) == dict.fromkeys((1, 2, 3, 4), 2)  # its name, twice
    assert [r.msg.code for r in caplog.records if isinstance(r.msg, Notice)][-1] == "nothing-to-resume"


@pytest.mark.long
def test_finished_run_that_diverged_still_fails(tmp_path):
    path = settings(tmp_path, more="classes = 3")
    path.write_text(path.read_text().replace("lr = 0.05", "lr = 1e30"))
    for _ in range(2):
        with refused("loss-rose", "lr", kind=DivergedError):
            server_app.serve(grid_of(), path)


def test_resuming_with_changed_site_data_is_refused(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        server_app.serve(grid_of(grid=Dying), settings(tmp_path))
    sites = {name: site(name) for name in "abcd"}
    data = sites["b"].data
    object.__setattr__(data, "inputs", data.inputs + 1)
    grid = InProcessGrid(client_app(lambda context: sites[context.node_config["name"]]), [{"name": n} for n in "abcd"])
    with refused("other-run", "data", "'b'"):
        server_app.serve(grid, settings(tmp_path))


def test_sites_of_other_shapes_are_refused_by_name(tmp_path):
    sites = {name: site(name) for name in "abcd"}
    data = sites["c"].data
    object.__setattr__(data, "inputs", data.inputs[:, :5])
    object.__setattr__(data, "test_inputs", data.test_inputs[:, :5])
    grid = InProcessGrid(client_app(lambda context: sites[context.node_config["name"]]), [{"name": n} for n in "abcd"])
    with refused("sites-differ", "c", "(6,)", "'a'", "(5,)"):
        server_app.serve(grid, settings(tmp_path))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("dataset = 'mnist'", ("invalid-value", "job", "'dataset'")),
        ("alpha = 0.1", ("invalid-value", "job", "'alpha'")),
        ("algorithm = 'no'", ("damaged-file", None, "server.toml")),
        ("classes = 2", ("out-of-range", "classes", "2")),
        ("guards = ['probe']", ("unsupported-combination", "guard", "'peers'")),
        ("m = 3", ("unknown-name", "job.m")),
    ],
)
def test_impossible_job_is_a_one_line_error(tmp_path, more, error):
    path = settings(tmp_path, more=more)
    with refused(*error) as caught:
        server_app.serve(grid_of(), path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_keys_are_required_and_must_be_ecdsa(tmp_path):
    path = settings(tmp_path)
    path.write_text(path.read_text().replace("insecure = true", ""))
    with refused("invalid-value", None, "'a'", "public_key"):
        read_server(path)
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    (tmp_path / "a.pub").write_bytes(key.public_bytes(*openssh))
    assert session.read_registered_key(tmp_path / "a.pub").startswith(b"-----BEGIN PUBLIC KEY-----")
    (tmp_path / "b.pub").write_bytes(ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(*openssh))
    with refused("invalid-key", str(tmp_path / "b.pub")):
        session.read_registered_key(tmp_path / "b.pub")
    with refused("file-not-found"):
        session.read_registered_key(tmp_path / "c.pub")


def test_description_digest_covers_the_tensors():
    member, other = (SiteIdentity("a", (6,), 3, 30, 15, digest * 32) for digest in "01")
    assert not torch.equal(Sites((member,), ("a",)).tensors()[0], Sites((other,), ("a",)).tensors()[0])


class Dozing(InProcessGrid):
    """Make nodes 2 and 4 answer only some messages."""

    def answer(self, message, context):
        reply = super().answer(message, context)
        node, k = context.node_id, self.count[context.node_id]
        if (node, k % 3) in ((2, 1), (4, 2)) and k > 4:
            reply.metadata.__dict__["_reply_to_message_id"] = "nobody's"
        return reply


@pytest.mark.parametrize("algorithm", long_except(["FedAvg"], ["DualDRDM", "ScaffPD", "FedAvg"]))
@pytest.mark.long
def test_replaying_the_reply_list_gives_the_same_model(algorithm, tmp_path):
    path = settings(tmp_path, rounds=6, more="min_replies = 2\nengine = 'loop'\nstandardise = false").read_text()
    path = path.replace("wait = 0.05", "wait = 0.05\ngrace = 0.01").replace('"DualDRDM"', f'"{algorithm}"')
    # Test rows differ from training rows: with longer steps, SCAFF-PD's loss would end above the start.
    path = path.replace("lr = 0.05", "lr = 0.01")
    (tmp_path / "server.toml").write_text(path)
    out = server_app.serve(grid_of(grid=Dozing), tmp_path / "server.toml")
    rows = (out / "replies.csv").read_text().splitlines()[1:]
    assert any(len(row.split(",")[3].split()) < 4 for row in rows)
    config = read_server(tmp_path / "server.toml").job
    fed = simulation()
    inner = Replayed(config.build_algorithm(algorithm, 4), read_replies(out / "replies.csv"))
    found = drfl.run(wrap_algorithm(config, inner, None, None, None), fed, rounds=6)
    w = torch.cat([part.flatten() for part in drfl.load_model(out / "model.safetensors").weights.values()])
    assert torch.equal(w.sort().values, found.model.sort().values)
    last = (out / "lambda.csv").read_text().splitlines()[-1].split(",")[1:]
    assert [f"{x:.9f}" for x in found.lam.tolist()] == last


@pytest.mark.long
def test_checkpoint_key_is_relative_to_server_toml(tmp_path):
    path = settings(tmp_path, more='checkpoint_key = "../key"')
    with refused("file-not-found"):
        server_app.serve(None, path)  # before any site is asked
    (tmp_path.parent / "key").write_bytes(bytes(range(32)))
    with pytest.raises(KeyboardInterrupt):
        server_app.serve(grid_of(grid=Dying), path)
    kept = tmp_path / "run" / "checkpoint"
    assert all((folder / "HMAC-SHA256").is_file() for folder in kept.glob("round-*"))
    for folder in kept.glob("round-*"):
        (folder / "HMAC-SHA256").write_text("0" * 64 + "\n")
    with refused("damaged-checkpoint", "checkpoint_key"):
        server_app.serve(grid_of(), path)
    path.write_text(path.read_text().replace('checkpoint_key = "../key"', ""))
    server_app.serve(grid_of(), path)  # without a key, signatures are not checked


@pytest.mark.long
def test_checkpoints_cover_the_reply_list(tmp_path):
    (tmp_path / "key").write_bytes(bytes(range(32)))
    path = settings(tmp_path, more='checkpoint_key = "key"')
    with pytest.raises(KeyboardInterrupt):
        server_app.serve(grid_of(grid=Dying), path)
    replies = tmp_path / "run/checkpoint/replies.csv"
    data = replies.read_bytes()
    cut = data.index(b"\n1,") + 1
    for damage in (data.replace(b"1,train", b"1,trAin", 1), data[:cut], b"", None):
        replies.write_bytes(damage) if damage is not None else replies.unlink()
        with refused("file-not-found" if damage is None else "damaged-file"):
            server_app.serve(grid_of(), path)
    # Rows that no checkpoint covers are dropped, a forged one of an earlier round and a half-written one among them.
    replies.write_bytes(data + b"1,train,0000000000000000,0,1\n2,train,00")
    out = server_app.serve(grid_of(), path)
    lines = (out / "replies.csv").read_text().splitlines()
    assert "1,train,0000000000000000,0,1" not in lines
    assert [int(line.split(",")[0]) for line in lines[1:]] == [r for r in range(1, 5) for _ in ("train", "losses")]


def test_input_error_is_one_log_line_and_others_keep_tracebacks():
    def logged(error):
        record = logging.LogRecord("flwr", logging.ERROR, "", 1, "%s raised an exception", ("ServerApp",), None)
        record.exc_info = (type(error), error, None)
        assert server_app.shorten_traceback(record)
        return logging.Formatter().format(record)

    assert logged(InputError("give another 'out'")) == "InputError: give another 'out'"
    assert logged(ValueError("no")).splitlines() == ["ServerApp raised an exception", "ValueError: no"]


@pytest.mark.long
def test_sites_other_than_those_of_the_run_are_refused(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        server_app.serve(grid_of(grid=Dying), settings(tmp_path))
    path = settings(tmp_path)
    path.write_text(path.read_text().replace('[[sites]]\nname = "b"\n', "").replace("cohort = 4", "cohort = 3"))
    with refused("other-sites", "out") as caught:
        server_app.serve(None, path)  # before any site is asked
    assert "b" in str(caught.value)
    path.write_text(path.read_text().replace('"run"', '"again"'))
    with suppress(DivergedError):  # after its results are written
        server_app.serve(grid_of("acd"), path)
    path.write_text(path.read_text().replace("cohort = 3", "cohort = 2") + '[[sites]]\nname = "b"\n')
    with refused("other-sites", "out"):
        server_app.serve(None, path)
    assert (tmp_path / "again" / "summary.json").exists()


@pytest.mark.long
def test_requests_of_the_search_stay_within_the_stated_maximum(tmp_path, caplog):
    path = settings(tmp_path, rounds=1)
    path.write_text(path.read_text().replace("DualDRDM", "FedAvg").replace("lr = 0.05\n", ""))
    grid = grid_of()
    with caplog.at_level(logging.INFO, "drfl"):
        server_app.serve(grid, path)
    assert read_server(path).job.max_requests > 3 + 10
    assert 8 < max(grid.count.values()) <= read_server(path).job.max_requests
    assert any(quotes(record.getMessage(), str(REQUESTS)) for record in caplog.records)


def test_second_server_program_does_not_write_to_the_audit_log(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "LOCK_TIMEOUT", 0.0)
    path = settings(tmp_path)
    path.write_text('audit = "audit.jsonl"\n' + path.read_text())
    with session.lock_deployment(tmp_path), refused("folder-in-use", str(tmp_path)):
        server_app.serve(grid_of(), path)
    assert not (tmp_path / "audit.jsonl").exists()


@pytest.mark.parametrize("algorithm", long_except(["SCAFFOLD"], list(ALGORITHMS)))
@pytest.mark.long
def test_requests_per_site_stay_within_the_stated_maximum(tmp_path, algorithm):
    path = settings(tmp_path, rounds=8)
    path.write_text(path.read_text().replace("DualDRDM", algorithm))
    if algorithm in FULL_PARTICIPATION:
        path.write_text(path.read_text().replace("cohort = 4\n", ""))
    grid = grid_of()
    with suppress(DivergedError):  # some algorithms diverge with this step size, which does not matter here
        server_app.serve(grid, path)
    assert 8 < max(grid.count.values()) <= read_server(path).job.max_requests


@pytest.mark.parametrize(
    ("limits", "job", "warned"),
    [
        ("", "", 1),
        pytest.param("rows = 100", "", 0, marks=pytest.mark.long),
        pytest.param("max_share = 0.9", "", 0, marks=pytest.mark.long),
        pytest.param("classes = 3", "", 1, marks=pytest.mark.long),
        ("", 'aggregator = "geometric-median"', 0),
    ],
)
def test_unprotected_run_warns_once(tmp_path, caplog, limits, job, warned):
    path = settings(tmp_path, rounds=1, more=job)
    path.write_text(re.sub(r'(name = ".")', rf"\1\n{limits}", path.read_text()))
    server_app.serve(grid_of(), path)
    notices = [r.msg for r in caplog.records if isinstance(r.msg, Notice)]
    codes = [one.code for one in notices]
    assert (codes.count("unprotected-sites"), codes.count("insecure-deployment")) == (warned, 1)


def test_two_sites_give_no_protection_warning():
    job = {"rounds": 1}
    for count in (1, 2, 3):
        sites = [{"name": name} for name in "abc"[:count]]
        found = ServerSettings.model_validate({"insecure": True, "job": job, "sites": sites}).protection_notice()
        assert (found is not None) == (count > 2)
    limited = [{"name": "a", "rows": 3}, {"name": "b", "rows": 3}, {"name": "c"}]
    assert (
        ServerSettings.model_validate({"insecure": True, "job": job, "sites": limited}).protection_notice() is not None
    )


@pytest.mark.long
def test_rolled_back_deployment_is_reported(tmp_path, caplog, monkeypatch):
    set_back_once(monkeypatch, 0)
    path = settings(tmp_path, rounds=5)
    path.write_text(path.read_text().replace("lr = 0.05\n", ""))
    with caplog.at_level(logging.WARNING, "drfl"):
        out = server_app.serve(grid_of(), path)
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["rounds"], summary["rollbacks"], summary["effective_rounds"]) == (5, 1, 2)
    assert [getattr(record.msg, "code", None) for record in caplog.records].count("late-rollback") == 1
