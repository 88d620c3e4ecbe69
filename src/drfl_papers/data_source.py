"""Choose whether a specification runs on the paper's data or on its stand-in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from drfl.core.errors import InputError
from drfl.experiments.config.config import load_config
from drfl.experiments.config.data_settings import LOADING_SETTINGS, load_data
from drfl_papers.plan import Plan, Scale, plan
from drfl_papers.specification import Specification

Source = Literal["auto", "original", "stand-in"]
"""Which data to use. "auto" means the paper's data if they are available, else the stand-in."""


class Sources:
    """Plans specifications on data that are available; remembers which data it has tried.

    Args:
        source: Which data to use.
        data_dir: Folder of the data sets' files.
        log: Called with a line about the choice of data, and about steps that take long.
    """

    def __init__(self, source: Source, data_dir: Path | None, log: Callable[[str], None] | None = None) -> None:
        self._source, self._data_dir, self._log = source, data_dir, log
        self._tried: dict[tuple[tuple[str, object], ...], InputError | None] = {}
        self._reported: dict[str, str] = {}

    def plan(self, spec: Specification, scale: Scale) -> Plan:
        """Plan a specification, after loading its data once so that downloads and features are ready.

        Raises:
            InputError: If neither the requested data nor a permitted stand-in are available.
        """
        if self._source == "stand-in" and spec.stand_in is not None:
            return self._ready(plan(spec, dataclasses.replace(scale, stand_in=True)))
        planned = plan(spec, scale)  # an error in the request itself does not depend on the data
        try:
            return self._ready(planned)
        except InputError as error:
            if self._source == "original" or spec.stand_in is None:
                raise
            if self._log is not None:  # the reason is long, so print it only once
                first = self._reported.setdefault(str(error), spec.name)
                reason = error if first == spec.name else f"same reason as {first}"
                self._log(f"{spec.name} runs on its stand-in: {reason}")
            return self._ready(plan(spec, dataclasses.replace(scale, stand_in=True)))

    def _ready(self, planned: Plan) -> Plan:
        for cell in planned.cells:
            if cell.cell.kind != "training":
                continue
            job = {name: cell.cell.job[name] for name in LOADING_SETTINGS if name in cell.cell.job}
            # Cells share their data: without this, each cell would repeat a failed download.
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
