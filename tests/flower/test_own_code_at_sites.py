"""Test the user's own models, losses and metrics in a deployment, approved by digest at every site."""

import csv
import hashlib
import json
import uuid

import pytest
import torch
from tests.support.marks import long_except
from tests.support.refusals import logged, refused

from drfl.core.errors import DrflError
from drfl.data.model_file import read_model_file
from drfl.flower import server_app
from drfl.flower.client_app import client_app
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import CodeFile, ModelRecipe
from drfl.flower.records import ProtocolError, read, write
from drfl.flower.server_tasks import carry_out
from drfl.flower.site_policy import RefusedError, SitePolicy
from drfl.flower.site_task import task_of

from .conftest import site
from .test_delivery import request
from .test_server_app import settings

CODE = """
import torch
from {helper} import width

def net(shape, classes):
    return torch.nn.Sequential(torch.nn.Linear(shape[0], width), torch.nn.Tanh(), torch.nn.Linear(width, classes))

def loss(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)

def top_two(outputs, targets):
    return (outputs.topk(2, 1).indices == targets[:, None]).any(1).double().mean()
"""
HELPER = "width = 4\n"
JOB = 'model = "own/net.py:net"\nloss = "own/net.py:loss"\nmetrics = ["own/net.py:top_two"]\nengine = "loop"'


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def helper():
    """Return the name of a module that no test in this process has imported."""
    return f"helper_{uuid.uuid4().hex}"


def with_code(folder, helper, more=""):
    (folder / "own").mkdir(parents=True, exist_ok=True)
    (folder / "own/net.py").write_text(CODE.replace("{helper}", helper) + more)
    (folder / f"own/{helper}.py").write_text(HELPER)


def approved(helper):
    return {"own/net.py": sha(CODE.replace("{helper}", helper)), f"own/{helper}.py": sha(HELPER)}


def grid_with(folder, helper, policy, more=""):
    """Make a grid of four sites with their own copies of the code."""
    with_code(folder, helper)
    sites = {}
    for name in "abcd":
        with_code(folder / name, helper, more)
        sites[name] = site(name, folder=folder / name, policy=SitePolicy(code=policy, receive_models="any"))
    return InProcessGrid(client_app(lambda c: sites[c.node_config["name"]]), [{"name": name} for name in "abcd"])


def deployed(folder, helper, policy, more="", before=""):
    grid = grid_with(folder, helper, policy, more)
    path = settings(folder, rounds=2, more=JOB)
    path.write_text(before + path.read_text())
    return server_app.serve(grid, path)


def test_sites_train_and_receive_models_of_approved_code(tmp_path, helper):
    out = deployed(tmp_path, helper, approved(helper), before="deliver = true\n")
    assert set(json.loads((out / "delivery.json").read_text())["sites"].values()) == {"received"}
    summary = json.loads((out / "summary.json").read_text())
    assert summary["model_parameters"] == 6 * 4 + 4 + 4 * 3 + 3
    assert [measure["name"] for measure in summary["measures"]] == ["accuracy", "top_two"]
    header, *rows = (out / "clients.csv").read_text().splitlines()
    scores = [float(row.split(",")[header.split(",").index("top_two")]) for row in rows]
    assert all(0 < score <= 1 for score in scores)


@pytest.mark.parametrize(("length", "is_sent"), [(128, True), (129, False)])
def test_one_limit_for_the_length_of_references(tmp_path, helper, length, is_sent):
    name = "a" * (length - len("own/net.py:"))
    more = f"\n{name} = loss\n"
    policy = {**approved(helper), "own/net.py": sha(CODE.replace("{helper}", helper) + more)}
    grid = grid_with(tmp_path, helper, policy, more)
    with_code(tmp_path, helper, more)
    path = settings(tmp_path, rounds=1, more=JOB.replace("net.py:loss", f"net.py:{name}"))
    if is_sent:
        server_app.serve(grid, path)
        return
    with refused("invalid-name", "job"):
        server_app.serve(grid, path)
    assert not grid.count  # before any site is asked


@pytest.mark.long
def test_messages_name_no_folder_of_the_server(tmp_path, helper, monkeypatch):
    sent, push = [], InProcessGrid.push_messages

    def recorded(grid, messages):
        messages = list(messages)
        for message in messages:
            sent.extend(value for record in message.content.values() for value in contents_of(record))
        return push(grid, messages)

    monkeypatch.setattr(InProcessGrid, "push_messages", recorded)
    out = deployed(tmp_path, helper, approved(helper), before="deliver = true\n")
    module = read_model_file(out / "model.safetensors").about["module"]
    assert module["reference"] == "own/net.py:net"
    assert module["sha256"] == approved(helper)
    assert any(b"own/net.py" in value for value in sent)
    assert not any(str(tmp_path).encode() in value for value in sent)


def contents_of(record):
    """Yield all bytes in a record of a message."""
    for value in record.values():
        if isinstance(value, bytes):
            yield value
        elif isinstance(value, str):
            yield value.encode()
        elif hasattr(value, "data"):
            yield value.data


