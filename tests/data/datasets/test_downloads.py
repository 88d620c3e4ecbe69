"""Test downloads from a local server: a file is complete and correct under its final name, or missing."""

from __future__ import annotations

import gzip
import io
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.data.conftest import sha256
from tests.support.refusals import refused

from drfl.data.datasets import catalogue, downloads
from drfl.data.datasets.downloads import REGISTRY, RemoteFile, download
from drfl.data.datasets.formats import read_idx
from drfl.data.datasets.sources import IDX_SOURCES, KMNIST, MNIST

CONTENT = b"some content that is long enough to be cut " * 50
ZIPPED = gzip.compress(CONTENT, mtime=0)
FILE = sha256(ZIPPED)


@pytest.fixture(autouse=True)
def no_mirror(monkeypatch):
    monkeypatch.delenv("DRFL_MIRROR", raising=False)


@pytest.fixture
def published(monkeypatch):
    """Put a file into the registry with these folders as its mirrors, and return its name."""

    def put(*mirrors):
        monkeypatch.setitem(REGISTRY, "new/file.gz", RemoteFile(FILE, tuple(f"{mirror}file.gz" for mirror in mirrors)))
        return "new/file.gz"

    return put


def test_correct_file_is_stored_under_its_name(server, published, tmp_path, capfd):
    server.answers["/a/file.gz"] = ZIPPED
    path = download(published(f"{server.address}/a/"), tmp_path)
    assert path == tmp_path / "new" / "file.gz"
    assert path.read_bytes() == ZIPPED
    assert os.listdir(path.parent) == ["file.gz"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("path", "content", "error", "asked"),
    [
        ("/other/file.gz", ZIPPED, ("download-failed", "file.gz", "404 Client Error"), 1),
        ("/a/file.gz", ZIPPED[:-4], ("download-failed", "file.gz", FILE), 1),
        ("/a/file.gz", b"", ("download-failed", "file.gz", FILE), 1),
        ("/cut/file.gz", ZIPPED, ("download-failed", "file.gz", "IncompleteRead"), 3),
    ],
)
def test_bad_response_is_reported_and_leaves_no_file(server, published, tmp_path, path, content, error, asked):
    server.answers[path] = content
    folder = f"{server.address}/{'cut' if 'cut' in path else 'a'}/"
    with refused(*error, f"{folder}file.gz") as caught:
        download(published(folder), tmp_path / "folder")
    assert "\n" not in str(caught.value)
    assert len(server.asked) == asked
    assert not os.listdir(tmp_path)


def test_cached_file_is_used_if_correct_and_replaced_otherwise(server, published, tmp_path):
    server.answers["/a/file.gz"] = ZIPPED
    path = download(published(f"{server.address}/a/"), tmp_path)
    path.chmod(0o640)
    download("new/file.gz", tmp_path)
    assert len(server.asked) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.write_bytes(ZIPPED[:-1])
    assert download("new/file.gz", tmp_path).read_bytes() == ZIPPED
    assert len(server.asked) == 2


def test_mirror_is_retried_after_a_dropped_connection(server, published, tmp_path):
    server.answers["/once/file.gz"] = ZIPPED
    assert download(published(f"{server.address}/once/"), tmp_path).read_bytes() == ZIPPED
    assert len(server.asked) == 2


def test_next_mirror_is_tried_after_a_bad_one(server, published, tmp_path):
    server.answers.update({"/wrong/file.gz": b"wrong", "/cut/file.gz": ZIPPED, "/good/file.gz": ZIPPED})
    mirrors = [f"{server.address}/{folder}/" for folder in ("no", "wrong", "cut", "good")]
    assert download(published("nonsense", "http://127.0.0.1:9/", *mirrors), tmp_path).read_bytes() == ZIPPED
    assert list(dict.fromkeys(server.asked)) == ["/no/file.gz", "/wrong/file.gz", "/cut/file.gz", "/good/file.gz"]


def test_every_failed_mirror_is_named_with_its_fault(server, published, tmp_path):
    name = published("nonsense/", "http://127.0.0.1:9/", f"{server.address}/no/")
    try:
        raise RuntimeError("an exception that the caller was handling")
    except RuntimeError:
        with refused("download-failed", "file.gz") as caught:
            download(name, tmp_path)
    for fault in ("'nonsense/", "127.0.0.1:9/file.gz: [Errno 111]", "no/file.gz: 404"):
        assert fault in str(caught.value)


