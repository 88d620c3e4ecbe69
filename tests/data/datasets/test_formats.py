"""Test that the IDX reader reads valid files exactly and refuses every invalid one in one line."""

from __future__ import annotations

import gzip
import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.refusals import refused

from drfl.core.errors import InputError
from drfl.data import read_idx, write_idx

GOOD = struct.pack(">BBBB3I", 0, 0, 8, 3, 2, 3, 4) + bytes(range(24))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("idx") / "file"


@pytest.mark.parametrize("name", ["a", "a.gz"])
@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (1, 1, 1, 1, 7)])
def test_written_files_are_read_back(tmp_path, name, shape):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    write_idx(tmp_path / "new" / name, array)
    back = read_idx(tmp_path / "new" / name)
    assert back.dtype == np.uint8
    assert back.flags.writeable
    np.testing.assert_array_equal(back, array)
    assert [path.name for path in (tmp_path / "new").iterdir()] == [name]


def test_gzip_is_detected_by_content(tmp_path):
    (tmp_path / "plain.gz").write_bytes(GOOD)
    (tmp_path / "zipped").write_bytes(gzip.compress(GOOD))
    np.testing.assert_array_equal(read_idx(tmp_path / "plain.gz"), read_idx(tmp_path / "zipped"))


TYPES = [(9, "i1"), (0x0B, "i2"), (0x0C, "i4"), (0x0D, "f4"), (0x0E, "f8")]


@pytest.mark.parametrize(("code", "kind"), TYPES)
def test_every_type_is_read_in_native_byte_order(tmp_path, code, kind):
    values = np.array([-3, 0, 7], dtype=f">{kind}")
    (tmp_path / "f").write_bytes(struct.pack(">BBBBI", 0, 0, code, 1, 3) + values.tobytes())
    back = read_idx(tmp_path / "f")
    assert back.dtype == np.dtype(kind)
    assert back.tolist() == [-3, 0, 7]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", ("unsupported-file", None, "IDX")),
        (b"\1\0\x08\1" + b"\0" * 9, ("unsupported-file", None, "IDX")),
        (b"\0\0\x0a\1\0\0\0\1\0", ("unsupported-file", None, "0x0a")),
        (b"\0\0\x08\0", ("unsupported-file", None, "0")),
        (b"\0\0\x08\xff" + b"\0\0\0\1" * 255, ("unsupported-file", None, "255")),
        (b"\0\0\x08\3\0\0", ("damaged-file",)),
        (GOOD[:-1], ("damaged-file", None, "23", "24")),
        (GOOD + b"x", ("damaged-file", None, "24")),
        (struct.pack(">BBBB2I", 0, 0, 8, 2, 0, 28), ("damaged-file", None, "(0, 28)")),
        (b"\0\0\x0e\x20" + b"\xff" * 128 + b"few", ("damaged-file", None, "3")),
        (gzip.compress(GOOD, mtime=0)[:-9], ("damaged-file",)),
        (gzip.compress(GOOD, mtime=0)[:-8] + b"\0" * 8, ("damaged-file",)),
        (gzip.compress(GOOD, mtime=0) + b"junk", ("damaged-file",)),
        (b"\x1f\x8b", ("damaged-file",)),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path, content, error):
    path = tmp_path / "bad-file"
    path.write_bytes(content)
    with refused(*error) as caught:
        read_idx(path)
    assert "bad-file" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_and_folders_are_refused(tmp_path):
    with refused("file-not-found", str(tmp_path / "none")):
        read_idx(tmp_path / "none")
    with refused("not-a-file"):
        read_idx(tmp_path)


@pytest.mark.parametrize("array", [np.zeros(3), np.zeros((), np.uint8), np.zeros((0, 2), np.uint8)])
def test_only_bytes_are_written(tmp_path, array):
    with refused("wrong-shape", "array", "write_idx"):
        write_idx(tmp_path / "f", array)
    assert not any(tmp_path.iterdir())


def _read_or_refuse(path, content):
    path.write_bytes(content)
    with suppress(InputError):
        assert isinstance(read_idx(path), np.ndarray)


HEADS = [b"", b"\0\0", b"\0\0\x08\1", b"\x1f\x8b\x08\0", b"\0\0\x0e\2\0\0\0"]


@given(st.binary(max_size=80), st.sampled_from(HEADS))
def test_random_bytes_raise_only_input_errors(scratch, tail, head):
    _read_or_refuse(scratch, head + tail)


@given(st.sampled_from([GOOD, gzip.compress(GOOD, mtime=0)]), st.data())
def test_truncated_and_corrupted_files_raise_only_input_errors(scratch, content, data):
    broken = bytearray(content)
    for _ in range(data.draw(st.integers(0, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    _read_or_refuse(scratch, bytes(broken[: data.draw(st.integers(0, len(broken)))]))
