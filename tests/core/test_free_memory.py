"""Test the free memory of the system and of a container's limit."""

from __future__ import annotations

import pytest

from drfl.core import free_memory as module
from drfl.core.free_memory import free_memory


def test_free_memory_of_this_machine():
    free = free_memory()
    assert free is None or free > 0


@pytest.mark.parametrize(("limit", "left"), [("4096", 96), ("1000", 0)])
def test_limit_of_a_container(limit, left, tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("4000\n")
    monkeypatch.setattr(module, "CGROUP", tmp_path)
    assert free_memory() == left


def test_no_container_limit(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("4000\n")
    without = free_memory()
    monkeypatch.setattr(module, "CGROUP", tmp_path)
    assert (without is None) == (free_memory() is None)
