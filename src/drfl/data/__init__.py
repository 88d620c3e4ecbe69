"""Data for a federation: data sets by name, ways to divide them among clients, and users' own data."""

from __future__ import annotations

from drfl.data.apportion import apportion
from drfl.data.clients import ClientData
from drfl.data.dataset import Dataset
from drfl.data.datasets import DATASETS, DatasetInfo, describe, load, load_pixels
from drfl.data.dirichlet_drop import DirichletDrop
from drfl.data.divide import divide
from drfl.data.groups import split_groups
from drfl.data.idx import read_idx, write_idx
from drfl.data.iid import IID
from drfl.data.methods import PartitionMethod
from drfl.data.natural import Natural
from drfl.data.one_class import OneClass
from drfl.data.partition import Partition
from drfl.data.partitions import PARTITIONS
from drfl.data.pixels import Pixels
from drfl.data.zipf_dirichlet import ZipfDirichlet

__all__ = [
    "DATASETS",
    "IID",
    "PARTITIONS",
    "ClientData",
    "Dataset",
    "DatasetInfo",
    "DirichletDrop",
    "Natural",
    "OneClass",
    "Partition",
    "PartitionMethod",
    "Pixels",
    "ZipfDirichlet",
    "apportion",
    "describe",
    "divide",
    "load",
    "load_pixels",
    "read_idx",
    "split_groups",
    "write_idx",
]
