"""Test the cells of specifications."""

from __future__ import annotations

import pytest
from tests.support.refusals import refused
from tests.support.small_spec import SMALL, small_spec

from drfl_papers.plan import Scale, collect, hyperparameters, plan

STAND_IN = {"why": "There are no files.", "rounds": 2, "settings": ["α = 0.5"]}
UNTUNED = [{**method, "tuned": False} for method in SMALL["methods"]]


def test_every_setting_method_and_seed_has_a_cell():
    cells = plan(small_spec(), Scale()).cells
    places = [(c.setting, c.method, c.seed) for c in cells]
    assert len(set(places)) == len(places) == 2 * 2 * 2
    assert [c.seed for c in cells] == sorted(c.seed for c in cells), "the first repeats are to be had first"
    assert len({c.cell.key for c in cells}) == 8


def test_cell_contains_everything_that_affects_its_result():
    cell = plan(small_spec(), Scale()).cells[0].cell
    assert cell.job["alpha"] == 0.1
    assert cell.job["rounds"] == 3
    assert cell.job["algorithms"] == {"DRDM": {"mu": 1.0}}
    assert "data_dir" not in cell.job


def test_equal_cells_of_two_specifications_are_shared():
    table = plan(small_spec(), Scale())
    figure = plan(small_spec(name="small-figure-1", kind="curves", settings=SMALL["settings"][1:], values={}), Scale())
    assert {c.cell.key for c in figure.cells} < {c.cell.key for c in table.cells}


def test_quick_version_is_shorter():
    short = plan(small_spec(), Scale(quick=True))
    assert (short.rounds, short.repeats, len(short.cells)) == (1, 1, 4)
    longer = small_spec(quick={"rounds": 50, "repeats": 50})
    assert (plan(longer, Scale(quick=True)).rounds, plan(longer, Scale(quick=True)).repeats) == (3, 2)


def test_requested_values_override_the_specification():
    asked = plan(small_spec(), Scale(rounds=7, repeats=1, settings=("alpha=0.5",)))
    assert (asked.rounds, asked.repeats, asked.settings) == (7, 1, ("α = 0.5",))
    assert all(c.cell.job["rounds"] == 7 for c in asked.cells)


def test_method_can_need_more_rounds():
    methods = [{"name": "slow", "algorithm": "AFL", "rounds": 9}, {"name": "fast", "algorithm": "DRFA"}]
    spec = small_spec(methods=methods, values={})
    assert {c.method: c.cell.job["rounds"] for c in plan(spec, Scale()).cells} == {"slow": 9, "fast": 3}
    assert {c.cell.job["rounds"] for c in plan(spec, Scale(quick=True)).cells} == {1}


def test_stand_in_replaces_the_data():
    spec = small_spec(job="kmnist-cnn", stand_in=STAND_IN, methods=UNTUNED)
    there, here = plan(spec, Scale()), plan(spec, Scale(stand_in=True))
    assert {c.cell.job["dataset"] for c in there.cells} == {"kmnist"}
    assert {c.cell.job["dataset"] for c in here.cells} == {"kmnist-t10k"}
    assert (here.rounds, here.settings) == (2, ("α = 0.5",))
    assert not plan(small_spec(), Scale(stand_in=True)).scale.stand_in, "there is none"


def test_setting_can_have_its_own_job():
    settings = [{"name": "a"}, {"name": "b", "base": "fashion-one-class", "job": {"clients": 9}}]
    cells = plan(small_spec(job="mnist-linear", settings=settings, methods=UNTUNED, values={}), Scale()).cells
    jobs = {c.setting: (c.cell.job["dataset"], c.cell.job["clients"], c.cell.job["returned"]) for c in cells}
    assert jobs == {"a": ("mnist", 30, "last"), "b": ("fashion-mnist", 9, "average")}


