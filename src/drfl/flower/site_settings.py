"""``site.toml``: what a site has, and how it works. Read for every message, so it loads nothing of the server's."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from drfl.flower.toml import read


class Source(BaseModel):
    """Where a site's data lie; exactly one of the first four.

    Args:
        loader: "module:function", a function that gives a :class:`drfl.data.ClientData` of one client.
        npz: file with train_inputs, train_targets, and test_inputs, test_targets or neither.
        csv: table of numbers with a row a sample.
        images: IDX file, with ``labels``.
        target: the csv's column to predict.
        labels: IDX file.
        test_images: IDX file, with ``test_labels``.
        test_labels: IDX file.
        test_csv: like csv; without one a share of the rows is kept for testing.
        test_fraction: that share.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    loader: str | None = None
    npz: Path | None = None
    csv: Path | None = None
    images: Path | None = None
    target: str | None = None
    labels: Path | None = None
    test_images: Path | None = None
    test_labels: Path | None = None
    test_csv: Path | None = None
    test_fraction: float = Field(0.2, gt=0, lt=1)

    @model_validator(mode="after")
    def _one(self) -> Source:
        kinds = ("loader", "npz", "csv", "images")
        if sum(getattr(self, kind) is not None for kind in kinds) != 1:
            raise ValueError(f"give exactly one of {', '.join(kinds)}")
        for kind, needed in (("csv", "target"), ("images", "labels"), ("test_images", "test_labels")):
            if getattr(self, kind) is not None and getattr(self, needed) is None:
                raise ValueError(f"'{kind}' needs '{needed}'")
        return self


class SiteSettings(BaseModel):
    """``site.toml``.

    Args:
        name: what the site is called.
        data: where its data lie, relative to the file.
        timeout: seconds that a request may take.
        dtype: of the inputs, and of targets that are no labels.
        device: torch device.
        threads: torch's threads.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(min_length=1)
    data: Source
    timeout: float = Field(3600.0, gt=0)
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    threads: int | None = Field(None, ge=1, le=1024)


def read_site(path: Path) -> SiteSettings:
    """Read ``site.toml``.

    Raises:
        InputError: it is not there, or something in it is wrong; names it.
    """
    return read(path, SiteSettings)
