"""Small stand-ins for large data sets, and a server to download from."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from drfl.core.errors import InputError
from drfl.data import write_idx
from drfl.data.datasets import sources
from drfl.data.datasets.catalogue import load_pixels

STEMS = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


@pytest.fixture
def shared():
    """Return the folder that DRFL_TEST_DATA names, with MNIST in mnist/."""
    folder = Path(os.environ.get("DRFL_TEST_DATA", ""))
    if not (folder / "mnist").is_dir():
        pytest.skip("DRFL_TEST_DATA does not name a folder that holds mnist/")
    return folder


@pytest.fixture
def bare_machine(tmp_path, monkeypatch):
    """Use a machine without data sets whose home is a temporary folder, which is returned."""
    home = tmp_path / "home"
    home.mkdir()
    for variable in ("DRFL_DATA", "TORCH_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("DRFL_MIRROR", "http://127.0.0.1:9")  # an address without a server
    monkeypatch.chdir(home)
    monkeypatch.setattr(sources, "SYSTEM_DATA", home / "system")
    return home


def sha256(content):
    return hashlib.sha256(content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serve the server's `answers`.

    Below /cut/ it stops half-way, and at /once/ only the first time. Below /hang/ it does not answer. Below /both/ it
    waits for two requests.
    """

    def do_GET(self):
        first = self.path not in self.server.asked
        self.server.asked.append(self.path)
        content = self.server.answers.get(self.path)
        if content is None:
            self.send_error(404)
            return
        if self.path.startswith("/both/"):
            self.server.both.wait(30)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        broken = self.path.startswith(("/cut/", "/hang/")) or (self.path.startswith("/once/") and first)
        self.wfile.write(content[: len(content) // 2] if broken else content)
        self.wfile.flush()
        if self.path.startswith("/hang/"):
            self.server.release.wait(30)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """Start a local server: `answers` by path, the requested paths in `asked`, and its `address`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        httpd.answers, httpd.asked, httpd.release, httpd.both = {}, [], threading.Event(), threading.Barrier(2)
        httpd.address = f"http://127.0.0.1:{httpd.server_port}"
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield httpd
        httpd.release.set()
        httpd.shutdown()
        thread.join()


def write_tiny(folder, *, style=str, train=20, test=10):
    """Write four IDX files of 4x4 images; `style` turns a stem into a file name."""
    for k, stem in enumerate(STEMS):
        n = train if k < 2 else test
        labels = np.arange(n, dtype=np.uint8) % 10
        array = labels if k % 2 else np.repeat(labels, 16).reshape(n, 4, 4) * 25
        write_idx(folder / style(stem), array)
    return folder


CIFAR10_FILES = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")
CIFAR100_FILES = ("train.bin", "test.bin")
CIFAR = {
    "cifar-10": ("cifar-10-batches-bin", "cifar-10-binary.tar.gz", CIFAR10_FILES),
    "cifar-100": ("cifar-100-binary", "cifar-100-binary.tar.gz", CIFAR100_FILES),
}
"""Folder, archive and files of each data set."""


def cifar_files(name, rows=2):
    """Return file name → records whose labels count up over all files, with fixed random pixels."""
    rng = np.random.default_rng(0)
    files, first = {}, 0
    for file in CIFAR[name][2]:
        classes = np.arange(first, first + rows)[:, None]
        labels = classes % 10 if name == "cifar-10" else np.hstack([classes % 20, 99 - classes % 100])
        pixels = rng.integers(0, 256, (rows, 3072))
        files[file] = np.hstack([labels, pixels]).astype(np.uint8).tobytes()
        first += rows
    return files


def tar_gz(members):
    """Return a gzipped tar file of plain files, given as name → content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def cifar_archive(name, **rows):
    """Return the archive as published, including a file that drfl does not use."""
    members = {f"{CIFAR[name][0]}/{file}": content for file, content in cifar_files(name, **rows).items()}
    return tar_gz({f"{CIFAR[name][0]}/readme.html": b"hello", **members})


def picture(array, kind="PNG"):
    """Return an image file of uint8 values, (h, w) or (h, w, 3)."""
    out = io.BytesIO()
    Image.fromarray(np.asarray(array, np.uint8)).save(out, kind)
    return out.getvalue()


WNIDS = ("n02124075", "n01443537", "n04067472")
"""Class names, not in alphabetical order, as in the real list."""


def tiny_imagenet_files(each=2, test=4):
    """Return path → content of a Tiny ImageNet of three classes; image i of class k has the pixels (10 k, i, 200)."""
    files = {"wnids.txt": "".join(f"{wnid}\n" for wnid in WNIDS).encode(), "words.txt": b"n00001740\tentity\n"}
    for k, wnid in enumerate(WNIDS):
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"boxes"
        for i in range(each):
            files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = picture(np.full((64, 64, 3), (10 * k, i, 200)))
    lines = []
    for i in range(test):
        files[f"val/images/val_{i}.JPEG"] = picture(np.full((64, 64), 50 + i))  # grey
        lines.append(f"val_{i}.JPEG\t{WNIDS[-1 - i % 3]}\t0\t32\t44\t62\n")
    return {**files, "val/val_annotations.txt": "".join(lines).encode()}


def zipped(files, top="tiny-imagenet-200"):
    """Return a zip file of these files below one folder."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.mkdir(top)
        for name, content in files.items():
            archive.writestr(f"{top}/{name}", content)
    return out.getvalue()


def write_files(folder, files):
    """Write path → content below a folder, and return the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def pixels_or_line(name, path):
    """Return the data set, or the text of an `InputError`."""
    try:
        return load_pixels(name, data_dir=path)
    except InputError as error:
        return str(error)