def test_user_mirror_is_the_only_one(server, published, tmp_path, monkeypatch):
    server.answers.update({"/a/file.gz": ZIPPED, "/mine/new/file.gz": ZIPPED})
    monkeypatch.setenv("DRFL_MIRROR", f"{server.address}/mine/")
    name = published(f"{server.address}/a/")
    download(name, tmp_path / "1")
    monkeypatch.setenv("DRFL_MIRROR", f"{server.address}/none")
    with refused("download-failed", "file.gz", f"{server.address}/none/new/file.gz"):
        download(name, tmp_path / "2")
    assert server.asked == ["/mine/new/file.gz", "/none/new/file.gz"]


@pytest.mark.long
def test_silent_mirror_times_out(server, published, tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "TIMEOUT", 0.1)
    server.answers["/hang/file.gz"] = ZIPPED
    with refused("download-failed", "file.gz", "timed out"):
        download(published(f"{server.address}/hang/"), tmp_path)
    assert not os.listdir(tmp_path)


def test_full_disk_is_a_one_line_error(server, published, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.move", full)
    server.answers["/file.gz"] = ZIPPED
    with refused("download-failed", "file.gz", "No space left"):
        download(published(f"{server.address}/"), tmp_path)
    assert not os.listdir(tmp_path)


def test_unwritable_folder_is_a_one_line_error(server, published):
    server.answers["/file.gz"] = ZIPPED
    with refused("download-failed", "file.gz", "/proc/none/new"):  # not even root can create files under /proc
        download(published(f"{server.address}/"), downloads.Path("/proc/none"))


def test_proxy_is_used_and_named_on_failure(server, published, tmp_path, monkeypatch):
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("http_proxy", server.address)
    name = published("http://far.invalid/")
    with refused("download-failed", "file.gz", "http://far.invalid/file.gz", "404 Client Error"):
        download(name, tmp_path)
    server.answers["http://far.invalid/file.gz"] = ZIPPED
    assert download(name, tmp_path).read_bytes() == ZIPPED
    assert server.asked == ["http://far.invalid/file.gz"] * 2


def test_ctrl_c_leaves_no_file(server, published, tmp_path):
    server.answers["/hang/file.gz"] = ZIPPED
    main = threading.get_ident()

    def interrupt():
        while not server.asked:
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        download(published(f"{server.address}/hang/"), tmp_path)
    thread.join()
    assert not os.listdir(tmp_path)


def test_two_simultaneous_downloads_both_succeed(server, published, tmp_path):
    server.answers["/both/file.gz"] = ZIPPED
    name = published(f"{server.address}/both/")  # answers only after two requests
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(download, [name] * 2, [tmp_path] * 2))
    assert [path.read_bytes() for path in paths] == [ZIPPED] * 2
    assert len(server.asked) == 2
    assert os.listdir(tmp_path / "new") == ["file.gz"]


def test_terminal_shows_a_progress_bar_and_removes_it(server, published, tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    server.answers["/cut/file.gz"] = server.answers["/file.gz"] = ZIPPED
    download(published(f"{server.address}/cut/", f"{server.address}/"), tmp_path)
    assert screen.getvalue().count("file.gz:   0%") >= 4  # three failed attempts and a successful one
    assert screen.getvalue().endswith("\r")
    assert "\n" not in screen.getvalue()


@pytest.mark.long
def test_killed_process_leaves_no_file_under_the_final_name(server, tmp_path):
    server.answers["/hang/new/file.gz"] = os.urandom(1 << 20)
    code = (
        "import sys; from pathlib import Path; from drfl.data.datasets.downloads import *; "
        "REGISTRY['new/file.gz'] = RemoteFile('', (sys.argv[2],)); "
        "download('new/file.gz', Path(sys.argv[1]))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path), f"{server.address}/hang/new/file.gz"]) as process:
        deadline = time.monotonic() + 20
        while not any(part.stat().st_size for part in tmp_path.glob("new/*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path / "new")) == 1
    assert not (tmp_path / "new/file.gz").exists()


def test_registry_has_the_full_sha256_of_every_file():
    for spec in catalogue.DATASETS.values():
        for file in spec.source.files if spec.source else ():
            assert f"{spec.source.folder}/{file}" in REGISTRY
    unpinned = [name for name, file in REGISTRY.items() if not re.fullmatch("[0-9a-f]{64}", file.sha256 or "")]
    assert unpinned == ["shakespeare/pg100.txt"]
    for name, file in REGISTRY.items():
        assert file.urls
        assert all(url.startswith("http") and url.endswith(f"/{name.partition('/')[2]}") for url in file.urls)
    for source in IDX_SOURCES:
        assert re.fullmatch("[0-9a-f]{64}", source.test_labels)


@pytest.mark.parametrize("source", [MNIST, KMNIST])
def test_labels_of_test_files_are_known(shared, source):
    labels = read_idx(shared / source.folder / source.files[3])
    assert sha256(b"\0\0\x08\1" + len(labels).to_bytes(4) + labels.tobytes()) == source.test_labels
