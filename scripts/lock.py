"""Update the lock files, which list every installed package with its version and the hashes of its files.

`python scripts/lock.py` keeps the versions that still satisfy pyproject.toml. `--upgrade` takes the newest versions,
and `--upgrade-package NAME` the newest version of one package. `--wheel FILE` allows a wheel that is not on PyPI, such
as the CPU build of torch for Linux. Its hash remains until the version of its package changes. The script needs uv.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TORCH, USER, DEV = (ROOT / f"constraints{kind}.txt" for kind in ("-torch", "", "-dev"))

HEADS = {
    TORCH: """\
# torch, in the version that drfl is tested with. Written by scripts/lock.py. This is a separate file because torch is
# installed in a separate step (see the Makefile). Besides PyPI's hashes it has that of the CPU build for Linux (x86-64,
# CPython 3.11) at download.pytorch.org and its mirrors. No lock file has the CUDA packages of PyPI's build for Linux.
""",
    USER: """\
# Packages that the library and the command need besides torch, and pip and setuptools, which install it, in the
# versions that drfl is tested with. Written by scripts/lock.py.
""",
    DEV: """\
# Packages that the extras and the tests need besides those of constraints.txt. Written by scripts/lock.py.
""",
}

CUDA = re.compile(r"(nvidia|cuda)-|triton$")
"""Names of packages that only torch's CUDA build needs."""

ENTRY = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?P<marker>[^\\\n]*)")
HASH = re.compile(r"sha256:[0-9a-f]{64}")


class Entry:
    """A package of a lock file."""

    def __init__(self, text: str) -> None:
        head = ENTRY.match(text)
        if not head:
            raise SystemExit(f"lock: cannot read {text.splitlines()[0]!r}: expected name==version")
        self.name, self.version = head["name"].lower().replace("_", "-"), head["version"]
        self.marker = head["marker"].strip()
        self.hashes = set(HASH.findall(text))

    def __str__(self) -> str:
        first = f"{self.name}=={self.version}" + (f" {self.marker}" if self.marker else "")
        return " \\\n    ".join((first, *(f"--hash={one}" for one in sorted(self.hashes)))) + "\n"


def entries(text: str) -> dict[str, Entry]:
    """Return the packages of a lock file by name."""
    blocks = re.split(r"\n(?=\w)", "\n".join(line for line in text.splitlines() if not line.startswith("#")).strip())
    found = [Entry(block) for block in blocks if block]
    return {entry.name: entry for entry in found}


def compiled(options: list[str], pins: str) -> dict[str, Entry]:
    """Resolve this project, pip and setuptools with uv for all platforms; `pins` are preferred versions."""
    tools = "\n".join(["pip", *tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "lock.txt"
        out.write_text(pins)
        plain = ["--quiet", "--universal", "--python-version", "3.11", "--no-header", "--no-annotate"]
        uv = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "-", "-o", str(out)]
        if subprocess.run(
            [*uv, *plain, *options], input=tools, text=True, cwd=ROOT, stdout=subprocess.DEVNULL
        ).returncode:
            raise SystemExit("lock: uv found no versions that fit (see above); nothing was written")
        return {name: entry for name, entry in entries(out.read_text()).items() if not CUDA.match(name)}


def allow(found: dict[str, Entry], wheel: Path) -> None:
    """Add a wheel's hash to its package."""
    name, version = wheel.name.split("-")[:2]
    entry = found.get(name.lower().replace("_", "-"))
    if entry is None or entry.version != version.partition("+")[0]:
        raise SystemExit(f"lock: {wheel.name} is of no package and version that is locked")
    entry.hashes.add("sha256:" + hashlib.sha256(wheel.read_bytes()).hexdigest())


def main() -> None:
    """Write the lock files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true")
    parser.add_argument("--upgrade-package", action="append", default=[], metavar="NAME")
    parser.add_argument("--wheel", action="append", default=[], type=Path, metavar="FILE")
    asked = parser.parse_args()
    before = entries("\n".join(path.read_text() for path in HEADS if path.exists()))
    options = ["--upgrade"] * asked.upgrade + [f"--upgrade-package={name}" for name in asked.upgrade_package]
    found = compiled(["--extra", "dev", "--generate-hashes", *options], "".join(map(str, before.values())))
    for name, entry in found.items():
        if name in before and before[name].version == entry.version:
            entry.hashes |= before[name].hashes
    for wheel in asked.wheel:
        allow(found, wheel)
    needed = compiled([], "".join(f"{entry.name}=={entry.version}\n" for entry in found.values()))
    place = {name: TORCH if name == "torch" else USER if name in needed else DEV for name in sorted(found)}
    for path, head in HEADS.items():
        path.write_text(head + "".join(str(found[name]) for name in place if place[name] == path))


if __name__ == "__main__":
    main()
