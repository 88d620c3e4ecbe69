"""Downloads from a server on this machine: whole and right under the final name, or not there."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.data.conftest import CIFAR, STEMS, cifar_archive, write_tiny
from tests.support.refusals import refused

from drfl.data import load
from drfl.data.datasets import catalogue
from drfl.data.datasets.fetch import download_file
from drfl.data.datasets.sources import CIFAR10, CIFAR100, FASHION, IDX_SOURCES, TINY_IMAGENET, RemoteFile

CONTENT = b"some content that is long enough to be cut " * 50
ZIPPED = gzip.compress(CONTENT, mtime=0)


def sha256(content):
    return hashlib.sha256(content).hexdigest()


FILE = RemoteFile("file", sha256(ZIPPED))


class Handler(BaseHTTPRequestHandler):
    """Serves the server's `answers`; below /cut/ it stops half-way, at /once/ the first time, below /hang/ it stays."""

    def do_GET(self):
        first = self.path not in self.server.asked
        self.server.asked.append(self.path)
        content = self.server.answers.get(self.path)
        if content is None:
            self.send_error(404)
            return
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
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        httpd.answers, httpd.asked, httpd.release = {}, [], threading.Event()
        httpd.address = f"http://127.0.0.1:{httpd.server_port}"
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield httpd
        httpd.release.set()
        httpd.shutdown()
        thread.join()


def test_a_right_file_arrives_under_its_name_and_nothing_else(server, tmp_path, capfd):
    server.answers["/a/file.gz"] = ZIPPED
    path = download_file(FILE, tmp_path / "new", [f"{server.address}/a/"])
    assert path == tmp_path / "new" / "file.gz"
    assert path.read_bytes() == ZIPPED
    assert os.listdir(path.parent) == ["file.gz"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("path", "content", "error", "asked"),
    [
        ("/other/file.gz", ZIPPED, ("download-failed", "file.gz", "404 Client Error"), 1),
        ("/a/file.gz", ZIPPED[:-4], ("download-failed", "file.gz", FILE.sha256), 1),
        ("/a/file.gz", b"", ("download-failed", "file.gz", FILE.sha256), 1),
        ("/cut/file.gz", ZIPPED, ("download-failed", "file.gz", "IncompleteRead"), 3),
    ],
)
def test_a_bad_answer_leaves_nothing_and_is_reported(server, tmp_path, path, content, error, asked):
    server.answers[path] = content
    with refused(*error) as caught:
        download_file(FILE, tmp_path / "new" / "folder", [f"{server.address}/{'cut' if 'cut' in path else 'a'}/"])
    assert "\n" not in str(caught.value)
    assert len(server.asked) == asked
    assert not os.listdir(tmp_path)


def test_a_mirror_whose_connection_dropped_is_asked_again(server, tmp_path):
    server.answers["/once/file.gz"] = ZIPPED
    assert download_file(FILE, tmp_path, [f"{server.address}/once/"]).read_bytes() == ZIPPED
    assert len(server.asked) == 2


def test_a_bad_mirror_is_followed_by_the_next(server, tmp_path):
    server.answers.update({"/wrong/file.gz": b"wrong", "/cut/file.gz": ZIPPED, "/good/file.gz": ZIPPED})
    mirrors = [f"{server.address}/{folder}/" for folder in ("no", "wrong", "cut", "good")]
    mirrors = ["nonsense", "http://127.0.0.1:9/", *mirrors]
    assert download_file(FILE, tmp_path, mirrors).read_bytes() == ZIPPED
    assert list(dict.fromkeys(server.asked)) == ["/no/file.gz", "/wrong/file.gz", "/cut/file.gz", "/good/file.gz"]


def test_every_mirror_is_named_with_its_own_fault(server, tmp_path):
    mirrors = ["nonsense/", "http://127.0.0.1:9/", f"{server.address}/no/"]
    try:
        raise RuntimeError("an exception that the caller was handling")
    except RuntimeError:
        with refused("download-failed", "file.gz") as caught:
            download_file(FILE, tmp_path, mirrors)
    for fault in ("'nonsense/", "127.0.0.1:9/file.gz: [Errno 111]", "no/file.gz: 404"):
        assert fault in str(caught.value)


def test_a_silent_mirror_is_given_up(server, tmp_path):
    server.answers["/hang/file.gz"] = ZIPPED
    with refused("download-failed", "file.gz", "timed out"):
        download_file(FILE, tmp_path, [f"{server.address}/hang/"], timeout=0.1)
    assert not os.listdir(tmp_path)


