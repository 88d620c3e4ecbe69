"""What all tests share."""

from __future__ import annotations

import signal
from collections import Counter

import pytest
import torch
from hypothesis import settings

from drfl.engine import Loop, Stacked, Threads

settings.register_profile("drfl", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("drfl")
torch.set_num_threads(1)  # the problems are tiny, and machines that test are busy
# A shell lets what runs in the background ignore Ctrl-C, and so would the programs that are tested.
signal.signal(signal.SIGINT, signal.default_int_handler)


LONG = ("conformance/test_mutations.py", "fuzz/test_fuzz.py", "resilience/test_estimators.py")
"""Modules whose tests `make test` leaves to `make test-all`; single tests are marked where they are."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the tests of long modules and what ``one_in`` leaves out, before pytest picks by marks."""
    seen = Counter[str]()
    for item in items:
        if item.path.as_posix().endswith(LONG):
            item.add_marker(pytest.mark.long)
        sample = item.get_closest_marker("one_in")
        if sample is not None and item.get_closest_marker("long") is None:
            function = item.nodeid.partition("[")[0]
            if seen[function] % sample.args[0]:
                item.add_marker(pytest.mark.long)
            seen[function] += 1


@pytest.fixture
def global_generator_untouched():
    """Fails the test if torch's global generator was drawn from or seeded."""
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(before, torch.random.get_rng_state()), "the global generator was used"


@pytest.fixture(params=[Loop(), Stacked(), Threads(2)], ids=["loop", "stacked", "threads"])
def engine(request):
    """Every engine."""
    return request.param
