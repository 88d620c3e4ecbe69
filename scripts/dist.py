"""Build the wheel and the source archive in build/dist, check their contents, and try each in an empty environment.

`python scripts/dist.py`, or `make dist`. The files that git tracks are copied to a new folder and built
there, so that the archives contain nothing else from the checkout. The wheel is built from the source archive.
`--no-trial` skips the environments, which need the network.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.dist_files import check_sdist, check_wheel
from scripts.empty_venv import ROOT, CommandFailedError, EmptyVenv, pins, run

OUT = ROOT / "build" / "dist"
LOCKS = [ROOT / "constraints.txt", ROOT / "constraints-torch.txt"]


def tracked(root: Path = ROOT) -> list[str]:
    """Return the files that git tracks, with uncommitted changes."""
    try:
        return [name for name in run(["git", "ls-files", "-z"], root).split("\0") if name]
    except FileNotFoundError:
        raise CommandFailedError("git is not there; archives are built of what git tracks") from None


def build(names: list[str], out: Path, root: Path = ROOT) -> tuple[Path, Path]:
    """Build wheel and source archive of these files, with the setuptools of this environment.

    Returns:
        the wheel and the source archive, the only files in ``out``.
    """
    with tempfile.TemporaryDirectory() as place:
        copy, made = Path(place) / "drfl", Path(place) / "made"
        for name in names:
            if not (root / name).is_file():
                raise CommandFailedError(f"{name} is tracked by git and not there; git rm it, or bring it back")
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, copy / name)
        # The wheel is built from the source archive, so a file that is missing from the archive is missing from both.
        uv = [sys.executable, "-m", "uv", "build", "--no-build-isolation", "--offline", "--python", sys.executable]
        run([*uv, "--out-dir", made], copy)
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        for kind in ("*.whl", "*.tar.gz"):
            for one in made.glob(kind):
                shutil.copy(one, out)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def check(wheel: Path, sdist: Path, names: list[str], root: Path = ROOT) -> None:
    """Raise an error that lists all missing and unexpected content of the archives."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if wrong := check_wheel(wheel, names, project) + check_sdist(sdist, names, project):
        more = f"\n  and {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise CommandFailedError("\n  ".join(["the archives are not as they should be:", *wrong[:10]]) + more)


def checked(names: list[str]) -> tuple[Path, Path]:
    """Build both archives in ``OUT`` and return them; remove them if a check fails."""
    wheel, sdist = build(names, OUT)
    try:
        check(wheel, sdist, names)
    except CommandFailedError:
        shutil.rmtree(OUT)
        raise
    return wheel, sdist


def try_out(archive: Path) -> str:
    """Install an archive as a user would, with locked versions, and try it outside the checkout."""
    with tempfile.TemporaryDirectory() as place:
        env, empty = EmptyVenv(Path(place) / "venv"), Path(place) / "empty"
        constraints = Path(place) / "pins.txt"
        constraints.write_text(pins(*LOCKS))
        # Not quietly, because pip's warnings distinguish a missing network from a missing version.
        env.pip("install", "--progress-bar", "off", "-c", constraints, archive)
        env.pip("check")
        empty.mkdir()
        return env.run("python", "-I", ROOT / "scripts" / "try_installed.py", cwd=empty)


def dirty() -> str:
    """Return a note on uncommitted changes, or an empty text."""
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True).stdout
    return ", with changes that are not committed" if changed else ""


def main(arguments: list[str] | None = None) -> int:
    """Build, check and try the archives; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--no-trial", action="store_true", help="install nothing")
    asked = parser.parse_args(arguments)
    try:
        names = tracked()
        archives = checked(names)
        print(f"built of commit {run(['git', 'rev-parse', '--short', 'HEAD'], ROOT).strip()}{dirty()}:")
        for archive in archives:
            digest = hashlib.sha256(archive.read_bytes()).hexdigest()
            print(f"  {archive.relative_to(ROOT)}  {archive.stat().st_size:,} bytes  sha256 {digest}", flush=True)
        for archive in [] if asked.no_trial else archives:
            print(f"{archive.name} in an empty environment of Python {platform.python_version()}:", flush=True)
            print("".join(f"  {line}\n" for line in try_out(archive).splitlines()), end="", flush=True)
    except CommandFailedError as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1
    if not asked.no_trial:
        print("other versions of Python were not tried")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
