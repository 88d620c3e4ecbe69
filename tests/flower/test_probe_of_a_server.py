"""Test a rule and a guard that judge each site by its own rows, which the server has."""

import json

import msgspec
import numpy as np
import pytest
import torch
from tests.support.refusals import refused

import drfl
from drfl.core.audit_log import read
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.data.standardisation import Standardisation, client_moments
from drfl.engine import Loop, Simulation
from drfl.experiments.config.wrap import wrap_algorithm
from drfl.federation.requests import TrainRequest
from drfl.flower import client_app as sites_end
from drfl.flower import server_app
from drfl.flower.settings import read_server
from drfl.resilience import Reason
from drfl.task.models import MODELS
from drfl.task.task import Task

from .conftest import clients, grid_of

HEAD = """
out = "run"
timeout = 5.0
wait = 0.05
insecure = true
audit = "audit.jsonl"
[job]
algorithm = "DualDRDM"
rounds = 5
cohort = 4
lr = 0.05
aggregator = "probe:rows=12"
"""


def deployment(folder, *, without=(), change=lambda name, x, y: (x, y), more=""):
    """Write a server.toml with the first 12 rows of each site as probes, except for some sites."""
    train, _ = clients()
    text = HEAD + more + '[job.algorithms.DualDRDM]\nsampling = "everybody"\nambiguity = "cvar:alpha=0.5"\n'
    for name, (x, y) in train.items():
        text += f'[[sites]]\nname = "{name}"\n'
        if name not in without:
            x, y = change(name, x[:12], y[:12])
            np.savez(folder / f"{name}.npz", train_inputs=x.numpy(), train_targets=y.numpy())
            text += f'probe = {{npz = "{name}.npz"}}\n'
    path = folder / "server.toml"
    path.write_text(text)
    return path


@pytest.fixture
def flipping(monkeypatch):
    """Make site b send w − (w_i − w)."""
    honest = sites_end.compute_answer

    def work(site, ask, request, memory):
        answer = honest(site, ask, request, memory)
        if site.name != "b" or not isinstance(request, TrainRequest):
            return answer
        return msgspec.structs.replace(answer, parts=tuple(2 * ask.w - part for part in answer.parts))

    monkeypatch.setattr(sites_end, "compute_answer", work)


@pytest.mark.long
def test_site_that_flips_signs_is_excluded_and_logged(tmp_path, flipping):
    out = server_app.serve(grid_of(), deployment(tmp_path))
    summary = json.loads((out / "summary.json").read_text())
    assert summary["left_out_rounds"]["b"] == 5
    used = [r["sites"] for r in read(tmp_path / "audit.jsonl").records if r["event"] == "used"]
    trained, losses = used[::2], used[1::2]
    assert len(trained) == len(losses) == 5
    assert not any("b" in names for names in (*trained, *losses))


@pytest.mark.long
def test_probe_equals_a_simulation_with_the_same_rows(tmp_path):
    train, test = clients()
    out = server_app.serve(grid_of(), path := deployment(tmp_path, more='engine = "loop"\n'))
    config = read_server(path).job
    data = ClientData.from_arrays(train, test)
    scaled = Standardisation.of(client_moments(data.inputs, data.train, tuple("abcd")))
    with Key(0).fold("model").torch_scope():
        task = Task(MODELS["linear"]((6,), 3))
    fed = Simulation(data.standardised(scaled), task, engine=Loop())
    held = ClientData.from_arrays({n: (x[:12], y[:12]) for n, (x, y) in train.items()}, test).standardised(scaled)
    inner = config.build_algorithm("DualDRDM", 4)
    found = drfl.run(wrap_algorithm(config, inner, None, held, task), fed, rounds=5)
    parts = drfl.load_model(out / "model.safetensors").weights
    w = torch.cat([parts[name].flatten() for name in task.layout.views(found.model)])
    assert torch.allclose(w, found.model, rtol=0, atol=1e-6)
    assert float((w - fed.w0).norm()) > 0.1


@pytest.mark.long
def test_out_of_proportion_reply_is_logged_with_its_reason(tmp_path, monkeypatch):
    honest = sites_end.compute_answer

    def huge(site, ask, request, memory):
        answer = honest(site, ask, request, memory)
        parts = tuple(part * 1e9 for part in answer.parts)
        return answer if site.name != "c" else msgspec.structs.replace(answer, parts=parts)

    monkeypatch.setattr(sites_end, "compute_answer", huge)
    path = deployment(tmp_path, without="abcd")
    path.write_text(path.read_text().replace('aggregator = "probe:rows=12"', ""))
    server_app.serve(grid_of(), path)
    records = read(tmp_path / "audit.jsonl").records
    rejected = [(r["site"], r["round"], r["what"], r["reason"]) for r in records if r["event"] == "rejected"]
    assert rejected[0] == ("c", 1, "train", Reason.OUT_OF_PROPORTION)
    assert {site for site, *_ in rejected} == {"c"}


WRONG = {
    "none": (
        {"without": "abcd"},
        ("unsupported-combination", "aggregator", "server.toml a 'probe'", "'geometric-median'"),
    ),
    "some": ({"without": "bc"}, ("invalid-value", None, "'b'")),
    "shape": ({"change": lambda name, x, y: (x[:, :5], y)}, ("wrong-shape", "probe", "(5,)", "(6,)")),
    "two shapes": ({"change": lambda name, x, y: (x[:, : 6 - (name == "c")], y)}, ("wrong-shape", "c")),
    "classes": ({"change": lambda name, x, y: (x, y + 7 * (name == "b"))}, ("out-of-range", "targets")),
}


@pytest.mark.long
def test_unused_probe_rows_are_refused(tmp_path):
    path = deployment(tmp_path)
    path.write_text(path.read_text().replace('aggregator = "probe:rows=12"', ""))
    with refused("invalid-value", None, "job.aggregator"):
        server_app.serve(grid_of(), path)
    path.write_text(path.read_text().replace("[job]\n", '[job]\nguards = ["probe"]\n'))
    server_app.serve(grid_of(), path)


@pytest.mark.parametrize(("how", "error"), WRONG.values(), ids=WRONG)
def test_unusable_probe_rows_are_refused_at_once(tmp_path, how, error):
    with refused(*error) as caught:
        server_app.serve(grid_of(), deployment(tmp_path, **how))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_missing_file_is_named(tmp_path):
    path = deployment(tmp_path)
    (tmp_path / "b.npz").unlink()
    with refused("file-not-found", str(tmp_path / "b.npz"), "b.npz"):
        server_app.serve(grid_of(), path)
