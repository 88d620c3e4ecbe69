"""Build the wheel and the source archive into build/dist, check what they hold, and try each in an empty environment.

`python scripts/dist.py`, or `make dist`. What git tracks is copied to a new folder and built there, so that nothing
left over in the checkout comes along; the wheel is built from the source archive. `--no-trial` leaves the
environments out, and with them the network.
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
        the wheel and the source archive, which stand alone in ``out``.
    """
    with tempfile.TemporaryDirectory() as place:
        copy, made = Path(place) / "drfl", Path(place) / "made"
        for name in names:
            if not (root / name).is_file():
                raise CommandFailedError(f"{name} is tracked by git and not there; git rm it, or bring it back")
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, copy / name)
        # the source archive first, then the wheel from it: what the one lacks the other does too
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
    """Raise an error that lists all that the archives should not have, or lack."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if wrong := check_wheel(wheel, names, project) + check_sdist(sdist, names, project):
        more = f"\n  and {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise CommandFailedError("\n  ".join(["the archives are not as they should be:", *wrong[:10]]) + more)


def checked(names: list[str]) -> tuple[Path, Path]:
    """Wheel and source archive in ``OUT``; what is not as it should be does not stay there."""
    wheel, sdist = build(names, OUT)
    try:
        check(wheel, sdist, names)
    except CommandFailedError:
        shutil.rmtree(OUT)
        raise
    return wheel, sdist


def try_out(archive: Path) -> str:
    """Install an archive as a user does, in the locked versions, and try it outside of the checkout."""
    with tempfile.TemporaryDirectory() as place:
        env, empty = EmptyVenv(Path(place) / "venv"), Path(place) / "empty"
        constraints = Path(place) / "pins.txt"
        constraints.write_text(pins(*LOCKS))
        # not quietly: pip's warnings tell a network that is not there from a version that is not
        env.pip("install", "--progress-bar", "off", "-c", constraints, archive)
        env.pip("check")
        empty.mkdir()
        return env.run("python", "-I", ROOT / "scripts" / "try_installed.py", cwd=empty)


def dirty() -> str:
    """Return a remark on uncommitted changes."""
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True).stdout
    return ", with changes that are not committed" if changed else ""


def main(arguments: list[str] | None = None) -> int:
    """Build, check and try; gives the exit code."""
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
