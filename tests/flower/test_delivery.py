"""Test models that the server delivers to the sites."""

import json

import pytest
import tomli_w
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.support.refusals import logged, refused

from drfl.core.audit_log import AuditLog
from drfl.core.audit_signatures import read_signing_key
from drfl.data.model_file import model_bytes
from drfl.data.model_store import ModelStore
from drfl.flower import server_app
from drfl.flower.client_app import client_app
from drfl.flower.deploy.audit import audit
from drfl.flower.deploy.audit_keys import SERVER, TrustedKeys
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import Delivery, SiteIdentity
from drfl.flower.receive_model import receive_model
from drfl.flower.server_tasks import carry_out
from drfl.flower.site_policy import SitePolicy

from .conftest import site, with_field
from .test_server_app import settings

OLD, NEW, NEWER = (f"2026-11-2{i}T10:00:00.000+00:00" for i in (5, 6, 7))
ABOUT = {"module": {"class": "drfl.models.linear", "arguments": {"shape": [6], "classes": 3}}, "drfl": "1"}
TASK = {"kind": "classification", "loss": "cross-entropy", "score": "accuracy"}


def key_in(folder, name="server.key"):
    path = folder / name
    private = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return read_signing_key(path)


def model(value=0.5, classes=3, **about):
    weights = {"1.weight": torch.full((classes, 6), value), "1.bias": torch.zeros(classes)}
    document = {**ABOUT, "task": TASK, **about}
    document["inputs"] = {"shape": [6], "dtype": "float32"}
    document["module"] = {**ABOUT["module"], "arguments": {"shape": [6], "classes": classes}}
    return model_bytes(weights, document)


def signed(content, key, time=NEW):
    message = Delivery(content, time)
    return Delivery(content, time, key.sign(message.statement))


@pytest.fixture
def key(tmp_path):
    return key_in(tmp_path)


@pytest.fixture
def receiver(tmp_path, key):
    return site("a", folder=tmp_path / "a", server_key=key.public)


def about(**changes):
    return SiteIdentity("a", (6,), 3, 10, 10, "0" * 32, **changes)


def test_signed_model_becomes_the_current_one(receiver, key):
    content = model()
    receipt = receive_model(receiver, signed(content, key), about())
    store = ModelStore(receiver.folder / "models")
    assert (receipt.new, store.current().read_bytes()) == (True, content)
    assert not receive_model(receiver, signed(content, key, NEWER), about()).new


def test_recorded_delivery_from_before_the_last_one_is_refused(receiver, key):
    first, recorded = model(1.0), signed(model(2.0), key, NEW)
    receive_model(receiver, signed(first, key, OLD), about())
    store = ModelStore(receiver.folder / "models")
    store.current().write_bytes(b"damaged")  # a new delivery repairs it
    assert not receive_model(receiver, signed(first, key, NEWER), about()).new
    assert not receive_model(receiver, signed(first, key, OLD), about()).new
    with refused("old-model", "signed"):
        receive_model(receiver, recorded, about())
    assert store.current().read_bytes() == first


@pytest.mark.parametrize(
    ("policy", "delivery", "code", "field"),
    [
        ({"receive_models": "none"}, lambda key, _: signed(model(), key), "request-refused", "receive_models"),
        ({}, lambda key, _: Delivery(model(), NEW), "bad-signature", "signature"),
        ({}, lambda key, _: Delivery(model(), NEW, "0" * 192), "bad-signature", "signature"),
        ({}, lambda _, other: signed(model(), other), "bad-signature", "signature"),
        # the signature belongs to another model or another time
        ({}, lambda key, _: Delivery(model(1.0), NEW, signed(model(), key).signature), "bad-signature", "signature"),
        ({}, lambda key, _: Delivery(model(), NEWER, signed(model(), key).signature), "bad-signature", "signature"),
        ({}, lambda key, _: signed(model(), key, "2999-01-01T00:00:00.000+00:00"), "request-refused", "signed"),
        ({}, lambda key, _: signed(model(float("nan")), key), "damaged-file", None),
        ({}, lambda key, _: signed(model(float("inf")), key), "not-finite", "model"),
        ({}, lambda key, _: signed(b"no model", key), "damaged-file", None),
        ({}, lambda key, _: signed(model(classes=2), key), "model-mismatch", "a"),
        ({}, lambda key, _: signed(model(columns=list("uvwxyz")), key), "model-mismatch", "a"),
        ({}, lambda key, _: signed(model(schema="1" * 64), key), "model-mismatch", "a"),
        ({}, lambda key, _: signed(model(task={**TASK, "loss": "mine.py:loss"}), key), "unknown-name", "model"),
    ],
)
def test_other_models_are_refused_and_not_stored(tmp_path, receiver, key, policy, delivery, code, field):
    other = key_in(tmp_path, "other.key")
    chosen = site("a", folder=receiver.folder, server_key=key.public, policy=SitePolicy(**policy))
    identity = about(features=tuple("abcdef"), schema="0" * 64)
    with refused(code, field) as caught:
        receive_model(chosen, delivery(key, other), identity)
    assert "\n" not in str(caught.value)
    assert not (receiver.folder / "models").exists()


