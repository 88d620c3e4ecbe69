"""Test which data a specification uses."""

from __future__ import annotations

from tests.support.refusals import refused

from drfl.core.errors import InputError
from drfl_papers.data_source import Sources
from drfl_papers.plan import Scale
from drfl_papers.specification import load_spec

QUICK = Scale(quick=True)


def test_reason_for_a_stand_in_is_given_once(monkeypatch):
    monkeypatch.setattr(Sources, "_ready", lambda self, planned: planned if planned.scale.stand_in else missing())
    lines: list[str] = []
    sources = Sources("auto", None, lines.append)
    for name in ("drdm-table-1", "drdm-table-2"):
        assert sources.plan(load_spec(name), QUICK).scale.stand_in
    assert lines == [
        "drdm-table-1 runs on its stand-in: kmnist is not here",
        "drdm-table-2 runs on its stand-in: same reason as drdm-table-1",
    ]


def test_impossible_data_request_is_refused_once():
    lines: list[str] = []
    with refused("unknown-name", "setting", "'nowhere'"):
        Sources("auto", None, lines.append).plan(load_spec("drdm-table-1"), Scale(settings=("nowhere",)))
    assert lines == []


def missing():
    raise InputError("kmnist is not here")
