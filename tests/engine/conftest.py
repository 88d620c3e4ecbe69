"""Fixtures for tests of engines."""

from __future__ import annotations

import sys

import pytest
from tests.support.fake_ray import FakeRay

from drfl.engine import ray_workers


@pytest.fixture
def ray(monkeypatch):
    """Use a stand-in for a Ray cluster in this process, with small pieces."""
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    monkeypatch.setattr(ray_workers, "PIECE", 200)
    monkeypatch.setattr(ray_workers, "ROOM", 4000)
