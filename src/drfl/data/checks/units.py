"""Medians of clients that are far from those of all others, for example because of another unit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from drfl.data.checks.raw_table import SAMPLE, SEVERAL, RawTable

RATIO, RATIO_OF_TWO = 2.2, 4.0
"""A client's median may have another unit if it is this multiple of the others', with several others or only one."""

SPREADS = 20.0
"""A client's interquartile range may have another unit if it is this multiple of the other clients'."""

SHIFT, SHIFT_OF_TWO = 3.5, 5.0
"""A client's median is far off if it is this many standard deviations from the others', with several or only one."""

BEYOND = 2.5
"""A client differs from the others if it is this many times as far from their middle as any of them."""

ERRORS = 4.0
"""Standard errors of a median that a difference must exceed."""

UNITS = {
    2.2046: "kilograms and pounds",
    2.54: "inches and centimetres",
    3.2808: "metres and feet",
    7.0: "weeks and days",
    10.0: "units a power of ten apart",
    18.016: "mmol/L and mg/dL of glucose",
    24.0: "days and hours",
    38.67: "mmol/L and mg/dL of cholesterol",
    60.0: "minutes and hours",
    88.42: "µmol/L and mg/dL of creatinine",
    100.0: "per cent and fractions, or units a power of ten apart",
    365.25: "years and days",
    1000.0: "units a power of ten apart",
}
"""Factors between units that are often mixed up."""


def odd_medians(table: RawTable) -> Iterator[tuple[int, int, str]]:
    """Yield columns, indices of `large` clients, and descriptions of medians that are far from all others."""
    for k in range(table.values.shape[1]):
        of_clients = [table.values_at(i, k) for i in table.large]
        members = np.arange(len(of_clients))
        low, middle, high = table.quartiles[:, :, k]
        if table.known is not None:
            members, of_clients, quartiles = _with_several(members, of_clients)
            if len(members) < 2:
                continue
            low, middle, high = quartiles
        is_mostly_zero = abs(np.median(middle)) <= table.resolution[k] and low.min() >= -table.resolution[k]
        if is_mostly_zero or np.median(high - low) <= table.resolution[k]:
            # For counts of rare events, compare only those that are not 0.
            of_clients = [values[np.abs(values) > table.resolution[k]] for values in of_clients]
            members, of_clients, quartiles = _with_several(members, of_clients)
            if len(members) < 2:
                continue
            low, middle, high = quartiles
        values = np.concatenate(of_clients)
        # A code of a few levels has no unit.
        if len(np.unique(values[:: -(-len(values) // SAMPLE)])) <= SEVERAL or np.median(high - low) <= 0:
            continue
        # For normal values, the interquartile range is 1.349 standard deviations.
        spread, sizes, is_pair = (high - low) / 1.349, np.array(list(map(len, of_clients))), len(members) == 2
        positive = np.array([bool((values > table.resolution[k]).all()) for values in of_clients])
        is_date = k in table.dates  # has no unit, and a client may cover few days
        if positive.all() and not is_date:
            # Two groups of clients, in each of which the medians are close together, may have different units.
            logs = np.log(middle)
            order = np.argsort(logs)
            gaps = np.diff(logs[order])
            cut = int(gaps.argmax()) + 1
            groups = order[:cut], order[cut:]
            # If both groups have the same size, name the one with the larger values.
            many, few = groups if len(groups[0]) >= len(groups[1]) else groups[::-1]
            is_apart = gaps[cut - 1] > BEYOND * max(float(np.ptp(logs[group])) for group in groups)
            factor, is_known = _factor(float(np.median(logs[few]) - np.median(logs[many])))
            for j in few if len(few) > 1 and is_apart and is_known else ():
                yield k, int(members[j]), factor
        for j in np.argsort(-spread):  # if there are two clients, name the one with the larger values
            text = None
            if np.delete(positive, j).all() and not is_date:
                text = _ratio(middle, low, high, sizes, j, RATIO_OF_TWO if is_pair else RATIO)
            text = text or (None if is_date else _spread(spread, j))
            width = np.median(np.delete(spread, j))
            if text is None and width > 0:
                distance = _distance(middle / width, 1.0, sizes, j, SHIFT_OF_TWO if is_pair else SHIFT)
                text = None if distance is None else f"{distance:+.1f} standard deviations"
            if text is not None:
                yield k, int(members[j]), text
                if is_pair:
                    break


def _with_several(members: np.ndarray, of_clients: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Return the clients with at least SEVERAL values, these values, and their quartiles (3, clients)."""
    enough = [j for j, values in enumerate(of_clients) if len(values) >= SEVERAL]
    kept = [of_clients[j] for j in enough]
    quartiles = [np.quantile(values, (0.25, 0.5, 0.75)) for values in kept]
    return members[enough], kept, np.stack(quartiles, axis=1) if kept else np.empty((3, 0))


def _ratio(
    middle: np.ndarray, low: np.ndarray, high: np.ndarray, sizes: np.ndarray, j: int, least: float
) -> str | None:
    """Describe the factor between a client's median and the positive medians of the others; None if it is normal."""
    others = np.arange(len(middle)) != j
    if high[j] < 0:
        return "negative, all others positive"
    if low[j] <= 0:
        return None
    logs = np.log(middle)
    width = float(np.median(np.log(high[others] / low[others]))) / 1.349
    distance = _distance(logs, width, sizes, j, np.log(least))
    if distance is None:
        return None
    as_fahrenheit = 1.8 * np.median(middle[others]) + 32
    # Of large values, °F are less than twice the °C.
    is_warm = as_fahrenheit > least * np.median(middle[others])
    if is_warm and abs(middle[j] - as_fahrenheit) < 0.5 * (high[j] - low[j]):
        return f"{np.exp(distance):.3g} times, as °F in place of °C"
    return _factor(distance)[0]


def _factor(distance: float) -> tuple[str, bool]:
    """Describe a factor by its logarithm, and return whether it is one between two units."""
    factor = np.exp(abs(distance))
    unit = min(UNITS, key=lambda known: abs(np.log(known / factor)))
    is_known = abs(np.log(unit / factor)) < 0.1
    times = f"{float(f'{np.exp(distance):.3g}'):,g} times"
    return times + (f", as between {UNITS[unit]}" if is_known else ""), is_known


def _distance(middle: np.ndarray, width: float, sizes: np.ndarray, j: int, least: float) -> float | None:
    """Return the distance of a client's median from the others'; None if it is explained by noise or their differences.

    ``width`` is the standard deviation of the values, and ``sizes`` (k,) counts the values of each median.
    """
    others = np.arange(len(middle)) != j
    errors = 1.2533 * width / np.sqrt(sizes)  # of medians of normal values
    centre = np.median(middle[others])
    distance = float(middle[j] - centre)
    # Part of the others' differences is their own sampling error, whose square adds to that of the true difference.
    squares = (middle[others] - centre) ** 2 - (1.5 * errors[others]) ** 2
    differences = np.sqrt(np.maximum(squares, 0).max())
    return distance if abs(distance) >= max(least, BEYOND * differences, ERRORS * errors[j]) else None


def _spread(spread: np.ndarray, j: int) -> str | None:
    """Describe the factor between a client's interquartile range and those of the others; None if it is normal."""
    others = spread[np.arange(len(spread)) != j]
    if spread[j] <= 0 or (others <= 0).any():
        return None
    logs = np.log(others)
    distance = np.log(spread[j]) - np.median(logs)
    if abs(distance) < max(np.log(SPREADS), BEYOND * np.abs(logs - np.median(logs)).max()):
        return None
    return f"a range {np.exp(distance):.3g} times that of the others"
