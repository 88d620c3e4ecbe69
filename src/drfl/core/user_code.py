"""Objects of the user's own, named in a command or a file as ``FILE.py:NAME`` or ``MODULE:NAME``."""

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
"""What the names of modules begin with that come from a file of the user's."""


def is_reference(text: str) -> bool:
    """Whether a name stands for an object of the user's own."""
    return ":" in text


def label_of(name: str) -> str:
    """What tables and folders call it: the object's name without its file."""
    return name.rpartition(":")[2]


def load(kind: str, reference: str) -> object:
    """The object that a reference names. Its file is run once in a process, with its folder on the import path.

    Args:
        kind: what it should be, for messages, e.g. "algorithm".
        reference: ``FILE.py:NAME``, the file relative to the working directory, or ``MODULE:NAME``.

    Raises:
        InputError: there is no such file, module or name, it cannot be imported, or it belongs to Python itself: no
            function of the standard library is a model, and calling one such as ``os.system`` could do harm.
    """
    place, name = split(kind, reference)
    if not place.endswith(SUFFIX) and _is_standard(place):
        raise _standard(kind, reference)
    module = _from_file(kind, reference, Path(place)) if place.endswith(SUFFIX) else _by_name(kind, reference, place)
    if getattr(module, "__file__", None) is None:  # such as Python's own built-in functions
        raise InputError(
            f"{kind} '{reference}': {place} is not a file of Python code: name a function or class of your own",
            code="not-your-code",
            field=kind,
        )
    try:
        found = getattr(module, name)
    except AttributeError:
        # Suggestions are names that the module defines, and objects without a name, such as a metric; not its imports.
        own = []
        for known, value in vars(module).items():
            if known.startswith("_"):
                continue
            is_object = not hasattr(value, "__name__") and (callable(value) or dataclasses.is_dataclass(value))
            is_defined_here = getattr(value, "__module__", None) == module.__name__
            if is_object or is_defined_here:
                own.append(known)
        raise unknown(f"name in {place}", name, own, field=kind) from None
    # Instances, such as a functools.partial of the user's function, have no name of their own.
    if hasattr(found, "__qualname__") and _is_standard(str(getattr(found, "__module__", None) or "builtins")):
        raise _standard(kind, reference)
    return found


def split(kind: str, reference: str) -> tuple[str, str]:
    """The file or module of a reference, and the name in it.

    Raises:
        InputError: one of them is missing.
    """
    place, _, name = (part.strip() for part in reference.rpartition(":"))
    if not place or not name or "\0" in reference:
        raise InputError(
            f"{kind} '{reference}': give it as FILE.py:NAME or MODULE:NAME", code="invalid-reference", field=kind
        )
    return place, name


def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _standard(kind: str, reference: str) -> InputError:
    return InputError(
        f"{kind} '{reference}' belongs to Python's standard library: name an object of your own",
        code="standard-library",
        field=kind,
    )


def digests(reference: str) -> dict[str, str]:
    """SHA-256 of the file behind a reference and of every module beside it that it has imported.

    Args:
        reference: one that was loaded, see :func:`load`.

    Returns:
        Of a file, by path: the file as the reference has it, the others relative to the same folder. Of a module, by
        module name; modules that it imports are listed only if it is not an installed package.
    """
    place = reference.rpartition(":")[0].strip()
    is_path = place.endswith(SUFFIX)
    # The path may lead elsewhere by now, so this takes the file of the loaded module, which is what ran.
    file = _resolved(str(sys.modules[_module_name(Path(place)) if is_path else place].__file__))
    found = {Path(place).as_posix() if is_path else place: sha256_of(file)}
    if _is_installed(file):
        return found
    # The list is a copy, as attributes of lazy modules may import others meanwhile.
    for other in list(sys.modules.values()):
        beside = getattr(other, "__file__", None) or ""
        if other.__name__ == "__main__" or other.__name__.partition(".")[0] == "drfl":
            continue
        # Compiled packages name files that do not exist. A virtual environment may be inside the user's folder.
        if not beside.endswith(SUFFIX) or _is_installed(Path(beside)) or not os.path.isabs(beside):
            continue
        if not _resolved(beside).is_relative_to(file.parent) or _resolved(beside) == file:
            continue
        if is_path:
            name = (Path(place).parent / _resolved(beside).relative_to(file.parent)).as_posix()
        elif not other.__name__.startswith(PREFIX):
            name = other.__name__
        else:
            continue
        found[name] = sha256_of(Path(beside))
    return dict(sorted(found.items()))


