"""Deliberately broken parsers, which the fuzzers must detect."""

from __future__ import annotations

import json
import tomllib
import warnings

import numpy as np
from safetensors.torch import load

from drfl.core.errors import DrflError, InputError

from . import judge
from .binaries import idx, partition
from .checkpoints import RUN, STATE, changed
from .judge import Parser
from .messages import mutated_message
from .strategies import mutated_file
from .texts import MEASURED, toml


def trusting_idx(item, folder):
    """Trust the header."""
    data = item[1]
    count = data[3]
    shape = np.frombuffer(data[4 : 4 + 4 * count], ">u4")
    return np.frombuffer(data[4 + 4 * count :], np.uint8).reshape(shape)


def hasty_toml(item, folder):
    """Catch only the exceptions in tomllib's manual."""
    try:
        return tomllib.loads(item.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"no TOML: {error}") from None


class TalkativeError(DrflError):
    """An error whose message keeps its line breaks."""

    def __str__(self):
        return "first line\nsecond line"


def nameless(item, folder):
    """Omit the kind of problem."""
    raise DrflError("this is wrong")


def talkative(item, folder):
    """Print more than one line."""
    raise TalkativeError


def warning(item, folder):
    """Continue with a warning."""
    if b"," not in item:
        warnings.warn("there is no comma", stacklevel=1)


def hasty_answer(item, folder):
    """Assume types of numbers and arrays, and catch only the errors of wrong texts."""
    _, records = item
    try:
        fields = records["message"]["fields"]
        int(fields.get("gradients", 0)), int(fields.get("losses", 0)), float(fields.get("seconds", 0))
        for array in records["vectors"].values():
            np.frombuffer(array.data, array.dtype).reshape(array.shape)
    except (TypeError, AttributeError) as error:
        raise InputError(f"no number: {error}") from None


def slow(item, folder):
    """Never end on invalid JSON."""
    try:
        return json.loads(item)
    except (ValueError, RecursionError):
        while True:
            pass


def greedy(item, folder):
    """Allocate the declared size."""
    return np.ones(3 * judge.MEMORY // 2 if item[:1] != b"{" else 1, np.uint8)


def trusting_checkpoint(item, folder):
    """Trust a checkpoint whose checksums match."""
    content, tensors = json.loads(item.files[RUN]), load(item.files[STATE])
    lam = tensors.get("state.inner.lam", tensors["history.lam"][-1])  # not every algorithm has one
    return content["round"] + 1, content["ledger"]["messages"] + 1, lam @ tensors["history.lam"].T


BROKEN = (
    Parser("a message of two lines", mutated_file(MEASURED), talkative),
    Parser("an error without a code", mutated_file(MEASURED), nameless),
    Parser("a warning", mutated_file(MEASURED), warning),
    Parser("an IDX reader that trusts the header", idx(), trusting_idx),
    Parser("a TOML reader that catches TOMLDecodeError only", toml, hasty_toml),
    Parser("a refusal that never ends", partition, slow, seconds=0.01),
    Parser("an array as large as asked for", partition, greedy, seconds=60),
    Parser("a reader of replies that trusts them", mutated_message(), hasty_answer),
    Parser("a checkpoint whose checksums are trusted", changed(), trusting_checkpoint),
)