def test_unsigned_models_require_a_policy(tmp_path):
    with refused("request-refused", "server_key"):
        receive_model(site("a", folder=tmp_path), Delivery(model(), NEW), about())
    trusting = site("a", folder=tmp_path, policy=SitePolicy(receive_models="any"))
    assert receive_model(trusting, Delivery(model(), NEW), about()).new


def grid_of_sites(folder, key, policies=None, logs=False):
    sites = {}
    for name in "abcd":
        (folder / name).mkdir(exist_ok=True)
        policy = SitePolicy(**(policies or {}).get(name, {}))
        log = AuditLog(folder / name / "audit.jsonl", "site", name) if logs else None
        public = None if key is None else key.public
        sites[name] = site(name, folder=folder / name, server_key=public, policy=policy, audit=log)
    return InProcessGrid(client_app(lambda c: sites[c.node_config["name"]]), [{"name": name} for name in "abcd"])


def with_key(path):
    path.write_text(f'key = "server.key"\n{path.read_text()}')
    return path


def test_run_delivers_its_model_to_accepting_sites(tmp_path, key, caplog):
    grid = grid_of_sites(tmp_path, key, {"b": {"receive_models": "none"}}, logs=True)
    path = with_key(settings(tmp_path, rounds=2))
    path.write_text('audit = "audit.jsonl"\n' + path.read_text())
    out = server_app.serve(grid, path)
    content = (out / "model.safetensors").read_bytes()
    for name in "acd":
        assert ModelStore(tmp_path / name / "models").current().read_bytes() == content
    assert not (tmp_path / "b/models").exists()
    outcome = json.loads((out / "delivery.json").read_text())["sites"]
    assert [name for name, text in outcome.items() if text == "received"] == ["a", "c", "d"]
    assert "receive_models" in outcome["b"]
    assert ("model-not-received", "b") in logged(caplog)
    logs = [tmp_path / "audit.jsonl", *(tmp_path / name / "audit.jsonl" for name in "abcd")]
    trusted = TrustedKeys(current={SERVER: key.public})
    assert [finding.text for finding in audit(logs, trusted) if finding.kind == "problem"] == []


@pytest.mark.parametrize("line", [pytest.param("", marks=pytest.mark.long), 'key = "server.key"\ndeliver = false\n'])
def test_delivery_needs_a_key_and_can_be_switched_off(tmp_path, key, line):
    path = settings(tmp_path, rounds=1)
    path.write_text(line + path.read_text())
    out = server_app.serve(grid_of_sites(tmp_path, key), path)
    assert not (out / "delivery.json").exists()
    assert not (tmp_path / "a/models").exists()


def request(folder, task, *models, code=()):
    place = folder / task
    place.mkdir()
    content = {"task": task, "models": [*map(str, models)], "code": [*code]}
    (place / "request.toml").write_text(tomli_w.dumps(content))
    return place


def test_later_delivery_names_offline_sites(tmp_path, key):
    grid = grid_of_sites(tmp_path, key)
    path = with_key(settings(tmp_path))
    (tmp_path / "old.safetensors").write_bytes(model())
    place = request(tmp_path, "deliver", tmp_path / "old.safetensors")
    carry_out(grid, path, place)
    assert set(json.loads((place / "delivery.json").read_text())["sites"].values()) == {"received"}
    assert ModelStore(tmp_path / "a/models").current().read_bytes() == model()
    (tmp_path / "bad.safetensors").write_bytes(model(classes=2))
    with refused("model-mismatch", "a"):
        carry_out(grid, path, request(tmp_path / "b", "deliver", tmp_path / "bad.safetensors"))


def test_site_that_confirms_another_model_has_not_received_it(tmp_path, key, caplog):
    class Other(InProcessGrid):
        def answer(self, message, context):
            reply = super().answer(message, context)
            if message.metadata.message_type == "query.delivery" and context.node_config["name"] == "c":
                reply.content = with_field(reply.content, "sha256", "0" * 64)
            return reply

    grid = Other(grid_of_sites(tmp_path, key).app, [{"name": name} for name in "abcd"])
    (tmp_path / "m.safetensors").write_bytes(model())
    place = request(tmp_path, "deliver", tmp_path / "m.safetensors")
    carry_out(grid, with_key(settings(tmp_path)), place)
    outcome = json.loads((place / "delivery.json").read_text())["sites"]
    assert [name for name, text in outcome.items() if text == "received"] == ["a", "b", "d"]
    assert ("model-not-received", "c") in logged(caplog)


@pytest.mark.long
def test_silent_or_faulty_site_does_not_stop_the_delivery(tmp_path, key, monkeypatch):
    class Broken(InProcessGrid):
        def answer(self, message, context):
            reply = super().answer(message, context)
            if message.metadata.message_type == "query.delivery" and context.node_config["name"] == "c":
                reply.content["message"]["fields"] = b"nonsense"
            return reply

    inner = grid_of_sites(tmp_path, key)
    grid = Broken(inner.app, [{"name": name} for name in "abcd"])
    outcome = json.loads((server_app.serve(grid, with_key(settings(tmp_path, rounds=1))) / "delivery.json").read_text())
    assert [name for name, text in outcome["sites"].items() if text == "received"] == ["a", "b", "d"]
