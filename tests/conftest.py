"""Fixtures that all tests share."""

from __future__ import annotations

import gc
import os
import signal

import pytest
import torch
from hypothesis import settings
from tests.support.engines import ENGINES

settings.register_profile("drfl", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("long", settings.get_profile("drfl"), max_examples=1000)
settings.load_profile("drfl")
torch.set_num_threads(1)  # the problems are tiny, and pytest runs one process per core
# Background jobs of a shell ignore Ctrl-C, and the programs under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Flushing files to the disk takes a tenth of the tests' time, and only a power failure would show that it is missing.
# fstat still fails for a wrong descriptor.
os.fsync = os.fstat
# Ray runs its workers at a low priority (nice 15), so beside other tests they would wait for minutes.
os.environ.setdefault("RAY_worker_niceness", "0")
# Imported modules and collected tests live until the end, so the garbage collector need not search them.
gc.disable()


def pytest_collection_modifyitems(items):
    # Long tests that mostly wait start first. One process runs them in turn, and the others use the cores meanwhile.
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


def pytest_collectstart():
    # Models that a module makes without a seed must not depend on the modules that are imported before it.
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    # Models that a test makes without a seed must not depend on the tests before it.
    torch.manual_seed(0)


@pytest.fixture
def global_generator_untouched():
    """Fail the test if torch's global generator was used or seeded."""
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state()), "the global generator was used"


@pytest.fixture(params=ENGINES.values(), ids=ENGINES)
def engine(request):
    """Run the test with every engine."""
    return request.param
