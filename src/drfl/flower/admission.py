"""What sites tell of themselves, held against what ``server.toml`` allows them, before anything is trained."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from drfl.errors import InputError
from drfl.flower.roster import Member
from drfl.flower.schema import printable
from drfl.flower.server_settings import Entry

LOG = logging.getLogger("drfl.flower")


def admit(members: Mapping[int, Member], entries: Sequence[Entry]) -> None:
    """Refuse a deployment in which a site claims more than it was granted.

    The number of its rows is a site's weight under FedAvg, and its labels decide how large everybody's model is; both
    are the site's own word.

    Args:
        members: client → what it tells.
        entries: (N,) what the server's file says of the sites.

    Raises:
        InputError: a site has too many rows or classes, or too large a share of all rows; names it.
    """
    total = sum(member.train for member in members.values())
    for client, entry in enumerate(entries):
        member = members[client]
        if member.name != entry.name:
            LOG.warning(
                "%s calls itself '%s'; results have the name in server.toml", entry.name, printable(member.name)
            )
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
                    f"then raise {what} or leave the site out"
                )
