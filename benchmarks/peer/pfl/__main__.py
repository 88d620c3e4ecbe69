"""pfl's workers on one computer, started as in its documentation with PFL_WORKER_ADDRESSES and PFL_WORKER_RANK.

This process is the first worker and starts the others. pfl connects the workers when it is imported.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys

from peer.job import Job, from_command

RANK, ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"


def start_others(count: int) -> list[subprocess.Popen[bytes]]:
    """Make this process the first worker, and start the others with the same command line."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ[ADDRESSES] = ",".join([f"127.0.0.1:{free.getsockname()[1]}"] * count)
    os.environ[RANK] = "0"
    command = [sys.executable, "-m", "peer.pfl", *sys.argv[1:]]
    return [subprocess.Popen(command, env={**os.environ, RANK: str(rank)}) for rank in range(1, count)]


def work(job: Job) -> None:
    """Run a worker; the first one reports."""
    importlib.import_module("peer.pfl.simulation").run(job, first=os.environ.get(RANK, "0") == "0")


def main() -> None:
    """Run the job."""
    job = from_command()
    several = job.setting.workers > 1 and RANK not in os.environ
    others = start_others(job.setting.workers) if several else []
    work(job)
    ends = [other.wait() for other in others]
    if any(ends):
        raise RuntimeError("another worker failed")


if __name__ == "__main__":
    main()
