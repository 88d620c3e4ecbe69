import numpy as np
import pytest
from tests.support.refusals import refused

from drfl.report import load_run
from drfl.report.groups import NO_EFFECT, STYLES, group_runs


def test_seeds_of_an_algorithm_form_one_group(record):
    runs = [record(f"{name}-{seed}", name, seed) for seed in (10, 2) for name in ("DRFA", "FedAvg")]
    drfa, fedavg = group_runs(runs)
    assert (drfa.label, fedavg.label) == ("DRFA", "FedAvg")
    assert [run.seed for run in drfa.runs] == ["2", "10"]


def test_other_settings_form_another_group(record):
    runs = [
        record(f"{gamma}-{seed}", "DRFA", seed, config={"gamma": gamma, "device": f"cuda:{seed}"})
        for gamma in (0.1, 0.2)
        for seed in range(2)
    ]
    groups = group_runs([*runs, record("other", "FedAvg")])
    assert [group.label for group in groups] == ["DRFA (gamma 0.1)", "DRFA (gamma 0.2)", "FedAvg"]
    assert len({(group.colour, group.dash) for group in groups}) == 3


def test_algorithm_keeps_its_colour(record):
    runs = [record(name, name) for name in ("Unheard", "DualDRDM", "DRFA")]
    for order in (runs, runs[::-1], runs[1:]):
        for group in group_runs(order):
            if group.label in STYLES:
                assert (group.colour, group.dash) == STYLES[group.label]


def test_lines_are_distinguishable(record):
    groups = group_runs([record(name, name) for name in (*(f"A{i}" for i in range(12)), *STYLES)])
    assert len({(group.colour, group.dash) for group in groups}) == len(groups)


def test_curves_contain_rounds_evaluated_at_all_seeds(record):
    (group,) = group_runs(
        [record("a", seed=0, rounds=5, config={"rounds": 9}), record("b", seed=1, rounds=3, config={"rounds": 9})]
    )
    rounds, values = group.curve("avg_score")
    assert rounds.tolist() == [0, 1, 2, 3]
    assert values.shape == (2, 4)


def test_number_of_effective_clients(record):
    (group,) = group_runs([record("a", "FedAvg", clients=6)])
    _, values = group.effective_clients()
    np.testing.assert_allclose(values, 6)


def test_certificate_does_not_make_another_experiment(record):
    runs = [
        record("a", seed=0, rounds=1, gap=[1.0, 0.5], config={"certificate": "pooled"}),
        record("b", seed=1, rounds=1),
    ]
    (group,) = group_runs(runs)
    assert not group.has_certificate
    assert group_runs(runs[:1])[0].has_certificate


@pytest.mark.parametrize("name", NO_EFFECT)
def test_settings_without_effect_do_not_make_another_experiment(name, record):
    runs = [record("a", seed=0, rounds=1), record("b", seed=1, rounds=1, config={name: "2"})]
    assert len(group_runs(runs)) == 1
    assert len(group_runs([*runs, record("c", seed=2, rounds=1, config={"init_from": "m.safetensors"})])) == 2


def test_copy_of_a_run_is_not_another_seed(record):
    with refused("given-twice", str(record("b", seed=1).directory)):
        group_runs([record("a", seed=1), load_run(record("c", seed=2).directory.with_name("b"))])
