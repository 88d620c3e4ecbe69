"""Test the content of a report, read from folders of runs."""

from __future__ import annotations

import hashlib
import shutil

import pytest
from tests.support.refusals import refused

from drfl.cli.app import call
from drfl.experiments.assess.assess_runs import gain_of_folders
from drfl.report import load_run
from drfl.report.compose import compose
from drfl.report.evidence import gather_evidence
from drfl.report.groups import OWN_MODELS
from drfl.report.read_run import TEST_ROWS
from drfl.report.test_rows import content, read

FEW = "--dataset heart-disease --rounds 2 --steps 1 --metric brier --select worst"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return runs of three algorithms at two seeds, and of one of them with another step size."""
    out = tmp_path_factory.mktemp("runs") / "comparison"
    names = "FedAvg,DualDRDM,LocalOnly"
    assert call(["compare", "--algorithms", names, *FEW.split(), "--seeds", "2", "--out", str(out)]) == 0
    again = ["run", "--algorithm", "FedAvg", "--lr", "0.01", *FEW.split(), "--out", str(out.parent / "small")]
    assert call(again) == 0
    return [out / f"{name}-seed{seed}" for name in names.split(",") for seed in range(2)] + [out.parent / "small"]


def gathered_from(folders):
    return gather_evidence([load_run(folder) for folder in folders])


def section(evidence, name):
    return next(one for one in compose(evidence).sections if one.name == name)


@pytest.mark.long
def test_runs_are_identified_by_digests_and_rows(runs):
    first = gathered_from(runs).runs[0]
    assert first.data == read(runs[0] / TEST_ROWS).data
    model = runs[0] / "model.safetensors"
    assert first.files["model.safetensors"] == hashlib.sha256(model.read_bytes()).hexdigest()
    assert first.shared is False
    assert not first.is_deployed
    trained = first.record.clients["train_samples"].sum()
    assert trained + sum(first.validation) == 494  # the training rows of the data set
    assert sum(first.validation) == pytest.approx(494 / 5, abs=4)


@pytest.mark.long
def test_every_configuration_is_compared_with_the_first(runs):
    found = gathered_from(runs)
    labels = [group.label for group in found.groups]
    alone = f"LocalOnly ({OWN_MODELS})"
    assert labels[1:3] == ["DualDRDM", alone]
    pairs = [(pair.first.record.algorithm, pair.second.record.algorithm) for pair in found.by_rows]
    assert pairs == [(labels[0], label) for label in labels[1:]]
    direct = gain_of_folders(runs[0], runs[2])
    assert found.by_rows[0].gain.worst == direct.worst
    assert [pair.second.record.algorithm for pair in found.over_local] == [label for label in labels if label != alone]
    assert [(row.second, row.verdict) for row in found.over_seeds] == [(n, "not decided") for n in labels[1:3]]
    assert all(one.answer for one in compose(found).sections if one.name != "training")


@pytest.mark.long
def test_other_data_are_not_compared(runs, tmp_path):
    other = tmp_path / "other"
    words = [*FEW.split(), "--test-fraction", "0.5", "--out", str(other)]
    assert call(["run", "--algorithm", "DualDRDM", *words]) == 0
    found = gathered_from([runs[0], other])
    assert (found.by_rows, found.over_seeds) == ((), ())
    assert "not compared row by row" in section(found, "compared").answer


def test_different_test_rows_are_not_compared_despite_equal_settings(runs, tmp_path):
    other = shutil.copytree(runs[2], tmp_path / "other")
    rows = read(other / TEST_ROWS)
    (other / TEST_ROWS).write_bytes(content(rows._replace(rows=rows.rows.flip(0))))
    more = gathered_from([*runs[:2], other, runs[3]])
    assert (more.by_rows, more.over_seeds) == ((), ())
    assert len(gathered_from(runs[:4]).over_seeds) == 1


def test_deployment_is_recognised_by_its_traffic(runs, tmp_path):
    folder = shutil.copytree(runs[0], tmp_path / "run", ignore=shutil.ignore_patterns(TEST_ROWS, "partition.json"))
    (folder / "traffic.json").write_text("{}")
    (one,) = gathered_from([folder]).runs
    assert (one.is_deployed, one.data, one.shared, one.validation) == (True, "", None, None)
    known = section(gathered_from([folder]), "identity")
    assert "contains no digest" in known.answer
    (configuration,) = known.blocks[-1].blocks
    assert "drfl deploy run" in configuration.caption


def test_damaged_run_is_a_one_line_error(runs, tmp_path):
    folder = shutil.copytree(runs[0], tmp_path / "run")
    (folder / TEST_ROWS).write_bytes(b"nothing")
    with refused("damaged-file", str(folder / "test-rows.safetensors")):
        gathered_from([folder])
