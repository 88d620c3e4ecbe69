"""The newer keys of a configuration."""

from __future__ import annotations

import pytest

from drfl.errors import InputError
from drfl.experiments.config import load_config
from drfl.features import Recipe


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"loss": "hinge"}, "unknown loss 'hinge': known are cross-entropy, squared"),
        ({"validation": 0}, "validation = 0: input should be greater than 0"),
        ({"validation": 1.0}, "validation = 1.0: input should be less than 1"),
        ({"validation": float("nan")}, "validation"),
        ({"feature_count": 0}, "feature_count = 0"),
        ({"resize": 0}, "resize = 0"),
        ({"features": "ntk"}, "features = 'ntk': input should be 'penultimate' or 'entk'"),
    ],
)
def test_impossible_values(values, part):
    with pytest.raises(InputError) as caught:
        load_config(None, values)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_features_by_default_there_are_none():
    assert load_config(None, {}).recipe() is None


def test_the_recipe_is_what_the_keys_say():
    values = {"features": "entk", "backbone": "cnn-digits", "feature_count": 9, "resize": 8}
    assert load_config(None, values).recipe() == Recipe("entk", "cnn-digits", 9, 8)
    assert load_config(None, {"features": "entk", "backbone": "a.pth"}).recipe() == Recipe("entk", "a.pth", 50_000)


@pytest.mark.parametrize(("algorithm", "clients", "m"), [("DRDM", 10, 10), ("DRDM", 30, 20), ("ScaffPD", 30, 30)])
def test_the_default_cohort(algorithm, clients, m):
    assert load_config(None, {}).parameters(algorithm, clients)["m"] == m
    assert load_config(None, {"cohort": 5}).parameters(algorithm, clients)["m"] == 5
