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
torch.set_num_threads(1)  # the problems are tiny, and machines that test are busy
# A shell lets what runs in the background ignore Ctrl-C, and so would the programs that are tested.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Only a power failure tells whether files were flushed to the disk, which takes a tenth of the tests' time. A wrong
# descriptor still fails.
os.fsync = os.fstat
# What is imported and collected stays to the end, and each garbage collection would look at all of it.
gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


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
    """Every engine."""
    return request.param
