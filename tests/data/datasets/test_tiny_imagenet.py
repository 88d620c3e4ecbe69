"""Test Tiny ImageNet: zipped and unpacked, and one-line errors for damaged files or missing Pillow."""

from __future__ import annotations

import io
import sys
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.data.conftest import WNIDS, picture, pixels_or_line, tiny_imagenet_files, write_files, zipped
from tests.support.refusals import refused

from drfl.data import describe, load
from drfl.data.datasets.catalogue import load_pixels

FILES = tiny_imagenet_files()
ZIP = zipped(FILES)
FIRST = f"train/{WNIDS[0]}/images/{WNIDS[0]}_0.JPEG"


def loaded(folder, files, packed):
    """Load the data set of these files from a folder, zipped or unpacked."""
    if packed:
        write_files(folder, {"tiny-imagenet-200.zip": zipped(files)})
    else:
        write_files(folder / "tiny-imagenet-200", files)
    return load_pixels("tiny-imagenet", data_dir=folder)


@pytest.mark.parametrize("packed", [False, True])
def test_classes_follow_the_list_and_images_match_the_files(tmp_path, packed):
    pixels = loaded(tmp_path, FILES, packed)
    assert pixels.inputs.shape == (6, 3, 64, 64)
    assert pixels.inputs.dtype == torch.uint8
    assert pixels.targets.tolist() == [0, 0, 1, 1, 2, 2]
    assert pixels.inputs[:, :, 5, 60].tolist() == [[10 * k, i, 200] for k in range(3) for i in range(2)]
    assert pixels.test_targets.tolist() == [2, 1, 0, 2]
    assert pixels.classes == 3
    assert [row.unique().tolist() for row in pixels.test_inputs] == [[50], [51], [52], [53]]  # grey: equal channels


def test_rows_and_columns_are_not_swapped(tmp_path):
    array = np.zeros((64, 64, 3))
    array[3, 7, 1] = 255
    pixels = loaded(tmp_path, {**FILES, FIRST: picture(array)}, packed=True)
    assert torch.nonzero(pixels.inputs[0]).tolist() == [[1, 3, 7]]


def test_jpeg_is_decoded(tmp_path):
    flat = np.full((64, 64, 3), (200, 100, 50))
    pixels = loaded(tmp_path, {**FILES, FIRST: picture(flat, "JPEG")}, packed=True)
    np.testing.assert_allclose(pixels.inputs[0].permute(1, 2, 0), flat, atol=3)


def test_load_gives_floats_of_the_same_pixels(tmp_path):
    pixels = loaded(tmp_path, FILES, packed=True)
    data = load("tiny_imagenet", data_dir=tmp_path / "tiny-imagenet-200.zip")
    torch.testing.assert_close(data.test_inputs, pixels.test_inputs / 255, rtol=0, atol=0)
    assert torch.equal(data.targets, pixels.targets)


@pytest.mark.parametrize("below", ["data/tiny-imagenet-200.zip", ".cache/drfl/tiny-imagenet/tiny-imagenet-200.zip"])
def test_zip_file_is_found(bare_machine, below):
    write_files(bare_machine, {below: ZIP})
    assert next(info for info in describe() if info.name == "tiny-imagenet").found is not None
    assert len(load_pixels("tiny-imagenet", download=False).targets) == 6


@pytest.mark.parametrize("below", ["data/tiny-imagenet-200", "data/tiny-imagenet", ".cache/drfl/tiny-imagenet"])
def test_unpacked_folder_is_found(bare_machine, below):
    write_files(bare_machine / below, FILES)
    assert len(load_pixels("tiny-imagenet", download=False).targets) == 6


def test_hidden_and_foreign_files_are_skipped(tmp_path):
    hidden = FIRST.replace("/images/", "/images/._")
    others = {hidden: b"", FIRST.replace(".JPEG", ".txt"): b"", "val/images/.DS_Store": b"", "train/.DS_Store/x": b""}
    assert len(loaded(tmp_path, {**FILES, **others}, packed=False).targets) == 6


def test_member_without_a_name_is_skipped(tmp_path):
    raw = zipped({**FILES, "~~~": b""}).replace(b"tiny-imagenet-200/~~~", b"\0" * 21)
    write_files(tmp_path, {"tiny-imagenet-200.zip": raw})
    assert "" in zipfile.ZipFile(tmp_path / "tiny-imagenet-200.zip").namelist()
    assert len(load_pixels("tiny-imagenet", data_dir=tmp_path).targets) == 6


