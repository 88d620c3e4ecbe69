"""What all tests share."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

from drfl.engine import Loop, Stacked, Threads

settings.register_profile("drfl", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("drfl")
torch.set_num_threads(1)  # the problems are tiny, and machines that test are busy


LONG = ("conformance/test_mutations.py", "fuzz/test_fuzz.py", "resilience/test_estimators.py")
"""Modules whose tests `make test` leaves to `make test-all`; single tests are marked where they are."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the tests of long modules, before pytest picks by marks."""
    for item in items:
        if item.path.as_posix().endswith(LONG):
            item.add_marker(pytest.mark.long)


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
