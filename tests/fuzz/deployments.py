"""What a deployment reads: its files, a site's data, and the messages of the other end."""

from __future__ import annotations

import functools
import io
import math

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from drfl.flower.messages import Answer, Ask, Model, Tested, read_answer, read_ask, write_answer, write_ask
from drfl.flower.settings import read_server, read_site
from drfl.flower.site_data import load_site
from drfl.key import Key
from drfl.local import LocalSGD
from drfl.requests import TrainRequest

from .judge import Parser
from .mutate import damaged, reworded, written

SERVER = """
out = "run"
timeout = 600.0
wait = 300.0
insecure = false
[job]
algorithm = "DRDM"
rounds = 5
cohort = 2
guards = ["robust:k=3"]
[job.algorithms.DRDM]
mu = 0.1
[[sites]]
name = "a"
public_key = "keys/a.pub"
[[sites]]
name = "b"
public_key = "keys/b.pub"
"""
SITE = """
name = "a"
timeout = 300.0
dtype = "float32"
threads = 1
[data]
npz = "data.npz"
test_fraction = 0.25
"""
CSV = "age,ill,dose\n" + "".join(f"{i},{i % 2},{i / 7:.3f}\n" for i in range(12))


def server(rng):
    """A server.toml."""
    return written(rng, SERVER)


def read_server_file(item, folder):
    """Read."""
    (folder / "server.toml").write_bytes(item)
    read_server(folder / "server.toml")


def site(rng):
    """A site.toml."""
    return written(rng, SITE)


def read_site_file(item, folder):
    """Read."""
    (folder / "site.toml").write_bytes(item)
    read_site(folder / "site.toml")


@functools.cache
def npz():
    """The bytes of a site's arrays."""
    out = io.BytesIO()
    x, y = np.arange(24, dtype=np.float32).reshape(8, 3), np.arange(8) % 2
    np.savez(out, train_inputs=x, train_targets=y, test_inputs=x[:3], test_targets=y[:3])
    return out.getvalue()


def data(rng):
    """The name and the bytes of a file of data."""
    return ("data.npz", damaged(rng, npz())) if rng.random() < 0.5 else ("data.csv", written(rng, CSV))


def load_data(item, folder):
    """As a site."""
    name, content = item
    (folder / name).write_bytes(content)
    source = 'npz = "data.npz"' if name == "data.npz" else 'csv = "data.csv"\ntarget = "ill"'
    (folder / "site.toml").write_text(f'name = "a"\n[data]\n{source}\n')
    load_site(folder / "site.toml")


TEST = Tested(0.5, 0.1, 8, (0.2,), ((8.0, 4.0, 4.0), (8.0, math.nan, math.nan)))


@functools.cache
def whole():
    """An ask and an answer, as plain values: arrays, numbers and texts by record."""
    w = torch.arange(5, dtype=torch.float32)
    request = TrainRequest(torch.tensor([1]), w, Key(3).fold("a"), LocalSGD(lr=0.1), 0.1, None, 2, True)
    ask = write_ask(Ask(1, Model("linear", "cross-entropy", "float32", 2), w, request, True, "zero"), w)
    answer = write_answer(Answer((w, w, torch.tensor(0.5, dtype=torch.float64)), TEST, 3, 4, 0.1, "ab" * 12))
    return ask, answer


def message(rng):
    """What end it is for, its text, and changes to its arrays and numbers."""
    end = rng.choice(("ask", "answer"))
    text = str(whole()[end == "answer"].config_records[end]["json"])
    text = reworded(rng, text) if rng.random() < 0.7 else text
    array = rng.choice((None, "drop", "short", "type", "shape", "style"))
    number = rng.choice((None, "drop", "nan", "huge"))
    return end, text, array, number


def read_message(item, folder):
    """At the end that it is for."""
    end, text, array, number = item
    content = whole()[end == "answer"]
    vectors = dict(content.array_records["vectors"])
    name = next(iter(vectors))
    vectors |= {} if array is None else {name: spoilt(vectors[name], array)}
    if array == "drop":
        del vectors[name]
    records = {"vectors": ArrayRecord(vectors), end: ConfigRecord({"json": text})}
    if "numbers" in content.metric_records:
        numbers = dict(content.metric_records["numbers"])
        numbers["test samples"] = {"nan": float("nan"), "huge": 1e300}.get(number, numbers["test samples"])
        if number == "drop":
            del numbers["gradients"]
        records["numbers"] = MetricRecord(numbers)
    (read_ask if end == "ask" else read_answer)(RecordDict(records))


def spoilt(array, how):
    """An array that is not what it says."""
    parts = {"dtype": array.dtype, "shape": tuple(array.shape), "stype": array.stype, "data": array.data}
    parts |= {
        "short": {"data": array.data[:-3]}, "type": {"dtype": "object"}, "shape": {"shape": (2**40, 2)},
        "style": {"stype": "numpy.ndarray"},
    }.get(how, {})  # fmt: skip
    return Array(**parts)


DEPLOYMENTS = (
    Parser("server.toml", server, read_server_file),
    Parser("site.toml", site, read_site_file),
    Parser("data of a site", data, load_data),
    Parser("messages", message, read_message),
)
