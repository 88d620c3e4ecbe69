"""Test the files of a reproduced table or figure."""

from __future__ import annotations

import csv
import importlib.util
import json

import matplotlib as mpl
import pytest
from tests.papers.test_convergence import SPEC as DISTANCE
from tests.papers.test_convergence import record as approach
from tests.papers.test_energy_map import SPEC as ENERGY
from tests.papers.test_energy_map import record as arrive
from tests.support.refusals import refused
from tests.support.results import broken, results, trained
from tests.support.small_spec import SMALL, small_spec

from drfl.experiments.run import manifest
from drfl_papers.execute import size
from drfl_papers.output import check, write
from drfl_papers.plan import Scale
from drfl_papers.plots import look, marker_positions

CURVES = {
    "kind": "curves",
    "values": {},
    "settings": SMALL["settings"][:1],
    "panels": [{"x": "round", "y": "worst_accuracy"}, {"x": "bytes", "y": "std_accuracy"}],
    "targets": [{"metric": "worst_accuracy", "value": 0.5}],
}
SCATTER = {
    "kind": "scatter",
    "values": {},
    "settings": SMALL["settings"][:1],
    "metrics": ["avg_accuracy", "worst20_accuracy"],
    "panels": [{"x": "worst20_accuracy", "y": "avg_accuracy"}],
}
STAND_IN = {"why": "There are\n  no files.", "rounds": 2, "settings": ["α = 0.5"]}
JUDGED = "Evaluated: the last iterate, on the clients' test rows. 4 clients; a cohort has 3 unless a method says "
PARTICIPATION = "otherwise (see participation and cost)."
UNTUNED = [{**method, "tuned": False} for method in SMALL["methods"]]
COMMAND = "drfl reproduce small-table-1"
FIGURE = {"figure.png", "figure.svg"}
ALWAYS = {"cells.csv", "summary.json", "table.md"}
PAIRED = {"paired.csv", "paired_over_settings.csv"}


def learn(setting, method, seed):
    return trained(0.1, 0.4 + 0.01 * seed, 0.6 if method == "DRDM" else 0.45)


def written(folder, spec, record=learn, scale=None):
    folder.mkdir()
    write(results(spec, record, scale), folder, COMMAND)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def dear(setting, method, seed):
    return trained(0.1, 0.4, 0.5 + 0.01 * seed, steps=9 if method == "DRDM" else 2)


