"""Load user-defined objects that a command or a file names as ``FILE.py:NAME`` or ``MODULE:NAME``."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType

from drfl.core.errors import InputError, unknown
from drfl.core.files import sha256_of

SUFFIX = ".py"

PREFIX = "drfl_user_"
"""Prefix of the module names under which user files are imported."""


def is_reference(text: str) -> bool:
    """Return whether a name refers to a user-defined object."""
    return ":" in text


def label_of(name: str) -> str:
    """Return the object's name without its file, as used in tables and folder names."""
    return name.rpartition(":")[2]


def load(kind: str, reference: str) -> object:
    """Load the object that a reference names.

    A file runs once per process, with its folder on the import path.

    Args:
        kind: Expected kind of object for messages, such as "algorithm".
        reference: ``FILE.py:NAME``, with the file relative to the working directory, or ``MODULE:NAME``.

    Raises:
        InputError: If the file, module or name does not exist, the import fails, or the object belongs to the standard
            library. Calling a function such as ``os.system`` could do harm.
    """
    place, name = split(kind, reference)
    if place.endswith(SUFFIX):
        module = _from_file(kind, reference, Path(place))
    elif _is_standard(place):
        raise _standard(kind, reference)
    else:
        try:
            module = importlib.import_module(place)
        except UntrustedCodeError:
            raise
        except Exception as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            # The module itself is missing, not something that it imports.
            if missing is not None and (place == missing or place.startswith(f"{missing}.")):
                raise InputError(
                    f"{kind} '{reference}': module {place} is not installed. Install the package, or name a file as "
                    f"{place.replace('.', '/')}.py:…",
                    code="package-missing",
                    field=place,
                ) from None
            raise _broken(kind, reference, Path(place), error) from error
    if getattr(module, "__file__", None) is None:  # for example a built-in module
        raise InputError(
            f"{kind} '{reference}': {place} is not a file of Python code. Name a function or class of your own.",
            code="not-your-code",
            field=kind,
        )
    try:
        value = getattr(module, name)
    except AttributeError:
        # Suggest names that the module defines, and objects without a name such as a metric, but not its imports.
        suggestions = []
        for known, attr in vars(module).items():
            if known.startswith("_"):
                continue
            is_object = not hasattr(attr, "__name__") and (callable(attr) or dataclasses.is_dataclass(attr))
            is_defined_here = getattr(attr, "__module__", None) == module.__name__
            if is_object or is_defined_here:
                suggestions.append(known)
        raise unknown("name", name, suggestions, field=kind, place=f"in {place}") from None
    # Instances, such as a functools.partial of the user's function, have no qualified name.
    if hasattr(value, "__qualname__") and _is_standard(str(getattr(value, "__module__", None) or "builtins")):
        raise _standard(kind, reference)
    return value


def split(kind: str, reference: str) -> tuple[str, str]:
    """Split a reference into its file or module and the name in it.

    Raises:
        InputError: If one of the two is missing.
    """
    place, _, name = (part.strip() for part in reference.rpartition(":"))
    if not place or not name or "\0" in reference:
        raise InputError(
            f"{kind} must have the form FILE.py:NAME or MODULE:NAME, got '{reference}'",
            code="invalid-reference",
            field=kind,
        )
    return place, name


def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _standard(kind: str, reference: str) -> InputError:
    return InputError(
        f"{kind} '{reference}' belongs to Python's standard library. Name an object of your own.",
        code="standard-library",
        field=kind,
    )


def digests(reference: str) -> dict[str, str]:
    """Compute the SHA-256 of the file that a reference names and of the modules beside it that have been imported.

    Args:
        reference: A reference that :func:`load` has loaded.

    Returns:
        For a file, digests by path: the file as in the reference, other files relative to the same folder. For a
        module, digests by module name. If the module is an installed package, only its digest is included.
    """
    place = reference.rpartition(":")[0].strip()
    is_path = place.endswith(SUFFIX)
    # The path may lead to another file by now. The file of the loaded module is the one that ran.
    file = _resolved(str(sys.modules[_module_name(Path(place)) if is_path else place].__file__))
    sums = {Path(place).as_posix() if is_path else place: sha256_of(file)}
    if _is_installed(file):
        return sums
    # Iterate over a copy, because reading attributes of lazy modules may import others.
    for other in list(sys.modules.values()):
        source = getattr(other, "__file__", None) or ""
        if other.__name__ == "__main__" or other.__name__.partition(".")[0] == "drfl":
            continue
        # Compiled packages name files that do not exist. A virtual environment may be inside the user's folder.
        if not source.endswith(SUFFIX) or _is_installed(Path(source)) or not os.path.isabs(source):
            continue
        if not _resolved(source).is_relative_to(file.parent) or _resolved(source) == file:
            continue
        if is_path:
            name = (Path(place).parent / _resolved(source).relative_to(file.parent)).as_posix()
        elif not other.__name__.startswith(PREFIX):
            name = other.__name__
        else:
            continue
        sums[name] = sha256_of(Path(source))
    return dict(sorted(sums.items()))


