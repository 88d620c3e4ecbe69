"""The partition methods by name."""

from __future__ import annotations

from drfl.data.dirichlet_drop import DirichletDrop
from drfl.data.iid import IID
from drfl.data.methods import PartitionMethod
from drfl.data.one_class import OneClass
from drfl.data.zipf_dirichlet import ZipfDirichlet

PARTITIONS: dict[str, type[PartitionMethod]] = {
    method.name: method for method in (ZipfDirichlet, OneClass, DirichletDrop, IID)
}
"""Each is a frozen dataclass of parameters with a method `split`."""