@pytest.mark.parametrize(
    "case",
    long_except(["no helper", "other file"], ["nothing", "no helper", "other digest", "other file"]),
)
def test_site_executes_only_approved_code(tmp_path, caplog, helper, case):
    whole = approved(helper)
    policy = {
        "nothing": {},
        "no helper": {"own/net.py": whole["own/net.py"]},
        "other digest": {**whole, "own/net.py": "0" * 64},
    }.get(case, whole)
    more = "\nraise SystemExit('this must not run')\n" if case == "other file" else ""
    with refused("site-untested"):
        deployed(tmp_path, helper, policy, more)
    texts = [record.getMessage() for record in caplog.records]
    assert any("own/" in text and "approved" in text for text in texts)
    assert not any("must not run" in text for text in texts)
    assert ("reply-failed", "a") in logged(caplog)


@pytest.mark.long
def test_own_models_are_evaluated_like_their_run(tmp_path, helper):
    grid = grid_with(tmp_path, helper, approved(helper))
    path = settings(tmp_path, rounds=2, more=JOB)
    out = server_app.serve(grid, path)
    for name in "ab":  # two copies, so that equal models are compared
        (tmp_path / f"{name}.safetensors").write_bytes((out / "model.safetensors").read_bytes())
    place = request(tmp_path, "evaluate", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    carry_out(grid, path, place)
    found = json.loads((place / "evaluation.json").read_text())
    assert [measure["name"] for measure in found["measures"]] == ["accuracy", "top_two"]
    with (out / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, tested in zip(rows, found["models"][0]["sites"], strict=True):
        own = [float(row[name]) for name in ("accuracy", "loss", "top_two", "accuracy_low", "accuracy_high")]
        assert [tested[name] for name in ("accuracy", "loss", "top_two", "low", "high")] == pytest.approx(own, abs=2e-6)
    (gain,) = found["gains"]
    assert [site["gain"] for site in gain["sites"]] == [0, 0, 0, 0]


@pytest.mark.long
def test_evaluation_needs_code_named_by_server_and_approved_by_site(tmp_path, helper):
    model = deployed(tmp_path, helper, approved(helper)) / "model.safetensors"
    # sites that have not approved the code refuse the test
    path = settings(tmp_path, more=JOB)
    with refused("site-untested", kind=DrflError):
        carry_out(grid_with(tmp_path, helper, {}), path, request(tmp_path, "evaluate", model))
    # the code must have the digest and name in the model file, even if the job has another model
    grid = grid_with(tmp_path, helper, approved(helper))
    code = tmp_path / "own/net.py"
    for number, job in enumerate((JOB.replace("own/net.py:net", "linear"), JOB)):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = settings(tmp_path, more=job)
        with refused("unknown-name", "model"):
            carry_out(grid, path, request(folder, "evaluate", model, code=[f"{code}:loss"]))
        code.write_text(code.read_text() + "# changed\n")


@pytest.mark.long
def test_older_version_of_the_code_can_be_named(tmp_path, helper):
    out = deployed(tmp_path, helper, approved(helper))
    old = CODE.replace("{helper}", helper)
    new = old + "\n# next month\n"
    for folder in (tmp_path, *(tmp_path / name for name in "abcd")):
        (folder / "own/old.py").write_text(old)
        (folder / "own/next.py").write_text(new)
    policy = {**approved(helper), "own/old.py": sha(old), "own/next.py": sha(new)}
    sites = {name: site(name, folder=tmp_path / name, policy=SitePolicy(code=policy)) for name in "abcd"}
    grid = InProcessGrid(client_app(lambda c: sites[c.node_config["name"]]), [{"name": name} for name in "abcd"])
    path = settings(tmp_path, more=JOB.replace("net.py", "next.py"))
    place = request(tmp_path, "evaluate", out / "model.safetensors", code=[str(tmp_path / "own/old.py:net")])
    carry_out(grid, path, place)
    assert len(json.loads((place / "evaluation.json").read_text())["models"][0]["sites"]) == 4


def test_file_outside_the_deployment_folder_is_refused(tmp_path, helper):
    with_code(tmp_path, helper)
    (tmp_path / "inner").mkdir()
    path = settings(tmp_path / "inner", more='model = "../own/net.py:net"')
    sites = {name: site(name) for name in "abcd"}
    grid = InProcessGrid(client_app(lambda c: sites[c.node_config["name"]]), [{"name": name} for name in "abcd"])
    with refused("wrong-folder", "job"):
        server_app.serve(grid, path)


@pytest.mark.parametrize("name", ["../net.py", "/etc/net.py", "a/../net.py", "net.pyc", "net.py:f", ""])
def test_file_names_in_messages_stay_in_the_folder(name):
    content = write(ModelRecipe("linear", "cross-entropy", "float32", 3, code=(CodeFile(name, "0" * 64),)))
    with refused("protocol", kind=ProtocolError):
        read(content, ModelRecipe)


def test_reference_without_a_digest_is_refused(tmp_path):
    with pytest.raises(ValueError, match="reference"):
        ModelRecipe("net.py:net", "cross-entropy", "float32", 3)
    with refused("unknown-name", "model"):
        task_of(ModelRecipe("net.py:net", "cross-entropy", "float32", 3, code=(CodeFile("net.py", "0" * 64),)), (6,))
    with refused("untrusted-code", "code", kind=RefusedError):
        site("a", folder=tmp_path).build_task(
            ModelRecipe("net.py:net", "cross-entropy", "float32", 3, code=(CodeFile("net.py", "0" * 64),))
        )
    assert torch.is_tensor(site("a").build_task(ModelRecipe("linear", "cross-entropy", "float32", 3)).w0)