class UntrustedCodeError(InputError):
    """A folder names code that the user has not trusted. The message names the reference and the remedy."""

    code = "untrusted-code"


def check_received(
    references: Mapping[str, str],
    recorded: object,
    folder: Path,
    given: Collection[str] = (),
    *,
    resuming: str | None = None,
) -> None:
    """Check, without importing anything, that code named in a folder is the user's own, unchanged code.

    Anyone who can edit a reference in a folder can also edit the digest recorded beside it. A matching digest is
    therefore not enough: the code must also be outside the folder, so that the folder's author cannot change it.

    Args:
        references: The references in the folder, each with the key that contains it.
        recorded: Digests by path or module name, as returned by :func:`digests`. They come from the folder and can be
            of any type.
        folder: The folder. Code in it is never trusted.
        given: References that the user has named too. These are trusted.
        resuming: Option for another folder if the folder is to be resumed, which needs unchanged code.

    Raises:
        UntrustedCodeError: If a reference must not be loaded.
    """
    # The digests come from the folder and may be anything. If they are not a mapping, there are none.
    known = recorded if isinstance(recorded, Mapping) else {}
    trusted = {_identity(reference) for reference in given}
    has_untrusted = False
    for reference, key in references.items():
        place, _ = split(key, reference)
        if _identity(reference) in trusted:
            continue
        has_untrusted = True
        reason = _distrust_reason(Path(place).as_posix() if place.endswith(SUFFIX) else place, known, folder)
        if reason:
            remedy = _remedy(reason, resuming, "Check the code, then name it again on the command line, or add `trust`")
            raise UntrustedCodeError(
                f"{folder} names {key} = '{reference}', which drfl does not load: {reason}. {remedy}.", field=key
            )
    # The code will import its helper modules itself, so they are checked before it is loaded.
    places = {place for place, _ in trusted}
    for name in known if has_untrusted else ():
        if _identity(f"{name}:")[0] in places:
            continue
        if reason := _distrust_reason(name, known, folder):
            remedy = _remedy(reason, resuming, "Check the code, then add `trust`")
            raise UntrustedCodeError(
                f"drfl does not load the code that {folder} names, because it may import {name}: {reason}. {remedy}.",
                field=name,
            )


CHANGED = "has changed since the run began"
"""End of the reason for not loading code that has changed since the run."""


def _remedy(reason: str, resuming: str | None, otherwise: str) -> str:
    """Return what the user can do: a run does not resume with changed code, even if the user trusts it."""
    is_final = resuming is not None and reason.endswith(CHANGED)
    return f"Restore it, or give {resuming} to start again" if is_final else otherwise


def _identity(reference: str) -> tuple[str, str]:
    place, _, name = (part.strip() for part in reference.rpartition(":"))
    return (os.path.realpath(place) if place.endswith(SUFFIX) else place), name


def _distrust_reason(name: str, recorded: Mapping[str, object], folder: Path) -> str | None:
    """Explain why a file or module may not be the user's own, unchanged code; return None if it is."""
    file = Path(name) if name.endswith(SUFFIX) else _find_module(name, folder)
    if file is None or not os.path.isfile(file):  # Unlike Path.is_file, this is False for a name that is too long.
        return f"{name} does not exist on this machine"
    if is_inside(file, folder):
        return f"{name} is in that folder"
    if name not in recorded:
        return f"the folder has no digest of {name}"
    try:
        digest = sha256_of(file)
    except InputError as error:
        return str(error)
    if digest != recorded[name]:
        return f"{name} {CHANGED}"
    if name.endswith(SUFFIX) and (_is_installed(file.resolve()) or is_inside(file, Path(sysconfig.get_path("stdlib")))):
        return f"{name} belongs to an installation of Python"
    if not name.endswith(SUFFIX) and (_is_standard(name) or name.partition(".")[0] == "drfl"):
        return f"{name} is a module of Python or drfl"
    return None


