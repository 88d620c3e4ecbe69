"""Test a site's data from each kind of file, and one-line errors."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Message, RecordDict
from tests.support.refusals import refused

from drfl.data.datasets.formats import write_idx
from drfl.data.tables.schema import Column, TableSchema
from drfl.flower.client_app import HungError, Site, app, identity, run_within, site_of
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import Ask, AskIdentity, LossWork, ModelRecipe, SiteIdentity
from drfl.flower.records import read, write
from drfl.flower.site_data import load_site
from drfl.flower.site_task import task_of

X = np.arange(40, dtype=np.float32).reshape(10, 4)
Y = np.arange(10) % 2


def site(folder, data, more=""):
    path = folder / "site.toml"
    path.write_text(f'name = "a"\n{more}\n[data]\n{data}\n')
    return path


def test_npz_with_test_rows_is_used_unchanged(tmp_path):
    np.savez(tmp_path / "a.npz", train_inputs=X, train_targets=Y, test_inputs=X[:3], test_targets=Y[:3])
    data = load_site(site(tmp_path, 'npz = "a.npz"'))
    assert (data.n, data.names) == (1, ("a",))
    assert torch.equal(data.inputs[data.train[0]], torch.from_numpy(X))
    assert data.test_targets[data.test[0]].tolist() == Y[:3].tolist()


def test_test_rows_are_drawn_if_none_are_given(tmp_path):
    np.savez(tmp_path / "a.npz", train_inputs=X, train_targets=Y)
    data = load_site(site(tmp_path, 'npz = "a.npz"\ntest_fraction = 0.4'))
    assert (len(data.train[0]), len(data.test[0])) == (6, 4)


def test_table_uses_target_name_and_dtype_of_the_site(tmp_path):
    rows = "\n".join(f"{a},{y},{b}" for a, b, y in zip(X[:, 0], X[:, 1], Y, strict=True))
    (tmp_path / "a.csv").write_text(f"age,ill,dose\n{rows}\n")
    data = load_site(site(tmp_path, 'csv = "a.csv"\ntarget = "ill"', 'dtype = "float64"'))
    assert data.inputs.dtype == torch.float64
    assert sorted(data.inputs[:, 1].tolist()) == sorted(X[:, 1].tolist())
    assert data.targets.dtype == torch.int64


def test_idx_images_are_scaled_to_one(tmp_path):
    write_idx(tmp_path / "x", np.full((10, 3, 2), 255, dtype=np.uint8))
    write_idx(tmp_path / "y", Y.astype(np.uint8))
    data = load_site(site(tmp_path, 'images = "x"\nlabels = "y"'))
    assert data.inputs.shape[1:] == (1, 3, 2)
    assert float(data.inputs.max()) == 1.0


def test_loader_is_searched_beside_the_file(tmp_path):
    (tmp_path / "own_loader.py").write_text(
        "import torch\nfrom drfl.data import ClientData\n"
        "def load():\n    return ClientData.from_arrays({'a': (torch.ones(5, 2), torch.arange(5) % 2)})\n"
        "def two():\n    return ClientData.from_arrays([(torch.ones(5, 2), torch.arange(5) % 2)] * 2)\n"
    )
    assert load_site(site(tmp_path, 'loader = "own_loader:load"')).n == 1
    with refused("wrong-type", "loader", "drfl.data.ClientData"):
        load_site(site(tmp_path, 'loader = "own_loader:two"'))


def test_table_is_read_as_by_the_command(tmp_path):
    (tmp_path / "a.tsv").write_text("age\till\n" + "1,5\tno\n2,5\tyes\n" * 5)
    (tmp_path / "b.csv").write_text("ill,age\nyes,7\n")
    data = load_site(site(tmp_path, 'csv = "a.tsv"\ntest_csv = "b.csv"\ntarget = "ill"'))
    assert (data.columns, data.classes) == (("age",), ("no", "yes"))
    assert data.inputs[:, 0].tolist() == [1.5, 2.5] * 5
    assert (data.test_inputs.tolist(), data.test_targets.tolist()) == ([[7]], [1])
    assert [notice.code for notice in data.notices] == ["table-format"]
    numbers = site(tmp_path, 'csv = "a.tsv"\ntarget = "age"\ntask = "regression"')
    with refused("not-a-number", "ill", "a.tsv"):
        load_site(numbers)
    (tmp_path / "a.tsv").write_text("age\tdose\n1.5\t1\n2.5\t2\n")
    assert load_site(numbers).targets.tolist() == [1.5, 2.5]


@pytest.mark.parametrize("words", [("0", "1"), ("0.0", "1.0"), ("False", "True"), ("FALSE", "TRUE")])
def test_classes_do_not_depend_on_the_notation_of_0_and_1(tmp_path, words):
    (tmp_path / "a.csv").write_text("age,ill\n" + "".join(f"{k},{words[k % 2]}\n" for k in range(8)))
    data = load_site(site(tmp_path, 'csv = "a.csv"\ntarget = "ill"'))
    assert (data.classes, data.targets.tolist()) == (("0", "1"), [0, 1] * 4)


def test_rare_class_names_stay_at_the_site(tmp_path):
    rows = "".join(f"{k},{'yes' if k % 2 else 'no'}\n" for k in range(20))
    (tmp_path / "a.csv").write_text("age,ill\n" + rows + "70,Gaucher\n" * 4)
    path = site(tmp_path, 'csv = "a.csv"\ntarget = "ill"')
    with refused("rare-levels", "ill", "a.csv") as caught:
        load_site(path)
    assert "Gaucher" not in str(caught.value)
    (tmp_path / "a.csv").write_text("age,ill\n" + rows + "70,Gaucher\n" * 5)
    assert load_site(path).classes == ("Gaucher", "no", "yes")


def test_unreadable_cells_stay_at_the_site(tmp_path, caplog):
    (tmp_path / "a.csv").write_text("age,ill\n" + "1,0\n2,1\n" * 6 + "Smith,1\n")
    path = site(tmp_path, 'csv = "a.csv"\ntarget = "ill"')
    context = SimpleNamespace(node_config={"site": str(path)})
    with refused("not-a-number", "a") as caught:
        site_of(context)
    assert "Smith" not in str(caught.value)
    assert caught.value.__suppress_context__
    assert "a.csv, line 14" in caplog.text
    assert "'Smith'" in caplog.text
    (tmp_path / "own_loader2.py").write_text("def load():\n    raise KeyError('Smith')\n")
    path.write_text('name = "b"\n[data]\nloader = "own_loader2:load"\n')
    with refused("site-failed", "b") as caught:
        site_of(context)
    assert "Smith" not in str(caught.value)


SECRET = "Ward 7"


@pytest.mark.parametrize(
    ("more", "kinds", "code"),
    [
        (f'timeout = "{SECRET}"', ["identity", "train", "closing"], "invalid-value"),
        (f'policy.approved = "{SECRET}"', ["identity", "train", "closing"], "not-a-file"),
        (f'policy.shared_rows_key = "{SECRET}/key"', ["identity"], "file-not-found"),
        (f'server_key = "{SECRET}/key"', ["identity", "train", "closing"], "file-not-found"),
        (f'audit = "audit"\nkey = "{SECRET}/key"', ["identity", "train", "closing"], "file-not-found"),
        (f'audit = "{SECRET}"', ["identity", "train", "closing"], "audit-log"),
        ("", ["train"], "out-of-range"),  # a label is out of range for the server's model
    ],
)
def test_only_codes_of_errors_leave_the_site(tmp_path, more, kinds, code):
    folder = tmp_path / SECRET
    (folder / SECRET).mkdir(parents=True)
    np.savez(folder / "a.npz", train_inputs=X, train_targets=np.arange(10) % 3)
    recipe = ModelRecipe("linear", "cross-entropy", "float32", 2, "loop")
    contents = {
        "identity": ("query.identity", write(AskIdentity())),
        "train": ("train", write(Ask(0, recipe, task_of(recipe, (4,)).w0, work=LossWork(0, (1,), None)))),
        "closing": ("query.closing", RecordDict()),
    }
    grid = InProcessGrid(app, [{"site": str(site(folder, 'npz = "a.npz"', more))}])
    for kind, content in map(contents.get, kinds):
        (reply,) = grid.pull_messages(grid.push_messages([Message(content, 1, kind, ttl=9)]))
        assert f"({code})" in reply.error.reason
        assert SECRET not in reply.error.reason


def test_timeout_of_a_loader_is_not_that_of_a_request(tmp_path):
    (tmp_path / "own_loader3.py").write_text("def load():\n    raise TimeoutError('no answer of db01')\n")
    path = tmp_path / "site.toml"
    path.write_text('name = "b"\n[data]\nloader = "own_loader3:load"\n')
    with refused("site-failed", "b") as caught:
        site_of(SimpleNamespace(node_config={"site": str(path)}))
    assert "db01" not in str(caught.value)


def test_table_with_a_schema(tmp_path):
    columns = (
        Column("sex", "category", levels=("f", "m")),
        Column("age", "number", missing=("",)),
        Column("ill", "yes/no", levels=("no", "yes"), role="target"),
    )
    TableSchema(columns).write(tmp_path / "schema.toml")
    (tmp_path / "a.csv").write_text("age,sex,ill\n1,f,no\n,m,no\n3,f,no\n4,m,no\n")
    data = load_site(site(tmp_path, 'csv = "a.csv"\nschema = "schema.toml"'))
    assert (data.columns, data.classes) == (("sex_m", "age", "age missing"), ("no", "yes"))
    assert data.schema == TableSchema(columns)
    assert data.inputs[:, 1].isnan().tolist() == [False, True, False, False]
    told = read(identity(Site("a", data)), SiteIdentity)
    assert (told.features, told.schema, told.classes) == (data.columns, data.schema.digest, 2)
    assert told.class_names == ("no", "yes")
    assert told.counts[1] == len(data.train[0]) - int(data.inputs[data.train[0], 1].isnan().sum())
    with refused("conflicting-options", "target"):
        load_site(site(tmp_path, 'csv = "a.csv"\nschema = "schema.toml"\ntarget = "sex"'))
    (tmp_path / "a.csv").write_text("age,sex,ill\nold,f,no\n")
    with refused("not-a-number", "age", "a.csv, line 2", "'old'"):
        load_site(site(tmp_path, 'csv = "a.csv"\nschema = "schema.toml"'))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ("", ("invalid-value", "data")),
        ('npz = "a.npz"\ncsv = "a.csv"', ("invalid-value", "data")),
        ('csv = "a.csv"', ("invalid-value", "data", "'csv'", "'target'")),
        ('images = "x"', ("invalid-value", "data", "'images'", "'labels'")),
        ('npz = "none.npz"', ("file-not-found", None, "none.npz")),
        ('npz = "text.csv"', ("damaged-file", None, "text.csv")),
        ('npz = "half.npz"', ("missing-column",)),
        ('npz = "empty.npz"', ("missing-column", None, "train_inputs")),
        ('csv = "text.csv"\ntarget = "ill"', ("not-a-number", "who")),
        ('csv = "text.csv"\ntarget = "no"', ("unknown-name", "target", "'no'")),
        ('csv = "blank.csv"\ntarget = "ill"', ("missing-values", "age", "blank.csv, line 3")),
        ('npz = "a.npz"\nschema = "s.toml"', ("invalid-value", "data", "'schema'", "'csv'")),
        ('loader = "no_such_module:load"', ("unknown-name", "loader")),
        ('loader = "json:no"', ("unknown-name", "loader")),
        ('loader = ""', ("unknown-name", "loader")),
        ('loader = "time:time"', ("wrong-type", "loader", "drfl.data.ClientData")),
        ("what = 3", ("unknown-name", "data.what")),
    ],
)
def test_unavailable_data_are_one_line_errors(tmp_path, data, error):
    (tmp_path / "text.csv").write_text("who,ill\nx,1\ny,0\n")
    (tmp_path / "blank.csv").write_text("age,ill\n1,1\n,0\n")
    np.savez(tmp_path / "half.npz", train_inputs=X, train_targets=Y, test_inputs=X)
    np.savez(tmp_path / "empty.npz", x=X)
    with refused(*error) as caught:
        load_site(site(tmp_path, data))
    assert "\n" not in str(caught.value)


def test_missing_file_and_invalid_toml_are_one_line_errors(tmp_path):
    with refused("file-not-found"):
        load_site(tmp_path / "site.toml")
    (tmp_path / "site.toml").write_text("[[")
    with refused("damaged-file"):
        load_site(tmp_path / "site.toml")


def test_watchdog_ends_hanging_requests_only():
    assert run_within(5.0, lambda: 3) == 3
    with pytest.raises(KeyError):
        run_within(5.0, lambda: {}["x"])
    import threading

    stop = threading.Event()
    with pytest.raises(HungError, match=r"0\.05"):
        run_within(0.05, stop.wait)
    stop.set()


def test_patients_of_a_schema_stay_whole_at_a_site(tmp_path):
    columns = (
        Column("age", "number"),
        Column("ill", "yes/no", levels=("no", "yes"), role="target"),
        Column("pid", "whole number", role="patient"),
    )
    TableSchema(columns).write(tmp_path / "schema.toml")
    rows = "".join(f"{k},{('no', 'yes')[k % 2]},{k // 4}\n" for k in range(40))
    (tmp_path / "a.csv").write_text("age,ill,pid\n" + rows)
    data = load_site(site(tmp_path, 'csv = "a.csv"\nschema = "schema.toml"'))
    assert data.patient_counts(data.test).tolist() == [2]
    assert data.patient_counts(data.train).tolist() == [8]
    with refused("conflicting-options", "patient", "'pid'"):
        load_site(site(tmp_path, 'csv = "a.csv"\ntest_csv = "a.csv"\nschema = "schema.toml"'))


@pytest.mark.parametrize("blank", ["chol", "ward"])
def test_site_sends_blank_columns_and_a_single_class(tmp_path, blank):
    columns = (
        Column("chol", "number", missing=("",)),
        Column("ward", "category", levels=("I", "II"), missing=("",)),
        Column("ill", "yes/no", levels=("no", "yes"), role="target"),
    )
    TableSchema(columns).write(tmp_path / "schema.toml")
    rows = pd.DataFrame({"chol": np.arange(60) % 7 + 0.5, "ward": ["I", "II"] * 30, "ill": "no"})
    rows.assign(**{blank: None}).to_csv(tmp_path / "a.csv", index=False)
    data = load_site(site(tmp_path, 'csv = "a.csv"\nschema = "schema.toml"'))
    warnings = read(identity(Site("a", data)), SiteIdentity).warnings
    assert {("one-class-test", ""), ("blank-column", blank)} <= {(each.code, each.column) for each in warnings}
