"""Test that sites scale their columns by combined statistics, which the server sends with every message."""

import csv
from types import SimpleNamespace

import msgspec
import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import ArrayRecord
from tests.support.refusals import quotes, refused

import drfl
from drfl.core.key import Key
from drfl.data import ClientData, Column, TableSchema
from drfl.experiments.config.wrap import wrap_algorithm
from drfl.flower import nodes, server_app, transport
from drfl.flower.claims import standardisation_of
from drfl.flower.client_app import Site, client_app, identity
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import MOST_COLUMNS, Ask, ModelRecipe, SiteIdentity
from drfl.flower.records import ProtocolError, array_of, read, write
from drfl.flower.settings import read_server
from drfl.flower.site_data import load_site
from drfl.flower.site_task import task_of
from drfl.task.task import Task

from .conftest import with_field

SETTINGS = """
insecure = true
timeout = 5.0
wait = 0.05
[job]
algorithm = "{algorithm}"
rounds = {rounds}
seed = 1
checkpoint_every = 1
engine = "loop"
{more}
"""
SCALES = np.array([1e-3, 1.0, 100.0, 1e6])


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    for module in (nodes, transport):
        monkeypatch.setattr(module, "PAUSE", 0.001)


def frame(n=240, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 4))
    table = pd.DataFrame(z * SCALES + [0, 5, 900, 3e6], columns=list("wxyz"))
    return table.assign(site=rng.choice(list("abc"), n), ill=(z.sum(1) > 0).astype(int))


def written(folder, table):
    """Write a folder with a CSV and a site.toml for each site, and return the sites by name."""
    sites = {}
    for name, rows in table.groupby("site"):
        (folder / name).mkdir()
        rows.drop(columns="site").to_csv(folder / name / "rows.csv", index=False)
        path = folder / name / "site.toml"
        path.write_text(f'name = "{name}"\n[data]\ncsv = "rows.csv"\ntarget = "ill"\n')
        sites[name] = Site(name, load_site(path))
    return sites


def grid_of(sites, kind=InProcessGrid):
    app = client_app(lambda context: sites[context.node_config["name"]])
    return kind(app, [{"name": name} for name in sites])


def server(folder, names, more="", rounds=5, algorithm="FedAvg"):
    path = folder / "server.toml"
    sites = "".join(f'[[sites]]\nname = "{name}"\n' for name in names)
    path.write_text(SETTINGS.format(rounds=rounds, more=more, algorithm=algorithm) + sites)
    return path


def accuracies(out):
    with (out / "clients.csv").open() as file:
        return {row["client"]: float(row["accuracy"]) for row in csv.DictReader(file)}


@pytest.mark.parametrize("algorithm", [pytest.param("FedAvg", marks=pytest.mark.long), "DualDRDM"])
def test_tables_in_any_units_train_as_in_a_simulation(algorithm, tmp_path):
    sites = written(tmp_path, frame())
    path = server(tmp_path, sites, algorithm=algorithm)
    out = server_app.serve(grid_of(sites), path)
    data = ClientData.from_frame(frame(), group="site", target="ill")
    config = read_server(path).job
    with Key(1).fold("model").torch_scope():
        task = task_of(ModelRecipe("linear", "cross-entropy", "float32", 2), (4,))
    fed = drfl.Simulation(data, task, engine=drfl.engine.Loop())
    inner = config.build_algorithm(algorithm, 3)
    found = drfl.run(wrap_algorithm(config, inner, None, None, task), fed, rounds=5, seed=1)
    expected = dict(zip(data.names, found.evaluation.score.tolist(), strict=True))
    assert accuracies(out) == pytest.approx(expected, abs=1e-6)
    assert min(expected.values()) > 0.8
    saved = drfl.load_model(out / "model.safetensors")
    standardisation = saved.standardisation
    torch.testing.assert_close(standardisation.scale, data.standardisation.scale, rtol=1e-6, atol=0)
    task.model.load_state_dict(saved.weights)
    raw = ClientData.from_frame(frame(), group="site", target="ill", standardise=False)
    whole = Task(standardisation.before(task.model))
    scores = drfl.Simulation(raw, whole).evaluate(whole.w0).score.tolist()
    assert dict(zip(raw.names, scores, strict=True)) == pytest.approx(accuracies(out), abs=1e-6)


