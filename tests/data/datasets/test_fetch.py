"""Test that the files of a data set are downloaded into drfl's cache once, and only the missing ones."""

from __future__ import annotations

import os

import pytest
from tests.data.conftest import CIFAR, STEMS, cifar_archive, sha256, write_tiny
from tests.support.refusals import refused

from drfl.data import load
from drfl.data.datasets.downloads import REGISTRY, RemoteFile


def serve_tiny(server, tmp_path, monkeypatch):
    """Make the server the mirror of a tiny MNIST with matching checksums."""
    folder = write_tiny(tmp_path / "published", style="{}.gz".format)
    monkeypatch.setenv("DRFL_MIRROR", f"{server.address}/all/")
    for stem in STEMS:
        content = (folder / f"{stem}.gz").read_bytes()
        monkeypatch.setitem(REGISTRY, f"mnist/{stem}.gz", RemoteFile(sha256(content), ()))
        server.answers[f"/all/mnist/{stem}.gz"] = content


def test_load_downloads_once_into_its_cache(server, tmp_path, bare_machine, monkeypatch):
    serve_tiny(server, tmp_path, monkeypatch)
    assert len(load("mnist").targets) == 20
    assert len(server.asked) == 4
    assert sorted(os.listdir(bare_machine / ".cache/drfl/mnist")) == sorted(f"{stem}.gz" for stem in STEMS)
    assert len(load("mnist", download=False).targets) == 20
    assert len(server.asked) == 4


def test_interrupted_download_continues_with_missing_files(server, tmp_path, bare_machine, monkeypatch):
    serve_tiny(server, tmp_path, monkeypatch)
    missing = server.answers.pop(f"/all/mnist/{STEMS[2]}.gz")
    with refused("download-failed", "mnist", STEMS[2]):
        load("mnist")
    server.answers[f"/all/mnist/{STEMS[2]}.gz"] = missing
    server.asked.clear()
    assert len(load("mnist").targets) == 20
    assert len(server.asked) == 2


def test_file_without_pinned_checksum_is_validated_by_structure(server, bare_machine, monkeypatch):
    monkeypatch.setenv("DRFL_MIRROR", server.address)
    server.answers["/shakespeare/pg100.txt"] = f"ALL.\n{'Once more! ' * 200}\n".encode()
    for _ in range(2):
        assert set(load("shakespeare").groups) == {"pg100: ALL"}
    assert server.asked == ["/shakespeare/pg100.txt"]


def serve_cifar(server, monkeypatch, published):
    """Make the server the mirror of an archive, which is valid if it is the right one."""
    name = f"cifar-100/{CIFAR['cifar-100'][1]}"
    monkeypatch.setitem(REGISTRY, name, RemoteFile(sha256(cifar_archive("cifar-100")), ()))
    monkeypatch.setenv("DRFL_MIRROR", server.address)
    server.answers[f"/{name}"] = published


def test_archive_is_downloaded_once_and_stays_packed(server, bare_machine, monkeypatch):
    serve_cifar(server, monkeypatch, cifar_archive("cifar-100"))
    for _ in range(2):
        assert load("cifar-100").targets.tolist() == [99, 98]
    assert server.asked == ["/cifar-100/cifar-100-binary.tar.gz"]
    assert os.listdir(bare_machine / ".cache/drfl/cifar-100") == ["cifar-100-binary.tar.gz"]


@pytest.mark.parametrize("wrong", [cifar_archive("cifar-100", rows=1), cifar_archive("cifar-100")[:-9], b""])
def test_wrong_archive_is_not_kept(server, bare_machine, monkeypatch, wrong):
    serve_cifar(server, monkeypatch, wrong)
    with refused("download-failed", "cifar-100", "cifar-100-binary.tar.gz") as caught:
        load("cifar-100")
    assert "\n" not in str(caught.value)
    assert not (bare_machine / ".cache").exists()
