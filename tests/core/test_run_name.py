"""Test that log lines name their run."""

from __future__ import annotations

import logging

from drfl.core.errors import Notice
from drfl.core.run_name import named_run

LOG = logging.getLogger("drfl")
CHILD = logging.getLogger("drfl.engine")


def test_log_lines_begin_with_the_run_name(caplog):
    with caplog.at_level(logging.INFO, "drfl"):
        LOG.info("before %d", 1)
        with named_run("100 %-seed0"), named_run("inner"):
            LOG.info("round %d", 2)
            LOG.info("100 %")
            LOG.warning(Notice("slow", "slow-model", "model"))
            CHILD.info("traced")
        LOG.info("after")
    assert [record.getMessage() for record in caplog.records] == [
        "before 1", "100 %-seed0: round 2", "100 %-seed0: 100 %", "100 %-seed0: slow",
        "100 %-seed0: traced", "after",
    ]  # fmt: skip
    assert (caplog.records[3].msg.code, caplog.records[3].msg.field) == ("slow-model", "model")
