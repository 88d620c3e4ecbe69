"""Test CIFAR: packed and unpacked, in every folder, and one-line errors for damaged files."""

from __future__ import annotations

import gzip
import io
import tarfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.data.conftest import CIFAR, cifar_archive, cifar_files, pixels_or_line, tar_gz, write_files
from tests.support.refusals import refused

from drfl.data import describe, load
from drfl.data.datasets.catalogue import load_pixels

CLASSES = {"cifar-10": [*range(10)], "cifar-100": [99, 98]}
TEST_CLASSES = {"cifar-10": [0, 1], "cifar-100": [97, 96]}


def found(name):
    return next(info for info in describe() if info.name == name).found


@pytest.mark.parametrize("name", CIFAR)
def test_packed_and_unpacked_editions_are_equal(tmp_path, name):
    folder, archive, members = CIFAR[name]
    write_files(tmp_path / "unpacked" / folder, cifar_files(name))
    write_files(tmp_path / "packed", {archive: cifar_archive(name)})
    unpacked = load_pixels(name, data_dir=tmp_path / "unpacked")
    packed = load_pixels(name, data_dir=tmp_path / "packed")
    for attribute in ("inputs", "targets", "test_inputs", "test_targets"):
        assert torch.equal(getattr(unpacked, attribute), getattr(packed, attribute))
    assert packed.targets.tolist() == CLASSES[name]
    assert packed.test_targets.tolist() == TEST_CLASSES[name]
    assert packed.classes == (10 if name == "cifar-10" else 100)
    # Bytes after the labels: 1024 red values, row by row from the top left corner, then 1024 green values.
    last = cifar_files(name)[members[-1]][-3072:]
    corner = packed.test_inputs[1]
    assert [corner[0, 0, 0], corner[0, 0, 1], corner[0, 1, 0], corner[1, 0, 0]] == [last[k] for k in (0, 1, 32, 1024)]


def test_load_gives_floats_of_the_same_pixels(tmp_path):
    write_files(tmp_path, cifar_files("cifar-10"))
    pixels, data = load_pixels("cifar-10", data_dir=tmp_path), load("CIFAR_10", data_dir=tmp_path)
    assert data.inputs.shape == (10, 3, 32, 32)
    assert data.name == "cifar-10"
    torch.testing.assert_close(data.inputs, pixels.inputs / 255, rtol=0, atol=0)
    assert torch.equal(data.test_targets, pixels.test_targets)


