"""Test the folder of models that a site has received."""

import json
import multiprocessing
import os
import signal
import time
from contextlib import suppress

import pytest
from tests.support.marks import long_except
from tests.support.refusals import refused

import drfl
from drfl.data.model_store import INDEX, ModelStore

FIRST, SECOND, THIRD = (f"2026-11-27T10:00:0{i}.000+00:00" for i in range(3))


def models_in(folder):
    return sorted(path.name for path in folder.glob("*.safetensors"))


def test_newest_model_is_current_and_the_previous_one_is_kept(tmp_path):
    store = ModelStore(tmp_path / "models")
    with refused("no-model", str(tmp_path / "models")):
        store.current()
    assert store.add(b"one", FIRST)
    assert store.current().read_bytes() == b"one"
    assert not store.add(b"one", FIRST)
    assert store.add(b"two", SECOND)
    assert store.add(b"three", THIRD)
    assert store.current().read_bytes() == b"three"
    assert len(models_in(store.folder)) == 2


def test_rollback_swaps_both_models(tmp_path):
    store = ModelStore(tmp_path)
    store.add(b"one", FIRST)
    with refused("no-model", str(tmp_path), "one"):
        store.roll_back()
    store.add(b"two", SECOND)
    now, before = store.roll_back()
    assert (now.signed, before.signed) == (FIRST, SECOND)
    assert store.current().read_bytes() == b"one"
    store.roll_back()
    assert store.current().read_bytes() == b"two"


def test_repeated_old_delivery_is_refused_after_a_rollback(tmp_path):
    store = ModelStore(tmp_path)
    store.add(b"one", FIRST)
    store.add(b"two", SECOND)
    with refused("old-model", "signed", FIRST, SECOND):
        store.add(b"one", FIRST)
    store.roll_back()
    with refused("old-model", "signed"):
        store.add(b"two", SECOND)
    assert store.add(b"two", THIRD)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"current": 1, "previous": null, "newest": ""}', b"\xff"])
def test_damaged_index_or_model_is_refused(tmp_path, content):
    store = ModelStore(tmp_path)
    store.add(b"one", FIRST)
    store.current().write_bytes(b"other")
    with refused("damaged-file"):
        store.current()
    (tmp_path / INDEX).write_bytes(content)
    with refused("damaged-file", str(tmp_path / INDEX)):
        store.current()


def _keep_adding(folder):
    for i in range(10_000):
        ModelStore(folder).add(b"%07d" % i * 100_000, f"{i:07d}")


@pytest.mark.parametrize("delay", long_except(["0.05"], [0.02, 0.05, 0.11]))
def test_killed_process_leaves_a_complete_current_model(tmp_path, delay):
    process = multiprocessing.get_context("fork").Process(target=_keep_adding, args=(tmp_path,))
    process.start()
    while not (tmp_path / INDEX).exists():
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    content = ModelStore(tmp_path).current().read_bytes()
    assert content == content[:7] * 100_000
    # the next model removes the killed process's files
    ModelStore(tmp_path).add(b"last", "9999999")
    assert len([path for path in tmp_path.iterdir() if path.name.lstrip(".").startswith("model-")]) <= 2


def test_two_simultaneous_deliveries_are_both_complete(tmp_path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_add_some, args=(tmp_path, k)) for k in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert ModelStore(tmp_path).current().stat().st_size == 80_000
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["newest"] == "00019"


def _add_some(folder, k):
    for i in range(20):
        # Another process may already have added a later model.
        with suppress(drfl.InputError):
            ModelStore(folder).add(b"%08d" % (100 * k + i) * 10_000, f"{i:05d}")
