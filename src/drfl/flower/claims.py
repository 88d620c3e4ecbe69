"""What sites claim of themselves before a run: what is refused, and how their claims are combined."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from drfl.core.errors import InputError, Notice
from drfl.data.standardisation import Standardisation, bounded
from drfl.flower.messages import MOST_COLUMNS, SiteIdentity
from drfl.flower.records import printable
from drfl.flower.settings import SiteEntry

LOG = logging.getLogger("drfl.flower")


def same_shape(members: Mapping[int, SiteIdentity]) -> None:
    """Refuse sites whose inputs differ in shape.

    Raises:
        InputError: names two of them.
    """
    first = members[0]
    for other in members.values():
        if other.shape != first.shape:
            raise InputError(
                f"inputs have shape {first.shape} at site '{first.name}' and {other.shape} at site '{other.name}': "
                "all sites must have the same columns, or pictures of one size",
                code="sites-differ",
                field=other.name,
            )


def admit(members: Mapping[int, SiteIdentity], entries: Sequence[SiteEntry]) -> None:
    """Refuse a deployment in which a site claims more than it was granted.

    The number of its rows is a site's weight under FedAvg, and its labels decide the size of the model; both are
    claims of the site.

    Args:
        members: client → its description.
        entries: (N,) what the server's file says of the sites.

    Raises:
        InputError: a site has too many rows or classes, or too large a share of all rows; names it.
    """
    # The total includes unchecked claims. A site that claims more rows raises its own share, which max_share bounds.
    total = sum(member.train for member in members.values())
    for client, entry in enumerate(entries):
        member = members[client]
        if member.name != entry.name:
            text = f"{entry.name} calls itself '{printable(member.name)}'; results have the name in server.toml"
            LOG.warning(Notice(text, "other-name", entry.name))
        share = member.train / total
        for what, told, most in (
            ("rows", member.train, entry.rows),
            ("classes", member.classes, entry.classes),
            ("max_share", share, entry.max_share),
        ):
            if most is not None and told > most:
                claim = f"{told:.4g} of all training rows" if what == "max_share" else f"{told} {what}"
                raise InputError(
                    f"site '{entry.name}' claims {claim}, and server.toml allows it {what} = {most:g}: ask the site, "
                    f"then raise {what} or leave the site out",
                    code="site-limit",
                    field=entry.name,
                )


def standardisation_of(
    members: Mapping[int, SiteIdentity], names: Sequence[str], wanted: bool | None
) -> Standardisation | None:
    """Mean and scale of each column, from what the sites report of their training rows.

    Args:
        members: client → its description.
        names: (N,) the sites' names in server.toml.
        wanted: whether inputs are to be standardised; None = where they are vectors of at most MOST_COLUMNS numbers.

    Returns:
        None where nothing is standardised.

    Raises:
        InputError: inputs are to be standardised and cannot be, or a site reports what no rows can have; names it.
            Or they do not have one shape.
    """
    parts = {names[client]: members[client].moments for client in sorted(members)}
    told = {name: part for name, part in parts.items() if part is not None}
    if wanted is None and not told and len(members[0].shape) == 1:
        text = f"inputs are not standardised, which takes vectors of at most {MOST_COLUMNS} floating-point numbers"
        LOG.warning(Notice(text, "not-standardised", "standardise"))
    if wanted is False or (wanted is None and not told):
        return None
    # Moments of different columns cannot be combined.
    same_shape(members)
    for name, part in parts.items():
        if part is None:
            raise InputError(
                f"site '{name}' reports no statistics of its columns, by which inputs are standardised: that takes "
                f"vectors of at most {MOST_COLUMNS} floating-point numbers; set standardise = false in server.toml",
                code="invalid-statistics",
                field=name,
            )
        part.check(f"site '{name}'")
    found = bounded(list(told.values()))
    for client, name in enumerate(told):
        columns = (found.outlier == client).nonzero().flatten()
        if len(columns):
            worst = int(columns[found.factor[columns].argmax()])
            text = (
                f"{name}: its answer alone makes the scale of {len(columns)} columns more than twice what the others' "
                f"give, that of column {worst + 1} {float(found.factor[worst]):.3g} times; it was not followed that "
                "far: see that its units are the others'"
            )
            LOG.warning(Notice(text, "unit-mismatch", name))
    return found.standardisation
