"""A small federation, simulated and behind an in-process grid."""

from pathlib import Path

import msgspec
import pytest
import torch
from flwr.app import ConfigRecord

from drfl.core.key import Key
from drfl.data import ClientData
from drfl.engine import Simulation
from drfl.flower import nodes
from drfl.flower.client_app import Site, client_app
from drfl.flower.closing import AuditedRun
from drfl.flower.deployed_federation import FlowerFederation
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import ModelRecipe
from drfl.flower.nodes import NameRoster, gather_members
from drfl.flower.session import Session
from drfl.flower.settings import ServerSettings
from drfl.flower.site_task import task_of
from drfl.flower.transport import Deadline
from drfl.task.models import MODELS
from drfl.task.task import Task

MODEL = ModelRecipe("linear", "cross-entropy", "float32", 3, "loop")
SIZES = (30, 18, 41, 12)


def arrays(n, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator) + seed
    return x, (x.sum(1) + torch.randn(n, generator=generator)).abs().long() % 3


def clients(names="abcd"):
    train = {name: arrays(size, seed) for seed, (name, size) in enumerate(zip(names, SIZES, strict=False))}
    test = {name: arrays(15, 10 + seed) for seed, name in enumerate(names)}
    return train, test


def simulation(**options):
    data = ClientData.from_arrays(*clients())
    with Key(0).fold("model").torch_scope():
        task = Task(MODELS["linear"]((6,), 3))
    from drfl.engine import Loop

    return Simulation(data, task, **{"engine": Loop(), **options})


def site(name, **options):
    train, test = clients()
    return Site(name, ClientData.from_arrays({name: train[name]}, {name: test[name]}), **options)


def grid_of(names="abcd", load=None, **kind):
    sites = {name: site(name) for name in names}
    app = client_app(load or (lambda context: sites[context.node_config["name"]]))
    return (kind.get("grid") or InProcessGrid)(app, [{"name": name} for name in names])


def federation(grid=None, names="abcd", timeout=5.0, w0=None, deadline=None, **model):
    grid = grid_of(names) if grid is None else grid
    roster, deadline = NameRoster(names), deadline or {}
    members = {client: member.identity for client, member in gather_members(grid, roster, 1.0, 5.0).items()}
    model = msgspec.structs.replace(MODEL, **model)
    if w0 is None:
        with Key(0).fold("model").torch_scope():
            w0 = task_of(model, (6,)).w0
    return FlowerFederation(grid, roster, members, model, w0, Deadline(timeout, **deadline))


def session_of(grid, roster, members, settings=None, folder=Path(), audit=None):
    settings = settings or ServerSettings.model_construct(timeout=5.0)
    return Session(grid, settings, folder, roster, members, AuditedRun(audit, grid, roster, settings.timeout))


def with_field(content, name, value):
    """Return a message with another value of one field; ``...`` removes it."""
    fields = {**msgspec.msgpack.decode(content["message"]["fields"]), name: value}
    kept = {name: value for name, value in fields.items() if value is not ...}
    content["message"] = ConfigRecord({**content["message"], "fields": msgspec.msgpack.encode(kept)})
    return content


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(nodes, "PAUSE", 0.01)


@pytest.fixture
def flower():
    return federation()
