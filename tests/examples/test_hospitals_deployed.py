"""Test the hospitals' deployment with the sites in this process, against the simulation."""

from __future__ import annotations

import json
from types import SimpleNamespace

import deployment
import pytest
import simulate
import tomli_w
import torch
from prepare import parts
from tests.support.marks import long_beyond

import drfl
from drfl.data import ClientData
from drfl.experiments.config.build import build
from drfl.flower import nodes, server_app, transport
from drfl.flower.client_app import Site, client_app
from drfl.flower.in_process import InProcessGrid
from drfl.flower.settings import DeployedConfig


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    for module in (nodes, transport):
        monkeypatch.setattr(module, "PAUSE", 0.01)


class Here:
    """A stand-in for the trial: the same files, with the sites in this process."""

    def __init__(self, folder, names, data):
        self.folder, self.names = folder, names
        sites = {}
        for name, arrays in parts(data).items():
            train, test = (
                tuple(torch.from_numpy(arrays[f"{rows}_{kind}"]) for kind in ("inputs", "targets"))
                for rows in ("train", "test")
            )
            sites[name] = Site(name, ClientData.from_arrays({name: train}, {name: test}))
        load = client_app(lambda context: sites[str(context.node_config["name"])])
        self.grid = InProcessGrid(load, [{"name": name} for name in names])

    def job(self, out, **job):
        settings = {"out": out, "insecure": True, "job": job, "sites": [{"name": name} for name in self.names]}
        (self.folder / "server.toml").write_text(tomli_w.dumps(settings))

    def run(self):
        server_app.serve(self.grid, self.folder / "server.toml")
        return 0, ""


@pytest.mark.parametrize(
    ("model", "algorithm"), long_beyond(1, [("linear", "FedAvg"), ("linear", "DRFA"), ("mlp", "DualDRDM")])
)
def test_deployed_run_equals_the_simulated_one(model, algorithm, tmp_path):
    config = deployment.configured(model, algorithm, seed=0, rounds=2)
    data = build(config).data
    found = deployment.deployed(Here(tmp_path, data.names, data), config)
    assert found.apart["model"] == 0
    assert max(found.apart.values()) < deployment.TOLERANCE
    assert [site.site for site in found.sites] == list(data.names)
    assert found.exchanges > 0
    assert "0" in deployment.differences([found])


@pytest.mark.long
def test_different_model_is_detected(tmp_path, monkeypatch):
    config = deployment.configured("linear", "FedAvg", seed=0, rounds=1)
    data = build(config).data
    other = drfl.run(drfl.FedAvg(m=1), build(config).fed, rounds=1, seed=7)
    monkeypatch.setattr(deployment, "simulated", lambda job: other._replace(lam=torch.full((4,), 0.25)))
    found = deployment.deployed(Here(tmp_path, data.names, data), config)
    assert min(found.apart[name] for name in ("model", "λ", "intervals")) > deployment.TOLERANCE


def test_failed_run_ends_the_script(tmp_path):
    trial = SimpleNamespace(folder=tmp_path, job=lambda out, **job: None, run=lambda: (1, "site b: no data"))
    with pytest.raises(SystemExit, match="no data"):
        deployment.deployed(trial, deployment.configured("linear", "FedAvg", 0, 1))


@pytest.mark.parametrize("model", simulate.MODELS)
def test_job_has_the_simulations_parameters(model):
    for algorithm in deployment.ALGORITHMS:
        config = deployment.configured(model, algorithm, seed=3, rounds=7)
        there = DeployedConfig.model_validate(deployment.job_of(config))
        assert there.parameters(algorithm) == config.parameters(algorithm)
        for name in ("seed", "rounds", "model", "engine", "loss", "dtype"):
            assert getattr(there, name) == getattr(config, name)


def test_results_are_written(tmp_path):
    scores = simulate.scores(simulate.np.array([0.2, 0.9]), simulate.np.array([0, 1]))
    site = simulate.Site("linear", "FedAvg", 0, "Cleveland", 2, 1, scores, 0.1, 0.2, 1.0)
    one = deployment.Run("linear", "FedAvg", [site], {"model": 0.0, "λ": 4e-10}, 12.0, 3)
    page = deployment.write([one], {"rounds": 1}, tmp_path)
    assert "| linear, FedAvg | 0 | 4e-10 | 3 | 4.0 |" in page
    assert json.loads((tmp_path / "deployed.json").read_text())["runs"][0]["apart"] == {"model": 0.0, "λ": 4e-10}
    assert len((tmp_path / "deployed.csv").read_text().splitlines()) == 2