KINDS = {
    "table at unequal cost": ({}, dear, ALWAYS | PAIRED | {"equal_gradients.csv"}),
    "table": ({}, learn, ALWAYS | PAIRED),
    "curves": (CURVES, learn, ALWAYS | FIGURE | {"paired.csv", "curves.csv", "reached.csv"}),
    "scatter": (SCATTER, learn, ALWAYS | FIGURE | {"paired.csv"}),
    "distance": (DISTANCE, approach, ALWAYS | FIGURE | {"curves.csv"}),
    "energy": (ENERGY, arrive, ALWAYS | FIGURE | {"reached.csv", "energy.csv"}),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_files_with_reproducible_bytes(kind, tmp_path):
    changes, record, names = KINDS[kind]
    first = written(tmp_path / "a", small_spec(**changes), record)
    assert set(first) == names
    assert all(manifest.KINDS["reproduction"].files.fullmatch(name) for name in names), "the folder's manifest has them"
    assert first == written(tmp_path / "b", small_spec(**changes), record)
    for name, content in first.items():
        if name.endswith(".png"):
            assert content.startswith(b"\x89PNG")
        else:
            assert str(tmp_path).encode() not in content
            assert b"\r" not in content


def test_table_with_head_and_notes(tmp_path):
    text = written(tmp_path / "a", small_spec(note="Mind\n  this."))["table.md"].decode()
    head, _, rest = text.partition("## Average accuracy, %")
    assert head == (
        "# Two algorithms on digits (A paper (2020), Table 1)\n\n2 repeats, seeds 0 to 1; 3 rounds. "
        f"{JUDGED}{PARTICIPATION}\n\nMind this.\n\n"
    )
    assert "## Worst accuracy, %\n\n| method  | " in rest
    assert rest.index("## Standard deviation, points") < rest.index("## Paired differences: average accuracy, points")
    assert "no difference is decided.\n\n## Paired differences: mean over the settings, points\n\n" in rest
    assert "they are in `paired_over_settings.csv`.\n\n## Participation and cost\n\n" in rest
    assert text.endswith("including those for reports.\n")
    assert "\n\n\n" not in text


def test_head_names_the_stand_in_and_reductions(tmp_path):
    spec = small_spec(job="kmnist-cnn", stand_in=STAND_IN, rounds=9, repeats=4, methods=UNTUNED)
    text = written(tmp_path / "a", spec, scale=Scale(stand_in=True, repeats=1))["table.md"].decode()
    assert text.split("\n\n")[1:3] == [
        "**Stand-in:** There are no files. The paper's numbers are for its own data.",
        "One run per cell, seed 0; 2 rounds. The specification asks for 4 repeats of 9 rounds. Not run: α = 0.1. "
        + JUDGED.replace("4 clients", "30 clients").replace("has 3", "has 20")
        + PARTICIPATION,
    ]


def test_head_names_the_rows_that_stop_runs(tmp_path):
    settings = [{"name": "stopped", "job": {"until": "test:worst_accuracy=0.3"}}]
    text = written(tmp_path / "a", small_spec(settings=settings, values={}))["table.md"].decode()
    assert (
        "test rows. Runs stop when these rows reach worst_accuracy=0.3, so the last models were selected on them."
        in text
    )


def test_head_names_methods_that_run_longer(tmp_path):
    methods = [SMALL["methods"][0], {**SMALL["methods"][1], "rounds": 9}]
    text = written(tmp_path / "a", small_spec(methods=methods))["table.md"].decode()
    assert "2 repeats, seeds 0 to 1; 3 rounds (9 for Fed-Avg)." in text


def test_head_names_differences_of_settings_and_methods(tmp_path):
    settings = [{"name": "last"}, {"name": "averaged", "job": {"returned": "average"}}]
    methods = [SMALL["methods"][0], {**SMALL["methods"][1], "job": {"cohort": 2}}]
    text = written(tmp_path / "a", small_spec(settings=settings, methods=methods, values={}))["table.md"].decode()
    assert "Evaluated: the last iterate (the decaying average of the server's models for averaged)" in text
    assert "a cohort has 3 (2 for Fed-Avg) unless" in text


@pytest.mark.parametrize(
    ("more", "eta"),
    [
        ("", ""),
        (", relative_step_size = true", ", η in multiples of the 1/L̂ of each run"),
        (", trials_of = 'a-job'", "; the trials are those of a-job; the best one without a halved η here was chosen"),
    ],
    ids=["η by a number", "η by a multiple", "trials of another job"],
)
def test_head_names_tuned_methods(more, eta, tmp_path):
    about = f"trials = 7, seeds = [1000, 1001], rounds = 9, metric = 'worst_accuracy'{more}"
    text = f"provenance = {{{about}}}\nalgorithms = {{DRDM = {{lr = 0.2}}, new = {{}}}}\nscores.DRDM.score = 0.5"
    (tmp_path / "mnist-linear.toml").write_text(text)
    like = {"name": "like it", "algorithm": "DRDM", "tuned": "DRDM"}
    new = {"name": "new", "algorithm": "AFL"}
    spec = small_spec(job="mnist-linear", methods=[SMALL["methods"][0], UNTUNED[1], like, new])
    files = written(tmp_path / "a", spec, lambda s, m, k: trained(0.5), scale=Scale(tuned=tmp_path))
    assert (
        "Tuned on mnist-linear: 7 trials of 2 seeds for each method, 9 rounds, by the worst accuracy on validation "
        f"rows{eta}. Not tuned: Fed-Avg. No search, values from drfl's rules: new. With values "
        "tuned for another method: like it from DRDM."
    ) in files["table.md"].decode()
    assert json.loads(files["summary.json"])["hyperparameters"]["mnist-linear"]["trials"] == 7


def test_every_setting_has_its_picture(tmp_path):
    spec = small_spec(**{**CURVES, "settings": SMALL["settings"], "panels": [{"y": "worst_accuracy"}]})
    files = written(tmp_path / "a", spec)
    assert {f"figure-{k}.{ending}" for k in (1, 2) for ending in ("png", "svg")} < set(files)
    text = files["table.md"].decode()
    assert "![α = 0.1](figure-1.png)\n\n![α = 0.5](figure-2.png)\n\nCurves are means" in text
    assert "## Rounds to worst accuracy ≥ 50 %, α = 0.1" in text


def test_cells_file_has_a_row_per_run(tmp_path):
    def some(setting, method, seed):
        return broken() if seed else learn(setting, method, seed)

    rows = list(csv.DictReader(written(tmp_path / "a", small_spec(), some)["cells.csv"].decode().splitlines()))
    assert len(rows) == 2 * 2 * 2
    good, bad = rows[:2]
    assert (good["algorithm"], good["worst_accuracy"], good["bytes_up"], good["rounds"]) == (
        "DRDM",
        "0.600000",
        "2000",
        "2",
    )
    assert (bad["stopped"], bad["worst_accuracy"], bad["gradient_evaluations"]) == ("diverged", "", "")


@pytest.mark.long
def test_cells_file_of_distances(tmp_path):
    files = written(tmp_path / "a", small_spec(**DISTANCE), approach)
    assert files["cells.csv"].decode().splitlines()[1] == "ρ = 0.1,SCAFF-PD,ScaffPD,0,rounds,14,1.000000e-14,reach=0.5"
    assert json.loads(files["summary.json"])["results"]["ρ = 0.1"]["DRFA"]["final"] == 0.5


def test_summary_is_complete(tmp_path):
    collected = results(small_spec(), learn)
    write(collected, tmp_path, COMMAND)
    found = json.loads((tmp_path / "summary.json").read_text())
    assert {name: found[name] for name in size(collected.plan)} == size(collected.plan)
    assert (found["name"], found["seeds"], found["command"]) == ("small-table-1", [0, 1], COMMAND)
    assert found["stand_in_why"] is None
    assert found["jobs"]["α = 0.5"]["alpha"] == 0.5
    assert found["jobs"]["α = 0.5"]["steps"] == 2
    assert found["methods"]["DRDM"] == {
        "algorithm": "DRDM",
        "parameters": {name: {"lr": 0.1, "steps": 2} for name in ("α = 0.1", "α = 0.5")},
    }
    worst = found["results"]["α = 0.1"]["DRDM"]["worst_accuracy"]
    assert worst == {"mean": 0.6, "half_width": 0.0, "std": 0.0}
    assert found["versions"] == {"python": "3.11", "drfl": "0.1.0"}


def test_summary_counts_failed_runs(tmp_path):
    def some(setting, method, seed):
        return broken("refused") if seed else broken() if method == "DRDM" else learn(setting, method, seed)

    found = json.loads(written(tmp_path / "a", small_spec(), some)["summary.json"])["results"]["α = 0.1"]
    assert found["DRDM"] == {"n": 0, "diverged": 1, "refused": 1, "rounds": [0, 0]}
    assert found["Fed-Avg"] == {"n": 1, "diverged": 0, "refused": 1, "rounds": [2, 0]}


@pytest.mark.parametrize("kind", [pytest.param("curves", marks=pytest.mark.long), "scatter"])
def test_figure_without_any_run_is_drawn(kind, tmp_path):
    files = written(tmp_path / "a", small_spec(**KINDS[kind][0]), lambda s, m, k: broken())
    assert any(name.endswith(".png") for name in files)


@pytest.mark.long
def test_user_style_is_ignored_and_kept(tmp_path):
    first = written(tmp_path / "a", small_spec(**SCATTER))
    before = mpl.rcParams["font.size"]
    with mpl.rc_context({"font.size": 20.0, "axes.facecolor": "red"}):
        assert written(tmp_path / "b", small_spec(**SCATTER)) == first
        assert mpl.rcParams["font.size"] == 20.0
    assert mpl.rcParams["font.size"] == before


def test_missing_matplotlib_is_reported_before_any_run(monkeypatch, tmp_path):
    known = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else known(name))
    with refused("package-missing", "matplotlib", "'drfl[experiments]'"):
        check(small_spec(**CURVES))
    check(small_spec())


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({**CURVES, "panels": [{"x": "rouns"}]}, ("unknown-name", "x", "'rouns'", "'round'")),
        ({**CURVES, "panels": [{"y": "worst"}]}, ("unknown-name", "metric", "'worst'")),
        ({**SCATTER, "panels": [{"x": "round", "y": "avg_accuracy"}]}, ("unknown-name", "metric", "'round'")),
    ],
)
def test_impossible_panel_is_refused_before_any_run(changes, error):
    with refused(*error):
        check(small_spec(**changes))


def test_twelve_methods_are_distinguishable_in_grey():
    looks = [look(place) for place in range(11)]
    assert len({(each.dash, each.marker) for each in looks}) == len(looks)
    assert len({each.marker for each in looks}) == len(looks)


def test_markers_are_few_and_staggered():
    start, step = marker_positions(80, 1)
    assert step == 10
    assert 0 < start < step
    assert marker_positions(3, 5) == (0, 1)
