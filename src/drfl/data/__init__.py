"""Data sets by name, partitions among clients, and your own data."""

from __future__ import annotations

from drfl.data.checks import data_warnings
from drfl.data.client_data import ClientData
from drfl.data.dataset import Dataset, Pixels
from drfl.data.datasets.catalogue import DATASETS, DatasetInfo, describe, load, load_pixels
from drfl.data.datasets.formats import read_idx, write_idx
from drfl.data.model import Model, load_model
from drfl.data.model_file import split_weights
from drfl.data.partition.natural import Natural, make_partition, split_groups
from drfl.data.partition.partition import Partition, PartitionMethod
from drfl.data.partition.partitioners import IID, PARTITIONS, DirichletDrop, OneClass, ZipfDirichlet
from drfl.data.partition.splitting import largest_remainder
from drfl.data.standardisation import Standardisation, Standardise
from drfl.data.tables.schema import Column, TableSchema
from drfl.data.tables.text_form import ReadOptions

__all__ = [
    "DATASETS",
    "IID",
    "PARTITIONS",
    "ClientData",
    "Column",
    "Dataset",
    "DatasetInfo",
    "DirichletDrop",
    "Model",
    "Natural",
    "OneClass",
    "Partition",
    "PartitionMethod",
    "Pixels",
    "ReadOptions",
    "Standardisation",
    "Standardise",
    "TableSchema",
    "ZipfDirichlet",
    "data_warnings",
    "describe",
    "largest_remainder",
    "load",
    "load_model",
    "load_pixels",
    "make_partition",
    "read_idx",
    "split_groups",
    "split_weights",
    "write_idx",
]
