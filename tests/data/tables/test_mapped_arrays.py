"""Test inputs that stay in a memory-mapped file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.refusals import refused

import drfl
from drfl.cli.app import call
from drfl.core.array_files import open_arrays
from drfl.core.mapped_files import empty_in_file, is_mapped
from drfl.data import ClientData, Natural
from drfl.data.tables.table_files import read_tables

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the mappings of a process")

RUN = """
import resource, sys
from pathlib import Path
from drfl.cli.app import call
limit, *command = sys.argv[1:]
if __name__ == "__main__":  # workers import this file
    if int(limit):
        # It counts what the process allocates or could change, but neither files that it maps for reading nor shared
        # ones. Each worker inherits it.
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit), int(limit)))
    code = call(command)
    print("used", 1024 * int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]))
    sys.exit(code)
"""

TRAIN = ["run", "--algorithm", "FedAvg", "--cohort", "2", "--rounds", "2"]
COMPARE = ["compare", "--algorithms", "FedAvg,DRFA", "--seeds", "1", "--cohort", "2", "--rounds", "2"]
TWO_PROCESSES = [*COMPARE, "--jobs", "2"]
FIT = ["fit", "--budget", "2"]


def write(folder, megabytes, shape=(250,)):
    """Write a folder of arrays with 1,000 rows of 1 kB per megabyte, mostly holes in a sparse file."""
    folder.mkdir(parents=True)
    n, rng = 1000 * megabytes, np.random.default_rng(0)
    x = np.lib.format.open_memmap(folder / "inputs.npy", "w+", np.float32, (n, *shape))
    rows = np.linspace(0, n - 1, 1000).astype(int)
    x[rows] = rng.normal(size=(1000, *shape))
    x.flush()
    y = np.zeros(n, np.int64)
    y[rows] = x[rows].reshape(1000, -1)[:, 0] > 0
    np.save(folder / "y.npy", y)
    np.save(folder / "site.npy", np.arange(n) * 4 // n)
    return folder


def with_data(command, folder, out):
    """Return the command with a folder of arrays and an output folder."""
    data = [str(folder)] if command[0] == "fit" else ["--data", str(folder)]
    return [*command, *data, "--target", "y", "--group", "site", "--out", str(out)]


def train(limit, out, folder, command=TRAIN):
    """Run a command whose processes have an allocation limit (0: none), and return the first one's memory use."""
    environment = {**os.environ, "TMPDIR": str(folder.parent), "OMP_NUM_THREADS": "1"}
    script = folder.parent / "train.py"
    script.write_text(RUN)
    done = subprocess.run(
        [sys.executable, str(script), str(limit), *with_data(command, folder, out)],
        check=False, capture_output=True, text=True, env=environment, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout.rpartition("used ")[2])


@pytest.fixture(scope="module")
def idle(tmp_path_factory):
    """Return the memory use of a run with a tiny file."""
    folder = tmp_path_factory.mktemp("idle")
    return train(0, folder / "run", write(folder / "small", 1))


@pytest.mark.long
@pytest.mark.first
@pytest.mark.parametrize(
    ("command", "shape"),
    [(TRAIN, (250,)), (TRAIN, (1, 25, 10)), (TWO_PROCESSES, (250,)), (FIT, (250,))],
    ids=["run", "images", "two processes", "fit"],
)
def test_no_process_allocates_the_file(command, shape, idle, tmp_path):
    # The limit is below the file's size, so a copy would fail; the rest of a run needs up to 220 MB.
    train(idle + 290_000_000, tmp_path / "run", write(tmp_path / "large", 300, shape), command)


def arrays(seed=0, n=60):
    rng = np.random.default_rng(seed)
    x = rng.normal(3, 2, (n, 4)).astype(np.float32)
    return {"inputs": x, "y": (x[:, 0] > 3).astype(int), "site": np.array(["a", "b", "c"])[np.arange(n) % 3]}


def save(folder, content):
    folder.mkdir()
    for name, values in content.items():
        np.save(folder / f"{name}.npy", values)
    return folder


