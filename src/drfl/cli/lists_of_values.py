"""Several values after one option: ``--snr 0 5 10`` for ``--snr 0 --snr 5 --snr 10``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

LISTS: Mapping[str, Mapping[str, bool]] = {
    "energy": {"--snr": True, "--bandwidth": True, "--steps": True, "--runs": False},
}
"""Command → the options that take several values → whether these are numbers."""


def expand(arguments: Sequence[str]) -> list[str]:
    """The arguments with such an option repeated before each of its values, as the parser wants it.

    The values end at the next option, at ``--``, and where numbers are wanted at whatever is none: so a file's name may
    follow them. A negative number is a value, not an option. Other commands and options stay as they are.

    Args:
        arguments: the command's words, its name first.
    """
    options = LISTS.get(arguments[0], {}) if arguments else {}
    words, found, at = list(arguments), list[str](), 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return [*found, *words[at:]]
        name, equals, first = word.partition("=")
        at += 1
        if name not in options:
            found.append(word)
            continue
        fits = _is_number if options[name] else _is_value
        values = [first] if equals else []
        while at < len(words) and fits(words[at]):
            values.append(words[at])
            at += 1
        found += [f"{name}={value}" for value in values] or [word]
    return found


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _is_value(word: str) -> bool:
    return not word.startswith("-")