class UntrustedCodeError(InputError):
    """A folder names code that the user has not vouched for. The message names the reference and the remedy."""

    code = "untrusted-code"


def check_received(references: Mapping[str, str], recorded: object, folder: Path, given: Collection[str] = ()) -> None:
    """Make sure that code which a folder names is code that the user has in place, unchanged. Nothing is imported.

    Whoever can edit a reference in a folder can also edit the digest recorded beside it. So a digest protects only
    together with the place: the code must lie outside the folder, where the folder's author cannot write.

    Args:
        references: what the folder names, by reference, each with the key that names it.
        recorded: digests by path or module name, as :func:`digests` gives them; from the folder, of any type.
        folder: the folder; code in it is never trusted.
        given: references that the user has named too. These are trusted.

    Raises:
        UntrustedCodeError: the first reference that must not be loaded.
    """
    # The digests come from the folder and may be anything. If they are not a mapping, none is known.
    known = recorded if isinstance(recorded, Mapping) else {}
    trusted = {_identity(reference) for reference in given}
    doubtful = False
    for reference, key in references.items():
        place, _ = split(key, reference)
        if _identity(reference) in trusted:
            continue
        doubtful = True
        why = _doubt(Path(place).as_posix() if place.endswith(SUFFIX) else place, known, folder)
        if why:
            raise UntrustedCodeError(
                f"{folder} names {key} = '{reference}', which is not loaded: {why}. Check the code, then name it "
                "again on the command line, or give --trust",
                field=key,
            )
    # The code imports its helpers itself, so they are checked before it is loaded.
    places = {place for place, _ in trusted}
    for name in known if doubtful else ():
        if _identity(f"{name}:")[0] in places:
            continue
        if why := _doubt(name, known, folder):
            raise UntrustedCodeError(
                f"the code that {folder} names is not loaded, as it may import {name}: {why}. Check it, then give "
                "--trust",
                field=name,
            )


def _identity(reference: str) -> tuple[str, str]:
    place, _, name = (part.strip() for part in reference.rpartition(":"))
    return (os.path.realpath(place) if place.endswith(SUFFIX) else place), name


def _doubt(name: str, recorded: Mapping[str, object], folder: Path) -> str | None:
    """Why a file or module is not known to be the user's own, unchanged; None if it is."""
    file = Path(name) if name.endswith(SUFFIX) else _found(name, folder)
    if file is None or not os.path.isfile(file):  # unlike pathlib's, False for a name that is too long
        return f"there is no {name} here"
    if lies_in(file, folder):
        return f"{name} lies in that folder"
    if name not in recorded:
        return f"the folder records no digest of {name}"
    try:
        digest = sha256_of(file)
    except InputError as error:
        return str(error)
    if digest != recorded[name]:
        return f"{name} is not what it was when the run was begun"
    if name.endswith(SUFFIX) and (_is_installed(file.resolve()) or lies_in(file, Path(sysconfig.get_path("stdlib")))):
        return f"{name} belongs to an installation of Python"
    if not name.endswith(SUFFIX) and (_is_standard(name) or name.partition(".")[0] == "drfl"):
        return f"{name} is a program's own module"
    return None


def _found(name: str, folder: Path) -> Path | None:
    """The file of a module, found without importing it or its packages; the folder's if a package lies there."""
    path: Sequence[str] | None = None
    file = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        full = ".".join(parts[:depth])
        # The finders look up one part of the name after the other, as importlib's find_spec would import parent
        # packages.
        specs = (finder.find_spec(full, path) for finder in sys.meta_path if not isinstance(finder, _KeptOut))
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None:
            return None
        file = Path(spec.origin) if spec.has_location and spec.origin else None
        if file is not None and lies_in(file, folder):
            return file
        path = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
        if path is None and depth < len(parts):
            return None
    return file


