"""Test the keys of a configuration for features and the cohort."""

from __future__ import annotations

import pytest
from tests.support.refusals import refused

from drfl.data.features import Recipe
from drfl.experiments.config.config import load_config
from drfl.experiments.config.hyperparameters import parameters_of


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"loss": "hinge"}, ("unknown-name", "loss", "cross-entropy, squared")),
        ({"validation": 0}, ("invalid-value", "validation", "0")),
        ({"validation": 1.0}, ("invalid-value", "validation", "1.0")),
        ({"validation": float("nan")}, ("invalid-value", "validation", "nan")),
        ({"feature_count": 0}, ("invalid-value", "feature_count", "1", "0")),
        ({"resize": 0}, ("invalid-value", "resize", "1", "0")),
        ({"features": "ntk"}, ("invalid-value", "features", "'penultimate'", "'entk'")),
    ],
)
def test_impossible_values_are_refused(values, error):
    with refused(*error) as caught:
        load_config(None, values)
    assert "\n" not in str(caught.value)


def test_features_are_off_by_default():
    assert load_config(None, {}).recipe() is None


def test_keys_determine_the_feature_recipe():
    values = {"features": "entk", "backbone": "cnn-digits", "feature_count": 9, "resize": 8}
    assert load_config(None, values).recipe() == Recipe("entk", "cnn-digits", 9, 8)
    assert load_config(None, {"features": "entk", "backbone": "a.pth"}).recipe() == Recipe("entk", "a.pth", 50_000)


@pytest.mark.parametrize(("algorithm", "clients", "m"), [("DRDM", 10, 10), ("DRDM", 30, 20), ("ScaffPD", 30, 30)])
def test_default_cohort_size(algorithm, clients, m):
    for options, size in (({}, m), ({"cohort": 5}, 5)):
        config = load_config(None, options)
        assert parameters_of(config.build_algorithm(algorithm, clients), clients)["m"] == size
