"""Strategies for binary files: images, archives, weights, partitions."""

from __future__ import annotations

import functools
import gzip
import io
import json
import struct
import tarfile
import tempfile
import zipfile
from pathlib import Path

import torch
from hypothesis.strategies import composite, integers, one_of, sampled_from
from safetensors.torch import save
from tests.data.conftest import CIFAR, STEMS, cifar_files, tiny_imagenet_files, write_tiny

from drfl.data import Partition
from drfl.data.datasets.catalogue import load_pixels
from drfl.data.datasets.formats import read_idx
from drfl.data.features.backbone import Backbone
from drfl.data.features.weights import read_weights
from drfl.task.models import cnn

from .judge import Parser
from .strategies import SIZES, mutated_bytes, mutated_file, mutated_json, mutated_safetensors

SHAPES = (
    (0, 0, 0, 1),
    (0, 1, 0xFFFFFFFF),
    (0xFFFFFFFF,) * 32,
    (2**31, 2),
    (60000, 28, 28),
    (1,) * 40,
    (2**16, 2**16),
)


@functools.cache
def idx_files():
    """Return the four files of a small data set."""
    with tempfile.TemporaryDirectory() as folder:
        write_tiny(Path(folder))
        return {stem: (Path(folder) / stem).read_bytes() for stem in STEMS}


@composite
def idx(draw):
    """Draw the name of one of the four files and its content, plain or gzipped."""
    stem = draw(sampled_from(STEMS))
    data = idx_files()[stem]
    kind = draw(sampled_from(("right", "packed", "unpacked", "header", *("plain",) * 4)))
    if kind == "right":
        return stem, data
    if kind == "packed":
        return stem, draw(mutated_bytes(gzip.compress(data, mtime=0)))
    if kind == "unpacked":
        more = draw(sampled_from((b"", bytes(range(9)), b"\0" * 9)))
        return stem, gzip.compress(draw(mutated_bytes(data)), mtime=0) + more
    if kind == "header":
        shape, dtype = draw(sampled_from(SHAPES)), draw(sampled_from((8, 9, 11, 12, 13, 14, 99)))
        head = struct.pack(f">BBBB{len(shape)}I", 0, 0, dtype, len(shape), *shape)
        content = head + draw(sampled_from((b"", bytes(range(200)), b"\0" * 60000)))
        return stem, draw(sampled_from((content, gzip.compress(content, mtime=0))))
    return stem, draw(mutated_bytes(data))


def read_idx_files(item, folder):
    """Read a file alone, and as part of a data set."""
    stem, data = item
    for name, content in {**idx_files(), stem: data}.items():
        (folder / name).write_bytes(content)
    read_idx(folder / stem)
    load_pixels("mnist", data_dir=folder)


@functools.cache
def cifar_members(name):
    """Return path → content of a small data set."""
    return {f"{CIFAR[name][0]}/{file}": content for file, content in cifar_files(name, rows=1).items()}


def tar(members, kind=tarfile.REGTYPE, form=tarfile.GNU_FORMAT):
    """Return a tar file of path → content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.type = kind
            info.linkname = "/etc/passwd" if kind != tarfile.REGTYPE else ""
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


@composite
def cifar(draw):
    """Draw a data set and its archive, damaged before or after packing."""
    name = draw(sampled_from(tuple(CIFAR)))
    members = dict(cifar_members(name))
    kind = draw(sampled_from(("right", "member", "name", "link", "archive", "header", "unpacked")))
    one = draw(sampled_from(list(members)))
    if kind == "member":
        members[one] = draw(mutated_bytes(members[one]))
    elif kind == "name":
        new = draw(sampled_from((f"../{one}", f"/{one}", one.upper(), f"./{one}", f"a/{one}", one + "\n")))
        members[new] = members.pop(one)
    link = draw(sampled_from((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE)))
    form = draw(sampled_from((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)))
    packed = tar(members, link if kind == "link" else tarfile.REGTYPE, form)
    if kind == "archive":
        return name, draw(mutated_bytes(gzip.compress(packed, 1, mtime=0)))
    if kind == "header":
        at = 512 * draw(integers(0, len(packed) // 512 - 1)) + 124  # of a size, if the block is a header
        size = draw(sampled_from((*SIZES, b"77777777777", b"-0000000001", b"99999999999", b"\x80" + b"\xff" * 11)))
        packed = packed[:at] + size + packed[at + len(size) :]
    elif kind == "unpacked":
        packed = draw(mutated_bytes(packed))
    return name, gzip.compress(packed, 1, mtime=0)


def read_cifar_file(item, folder):
    """Read a data set from its archive."""
    name, data = item
    (folder / "archive.tar.gz").write_bytes(data)
    load_pixels(name, data_dir=folder / "archive.tar.gz")


@functools.cache
def pictures():
    """Return path → content of a small data set."""
    return tiny_imagenet_files(each=1, test=2)


def zipped(files, method, top="tiny-imagenet-200"):
    """Return a zip file of path → content."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(f"{top}/{name}"), content, method)
    return out.getvalue()


