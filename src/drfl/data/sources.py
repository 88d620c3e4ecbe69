"""Where the data sets come from: their files, checksums and mirrors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteFile:
    """One file of a data set as it is published.

    Args:
        stem: its name without the ending.
        md5: checksum of the published file (the values that its publisher or torchvision gives).
        md5_content: checksum of what is inside a ``.gz`` file, where known: mirrors and distributions compress anew,
            which changes `md5` and not this.
        ending: the rest of its name.
    """

    stem: str
    md5: str
    md5_content: str | None = None
    ending: str = ".gz"

    @property
    def name(self) -> str:
        """Its name as it is published."""
        return self.stem + self.ending


@dataclass(frozen=True)
class Source:
    """A data set as files: four IDX files, or one archive that is read packed or unpacked.

    Args:
        folder: its folder's name in caches, mirrors and distributions.
        inner: the folder that it unpacks to, or that torchvision keeps it in.
        mirrors: addresses of folders that hold the files; they end in a slash.
        files: training images, training labels, test images, test labels; or the archive.
        members: of an archive, files by which the unpacked folder is known, relative to it; empty for IDX files.
        refused: names of another edition of the data set that drfl does not read, because it is pickled.
    """

    folder: str
    inner: str
    mirrors: tuple[str, ...]
    files: tuple[RemoteFile, ...]
    members: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


_TRAIN_IMAGES, _TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
_TEST_IMAGES, _TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"

MNIST = Source(
    "mnist",
    "MNIST/raw",
    ("https://ossci-datasets.s3.amazonaws.com/mnist/",),
    (
        RemoteFile(_TRAIN_IMAGES, "f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
        RemoteFile(_TRAIN_LABELS, "d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
        RemoteFile(_TEST_IMAGES, "9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
        RemoteFile(_TEST_LABELS, "ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
    ),
)

FASHION = Source(
    "fashion-mnist",
    "FashionMNIST/raw",
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    (
        RemoteFile(_TRAIN_IMAGES, "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
        RemoteFile(_TRAIN_LABELS, "25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
        RemoteFile(_TEST_IMAGES, "bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
        RemoteFile(_TEST_LABELS, "bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
    ),
)

KMNIST = Source(
    "kmnist",
    "KMNIST/raw",
    ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
    (
        RemoteFile(_TRAIN_IMAGES, "bdb82020997e1d708af4cf47b453dcf7"),
        RemoteFile(_TRAIN_LABELS, "e144d726b3acfaa3e44228e80efcd344"),
        RemoteFile(_TEST_IMAGES, "5c965bf0a639b31b8f53240b1b52f4d7", "bf305b8cd328700fbc17f5acbc2856d2"),
        RemoteFile(_TEST_LABELS, "7320c461ea6c1c855c0b718fb2a4b134", "9f55f451c0988b028eccdf7d5cc265ab"),
    ),
)

CIFAR10 = Source(
    "cifar-10",
    "cifar-10-batches-bin",
    ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"),
    (RemoteFile("cifar-10-binary", "c32a1d4ab5d03f1284b67883e8d87530", ending=".tar.gz"),),
    (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"),
    ("cifar-10-batches-py", "cifar-10-python.tar.gz"),
)

CIFAR100 = Source(
    "cifar-100",
    "cifar-100-binary",
    CIFAR10.mirrors,
    (RemoteFile("cifar-100-binary", "03b5dce01913d631647c71ecec9e9cb8", ending=".tar.gz"),),
    ("train.bin", "test.bin"),
    ("cifar-100-python", "cifar-100-python.tar.gz"),
)

TINY_IMAGENET = Source(
    "tiny-imagenet",
    "tiny-imagenet-200",
    ("http://cs231n.stanford.edu/",),
    (RemoteFile("tiny-imagenet-200", "90528d7ca1a48142e341f4ef8d21d0de", ending=".zip"),),
    ("wnids.txt", "val/val_annotations.txt"),
)

IDX_SOURCES = (MNIST, FASHION, KMNIST)
"""Those in IDX files, which all have the same names."""