def test_a_full_disk_is_one_line(server, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.move", full)
    server.answers["/file.gz"] = ZIPPED
    with refused("download-failed", "file.gz", "No space left"):
        download_file(FILE, tmp_path, [f"{server.address}/"])
    assert not os.listdir(tmp_path)


@pytest.mark.long
def test_a_process_killed_half_way_leaves_no_file_under_the_final_name(server, tmp_path):
    server.answers["/hang/file.gz"] = os.urandom(1 << 20)
    code = (
        "import sys; from pathlib import Path; from drfl.data.datasets.fetch import download_file; "
        "from drfl.data.datasets.sources import RemoteFile; "
        "download_file(RemoteFile('file', ''), Path(sys.argv[1]), [sys.argv[2]])"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path), f"{server.address}/hang/"]) as process:
        deadline = time.monotonic() + 20
        while not any(part.stat().st_size for part in tmp_path.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 1
    assert not (tmp_path / "file.gz").exists()


def test_published_files_are_known_by_their_whole_sha256():
    for source in (*IDX_SOURCES, CIFAR10, CIFAR100, TINY_IMAGENET):
        for file in source.files:
            assert re.fullmatch("[0-9a-f]{64}", file.sha256)
    for source in IDX_SOURCES:
        digits = 32 if source is FASHION else 64
        assert re.fullmatch(f"[0-9a-f]{{{digits}}}", source.files[3].content or "")


def serve_tiny(server, tmp_path, monkeypatch):
    """Makes the server the mirror of a tiny MNIST whose checksums drfl believes in."""
    folder = write_tiny(tmp_path / "published", style="{}.gz".format)
    files = tuple(RemoteFile(stem, sha256(Path(folder, f"{stem}.gz").read_bytes())) for stem in STEMS)
    spec = catalogue.DATASETS["mnist"]
    monkeypatch.setitem(catalogue.DATASETS, "mnist", replace(spec, files=files))
    monkeypatch.setenv("DRFL_MIRROR", f"{server.address}/all/")
    for stem in STEMS:
        server.answers[f"/all/mnist/{stem}.gz"] = (folder / f"{stem}.gz").read_bytes()


def test_load_downloads_once_into_its_cache(server, tmp_path, bare_machine, monkeypatch):
    serve_tiny(server, tmp_path, monkeypatch)
    assert len(load("mnist").targets) == 20
    assert len(server.asked) == 4
    assert sorted(os.listdir(bare_machine / ".cache/drfl/mnist")) == sorted(f"{stem}.gz" for stem in STEMS)
    assert len(load("mnist", download=False).targets) == 20
    assert len(server.asked) == 4


def test_a_download_that_broke_off_goes_on_with_the_missing_files(server, tmp_path, bare_machine, monkeypatch):
    serve_tiny(server, tmp_path, monkeypatch)
    missing = server.answers.pop(f"/all/mnist/{STEMS[2]}.gz")
    with refused("download-failed", "mnist", STEMS[2]):
        load("mnist")
    server.answers[f"/all/mnist/{STEMS[2]}.gz"] = missing
    server.asked.clear()
    assert len(load("mnist").targets) == 20
    assert len(server.asked) == 2


def test_a_file_without_a_lasting_checksum_is_downloaded_and_judged_by_its_structure(server, bare_machine, monkeypatch):
    monkeypatch.setenv("DRFL_MIRROR", server.address)
    server.answers["/shakespeare/pg100.txt"] = f"ALL.\n{'Once more! ' * 200}\n".encode()
    for _ in range(2):
        assert set(load("shakespeare").groups) == {"pg100: ALL"}
    assert server.asked == ["/shakespeare/pg100.txt"]


def serve_cifar(server, monkeypatch, published):
    """Makes the server the mirror of an archive, in which drfl believes if it is the right one."""
    spec = catalogue.DATASETS["cifar-100"]
    file = RemoteFile("cifar-100-binary", sha256(cifar_archive("cifar-100")), ending=".tar.gz")
    source = replace(spec.source, files=(file,))
    monkeypatch.setitem(catalogue.DATASETS, "cifar-100", replace(spec, source=source, files=(file,)))
    monkeypatch.setenv("DRFL_MIRROR", server.address)
    server.answers[f"/cifar-100/{CIFAR['cifar-100'][1]}"] = published


def test_an_archive_is_downloaded_once_and_stays_packed(server, bare_machine, monkeypatch):
    serve_cifar(server, monkeypatch, cifar_archive("cifar-100"))
    for _ in range(2):
        assert load("cifar-100").targets.tolist() == [99, 98]
    assert server.asked == ["/cifar-100/cifar-100-binary.tar.gz"]
    assert os.listdir(bare_machine / ".cache/drfl/cifar-100") == ["cifar-100-binary.tar.gz"]


@pytest.mark.parametrize("wrong", [cifar_archive("cifar-100", rows=1), cifar_archive("cifar-100")[:-9], b""])
def test_a_wrong_archive_is_not_kept(server, bare_machine, monkeypatch, wrong):
    serve_cifar(server, monkeypatch, wrong)
    with refused("download-failed", "cifar-100", "cifar-100-binary.tar.gz") as caught:
        load("cifar-100")
    assert "\n" not in str(caught.value)
    assert not (bare_machine / ".cache").exists()