def test_standardisation_can_be_switched_off(tmp_path):
    sites = written(tmp_path, frame())
    for site in sites.values():  # small inputs, so that the run converges
        object.__setattr__(site.data, "inputs", site.data.inputs / torch.tensor(SCALES).float() / 100)
        object.__setattr__(site.data, "test_inputs", site.data.inputs)
    out = server_app.serve(grid_of(sites), server(tmp_path, sites, more="standardise = false", rounds=1))
    assert drfl.load_model(out / "model.safetensors").standardisation is None


def one(name, x, **options):
    y = torch.arange(len(x)) % 2
    return Site(name, ClientData.from_arrays({name: (x, y)}, {name: (x, y)}, **options))


def test_site_reports_only_its_training_rows():
    x = torch.arange(12.0).reshape(6, 2)
    pair = x, torch.tensor([0, 1, 1, 0, 1, 1])
    site = Site("a", ClientData.from_arrays({"a": pair}, {"a": (x * 100, pair[1])}))
    about = read(identity(site), SiteIdentity)
    moments = about.moments
    assert (about.majority, moments.count) == (pytest.approx(2 / 3), 6)
    assert moments.mean.tolist() == x.double().mean(0).tolist()
    assert moments.variance.tolist() == pytest.approx(x.double().var(0, correction=0).tolist())
    floats = Site("a", ClientData.from_arrays({"a": (x, x[:, 0])}, {"a": (x, x[:, 0])}))
    assert read(identity(floats), SiteIdentity).majority is None


@pytest.mark.parametrize(
    ("x", "options"),
    [
        (torch.ones(4, 1, 5, 5), {}),
        pytest.param(torch.ones(4, MOST_COLUMNS + 1), {}, marks=pytest.mark.long),
        (torch.ones(4, 3, dtype=torch.int64), {"dtype": None}),
    ],
)
def test_unsuitable_inputs_are_not_standardised_unless_requested(x, options, tmp_path, caplog):
    sites = {name: one(name, x, **options) for name in "ab"}
    members = {i: member(site) for i, site in enumerate(sites.values())}
    found, notices = standardisation_of(members, "ab", None)
    assert found is None
    assert [(n.code, n.field) for n in notices] == ([("not-standardised", "standardise")] if x.ndim == 2 else [])
    with refused("invalid-statistics", "a"):
        server_app.serve(grid_of(sites), server(tmp_path, sites, more="standardise = true"))
    assert not (tmp_path / "run").exists()


def member(site):
    return read(identity(site), SiteIdentity)


def tables(**changes):
    return {name: one(name, changes.get(name, torch.randn(20, 3, generator=torch.Generator().manual_seed(ord(name)))))
            for name in "abcd"}  # fmt: skip


class Lying(InProcessGrid):
    """The second site reports other column statistics."""

    told = None

    def answer(self, message, context):
        reply = super().answer(message, context)
        if self.told is not None and message.metadata.message_type == "query.identity" and context.node_id == 2:
            told = [array_of(torch.full((3,), value, dtype=torch.float64)) for value in self.told]
            reply.content["vectors"] = ArrayRecord({str(place): array for place, array in enumerate(told)})
        return reply


@pytest.mark.parametrize(("mean", "variance"), [(0, -1), (0, 1e300), (np.nan, 1)])
def test_impossible_statistics_are_refused_by_name(mean, variance, tmp_path):
    sites = tables()
    grid = grid_of(sites, Lying)
    grid.told = mean, variance
    with refused("invalid-statistics", "site 'b'", "'b'", "20", "column 1") as caught:
        server_app.serve(grid, server(tmp_path, sites))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_site_in_other_units_is_reported_and_limited():
    sites = tables(c=torch.randn(20, 3, generator=torch.Generator().manual_seed(9)) * torch.tensor([1, 1e6, 1]))
    members = dict(enumerate(map(member, sites.values())))
    found, (notice,) = standardisation_of(members, "abcd", None)
    assert 1 < float(found.scale[1]) < 4
    assert (notice.code, notice.field) == ("unit-mismatch", "c")
    assert quotes(notice, "1 column", "column 2")
    named = {client: msgspec.structs.replace(each, features=("u", "v", "w")) for client, each in members.items()}
    assert quotes(standardisation_of(named, "abcd", None)[1][0], "'v'")


