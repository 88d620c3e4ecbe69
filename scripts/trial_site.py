"""The data of a site that fails on purpose, as the file ``mode`` beside it specifies."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import numpy as np
import torch
from flwr.app import RecordDict

from drfl.data import ClientData
from drfl.federation.requests import Request, TrainRequest
from drfl.flower import client_app
from drfl.flower.messages import Answer, Ask
from drfl.flower.records import Message, write

HERE = Path(__file__).parent


def mode() -> str:
    """Return how to fail now; an empty text means not at all."""
    path = HERE / "mode"
    return path.read_text().strip() if path.exists() else ""


def load() -> ClientData:
    """Return the data, changed by the mode."""
    if mode() == "raise":
        raise RuntimeError("the disk of this site is broken")
    if mode() == "hang":
        time.sleep(3600)
    with np.load(HERE / "data.npz") as found:
        arrays = {name: torch.from_numpy(found[name]) for name in found}
    name = HERE.name
    train = {name: (arrays["train_inputs"], arrays["train_targets"])}
    return ClientData.from_arrays(train, {name: (arrays["test_inputs"], arrays["test_targets"])})


def spoilt(message: Message) -> Message:
    """Return the message; answers are changed by the mode."""
    changes = {
        "nan": lambda part: part * torch.nan,
        "shape": lambda part: torch.cat([part, part]) if part.ndim else part,
    }
    change = changes.get(mode())
    if change is None or not isinstance(message, Answer):
        return message
    return msgspec.structs.replace(message, parts=tuple(map(change, message.parts)))


client_app.write = lambda message: write(spoilt(message))
HONEST = client_app.compute_answer


def work(site: client_app.Site, ask: Ask, request: Request | None, memory: RecordDict) -> Answer:
    """Return the honest reply, or one with w − (w_i − w) instead of every model."""
    answer = HONEST(site, ask, request, memory)
    if mode() != "flip" or not isinstance(request, TrainRequest):
        return answer
    return msgspec.structs.replace(answer, parts=tuple(2 * ask.w - part for part in answer.parts))


client_app.compute_answer = work