def _find_module(name: str, folder: Path) -> Path | None:
    """Find the file of a module without importing it or its packages; stop at the first package inside ``folder``."""
    path: Sequence[str] | None = None
    file = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        full = ".".join(parts[:depth])
        # Ask the finders for one part of the name at a time, because importlib.util.find_spec would import the parent
        # packages.
        specs = (finder.find_spec(full, path) for finder in sys.meta_path if not isinstance(finder, _FolderBlocker))
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None:
            return None
        file = Path(spec.origin) if spec.has_location and spec.origin else None
        if file is not None and is_inside(file, folder):
            return file
        path = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
        if path is None and depth < len(parts):
            return None
    return file


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path is inside a folder, either as written or after following links."""
    try:
        # Compare folders by device and inode, because a path can lead into a folder under many names.
        status = folder.stat()
    except OSError:
        return False
    for place in map(Path, dict.fromkeys((os.path.abspath(path), os.path.realpath(path)))):
        for above in (place, *place.parents):
            with suppress(OSError):
                if os.path.samestat(above.stat(), status):  # Works on case-insensitive file systems too.
                    return True
    return False


def block_folder(folder: Path) -> None:
    """Refuse all imports from a folder for the rest of the process.

    Without this, a folder that is beside a user's file and has the name of a module would be imported as that module.
    """
    # Resolve the path now, because the working directory may change later.
    resolved = Path(os.path.realpath(folder))
    if resolved not in blocked_folders():
        sys.meta_path.insert(0, _FolderBlocker(resolved))


def blocked_folders() -> list[Path]:
    """List the folders passed to :func:`block_folder`, so that other processes can block them too."""
    return [finder.folder for finder in sys.meta_path if isinstance(finder, _FolderBlocker)]


@dataclasses.dataclass(frozen=True)
class _FolderBlocker(MetaPathFinder):
    """An import finder that refuses modules in a folder and leaves all others to the usual finders."""

    folder: Path

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # This finder comes first on meta_path. It refuses modules that the usual finder would find in the folder.
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        for file in () if spec is None or not spec.has_location else (spec.origin, spec.cached):
            if file and is_inside(Path(file), self.folder):
                raise UntrustedCodeError(
                    f"the module {fullname} would be imported from {self.folder}, a folder of results. "
                    "Check the code, then add `trust`, or move the folder.",
                    field=fullname,
                )
        return None


def _is_installed(file: Path) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(file.parts)


@functools.cache
def _resolved(file: str) -> Path:
    # This is cached, because a process has thousands of modules and their paths are resolved for every run.
    return Path(file).resolve()


def _module_name(path: Path) -> str:
    # The digest of the path makes the module name unique, even if other modules have the same file name.
    return f"{PREFIX}{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}_{path.stem}"


def _from_file(kind: str, reference: str, path: Path) -> ModuleType:
    if not os.path.isfile(path):  # Unlike Path.is_file, this is False for a name that is too long.
        raise InputError(
            f"{kind} '{reference}': file {path} does not exist in {Path.cwd()}", code="file-not-found", field=str(path)
        )
    name = _module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise InputError(f"{kind} '{reference}': {path} is not a Python file", code="unsupported-file", field=str(path))
    module = importlib.util.module_from_spec(spec)
    # With its folder on the path, the file can import modules beside it, as a script can.
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Register the module before running it, because dataclasses and type hints look it up in sys.modules.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except UntrustedCodeError:
        del sys.modules[name]
        raise
    except Exception as error:
        # Otherwise, the next import would find a partly initialised module.
        del sys.modules[name]
        raise _broken(kind, reference, path, error) from error
    return module


def _broken(kind: str, reference: str, path: Path, error: Exception) -> InputError:
    """Create a one-line error that locates the failure in the user's code."""
    if isinstance(error, SyntaxError):
        return InputError(
            f"{kind} '{reference}': {path}, line {error.lineno}: {error.msg}", code="user-code-failed", field=kind
        )
    # The message names the last line in the user's file, not a line in a library that the file calls.
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == path.name]
    line = f", line {lines[-1]}" if lines else ""
    reason = " ".join(str(error).split()) or "no reason given"
    return InputError(
        f"{kind} '{reference}': {path}{line}: {type(error).__name__}: {reason}", code="user-code-failed", field=kind
    )
