"""Whether a specification runs on the paper's data or on its stand-in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from drfl.core.errors import InputError
from drfl.experiments.config.config import load_config
from drfl.experiments.config.data_settings import LOADED, load_data
from drfl_papers.plan import Plan, Scale, plan
from drfl_papers.specification import Specification

Source = Literal["auto", "original", "stand-in"]
"""Where data come from: the paper's, the stand-in, or the paper's where they can be had and else the stand-in."""


class Sources:
    """Plans specifications on data that can be had; what was tried once is not tried again.

    Args:
        source: which data to take.
        data_dir: where the data sets' files lie.
        log: told what is taken, and of what takes its time.
    """

    def __init__(self, source: Source, data_dir: Path | None, log: Callable[[str], None] | None = None) -> None:
        self._source, self._data_dir, self._log = source, data_dir, log
        self._tried: dict[tuple[tuple[str, object], ...], InputError | None] = {}
        self._told: dict[str, str] = {}

    def plan(self, spec: Specification, scale: Scale) -> Plan:
        """The plan of a specification whose data were loaded once, so that downloads and features are at hand.

        Raises:
            InputError: neither the data asked for nor a stand-in allowed can be had.
        """
        if self._source == "stand-in" and spec.stand_in is not None:
            return self._ready(plan(spec, dataclasses.replace(scale, stand_in=True)))
        planned = plan(spec, scale)  # what is wrong with the request itself is wrong on any data
        try:
            return self._ready(planned)
        except InputError as error:
            if self._source == "original" or spec.stand_in is None:
                raise
            if self._log is not None:  # the reason is long: once will do
                first = self._told.setdefault(str(error), spec.name)
                self._log(f"{spec.name} runs on its stand-in, as {error if first == spec.name else f'{first} does'}")
            return self._ready(plan(spec, dataclasses.replace(scale, stand_in=True)))

    def _ready(self, planned: Plan) -> Plan:
        for cell in planned.cells:
            if cell.cell.kind != "training":
                continue
            job = {name: cell.cell.job[name] for name in LOADED if name in cell.cell.job}
            # cells share their data: without this, each cell would repeat a failed download
            key = tuple(job.items())
            if key not in self._tried:
                values = {**job, **({"data_dir": self._data_dir} if self._data_dir else {})}
                try:
                    load_data(load_config(None, values), self._log)
                    self._tried[key] = None
                except InputError as error:
                    self._tried[key] = error
            error = self._tried[key]
            if error is not None:
                raise error
        return planned
