"""Check the reports of sites before a run, and combine their column statistics."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from drfl.core.errors import InputError, Notice, listing, printable
from drfl.data.standardisation import Standardisation, bound_standardisation
from drfl.flower.messages import MOST_COLUMNS, SiteIdentity
from drfl.flower.records import MOST_SHOWN
from drfl.flower.settings import SiteEntry

LOG = logging.getLogger("drfl.flower")


def check_same_shape(members: Mapping[int, SiteIdentity]) -> None:
    """Check that the inputs of all sites have the same shape."""
    first = members[0]
    for other in members.values():
        if other.shape != first.shape:
            raise InputError(
                f"inputs have shape {first.shape} at site '{first.name}' but {other.shape} at site '{other.name}'. All "
                "sites must have the same columns or images of the same size",
                code="sites-differ",
                field=other.name,
            )


def agree(members: Mapping[int, SiteIdentity], names: Sequence[str]) -> None:
    """Check that all sites have the same schema, features in the same order, classes, and kind of target."""
    reports = [members[client] for client in sorted(members)]
    for what, values in {
        "schema": [report.schema for report in reports],
        "features": [report.features or None for report in reports],
        "kind": [report.majority is None for report in reports],
        "classes": [report.class_names or None for report in reports],
    }.items():
        # Compare a site that differs from most sites with one of these. Sites without a value are skipped.
        known = [value for value in values if value is not None]
        usual = Counter(known).most_common(1)[0][0] if known else None
        odd = next((i for i, value in enumerate(values) if value not in (None, usual)), None)
        if odd is None:
            continue
        places = odd, values.index(usual)
        (own, other), (name, other_name) = (reports[i] for i in places), (names[i] for i in places)
        match what:
            case "schema":
                subject = ""
                shown = [f"has the schema {r.schema[:8]}…" if r.schema else "has no schema" for r in (own, other)]
            case "features":
                pairs = enumerate(zip_longest(own.features, other.features), 1)
                column, cells = next((k, cells) for k, cells in pairs if cells[0] != cells[1])
                subject = f"column {column} is"
                shown = ["missing" if cell is None else f"'{cell}'" for cell in cells]
            case "kind":
                subject = "targets are"
                shown = ["numbers" if r.majority is None else "classes" for r in (own, other)]
            case _:
                subject = "the classes are"
                shown = [listing([f"'{c}'" for c in r.class_names], "class") for r in (own, other)]
        if subject:
            text = f"{subject} {shown[0]} at site '{name}', but {shown[1]} at site '{other_name}'"
        else:
            text = f"site '{name}' {shown[0]}, but site '{other_name}' {shown[1]}"
        raise InputError(
            f"{text}. Make one schema with 'drfl data describe', give it to all sites, and set schema in each "
            "site.toml",
            code="sites-differ",
            field=name,
        )


def admit(members: Mapping[int, SiteIdentity], entries: Sequence[SiteEntry]) -> None:
    """Check the sites' reports against the limits in ``server.toml``.

    The reports need limits because the number of rows is a site's weight in FedAvg, and the labels determine the size
    of the model. The server cannot verify either.

    Raises:
        InputError: If sites differ in columns, classes or schema, or a site reports too many rows or classes, or too
            large a share of all rows.
    """
    agree(members, [entry.name for entry in entries])
    # The total includes unverified reports. A site that reports more rows raises its own share, which max_share limits.
    total = sum(member.train for member in members.values())
    for client, entry in enumerate(entries):
        member = members[client]
        if member.name != entry.name:
            other = printable(member.name, MOST_SHOWN)
            text = f"site {entry.name} reports the name '{other}'. Results use the name in server.toml"
            LOG.warning(Notice(text, "other-name", entry.name))
        share = member.train / total
        for what, reported, limit in (
            ("rows", member.train, entry.rows),
            ("classes", member.classes, entry.classes),
            ("max_share", share, entry.max_share),
        ):
            if limit is not None and reported > limit:
                claim = f"{reported:.4g} of all training rows" if what == "max_share" else f"{reported} {what}"
                raise InputError(
                    f"site '{entry.name}' reports {claim}, more than its limit {what} = {limit:g} in server.toml. Ask "
                    f"the site, then raise {what} or remove the site",
                    code="site-limit",
                    field=entry.name,
                )


def site_warnings(members: Mapping[int, SiteIdentity], names: Sequence[str]) -> list[Notice]:
    """Return the sites' warnings about their own data, which may have no text."""
    # Sites with the same problem share a line, as in a simulation.
    sites: dict[tuple[str, str, str], list[str]] = {}
    for client, member in sorted(members.items()):
        for warning in member.warnings:
            sites.setdefault((warning.code, warning.column, warning.text), []).append(names[client])
    notices = []
    for (code, column, text), where in sites.items():
        place = f"site{'s' * (len(where) > 1)} {listing(where, 'site')}"
        kind = f"{code} in column '{column}'" if column else code
        problem = text or f"{kind}. 'drfl deploy check .' at the site shows the details"
        notices.append(Notice(f"{place}: {problem}", code, column or (where[0] if len(where) == 1 else None)))
    return notices