@composite
def tiny_imagenet(draw):
    """Draw a zip file, damaged before or after packing."""
    files = dict(pictures())
    kind = draw(sampled_from(("file", "file", "name", "archive", "archive")))
    one = draw(sampled_from(list(files)))
    if kind == "file":
        text = not one.endswith(".JPEG")
        files[one] = draw(mutated_file(files[one].decode("latin-1")) if text else mutated_bytes(files[one]))
    elif kind == "name":
        del files[one]
        names = ("../x.JPEG", "train/../val/a.JPEG", "train/n00000001/images/a.JPEG", "val/images/é.JPEG")
        files[draw(sampled_from(names))] = b"x"
    packed = zipped(files, draw(sampled_from((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))))
    return draw(mutated_bytes(packed)) if kind == "archive" else packed


def read_tiny(item, folder):
    """Read a data set from a zip file."""
    (folder / "tiny.zip").write_bytes(item)
    load_pixels("tiny-imagenet", data_dir=folder / "tiny.zip")


PARTITION = {
    "format": "drfl-partition-1",
    "recipe": {"partition": "dirichlet", "alpha": "inf", "clients": 2, "seed": 0},
    "clients": [{"name": "a", "train": [0, 2], "test": [0]}, {"name": "b", "train": [1], "test": [1]}],
}


partition = one_of(
    mutated_file(json.dumps(PARTITION)), mutated_json(PARTITION).map(lambda content: json.dumps(content).encode())
)
"""A partition file."""


def read_partition(item, folder):
    """Read a partition and write it again."""
    (folder / "partition.json").write_bytes(item)
    Partition.load(folder / "partition.json").save(folder / "again.json")


@functools.cache
def weights():
    """Return weights of a small network in safetensors' and torch's formats."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = cnn((1, 4, 4), 2).state_dict()
    state = {name: value[..., :1].contiguous() if name == "5.weight" else value for name, value in state.items()}
    small = {name: value.contiguous() for name, value in cnn((1, 4, 4), 2).state_dict().items()}
    return save(small), torch_file(small), torch_file(small, old=True), save(state)


def torch_file(state, old=False):
    """Return the bytes that torch.save writes."""
    out = io.BytesIO()
    torch.save(state, out, _use_new_zipfile_serialization=not old)
    return out.getvalue()


@composite
def backbone(draw):
    """Draw the ending of a file of weights, and its content."""
    new, zipped_state, old, odd = weights()
    kind = draw(integers(0, 7))
    if kind == 0:
        return ".pth", draw(mutated_bytes(draw(sampled_from((zipped_state, old)))))
    if kind == 1:
        return draw(sampled_from((".pt", ".safetensors"))), draw(sampled_from((new, zipped_state, old, odd)))
    return ".safetensors", draw(mutated_safetensors(new))


def read_backbone(item, folder):
    """Read weights, and recognise their network."""
    ending, data = item
    path = folder / f"weights{ending}"
    path.write_bytes(data)
    Backbone.of(str(path), read_weights(path))


BINARIES = (
    Parser("IDX files", idx(), read_idx_files),
    Parser("CIFAR archives", cifar(), read_cifar_file),
    Parser("Tiny ImageNet archives", tiny_imagenet(), read_tiny),
    Parser("partition.json", partition, read_partition),
    Parser("backbones", backbone(), read_backbone),
)
