"""Shakespeare's plays by speaking role: predict a character from the 80 before it (McMahan et al. 2017; LEAF)."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from drfl.core.files import read_bytes, reading
from drfl.data.dataset import Dataset
from drfl.data.datasets.archives import REMEDY, damaged, unusable

VOCABULARY = "\n !\"&'(),-.0123456789:;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"
"""The 80 characters of LEAF, one token each, in this order. Other characters are dropped, and so are accents."""

WINDOW = 80
"""Number of characters in an input, as in LEAF."""

STRIDE = 10
"""Number of characters between the starts of two windows. LEAF uses 1, which gives ten times the rows from nearly the
same text."""

SHORTEST = 2000
"""Smallest number of characters of a role, which gives 32 test rows. Shorter roles are not used."""

TRAINING = 0.8
"""Share of each role's text, from its beginning, for training."""

_HEAD = re.compile(r"([A-Z][A-Za-z' &-]{0,29})\.")
_DIRECTION = re.compile(r"\[[^\[\]]*\]")
_AFTER_TITLE = ("Contents", "by William Shakespeare")
_START, _END = "*** START OF TH", "*** END OF TH"  # of Project Gutenberg's texts; the rest of the line varies
_PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "—": "--", "–": "-", "æ": "ae", "Æ": "AE", "œ": "oe"})


def read_shakespeare(paths: Sequence[Path]) -> Dataset:
    """Read the roles with at least `SHORTEST` characters as groups, named "PLAY: ROLE".

    The lines of a role are joined into one text in the order of the play, without stage directions and with single
    spaces. The first part of a role's text is for training and the rest for testing, and no window crosses from one
    into the other.

    Returns:
        Inputs (n, 80) int64, positions in `VOCABULARY`, and targets (n,), the position of the next character.
    """
    (path,) = paths
    data = read_bytes(path, limit=None, remedy=REMEDY)
    with reading(path, remedy=REMEDY):
        # NFKD separates letters from accents, which are then dropped like everything else that is not ASCII.
        text = unicodedata.normalize("NFKD", data.decode("utf-8-sig").translate(_PLAIN))
    lines = text.encode("ascii", "ignore").decode("ascii").splitlines()
    start, end = (next((k for k, line in enumerate(lines) if line.startswith(mark)), None) for mark in (_START, _END))
    if start is not None and end is None:
        raise damaged(path, "has the start mark of a Project Gutenberg text but no end mark")
    # Project Gutenberg's licence is before and after its marks.
    text = "\n".join(lines[0 if start is None else start + 1 : end])
    texts = {who: tokens for who, said in roles(text, path.stem) if len(tokens := encode(said)) >= SHORTEST}
    if not texts:
        problem = (
            f"has no play with a role of at least {SHORTEST:,} characters. Use a Project Gutenberg text in which a "
            "speech is a line NAME. followed by its lines, up to a blank line"
        )
        raise unusable(path, problem, "wrong-dataset")
    # Cut the text at one place: windows overlap, so random windows of both parts would share text.
    cuts = {who: int(TRAINING * len(tokens)) for who, tokens in texts.items()}
    train = {who: _windows(tokens[: cuts[who]]) for who, tokens in texts.items()}
    test = {who: _windows(tokens[cuts[who] :]) for who, tokens in texts.items()}
    (x, y, groups), (x_test, y_test, test_groups) = _joined(train), _joined(test)
    return Dataset("shakespeare", x, y, x_test, y_test, len(VOCABULARY), groups, test_groups=test_groups)


def roles(text: str, title: str) -> Iterator[tuple[str, str]]:
    """Yield the text of each role in all plays.

    A speech is a paragraph whose first line is only a name with a full stop. A play begins with a paragraph in capitals
    before one that is "Contents" or "by William Shakespeare".

    Yields:
        "PLAY: ROLE" and its speeches, joined by spaces.
    """
    said: dict[str, list[str]] = {}
    # A blank line ends a speech.
    paragraphs = [lines for part in re.split(r"\n\s*\n", text) if (lines := part.strip().splitlines())]
    for (head, *rest), following in zip(paragraphs, [*paragraphs[1:], [""]], strict=False):
        name = _HEAD.fullmatch(head.strip())
        if following[0].strip() in _AFTER_TITLE and head.isupper():
            title = " ".join(" ".join([head, *rest]).split())
        elif name and rest:
            said.setdefault(f"{title}: {name[1].upper()}", []).append("\n".join(rest))
    for who, speeches in said.items():
        yield who, " ".join(_DIRECTION.sub(" ", "\n".join(speeches)).split())


def encode(text: str) -> np.ndarray:
    """Return the positions of the text's characters in `VOCABULARY`, (n,) int64; other characters are dropped."""
    place = {character: k for k, character in enumerate(VOCABULARY)}
    return np.array([place[character] for character in text if character in place], dtype=np.int64)


def _windows(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return windows (n, 80) and the next characters (n,)."""
    # The windows are views; nothing is copied before they are joined.
    both = np.lib.stride_tricks.sliding_window_view(tokens, WINDOW + 1)[::STRIDE]
    return both[:, :WINDOW], both[:, WINDOW]


def _joined(parts: dict[str, tuple[np.ndarray, np.ndarray]]) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Return the windows of all roles, the next characters, and the role of each window."""
    inputs, targets = (np.concatenate(column) for column in zip(*parts.values(), strict=True))
    groups = tuple(who for who, (x, _) in parts.items() for _ in range(len(x)))
    return torch.from_numpy(inputs), torch.from_numpy(targets), groups