class Dying(Lying):
    """Kill the server program once it has a checkpoint."""

    run_folder = None

    def push_messages(self, messages):
        if any(self.run_folder.glob("checkpoint/round-*")):
            raise KeyboardInterrupt
        return super().push_messages(messages)


@pytest.mark.long
@pytest.mark.parametrize("told", [None, (0.5, 2.0)])
def test_resumed_run_needs_the_same_statistics(told, tmp_path):
    sites = tables()
    path = server(tmp_path, sites)
    dying = grid_of(sites, Dying)
    dying.run_folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        server_app.serve(dying, path)
    grid = grid_of(sites, Lying)
    grid.told = told
    if told is None:
        (tmp_path / "other").mkdir()
        again = server_app.serve(grid, path)
        whole = server_app.serve(grid_of(sites), server(tmp_path / "other", sites))
        assert (again / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    else:
        with refused("other-run", "data"):
            server_app.serve(grid, path)


def test_site_must_not_standardise_itself():
    with refused("conflicting-options", "standardise", "'a'", "standardise=False"):
        one("a", torch.randn(6, 2), standardise=True)


def ask(**changes):
    by = ClientData.from_arrays([(torch.randn(6, 2), torch.arange(6) % 2)], standardise=True).standardisation
    model = ModelRecipe("linear", "cross-entropy", "float32", 2)
    return msgspec.structs.replace(Ask(0, model, torch.zeros(6), test=True, standardisation=by), **changes)


def test_messages_contain_mean_and_scale():
    sent = ask()
    found = read(write(sent), Ask).standardisation
    assert found.mean.equal(sent.standardisation.mean)
    assert found.scale.equal(sent.standardisation.scale)
    assert read(write(ask(standardisation=None)), Ask).standardisation is None


def test_second_model_for_a_test_has_the_same_type():
    assert read(write(ask(also=torch.ones(6))), Ask).also.tolist() == [1.0] * 6
    for wrong in (torch.ones(5), torch.ones(6).double()):
        content = write(ask(also=torch.ones(6), standardisation=None))
        content["vectors"] = ArrayRecord({**content["vectors"], "1": array_of(wrong)})
        with refused("protocol", None, "second model", kind=ProtocolError):
            read(content, Ask)
    with refused("protocol", None, "second model", kind=ProtocolError):
        read(with_field(write(ask(also=torch.ones(6))), "test", False), Ask)


@pytest.mark.parametrize(
    ("by", "quoted"),
    [
        ({"mean": [0.0, 0.0]}, ("standardisation", "scale")),
        ({"mean": [0.0, 0.0], "scale": [1.0]}, ("scale", "(1,)")),
        ({"mean": [0.0, 0.0], "scale": [1.0, 0.0]}, ("scales", "positive")),
        ({"mean": [0.0, float("nan")], "scale": [1.0, 1.0]}, ("means", "finite")),
        ({"mean": [0.0, 0.0], "scale": [1.0, 1.0], "more": [1.0]}, ()),
    ],
)
def test_message_with_another_standardisation_is_rejected(by, quoted):
    content = write(ask(standardisation=None))
    arrays = {str(place): array_of(torch.tensor(values).double()) for place, values in enumerate(by.values(), 1)}
    content["vectors"] = ArrayRecord({**content["vectors"], **arrays})
    with refused("protocol", None, *quoted, kind=ProtocolError):
        read(with_field(content, "standardisation", dict(zip(by, range(1, 9), strict=False))), Ask)


@pytest.mark.parametrize(
    "vectors",
    [
        (torch.zeros(2).double(),),
        (torch.zeros(2), torch.zeros(2)),
        (torch.zeros(3).double(), torch.zeros(3).double()),
        (torch.zeros(2).double(), torch.zeros(3).double()),
        (torch.zeros(2).double(), torch.zeros(2).double(), torch.zeros(2).double()),
    ],
)
def test_description_with_other_vectors_is_rejected(vectors):
    content = identity(one("a", torch.randn(6, 2)))
    content["vectors"] = ArrayRecord({str(place): array_of(value) for place, value in enumerate(vectors)})
    with refused("protocol", kind=ProtocolError):
        read(content, SiteIdentity)
    del content["vectors"]
    with refused("protocol", None, "records", kind=ProtocolError):
        read(content, SiteIdentity)


def test_majorities_are_known_if_all_sites_report_them():
    from drfl.flower.deployed_federation import FlowerFederation
    from drfl.flower.transport import Deadline

    members = {i: member(site) for i, site in enumerate(tables().values())}
    roster, model = SimpleNamespace(names=tuple("abcd")), ModelRecipe("linear", "cross-entropy", "float32", 2)

    def majority(found):
        return FlowerFederation(None, roster, found, model, torch.zeros(8), Deadline(1.0)).majority

    assert majority(members).tolist() == [0.5] * 4
    assert majority({**members, 2: msgspec.structs.replace(members[2], majority=None)}) is None


def with_gaps(folder, more=""):
    """Make three sites with a schema, one of which lacks a column; return the sites and the whole table."""
    whole = frame().rename(columns={"ill": "sick"})
    whole["sick"] = np.where(whole["sick"] == 1, "yes", "no")
    rng = np.random.default_rng(1)
    whole.loc[rng.random(len(whole)) < 0.2, "x"] = np.nan
    whole.loc[whole["site"] == "b", "z"] = np.nan
    columns = [Column(name, "number", missing=("",) if name in "xz" else ()) for name in "wxyz"]
    target = Column("sick", "yes/no", levels=("no", "yes"), role="target")
    schema = TableSchema((*columns, target, Column("site", "text", role="client")))
    sites = {}
    for name, rows in whole.groupby("site"):
        (folder / name).mkdir()
        order = list(rows.columns[::-1] if name == "c" else rows.columns)
        rows[order].to_csv(folder / name / "rows.csv", index=False)
        schema.write(folder / name / "schema.toml")
        path = folder / name / "site.toml"
        path.write_text(f'name = "{name}"\n[data]\ncsv = "rows.csv"\nschema = "schema.toml"\n')
        sites[name] = Site(name, load_site(path))
    return sites, whole, schema


@pytest.mark.long
def test_missing_values_are_imputed_as_in_a_simulation(tmp_path):
    sites, whole, schema = with_gaps(tmp_path)
    path = server(tmp_path, sites)
    out = server_app.serve(grid_of(sites), path)
    data = ClientData.from_frame(whole, schema=schema)
    with Key(1).fold("model").torch_scope():
        task = task_of(ModelRecipe("linear", "cross-entropy", "float32", 2), (6,))
    fed = drfl.Simulation(data, task, engine=drfl.engine.Loop())
    config = read_server(path).job
    inner = config.build_algorithm("FedAvg", 3)
    found = drfl.run(wrap_algorithm(config, inner, None, None, task), fed, rounds=5, seed=1)
    expected = dict(zip(data.names, found.evaluation.score.tolist(), strict=True))
    assert accuracies(out) == pytest.approx(expected, abs=1e-6)
    saved = drfl.load_model(out / "model.safetensors")
    torch.testing.assert_close(saved.standardisation.mean, data.standardisation.mean, rtol=1e-6, atol=1e-9)
    served = drfl.load_model(out / "model.safetensors", task.model).to_torch()
    raw = ClientData.from_frame(whole, schema=schema, standardise=False)
    assert torch.equal(served(raw.inputs).isnan().any(), torch.tensor(False))


def test_missing_values_require_standardisation(tmp_path):
    sites, _, _ = with_gaps(tmp_path)
    with refused("missing-values", "a", "'a'"):
        server_app.serve(grid_of(sites), server(tmp_path, sites, more="standardise = false"))


@pytest.mark.long
def test_server_writes_its_schema_into_the_model_file(tmp_path):
    sites, whole, schema = with_gaps(tmp_path)
    schema.write(tmp_path / "schema.toml")
    path = server(tmp_path, sites)
    path.write_text('schema = "schema.toml"\n' + path.read_text())
    out = server_app.serve(grid_of(sites), path)
    rows = whole.drop(columns="sick")
    of_digest = tmp_path / "digest"
    of_digest.mkdir()
    other = server_app.serve(grid_of(sites), server(of_digest, sites))
    with refused("needs-schema", "schema"):
        drfl.load_model(other / "model.safetensors").predict_proba(rows)
    expected = drfl.load_model(other / "model.safetensors", schema=schema).predict_proba(rows)
    assert np.array_equal(drfl.load_model(out).predict_proba(rows), expected)
    TableSchema(schema.columns[1:]).write(tmp_path / "other.toml")
    path.write_text(path.read_text().replace("schema.toml", "other.toml"))
    with refused("schema-differs", "a"):
        server_app.serve(grid_of(sites), path)