def test_mapped_files_give_the_same_data(tmp_path):
    content = arrays()
    np.savez_compressed(tmp_path / "packed.npz", **content)
    np.savez(tmp_path / "plain.npz", **content)
    save(tmp_path / "folder", content)
    expected = read_tables([tmp_path / "packed.npz"], "y", "site")
    assert not is_mapped(expected.inputs)
    packed = ClientData.from_dataset(expected, Natural())
    assert not is_mapped(packed.inputs)
    for name in ("plain.npz", "folder"):
        dataset = read_tables([tmp_path / name], "y", "site")
        assert is_mapped(dataset.inputs)
        assert torch.equal(dataset.inputs, expected.inputs)
        assert (dataset.groups, dataset.name) == (expected.groups, name.removesuffix(".npz"))
        data = ClientData.from_dataset(dataset, Natural())
        assert is_mapped(data.inputs)
        assert data.inputs is data.test_inputs
        assert torch.equal(data.inputs, packed.inputs)
        spec = drfl.data_spec(data=tmp_path / name, target="y > 0", group="site")
        assert torch.equal(spec.for_seed(0).targets, packed.targets)
    np.testing.assert_array_equal(np.load(tmp_path / "folder" / "inputs.npy"), content["inputs"])


@pytest.mark.parametrize(
    ("command", "mapped", "file"),
    [
        (["run", "--algorithm", "DRDM", "--rounds", "3", "--cohort", "2"], None, "history.csv"),
        pytest.param(COMPARE, TWO_PROCESSES, "compare.csv", marks=pytest.mark.long),
        pytest.param(FIT, None, "clients.csv", marks=pytest.mark.long),
    ],
    ids=["run", "compare in two processes", "fit"],
)
def test_results_are_identical_to_the_byte(command, mapped, file, tmp_path):
    np.savez_compressed(tmp_path / "same.npz", **arrays())
    save(tmp_path / "same", arrays())
    for name, words in (("same.npz", command), ("same", mapped or command)):
        assert call(with_data(words, tmp_path / name, tmp_path / "out" / name)) == 0
    first, second = ((tmp_path / "out" / name / file).read_bytes() for name in ("same.npz", "same"))
    assert first == second


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(inputs=content["inputs"].astype(np.float64)),
        lambda content: content.update(inputs=np.asfortranarray(content["inputs"])),
        lambda content: content.update(inputs=content["inputs"].astype(">f4")),
    ],
    ids=["float64", "Fortran", "big-endian"],
)
def test_other_arrays_are_read_into_memory(tmp_path, change):
    content = arrays()
    change(content)
    dataset = read_tables([save(tmp_path / "folder", content)], "y", "site")
    assert not is_mapped(dataset.inputs)
    np.testing.assert_array_equal(dataset.inputs, arrays()["inputs"])


def test_unaligned_array_in_npz_is_read_into_memory(tmp_path):
    found = set()
    for length in range(1, 9):
        content = {"x" * length: np.arange(1), **arrays()}
        np.savez(tmp_path / "all.npz", **content)
        with open_arrays(tmp_path / "all.npz") as opened:
            mapped = opened.mapped("inputs", np.float32)
        found.add(mapped is None)
        assert torch.equal(read_tables([tmp_path / "all.npz"], "y", "site").inputs, torch.tensor(content["inputs"]))
    assert found == {True, False}


def test_folder_of_named_columns_is_a_table(tmp_path):
    content = {"age": np.arange(40.0), "sex": np.array(["f", "m"] * 20), "ill": np.arange(40) // 20}
    dataset = read_tables([save(tmp_path / "folder", content)], "ill")
    assert dataset.columns == ("age", "sex_m")
    assert not dataset.notices


def test_damaged_folders_are_refused(tmp_path):
    folder = save(tmp_path / "folder", arrays())
    with refused("unsupported-file", str(folder / "inputs.npy")):
        read_tables([folder / "inputs.npy"], "y")
    with refused("unknown-name", "z", "y"):
        read_tables([folder], "z")
    (folder / "inputs.npy").write_bytes((folder / "inputs.npy").read_bytes()[:-8])
    with refused("damaged-file", "inputs"):
        read_tables([folder], "y")
    (folder / "inputs.npy").write_bytes(b"\x93NUMPY")
    with refused("damaged-file", str(folder)):
        read_tables([folder], "y")
    np.save(folder / "inputs.npy", np.array([{}, 1], dtype=object))
    with refused("unsupported-file", "inputs", ".astype(str)"):
        read_tables([folder], "y")
    content = arrays()
    content["inputs"][41, 2] = np.inf
    with refused("not-finite", "inputs", "42"):
        read_tables([save(tmp_path / "infinite", content)], "y")


def test_full_disk_is_an_error(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with refused("cannot-write", "TMPDIR"):
        empty_in_file(torch.zeros(3, 2))


def test_temporary_files_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    made = empty_in_file(torch.zeros(3, 2))
    made.fill_(2)
    assert (is_mapped(made), is_mapped(torch.zeros(3)), made.sum()) == (True, False, 12)
    assert not [*Path(tmp_path).iterdir()]