@pytest.mark.parametrize(
    ("variable", "below"),
    [
        ("DRFL_DATA", ""),
        ("DRFL_DATA", "cifar-100"),
        (None, "data"),
        (None, "data/cifar-100"),
        (None, "system/cifar-100"),
        ("TORCH_HOME", "datasets"),
        (None, ".cache/drfl/cifar-100"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_usual_folders_are_searched(bare_machine, monkeypatch, variable, below, packed):
    root = bare_machine / "elsewhere" if variable else bare_machine
    if variable:
        monkeypatch.setenv(variable, str(root))
    folder, archive, _ = CIFAR["cifar-100"]
    files = cifar_files("cifar-100")
    content = {archive: cifar_archive("cifar-100")} if packed else {f"{folder}/{k}": v for k, v in files.items()}
    write_files(root / below, content)
    assert found("cifar-100") is not None
    assert load("cifar-100", download=False).targets.tolist() == [99, 98]
    assert found("cifar-10") is None


@pytest.mark.parametrize("below", ["", "cifar-100", "cifar-100-binary", "cifar-100/cifar-100-binary"])
def test_data_dir_can_be_a_parent_or_the_unpacked_folder(tmp_path, below):
    write_files(tmp_path / below, cifar_files("cifar-100"))
    assert len(load_pixels("cifar-100", data_dir=tmp_path).targets) == 2


def test_data_dir_can_be_the_archive(tmp_path):
    write_files(tmp_path, {"renamed.tgz": cifar_archive("cifar-100")})
    assert len(load_pixels("cifar-100", data_dir=tmp_path / "renamed.tgz").targets) == 2


def test_generic_file_names_do_not_identify_a_folder(bare_machine):
    write_files(bare_machine / "data", {"train.bin": b"tokens", "test.bin": b"tokens"})
    assert found("cifar-100") is None


@pytest.mark.parametrize("download", [False, True])
@pytest.mark.parametrize("kind", ["cifar-10-batches-py/data_batch_1", "cifar-10-python.tar.gz"])
def test_pickled_edition_is_refused_with_the_alternative(bare_machine, kind, download):
    write_files(bare_machine / "data", {kind: b"never read"})
    code, found = "download-failed" if download else "dataset-not-found", f"'data/{kind.split('/')[0]}'"
    with refused(code, "cifar-10", found, "cifar-10-binary.tar.gz") as caught:
        load("cifar-10", download=download)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [".", "cifar-10-batches-py", "cifar-10-python.tar.gz"])
def test_data_dir_with_only_the_pickled_edition_is_refused(tmp_path, given):
    write_files(tmp_path, {"cifar-10-batches-py/test_batch": b"never read", "cifar-10-python.tar.gz": b"nor this"})
    with refused("pickled-file"):
        load("cifar-10", data_dir=tmp_path / given)


def test_missing_batch_is_named(tmp_path):
    files = cifar_files("cifar-10")
    del files["data_batch_4.bin"]
    write_files(tmp_path / "cifar-10-batches-bin", files)
    with refused("dataset-not-found", "data_dir", "cifar-10-batches-bin'", "data_batch_4.bin"):
        load("cifar-10", data_dir=tmp_path)


def changed(label=None, cut=0, position=0, drop=None):
    files = cifar_files("cifar-100")
    body = bytearray(files["test.bin"])
    if label is not None:
        body[position] = label
    files["test.bin"] = bytes(body[: len(body) - cut])
    if drop:
        del files[drop]
    return files


BROKEN = [
    (changed(cut=1), ("damaged-file", None, "test.bin'", "6147", "3074")),
    (changed(cut=6148), ("damaged-file", None, "test.bin'", "0", "3074")),
    (changed(100, position=1), ("damaged-file", None, "test.bin'", "0..99")),
    (changed(20), ("damaged-file", None, "test.bin'", "0..19")),
]


@pytest.mark.parametrize(("files", "error"), BROKEN)
@pytest.mark.parametrize("packed", [False, True])
def test_broken_records_are_one_line_errors(tmp_path, files, error, packed):
    if packed:
        write_files(tmp_path, {"a.tar.gz": tar_gz({f"cifar-100-binary/{k}": v for k, v in files.items()})})
    else:
        write_files(tmp_path, files)
    with refused(*error) as caught:
        load_pixels("cifar-100", data_dir=tmp_path / "a.tar.gz" if packed else tmp_path)
    assert "\n" not in str(caught.value)


def test_other_cifar_edition_is_refused(tmp_path):
    write_files(tmp_path, {"cifar-10-binary.tar.gz": cifar_archive("cifar-100")})
    with refused("damaged-file", str(tmp_path / "cifar-10-binary.tar.gz"), "cifar-10-batches-bin/data_batch_1.bin"):
        load("cifar-10", data_dir=tmp_path)
    ten = cifar_files("cifar-10")
    write_files(tmp_path / "folder", {"train.bin": ten["data_batch_1.bin"], "test.bin": ten["test_batch.bin"]})
    with refused("damaged-file", str(tmp_path / "folder/train.bin"), "3074"):
        load("cifar-100", data_dir=tmp_path / "folder")


def link(name, target, kind=tarfile.SYMTYPE):
    """Return a tar file in which one member is a link."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        tar.addfile(info)
    return out.getvalue()


ARCHIVE = cifar_archive("cifar-100")
FILES = cifar_files("cifar-100")


LACKING = ("damaged-file", None, "cifar-100-binary/train.bin, cifar-100-binary/test.bin")
CUT = "Compressed file ended before the end-of-stream marker was reached"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (ARCHIVE[: len(ARCHIVE) // 2], ("damaged-file", None, CUT)),
        (ARCHIVE[:-8], ("damaged-file", None, CUT)),
        (ARCHIVE[:-8] + bytes(8), ("damaged-file", None, "CRC")),
        (gzip.compress(gzip.decompress(ARCHIVE)[:4000], mtime=0), ("damaged-file",)),
        (gzip.decompress(ARCHIVE), ("damaged-file", None, "Not a gzipped file")),
        (b"", ("damaged-file",)),
        (
            tar_gz({"cifar-100-binary/train.bin": FILES["train.bin"]}),
            ("damaged-file", None, "cifar-100-binary/test.bin"),
        ),
        (tar_gz(FILES), LACKING),
        (tar_gz({f"../cifar-100-binary/{k}": v for k, v in FILES.items()}), LACKING),
        (tar_gz({f"/cifar-100-binary/{k}": v for k, v in FILES.items()}), LACKING),
        (link("cifar-100-binary/train.bin", "/etc/passwd"), LACKING),
        (link("cifar-100-binary/train.bin", "cifar-100-binary/train.bin", tarfile.LNKTYPE), LACKING),
    ],
)
def test_damaged_and_hostile_archives_are_refused(tmp_path, content, error):
    write_files(tmp_path, {"cifar-100-binary.tar.gz": content})
    with refused(*error) as caught:
        load("cifar-100", data_dir=tmp_path)
    assert "\n" not in str(caught.value)
    assert "cifar-100-binary.tar.gz" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-100-binary.tar.gz"]  # nothing was unpacked


@pytest.mark.parametrize("name", ["cifar-100-binary/train.bin", "cifar-100-binary/other.bin"])
def test_archive_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setenv("DRFL_FILE_LIMIT", "100K")
    write_files(tmp_path, {"cifar-100-binary.tar.gz": tar_gz({name: bytes(1_000_000), **FILES})})
    with refused("file-too-large", str(tmp_path / "cifar-100-binary.tar.gz"), "DRFL_FILE_LIMIT"):
        load("cifar-100", data_dir=tmp_path)


def test_tar_header_with_a_huge_size_uses_no_memory(tmp_path):
    info = tarfile.TarInfo("long")
    info.type, info.size = tarfile.XHDTYPE, 1 << 40  # tarfile would read the whole value
    write_files(tmp_path, {"cifar-100-binary.tar.gz": gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(2_000_000))})
    with refused("damaged-file", str(tmp_path / "cifar-100-binary.tar.gz")):
        load("cifar-100", data_dir=tmp_path)


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_SPARSE, tarfile.GNUTYPE_LONGNAME, tarfile.DIRTYPE])
def test_tar_header_with_missing_data_is_refused_quickly(tmp_path, kind):
    info = tarfile.TarInfo("cifar-100-binary/train.bin")
    info.type, info.size = kind, 1 << 50
    write_files(tmp_path, {"cifar-100-binary.tar.gz": gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(20_000))})
    with refused("damaged-file", str(tmp_path / "cifar-100-binary.tar.gz")):
        load("cifar-100", data_dir=tmp_path)


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_SPARSE])
def test_tar_header_that_refers_to_itself_is_refused_quickly(tmp_path, kind):
    first, second = (tarfile.TarInfo(f"cifar-100-binary/{name}") for name in ("readme.html", "train.bin"))
    second.type, second.size = kind, -512
    content = b"".join(info.tobuf(tarfile.GNU_FORMAT) for info in (first, second)) + bytes(20_000)
    write_files(tmp_path, {"cifar-100-binary.tar.gz": gzip.compress(content)})
    with refused("damaged-file", str(tmp_path / "cifar-100-binary.tar.gz")):
        load("cifar-100", data_dir=tmp_path)


def test_oversized_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("DRFL_FILE_LIMIT", "6147")
    write_files(tmp_path, FILES)
    with refused("file-too-large", str(tmp_path / "train.bin"), "DRFL_FILE_LIMIT"):
        load("cifar-100", data_dir=tmp_path)


@given(st.data())
def test_any_archive_gives_data_or_a_one_line_error(tmp_path_factory, data):
    raw = bytearray(gzip.decompress(ARCHIVE))
    for _ in range(data.draw(st.integers(1, 8))):  # only in headers, because any pixel value is valid
        block = 512 * data.draw(st.sampled_from([0, 1, 2, 15, 16, 17]))
        raw[block + data.draw(st.integers(0, 511))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    content = gzip.compress(bytes(raw[:cut] if data.draw(st.booleans()) else raw), 1)
    path = tmp_path_factory.mktemp("fuzz") / "a.tar.gz"
    path.write_bytes(content)
    outcome = pixels_or_line("cifar-100", path)
    if isinstance(outcome, str):
        assert "\n" not in outcome
    else:
        assert outcome.inputs.shape[1:] == (3, 32, 32)


@given(st.sampled_from(sorted(CIFAR)), st.integers(0, 2), st.integers(-2, 2), st.binary(min_size=4, max_size=4))
def test_any_bytes_give_data_or_a_one_line_error(tmp_path_factory, name, rows, more, drawn):
    width = 3073 if name == "cifar-10" else 3074
    size = max(0, rows * width + more)
    body = b"".join(drawn[2 * row : 2 * row + 2] + bytes(width - 2) for row in range(2))[:size].ljust(size, drawn[:1])
    folder = tmp_path_factory.mktemp("fuzz")
    write_files(folder, dict.fromkeys([*CIFAR[name][2], "archive"], body))
    outcome = pixels_or_line(name, folder)
    labels = [body[row * width + k] for row in range(rows) for k in range(width - 3072)] if more == 0 else []
    right = bool(labels) and all(
        label < (10 if name == "cifar-10" else (20, 100)[k % 2]) for k, label in enumerate(labels)
    )
    assert (not isinstance(outcome, str)) == right
    assert "\n" not in str(pixels_or_line(name, folder / "archive"))


def test_labels_keep_the_order_of_the_batches(tmp_path):
    write_files(tmp_path, cifar_files("cifar-10", rows=30))
    assert load_pixels("cifar-10", data_dir=tmp_path).targets.tolist() == (np.arange(150) % 10).tolist()