def test_tuned_hyperparameters_override_the_methods(tmp_path):
    text = "[algorithms.DRDM]\nlr = 0.3\nmu = 5.0\n[algorithms.Fed-Avg]\nlr = 0.7\n"
    (tmp_path / "mnist-linear.toml").write_text(text)
    spec = small_spec(job="mnist-linear")
    cells = plan(spec, Scale(tuned=tmp_path)).cells
    assert cells[0].cell.job["algorithms"] == {"DRDM": {"lr": 0.3, "mu": 1.0}}
    assert cells[1].cell.job["algorithms"] == {"FedAvg": {"lr": 0.7}}
    methods = [{"name": "a", "algorithm": "AFL", "tuned": False}, {"name": "b", "algorithm": "FedDyn", "tuned": "DRDM"}]
    others = plan(small_spec(job="mnist-linear", methods=methods, values={}), Scale(tuned=tmp_path)).cells
    assert others[0].cell.job["algorithms"] == {"AFL": {}}
    assert others[1].cell.job["algorithms"] == {"FedDyn": {"lr": 0.3, "mu": 5.0}}, "tuned under another name"


def test_setting_name_with_a_comma_can_be_listed():
    names = ["Tiny ImageNet, α = 0.1", "α = 0.1", "Tiny ImageNet, α = 0.5"]
    spec = small_spec(settings=[{"name": name} for name in names], values={})
    for text, kept in (
        ("tiny imagenet, alpha=0.1", names[:1]),
        ("alpha = 0.1, Tiny ImageNet, α = 0.5", names[1:]),
        ("Tiny ImageNet, α = 0.1,Tiny ImageNet, α = 0.5", [names[0], names[2]]),
    ):
        assert list(plan(spec, Scale(settings=tuple(text.split(",")))).settings) == kept
    with refused("unknown-name", "setting", "'Tiny ImageNet'"):
        plan(spec, Scale(settings=("Tiny ImageNet", "α = 0.2")))


def test_mistakes_are_one_line_errors(tmp_path):
    with refused("unknown-name", "setting", "'alpha=0.2'", "α = 0.1, α = 0.5"):
        plan(small_spec(), Scale(settings=("alpha=0.2",)))
    with refused("file-not-found", str(tmp_path / "mnist-linear.toml"), "drfl tune mnist-linear"):
        plan(small_spec(job="mnist-linear"), Scale(tuned=tmp_path))
    (tmp_path / "mnist-linear.toml").write_text("[algorithms.FedAvg]\n")
    with refused("missing-option", "DRDM", "drfl tune mnist-linear"):
        plan(small_spec(job="mnist-linear"), Scale(tuned=tmp_path))
    (tmp_path / "mnist-linear.toml").write_text('[algorithms.DRDM]\nambiguity = "mine.py:Mine:a=1"\n')
    with refused("untrusted-code", "DRDM.ambiguity", "mine.py:Mine:a=1"):
        plan(small_spec(job="mnist-linear"), Scale(tuned=tmp_path))
    (tmp_path / "broken.toml").write_bytes(b"\xff[")
    with refused("damaged-file", str(tmp_path / "broken.toml"), "TOML"):
        hyperparameters(tmp_path, "broken")


def test_records_are_assigned_to_their_cells():
    planned = plan(small_spec(), Scale())
    records = {c.cell.key: {"place": (c.setting, c.method, c.seed)} for c in planned.cells}
    found = collect(planned, records).records
    assert [r["place"] for r in found["α = 0.5", "DRDM"]] == [("α = 0.5", "DRDM", 0), ("α = 0.5", "DRDM", 1)]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"metrics": ["worst_acuracy"]}, ("invalid-value", None, "worst_accuracy")),
        ({"reference": "DRDN"}, ("invalid-value", None, "DRDM")),
        ({"reached": {"DRDN": 3}}, ("invalid-value", None, "DRDM")),
        ({"values": {"α = 0.2": {}}}, ("invalid-value", None, "α = 0.1")),
        ({"values": {"α = 0.1": {"DRDN": [1.0, 2.0, 3.0]}}}, ("invalid-value", None, "DRDM")),
        ({"values": {"α = 0.1": {"DRDM": [1.0]}}}, ("invalid-value", None, "1", "3")),
        ({"settings": [{"name": "a"}, {"name": "a"}], "values": {}}, ("invalid-value", None, "two settings")),
    ],
)
def test_contradictory_specification_is_refused(changes, error):
    with refused(*error):
        small_spec(**changes)
