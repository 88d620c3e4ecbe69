"""Test Shakespeare by role: speakers, windows in time, and a one-line error for a text without roles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.data.conftest import write_files
from tests.support.refusals import refused

from drfl.core.key import Key
from drfl.data import Natural, load, make_partition
from drfl.data.datasets.shakespeare import SHORTEST, STRIDE, VOCABULARY, WINDOW, encode, roles

# The beginning of Macbeth in Project Gutenberg's older layout of single plays, and of a play in its later layout.
MACBETH = """\
MACBETH

by William Shakespeare


Persons Represented

DUNCAN, King of Scotland.
MALCOLM, his Son.


ACT I.

SCENE I. An open Place. Thunder and Lightning.

[Enter three Witches.]

FIRST WITCH.
When shall we three meet again?
In thunder, lightning, or in rain?

SECOND WITCH.
When the hurlyburly's done,
When the battle's lost and won.

FIRST WITCH.
Where the place? [Thunder,
within.] Say.

"""
ROMEO = """\
ROMEO AND JULIET



Contents

ACT I
Scene I. A public place.


ACT I

SCENE I. A public place.

 Enter Sampson and Gregory armed with swords and bucklers.

SAMPSON.
’Tis all one—I’ll _show_ myself a tyrant.

First Witch.
Où?
"""


def test_speeches_belong_to_the_roles_of_their_play():
    said = dict(roles(MACBETH + ROMEO, "none"))
    assert said == {
        "MACBETH: FIRST WITCH": "When shall we three meet again? In thunder, lightning, or in rain? "
        "Where the place? Say.",
        "MACBETH: SECOND WITCH": "When the hurlyburly's done, When the battle's lost and won.",
        "ROMEO AND JULIET: SAMPSON": "’Tis all one—I’ll _show_ myself a tyrant.",
        "ROMEO AND JULIET: FIRST WITCH": "Où?",
    }


def test_vocabulary_matches_leaf():
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 80
    assert [VOCABULARY[token] for token in encode("To be_*, O!")] == list("To be, O!")


def play(*lengths):
    """Return a text in which roles A, B, … speak these numbers of random characters."""
    letters = np.random.default_rng(0).choice(list("abcdefghijklm"), max(lengths))
    speeches = [f"{name}.\n{''.join(letters[:n])}\n" for name, n in zip("ABCD", lengths, strict=False)]
    return "A PLAY\n\nby William Shakespeare\n\n" + "\n".join(speeches)


def test_windows_do_not_cross_the_split(tmp_path):
    write_files(tmp_path, {"pg100.txt": play(SHORTEST, 2500, SHORTEST - 1).encode()})
    data = load("shakespeare", data_dir=tmp_path)
    assert set(data.groups or ()) == set(data.test_groups or ()) == {"A PLAY: A", "A PLAY: B"}
    assert (data.inputs.dtype, data.inputs.shape[1:], data.classes) == (torch.int64, (WINDOW,), 80)
    partition = make_partition(data, Natural(), Key(0))
    text = encode(play(2500).split("\n")[5])
    for part, (first, last) in (("train", (0, 2000)), ("test", (2000, 2500))):
        x, y = (data.inputs, data.targets) if part == "train" else (data.test_inputs, data.test_targets)
        for row, start in zip(getattr(partition, part)[1], range(first, last, STRIDE), strict=False):
            assert x[row].tolist() == text[start : start + WINDOW].tolist()
            assert y[row] == text[start + WINDOW]
        assert len(getattr(partition, part)[1]) == (last - first - WINDOW - 1) // STRIDE + 1


def test_quotes_are_straightened_and_front_matter_is_removed(tmp_path):
    body = play(SHORTEST).replace("c", "é").replace("d", "’")
    head = "*** START OF THE PROJECT GUTENBERG EBOOK 100 ***"
    text = f"\ufeffHEAD.\n{'x ' * SHORTEST}\n\n{head}\n\n{body}\n\n*** END OF THE PROJECT GUTENBERG EBOOK 100 ***\n"
    write_files(tmp_path, {"mine.txt": text.replace("\n", "\r\n").encode()})
    data = load("shakespeare", data_dir=tmp_path / "mine.txt")
    assert set(data.groups or ()) == {"A PLAY: A"}
    letters = {VOCABULARY[token] for token in data.inputs.unique().tolist()}
    assert letters == set("abefghijklm'")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (MACBETH.encode(), ("wrong-dataset", None, "2,000")),
        (b"*** START OF THE PROJECT GUTENBERG EBOOK 100 ***\n\n" + play(SHORTEST).encode(), ("damaged-file",)),
        (b"A.\n\xff\xfe", ("damaged-file",)),
        (b"", ("wrong-dataset",)),
    ],
)
def test_text_without_roles_or_end_is_a_one_line_error(tmp_path, content, error):
    write_files(tmp_path, {"pg100.txt": content})
    with refused(*error) as caught:
        load("shakespeare", data_dir=tmp_path)
    assert "\n" not in str(caught.value)


def test_oversized_file_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setenv("DRFL_FILE_LIMIT", "1000")
    write_files(tmp_path, {"pg100.txt": play(SHORTEST).encode()})
    with refused("file-too-large"):
        load("shakespeare", data_dir=tmp_path)


def test_missing_file_is_named(tmp_path):
    with refused("dataset-not-found", "data_dir", "pg100.txt", "shakespeare/"):
        load("shakespeare", data_dir=tmp_path)