def standardisation_of(
    members: Mapping[int, SiteIdentity], names: Sequence[str], wanted: bool | None
) -> tuple[Standardisation | None, list[Notice]]:
    """Compute mean and scale of each column from the sites' reports about their training rows.

    Unless ``wanted`` says otherwise, inputs are standardised if they are vectors of at most ``MOST_COLUMNS`` numbers.

    Returns:
        The standardisation, None if inputs are not standardised; and warnings about the columns.

    Raises:
        InputError: If inputs cannot be standardised, if a site reports impossible statistics, or if the inputs of two
            sites differ in shape.
    """
    parts = {names[client]: members[client].moments for client in sorted(members)}
    reports = {name: part for name, part in parts.items() if part is not None}
    notices: list[Notice] = []
    if wanted is None and not reports and len(members[0].shape) == 1:
        text = f"inputs are not standardised, which needs vectors of at most {MOST_COLUMNS} floating-point numbers"
        notices.append(Notice(text, "not-standardised", "standardise"))
    for client, name in enumerate(parts) if wanted is False else ():
        if members[client].counts is not None:
            raise InputError(
                f"site '{name}' has missing values, which only standardisation can replace. Remove "
                "standardise = false from server.toml, or remove the missing values",
                code="missing-values",
                field=name,
            )
    if wanted is False or (wanted is None and not reports):
        return None, notices
    # Moments of different columns cannot be combined.
    check_same_shape(members)
    for name, part in parts.items():
        if part is None:
            raise InputError(
                f"site '{name}' reports no column statistics, so inputs cannot be standardised. That needs vectors of "
                f"at most {MOST_COLUMNS} floating-point numbers. Set standardise = false in server.toml",
                code="invalid-statistics",
                field=name,
            )
        part.check(f"site '{name}'")
    # Bound the statistics, because one site in other units could otherwise set the scale of a column for all sites.
    combined = bound_standardisation(list(reports.values()))
    for client, name in enumerate(reports):
        columns = (combined.outlier == client).nonzero().flatten()
        if len(columns):
            worst = int(columns[combined.factor[columns].argmax()])
            features = members[client].features
            column = f"'{features[worst]}'" if features else f"{worst + 1}"
            text = (
                f"{name}: its statistics would more than double the scale of {len(columns)} "
                f"column{'s' * (len(columns) != 1)} compared with all other sites, column {column} by a factor of "
                f"{float(combined.factor[worst]):.3g}. Their effect was limited. Check that the site uses the same "
                "units as the others"
            )
            notices.append(Notice(text, "unit-mismatch", name))
    return combined.standardisation, notices
