"""A site's description of itself as Flower's records: plain values, and statistics of its columns as two vectors."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, RecordDict

from drfl.data.standardisation import Moments
from drfl.flower.messages import AUDIT, TYPES, array_of, vectors_in
from drfl.flower.schema import MOST_COLUMNS, MOST_TEXT, ProtocolError, SiteIdentity, note, read_note


def write_identity(about: SiteIdentity, moments: Moments | None) -> RecordDict:
    """The records of a site's description of itself.

    Args:
        about: its plain values.
        moments: of the columns of its training rows; None where its inputs cannot be standardised.
    """
    vectors = {} if moments is None else {"mean": array_of(moments.mean), "variance": array_of(moments.variance)}
    return RecordDict({"identity": note(about), "vectors": ArrayRecord(vectors)})


def read_identity(content: RecordDict) -> tuple[SiteIdentity, Moments | None]:
    """A site's description of itself.

    Whether rows with these moments can exist is checked by :meth:`drfl.data.standardisation.Moments.check`.

    Raises:
        ProtocolError: it is none of this version of drfl.
    """
    about = read_note(content, "identity", SiteIdentity)
    if set(content) - {AUDIT} != {"identity", "vectors"}:
        raise ProtocolError("an identity has other records than drfl's")
    vectors = vectors_in(content, ("mean", "variance"))
    if not vectors:
        return about, None
    # Only inputs that are vectors have columns; with any other shape, moments are invalid.
    columns = about.shape[0] if len(about.shape) == 1 else 0
    fits = [found.dtype == torch.float64 and found.shape == (columns,) for found in vectors.values()]
    if len(fits) != 2 or not all(fits) or not 0 < columns <= MOST_COLUMNS:
        raise ProtocolError("an identity's mean and variance are not a float64 number each for every column")
    return about, Moments(about.train, vectors["mean"], vectors["variance"])


def most_identity_bytes() -> int:
    """The size in bytes of the largest valid description of a site."""
    return MOST_TEXT + 2 * MOST_COLUMNS * TYPES["float64"]
