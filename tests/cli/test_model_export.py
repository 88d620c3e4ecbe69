"""Test that ONNX models compute the same as drfl."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cli.test_model import as_fit
from tests.support.marks import long_beyond
from tests.support.refusals import check_refusal, refused

import drfl
from drfl.cli.app import call


@pytest.mark.long
def test_onnx_model_computes_the_same(trained):
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    assert call(["model", "export", "r/model.safetensors", "--out", "m.onnx"]) == 0
    model = drfl.load_model("r/model.safetensors")
    session = onnxruntime.InferenceSession("m.onnx")
    (found,) = session.run(["probabilities"], {"inputs": model.encode(trained).numpy()})
    np.testing.assert_allclose(found, model.predict_proba(trained), rtol=1e-5)


@pytest.mark.long
def test_personal_model_is_exported(trained):
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    as_fit("A/1", "B")
    for client in ("A/1", "B"):
        assert call(["model", "export", "r", "--client", client, "--out", "m.onnx", "--overwrite"]) == 0
        model = drfl.load_model("r", client=client)
        session = onnxruntime.InferenceSession("m.onnx")
        (found,) = session.run(["probabilities"], {"inputs": model.encode(trained).numpy()})
        np.testing.assert_allclose(found, model.predict_proba(trained), rtol=1e-5)
    check_refusal(["model", "export", "r", "--client", "C"], "unknown-name", "client", "C")


@pytest.mark.parametrize("name", long_beyond(1, ["cnn", "mlp"]))
@pytest.mark.long
def test_onnx_model_of_images_computes_the_same(name, tmp_path, monkeypatch):
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    monkeypatch.chdir(tmp_path)
    assert call(["run", "--model", name, "--clients", "4", "--rounds", "1", "--out", "r"]) == 0
    images = drfl.load_model("r/model.safetensors")
    images.to_onnx("m.onnx")
    x = drfl.load("digits").inputs[:9]
    (found,) = onnxruntime.InferenceSession("m.onnx").run(None, {"inputs": x.numpy()})
    np.testing.assert_allclose(found, images.predict_proba(x), rtol=1e-5, atol=1e-7)


def test_missing_packages_are_named_in_one_line(trained, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with refused("package-missing", "onnx", "drfl[onnx]"):
        drfl.load_model("r/model.safetensors").to_onnx("m.onnx")
