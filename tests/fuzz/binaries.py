"""Files of bytes: images, archives, weights, partitions."""

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
from safetensors.torch import save
from tests.data.conftest import CIFAR, STEMS, cifar_files, tiny_imagenet_files, write_tiny

from drfl.data import Partition
from drfl.data.catalogue import load_pixels
from drfl.data.formats import read_idx
from drfl.features.backbone import Backbone
from drfl.features.weights import read_weights
from drfl.models import cnn

from .judge import Parser
from .mutate import HEADS, NUMBERS, damaged, written

PATTERNS = (
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
    """The four files of a small data set."""
    with tempfile.TemporaryDirectory() as folder:
        write_tiny(Path(folder))
        return {stem: (Path(folder) / stem).read_bytes() for stem in STEMS}


def idx(rng):
    """The name of one of the four files and its content, plain or gzipped."""
    stem = rng.choice(STEMS)
    data = idx_files()[stem]
    kind = rng.randrange(8)
    if kind == 0:
        return stem, data
    if kind == 1:
        return stem, damaged(rng, gzip.compress(data, mtime=0))
    if kind == 2:
        return stem, gzip.compress(damaged(rng, data), mtime=0) + rng.choice((b"", rng.randbytes(9), b"\0" * 9))
    if kind == 3:
        shape = rng.choice(PATTERNS)
        head = struct.pack(f">BBBB{len(shape)}I", 0, 0, rng.choice((8, 9, 11, 12, 13, 14, 99)), len(shape), *shape)
        content = head + rng.choice((b"", rng.randbytes(200), b"\0" * 60000))
        return stem, content if rng.random() < 0.5 else gzip.compress(content, mtime=0)
    return stem, damaged(rng, data)


def read_idx_files(item, folder):
    """By itself, and as part of a data set."""
    stem, data = item
    for name, content in {**idx_files(), stem: data}.items():
        (folder / name).write_bytes(content)
    read_idx(folder / stem)
    load_pixels("mnist", data_dir=folder)


@functools.cache
def cifar_members(name):
    """Path → content."""
    return {f"{CIFAR[name][0]}/{file}": content for file, content in cifar_files(name, rows=1).items()}


def tar(members, kind=tarfile.REGTYPE, form=tarfile.GNU_FORMAT):
    """A tar file; path → content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.type = kind
            info.linkname = "/etc/passwd" if kind != tarfile.REGTYPE else ""
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def cifar(rng):
    """A data set and its archive, damaged before or after it was packed."""
    name = rng.choice(tuple(CIFAR))
    members = dict(cifar_members(name))
    kind = rng.randrange(6)
    if kind == 0:
        one = rng.choice(list(members))
        members[one] = damaged(rng, members[one])
    if kind == 1:
        one = rng.choice(list(members))
        members[rng.choice((f"../{one}", f"/{one}", one.upper(), f"./{one}", f"a/{one}", one + "\n"))] = members.pop(
            one
        )
    link = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE)
    form = rng.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    packed = tar(members, rng.choice(link) if kind == 2 else tarfile.REGTYPE, form)
    if kind == 3:
        return name, damaged(rng, gzip.compress(packed, 1, mtime=0))
    if kind == 4:
        at = 512 * rng.randrange(len(packed) // 512)  # a header more often than not: they are what has numbers
        field = rng.choice([*HEADS, b"77777777777", b"-0000000001", b"99999999999", b"\x80" + b"\xff" * 11])
        packed = packed[: at + 124] + field + packed[at + 124 + len(field) :]
    return name, gzip.compress(damaged(rng, packed) if kind == 5 else packed, 1, mtime=0)


def read_cifar_file(item, folder):
    """From an archive with any name."""
    name, data = item
    (folder / "archive.tar.gz").write_bytes(data)
    load_pixels(name, data_dir=folder / "archive.tar.gz")


@functools.cache
def pictures():
    """Path → content."""
    return tiny_imagenet_files(each=1, test=2)


def zipped(files, method, top="tiny-imagenet-200"):
    """A zip file; path → content."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(f"{top}/{name}"), content, method)
    return out.getvalue()


def tiny_imagenet(rng):
    """A zip file, damaged before or after it was packed."""
    files = dict(pictures())
    kind = rng.randrange(5)
    if kind <= 1:
        one = rng.choice(list(files))
        text = not one.endswith(".JPEG")
        files[one] = written(rng, files[one].decode("latin-1")) if text else damaged(rng, files[one])
    if kind == 2:
        one = rng.choice(list(files))
        del files[one]
        files[
            rng.choice(("../x.JPEG", "train/../val/a.JPEG", "train/n00000001/images/a.JPEG", "val/images/é.JPEG"))
        ] = b"x"
    packed = zipped(files, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    return damaged(rng, packed) if kind >= 3 else packed


def read_tiny(item, folder):
    """From a zip file."""
    (folder / "tiny.zip").write_bytes(item)
    load_pixels("tiny-imagenet", data_dir=folder / "tiny.zip")


PARTITION = {
    "format": "drfl-partition-1",
    "recipe": {"partition": "dirichlet", "alpha": "inf", "clients": 2, "seed": 0},
    "clients": [{"name": "a", "train": [0, 2], "test": [0]}, {"name": "b", "train": [1], "test": [1]}],
}


def partition(rng):
    """A partition file."""
    return written(rng, json.dumps(PARTITION))


def read_partition(item, folder):
    """Read, and written again."""
    (folder / "partition.json").write_bytes(item)
    Partition.load(folder / "partition.json").save(folder / "again.json")


@functools.cache
def weights():
    """Weights of a small network: safetensors and torch's format."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = cnn((1, 4, 4), 2).state_dict()
    state = {name: value[..., :1].contiguous() if name == "5.weight" else value for name, value in state.items()}
    small = {name: value.contiguous() for name, value in cnn((1, 4, 4), 2).state_dict().items()}
    return save(small), torch_file(small), torch_file(small, old=True), save(state)


def torch_file(state, old=False):
    """What torch.save writes."""
    out = io.BytesIO()
    torch.save(state, out, _use_new_zipfile_serialization=not old)
    return out.getvalue()


def backbone(rng):
    """The ending of a file of weights and its content."""
    new, zipped_state, old, odd = weights()
    kind = rng.randrange(8)
    if kind == 0:
        return ".pth", damaged(rng, rng.choice((zipped_state, old)))
    if kind == 1:
        return rng.choice((".pt", ".safetensors")), rng.choice((new, zipped_state, old, odd))
    if kind <= 4:
        length = int.from_bytes(new[:8], "little")
        head = rewritten_header(rng, json.loads(new[8 : 8 + length]))
        return ".safetensors", len(head).to_bytes(8, "little") + head + new[8 + length :]
    return ".safetensors", damaged(rng, new)


def rewritten_header(rng, header):
    """A header of safetensors with other names, types, shapes or places."""
    name = rng.choice([name for name in header if name != "__metadata__"])
    entry, kind = header[name], rng.randrange(6)
    size = rng.choice((0, 1, -1, 2**20, 2**31, 2**40, 2**63))
    if kind == 0:
        entry["shape"] = rng.choice(([], [0], [size], [size, 0], [0, size], [size, 1, 1], entry["shape"][::-1]))
        if rng.random() < 0.7:
            entry["data_offsets"] = [entry["data_offsets"][0]] * 2
    elif kind == 1:
        entry["dtype"] = rng.choice(("F16", "BF16", "F64", "I64", "U8", "BOOL", "F8_E4M3", "X"))
    elif kind == 2:
        entry["data_offsets"] = rng.choice(([0, size], [size, 0], [0], "x"))
    elif kind == 3:
        header[rng.choice(("fc.weight", "0.weight", "", "a\nb", "__metadata__"))] = header.pop(name)
    elif kind == 4:
        del header[name]
    else:
        return written(rng, json.dumps(header).replace("0", rng.choice(NUMBERS), 1))
    return json.dumps(header).encode()


def read_backbone(item, folder):
    """As the network that it is."""
    ending, data = item
    path = folder / f"weights{ending}"
    path.write_bytes(data)
    Backbone.of(str(path), read_weights(path))


BINARIES = (
    Parser("IDX files", idx, read_idx_files),
    Parser("CIFAR archives", cifar, read_cifar_file),
    Parser("Tiny ImageNet archives", tiny_imagenet, read_tiny),
    Parser("partition.json", partition, read_partition),
    Parser("backbones", backbone, read_backbone),
)