def lies_in(path: Path, folder: Path) -> bool:
    """Whether a path leads into a folder, as it is written or once links are followed."""
    try:
        # Folders are compared by device and inode, as a path can lead into a folder under many names.
        own = folder.stat()
    except OSError:
        return False
    for place in map(Path, dict.fromkeys((os.path.abspath(path), os.path.realpath(path)))):
        for above in (place, *place.parents):
            with suppress(OSError):
                if os.path.samestat(above.stat(), own):  # a file system may not tell A from a
                    return True
    return False


def keep_out(folder: Path) -> None:
    """Refuse to import any module from a folder for the rest of the process, whatever imports it.

    A folder that lies beside a file of the user's and is called like a module would otherwise take that module's place.
    """
    # The path is resolved now, as the working directory may change later.
    own = Path(os.path.realpath(folder))
    if own not in kept_out():
        sys.meta_path.insert(0, _KeptOut(own))


def kept_out() -> list[Path]:
    """The folders of :func:`keep_out`, for other processes."""
    return [finder.folder for finder in sys.meta_path if isinstance(finder, _KeptOut)]


@dataclasses.dataclass(frozen=True)
class _KeptOut(MetaPathFinder):
    """Finds no module, and refuses those in a folder."""

    folder: Path

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # This finder comes first on meta_path. It refuses what the usual finder would find in the folder.
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        for file in () if spec is None or not spec.has_location else (spec.origin, spec.cached):
            if file and lies_in(Path(file), self.folder):
                raise UntrustedCodeError(
                    f"the module {fullname} would be imported from {self.folder}, a folder of results: check the code, "
                    "then give --trust, or move the folder",
                    field=fullname,
                )
        return None


def _is_installed(file: Path) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(file.parts)


@functools.cache
def _resolved(file: str) -> Path:
    """A module's file without links; a process has thousands of modules, and asks for every run."""
    return Path(file).resolve()


def _module_name(path: Path) -> str:
    """One module per file, whatever else in the process has the file's name."""
    return f"{PREFIX}{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}_{path.stem}"


def _from_file(kind: str, reference: str, path: Path) -> ModuleType:
    if not os.path.isfile(path):  # unlike pathlib's, False for a name that is too long
        raise InputError(
            f"{kind} '{reference}': there is no file {path} in {Path.cwd()}", code="file-not-found", field=str(path)
        )
    name = _module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise InputError(f"{kind} '{reference}': {path} is no Python file", code="unsupported-file", field=str(path))
    module = importlib.util.module_from_spec(spec)
    # The file can then import its neighbours, as a script can.
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Before it is run: dataclasses and type hints look their module up there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except UntrustedCodeError:
        del sys.modules[name]
        raise
    except Exception as error:
        # Otherwise the next import would find a partly initialised module.
        del sys.modules[name]
        raise _broken(kind, reference, path, error) from error
    return module


def _by_name(kind: str, reference: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except UntrustedCodeError:
        raise
    except ModuleNotFoundError as error:
        # The module itself is missing, not something that it imports.
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise InputError(
                f"{kind} '{reference}': there is no module {name}: give a file as {name.replace('.', '/')}.py:…, or "
                "install the package",
                code="package-missing",
                field=name,
            ) from None
        raise _broken(kind, reference, Path(name), error) from error
    except Exception as error:
        raise _broken(kind, reference, Path(name), error) from error


def _broken(kind: str, reference: str, path: Path, error: Exception) -> InputError:
    """One line that says where in the user's code it went wrong."""
    if isinstance(error, SyntaxError):
        return InputError(
            f"{kind} '{reference}': {path}, line {error.lineno}: {error.msg}", code="user-code-failed", field=kind
        )
    # The message names the last line in the user's file, not one in a library that it calls.
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == path.name]
    where = f", line {lines[-1]}" if lines else ""
    reason = " ".join(str(error).split()) or "no reason given"
    return InputError(
        f"{kind} '{reference}': {path}{where}: {type(error).__name__}: {reason}", code="user-code-failed", field=kind
    )