def test_missing_pillow_is_reported_first(bare_machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with refused("package-missing", "pillow") as caught:
        load("tiny-imagenet")
    assert all(part in str(caught.value) for part in ("'tiny-imagenet'", "'drfl[experiments]'"))


def without(start):
    return {name: content for name, content in FILES.items() if not name.startswith(start)}


NO_LIST = ("damaged-file", None, "wnids.txt", "n01443537")
BAD_LINE = ("damaged-file", None, "1", "val/val_annotations.txt", ".JPEG", "wnids.txt")
BROKEN = [
    (without(FIRST), ("damaged-file", None, "classes")),
    (without(f"train/{WNIDS[1]}/images"), ("damaged-file", None, f"train/{WNIDS[1]}/images/")),
    (without(f"train/{WNIDS[1]}"), ("damaged-file", None, "wnids.txt", WNIDS[1])),
    (without("train"), ("damaged-file", None, "wnids.txt", "train/n01443537/images/")),
    (without("val/images/val_2"), ("damaged-file", None, "val/images/val_2.JPEG")),
    ({**FILES, "wnids.txt": FILES["wnids.txt"][:10]}, ("damaged-file", None, "wnids.txt", "train/n01443537/images/")),
    ({**FILES, "wnids.txt": b"\n"}, NO_LIST),
    ({**FILES, "wnids.txt": FILES["wnids.txt"] * 2}, NO_LIST),
    ({**FILES, "wnids.txt": b"../../etc\n"}, NO_LIST),
    ({**FILES, "wnids.txt": b"\xff\xfe"}, NO_LIST),
    ({**FILES, "val/val_annotations.txt": b""}, ("damaged-file", None, "val/val_annotations.txt", "empty")),
    ({**FILES, "val/val_annotations.txt": b"val_0.JPEG\n"}, BAD_LINE),
    ({**FILES, "val/val_annotations.txt": b"val_0.JPEG\tn00000000\n"}, BAD_LINE),
    ({**FILES, "val/val_annotations.txt": f"../../a.JPEG\t{WNIDS[0]}\n".encode()}, BAD_LINE),
    ({**FILES, FIRST: b"no picture"}, ("damaged-file", None, FIRST)),
    ({**FILES, FIRST: b""}, ("damaged-file", None, "JPEG")),
    ({**FILES, FIRST: picture(np.eye(64) * 255, "JPEG")[:-200]}, ("damaged-file", None, "JPEG")),
    ({**FILES, FIRST: picture(np.zeros((64, 64)), "GIF")}, ("damaged-file", None, "JPEG")),
    ({**FILES, FIRST: picture(np.zeros((64, 32)))}, ("wrong-dataset", None, "32x64", "64x64")),
]


@pytest.mark.parametrize(("files", "error"), BROKEN)
@pytest.mark.parametrize("packed", [False, True])
def test_incomplete_files_are_one_line_errors(tmp_path, files, error, packed):
    with refused(*error) as caught:
        loaded(tmp_path, files, packed)
    assert "\n" not in str(caught.value)
    assert "tiny-imagenet-200" in str(caught.value)


def encrypted():
    """Return the zip file with every member marked as encrypted."""
    raw = bytearray(ZIP)
    for mark, flags in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        at = raw.find(mark)
        while at >= 0:
            raw[at + flags] |= 1
            at = raw.find(mark, at + 1)
    return bytes(raw)


def flipped():
    """Return the zip file with one byte of a stored file changed."""
    raw = bytearray(ZIP)
    raw[raw.find(FILES["wnids.txt"]) + 3] ^= 1
    return bytes(raw)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", ("damaged-file",)),
        (ZIP[: len(ZIP) // 2], ("damaged-file",)),
        (ZIP[1000:], ("damaged-file",)),
        (flipped(), ("damaged-file", None, "Bad CRC-32")),
        (encrypted(), ("damaged-file", None, "encrypted")),
        (zipped(FILES, top="other"), ("damaged-file", None, "wnids.txt")),
    ],
)
def test_damaged_zip_file_is_a_one_line_error(tmp_path, content, error):
    write_files(tmp_path, {"tiny-imagenet-200.zip": content})
    with refused(*error) as caught:
        load("tiny-imagenet", data_dir=tmp_path)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-imagenet-200.zip"]  # nothing was unpacked


@pytest.mark.parametrize("packed", [False, True])
def test_oversized_file_is_refused(tmp_path, monkeypatch, packed):
    monkeypatch.setenv("DRFL_FILE_LIMIT", "1M")
    with refused("file-too-large", None, "DRFL_FILE_LIMIT"):
        loaded(tmp_path, {**FILES, FIRST: bytes(2**20 + 1)}, packed)


def test_image_with_a_huge_declared_size_is_not_decoded(tmp_path):
    raw = bytearray(FILES[FIRST])
    raw[16:24] = (1 << 30).to_bytes(4) * 2  # width and height in a PNG file's header, which makes its checksum wrong
    with refused("damaged-file", None, "JPEG"):
        loaded(tmp_path, {**FILES, FIRST: bytes(raw)}, packed=True)


SMALL = tiny_imagenet_files(each=1, test=1)


@given(st.data())
def test_any_zip_file_gives_data_or_a_one_line_error(tmp_path_factory, data):
    raw = bytearray(zipped(SMALL))
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(raw)), st.integers(0, len(raw))))
    path = tmp_path_factory.mktemp("fuzz") / "a.zip"
    path.write_bytes(raw[:cut])
    assert_data_or_line(path)


@given(st.sampled_from([FIRST, "wnids.txt", "val/val_annotations.txt"]), st.data())
def test_any_member_gives_data_or_a_one_line_error(tmp_path_factory, name, data):
    body = bytearray(picture(np.arange(64 * 64).reshape(64, 64) % 251, "JPEG") if name == FIRST else SMALL[name])
    for _ in range(data.draw(st.integers(1, 8))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    out = io.BytesIO(zipped({**SMALL, name: bytes(body)}))
    assert zipfile.is_zipfile(out)
    path = tmp_path_factory.mktemp("fuzz") / "a.zip"
    path.write_bytes(out.getvalue())
    assert_data_or_line(path)


def assert_data_or_line(path):
    outcome = pixels_or_line("tiny-imagenet", path)
    if isinstance(outcome, str):
        assert "\n" not in outcome
        assert "a.zip" in outcome
    else:
        assert outcome.inputs.shape == (3, 3, 64, 64)
