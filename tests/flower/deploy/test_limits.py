"""Test the limits that `drfl deploy check` proposes and writes."""

from __future__ import annotations

import tomllib

import pytest
from tests.support.refusals import quotes

from drfl.cli.app import call
from drfl.core.audit_log import AuditLog
from drfl.core.errors import Notice
from drfl.experiments.fit.members import PORTFOLIO
from drfl.flower.deploy import check
from drfl.flower.deploy.init import DeploymentPlan, write
from drfl.flower.deploy.limits import propose
from drfl.flower.deploy.paths import DeploymentFolder
from drfl.flower.settings import FIT_RUNS, DeployedConfig, read_server
from drfl.training.step_size import REQUESTS


def deployed(root, **rows):
    """Make a deployment whose sites have reported these numbers of rows, and two classes."""
    write(DeploymentPlan(tuple(rows), port=18000, insecure=True), root)
    log = AuditLog(root / "audit.jsonl", "server", "server")
    about = {"name": "x", "data": "0" * 32, "digest": None, "head": None}
    for name in rows:
        log.add("joined", site=name, rows=1, classes=9, **about)  # an earlier run
    for name, count in rows.items():
        log.add("joined", site=name, rows=count, classes=2, **about)
    return DeploymentFolder(root)


@pytest.mark.parametrize(
    ("rows", "share"),
    [
        ({"a": 5, "b": 7}, None),
        ({"a": 5, "b": 7, "c": 6}, 0.667),
        ({"a": 5, "b": 7, "c": 6, "d": 1}, 0.5),
    ],
)
def test_proposal_has_twice_the_rows_the_classes_and_a_share(tmp_path, rows, share):
    found = propose(deployed(tmp_path / "fl", **rows))
    more = {} if share is None else {"max_share": share}
    assert found.limits == {name: {"rows": 2 * count, "classes": 2, **more} for name, count in rows.items()}
    assert not found.notices
    assert tomllib.loads(found.toml())["sites"][1] == {"name": "b", "rows": 14, "classes": 2, **more}


def test_written_limits_keep_existing_values_and_the_old_file(tmp_path, capsys):
    folder = deployed(tmp_path / "fl", a=5, b=7, c=6)
    before = folder.settings.read_text().replace('name = "b"\n', 'name = "b"\nrows = 8\nmax_share = 0.9\n')
    folder.settings.write_text(before)
    assert call(["deploy", "check", str(folder.root), "--write"]) == 0
    sites = {site.name: site for site in read_server(folder.settings).sites}
    assert (sites["b"].rows, sites["b"].classes, sites["b"].max_share) == (8, 2, 0.9)
    assert (sites["a"].rows, sites["a"].classes, sites["a"].max_share) == (10, 2, 0.667)
    (kept,) = folder.root.glob("server.toml.*")
    assert kept.read_text() == before
    assert str(kept) in capsys.readouterr().out
    after = folder.settings.read_text()
    assert [line for line in after.splitlines() if line in before.splitlines()] == before.splitlines()
    assert call(["deploy", "check", str(folder.root), "--write"]) == 0  # all limits are set
    assert folder.settings.read_text() == after
    assert len(list(folder.root.glob("server.toml.*"))) == 1


def test_site_with_most_rows_gets_no_share_that_would_refuse_it(tmp_path):
    found = propose(deployed(tmp_path / "fl", a=90, b=7, c=6))
    assert found.limits["a"] == {"rows": 180, "classes": 2}
    assert [notice.code for notice in found.notices] == ["large-share"]


def test_nothing_is_proposed_before_the_first_run(tmp_path):
    folder = deployed(tmp_path / "fl", a=5, b=7)
    folder.settings.write_text(folder.settings.read_text().replace('name = "b"', 'name = "new"'))
    before = folder.settings.read_text()
    assert [notice.code for notice in propose(folder).notices] == ["no-reports"]
    assert call(["deploy", "check", str(folder.root), "--write"]) == 0
    assert folder.settings.read_text() == before
    assert not list(folder.root.glob("server.toml.*"))


def test_changed_log_is_not_used(tmp_path):
    folder = deployed(tmp_path / "fl", a=5, b=7)
    log = folder.root / "audit.jsonl"
    log.write_text(log.read_text().replace('"rows": 5', '"rows": 5000'))
    (found,) = (one for one in check.check_deployment(folder) if one.subject == "limits")
    assert not found.ok


def test_check_prints_the_proposal_and_requests_of_a_run(tmp_path):
    folder = deployed(tmp_path / "fl", a=5, b=7, c=6)
    found = list(check.check_limits(folder, read_server(folder.settings)))
    assert all(one.ok and isinstance(one.text, Notice) for one in found)
    assert [one.text.code for one in found] == ["unprotected-sites", "proposed-limits", "requests-of-a-run"]
    assert tomllib.loads("\n".join(found[1].details))["sites"][1]["rows"] == 14
    job = read_server(folder.settings).job
    numbers = (job.rounds, job.max_requests, 7, 7 * job.rounds, job.max_fit_requests, 2 * job.max_fit_requests)
    assert quotes(found[2].text.replace(",", ""), *map(str, numbers))
    call(["deploy", "check", str(folder.root), "--write"])
    assert [one.subject for one in check.check_limits(folder, read_server(folder.settings))] == ["limits", "requests"]


@pytest.mark.parametrize(
    ("more", "run", "fit"),
    [
        ({}, REQUESTS, REQUESTS),
        ({"lr": 0.1}, 0, 0),
        ({"algorithms": {"DRDM": {"lr": 0.1}}}, 0, REQUESTS),
        ({"lr": 0.1, "repeats": 2, "min_replies": 1}, 6 * 3, 6 * 3),
    ],
)
def test_search_for_the_step_size_counts_as_requests(more, run, fit):
    job, base = DeployedConfig(algorithm="DRDM", rounds=3, **more), 10 + 3 * 3
    assert job.max_requests == base + run
    assert job.max_fit_requests == FIT_RUNS * (base + fit) + 2 * len(PORTFOLIO) + 2


def test_limits_are_written_only_at_the_server(tmp_path, capsys):
    folder = deployed(tmp_path / "fl", a=5, b=7)
    for arguments in ([str(folder.root), "--site", "a"], [str(folder.root / "sites/a")]):
        assert call(["deploy", "check", *arguments, "--write"]) == 2
        assert "--write" in capsys.readouterr().err


def test_proposal_is_printed_as_toml(tmp_path, capsys):
    folder = deployed(tmp_path / "fl", a=5, b=7, c=6)
    call(["deploy", "check", str(folder.root)])
    lines = capsys.readouterr().out.splitlines()
    start = next(k for k, line in enumerate(lines) if line.strip() == "[[sites]]")
    end = next(k for k, line in enumerate(lines) if line.startswith("note     requests"))
    assert tomllib.loads("\n".join(lines[start:end]))["sites"][1]["rows"] == 14
