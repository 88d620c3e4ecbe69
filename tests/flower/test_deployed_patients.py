"""Test that patients stay whole at deployed sites, and that intervals count patients as in a simulation."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from tests.support.marks import long_beyond
from tests.support.refusals import refused

import drfl
from drfl.core.key import Key
from drfl.data import ClientData, Column, TableSchema
from drfl.flower import nodes, server_app, transport
from drfl.flower.client_app import client_app
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import ModelRecipe
from drfl.flower.site import Site
from drfl.flower.site_data import load_site
from drfl.flower.site_task import task_of

SERVER = """
insecure = true
timeout = 5.0
wait = 0.05
[job]
algorithm = "FedAvg"
rounds = 3
seed = 1
engine = "loop"
"""


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    for module in (nodes, transport):
        monkeypatch.setattr(module, "PAUSE", 0.001)


def visits():
    """Make three sites with 40, 50 and 60 patients of one to five visits."""
    rng, parts = np.random.default_rng(3), []
    for site, patients in (("a", 40), ("b", 50), ("c", 60)):
        pid = np.repeat(np.arange(patients), rng.integers(1, 6, patients))
        dose = rng.normal(size=len(pid)) + rng.normal(size=patients)[pid]
        ill = np.where(dose + 0.5 * rng.normal(size=len(pid)) > 0, "yes", "no")
        parts.append(pd.DataFrame({"pid": [f"p{k:03}" for k in pid], "dose": dose.round(3), "ill": ill, "site": site}))
    return pd.concat(parts, ignore_index=True)


def deployed(folder, table, data):
    """Serve the sites, each with its table and these lines of [data] in its site.toml."""
    sites = {}
    for name, rows in table.groupby("site"):
        (folder / str(name)).mkdir(parents=True)
        rows.drop(columns="site").to_csv(folder / str(name) / "rows.csv", index=False)
        path = folder / str(name) / "site.toml"
        path.write_text(f'name = "{name}"\n[data]\ncsv = "rows.csv"\n{data}\n')
        sites[name] = Site(name, load_site(path))
    (folder / "server.toml").write_text(SERVER + "".join(f'[[sites]]\nname = "{name}"\n' for name in sites))
    app = client_app(lambda context: sites[context.node_config["name"]])
    grid = InProcessGrid(app, [{"name": name} for name in sites])
    return pd.read_csv(server_app.serve(grid, folder / "server.toml") / "clients.csv"), sites


@pytest.mark.parametrize("by_schema", long_beyond(1, [True, False]))
def test_deployment_keeps_patients_whole_like_a_simulation(by_schema, tmp_path):
    table = visits()
    schema = TableSchema(
        (
            Column("pid", "id", role="patient"),
            Column("dose", "number"),
            Column("ill", "yes/no", levels=("no", "yes"), role="target"),
        )
    )
    schema.write(tmp_path / "schema.toml")
    found, sites = deployed(
        tmp_path, table, 'schema = "../schema.toml"' if by_schema else 'target = "ill"\npatient = "pid"'
    )
    data = ClientData.from_frame(table, group="site", target="ill", patient="pid")
    for name, train, test in zip(data.names, data.train, data.test, strict=True):
        own = sites[name].data
        assert own.patient_counts(own.test).tolist() == [len(data.patients[test].unique())]
        assert not set(own.patients[own.train[0]].tolist()) & set(own.patients[own.test[0]].tolist())
        assert (len(own.train[0]), len(own.test[0])) == (len(train), len(test))
    with Key(1).fold("model").torch_scope():
        task = task_of(ModelRecipe("linear", "cross-entropy", "float32", 2), (1,))
    fed = drfl.Simulation(data, task, engine=drfl.engine.Loop())
    assert found["largest_patient"].tolist() == fed.row_counts_of_largest_patients().tolist()
    assert found["largest_patient"].max() > 1
    assert (found["samples"] > found["largest_patient"]).all()
    low, high = found["accuracy_low"].to_numpy(), found["accuracy_high"].to_numpy()
    without, _ = deployed(tmp_path / "rows", table.drop(columns="pid"), 'target = "ill"')
    assert "largest_patient" not in without
    assert (high - low > 1.2 * (without["accuracy_high"] - without["accuracy_low"]).to_numpy()).all()


def test_patient_column_must_exist_and_agree_with_the_schema(tmp_path):
    visits().drop(columns="site").to_csv(tmp_path / "a.csv", index=False)
    path = tmp_path / "site.toml"

    def load(data):
        path.write_text(f'name = "a"\n[data]\n{data}\n')
        return load_site(path)

    with refused("unknown-name", "patient", "pid"):
        load('csv = "a.csv"\ntarget = "ill"\npatient = "pit"')
    with refused("conflicting-options", "patient", "'pid'"):
        load('csv = "a.csv"\ntest_csv = "a.csv"\ntarget = "ill"\npatient = "pid"')
    columns = (Column("pid", "id"), Column("dose", "number"))
    TableSchema((*columns, Column("ill", "yes/no", levels=("no", "yes"), role="target"))).write(tmp_path / "s.toml")
    with refused("conflicting-options", "patient", "'pid'"):
        load('csv = "a.csv"\nschema = "s.toml"\npatient = "pid"')
    with refused("invalid-value", None, "patient"):
        load('npz = "a.npz"\npatient = "pid"')
