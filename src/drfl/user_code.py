"""Objects of the user's own, named in a command or a file as ``FILE.py:NAME`` or ``MODULE:NAME``."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from drfl.errors import InputError, unknown
from drfl.files import sha256_of

SUFFIX = ".py"


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
        InputError: there is no such file, module or name, or it cannot be imported.
    """
    place, _, name = (part.strip() for part in reference.rpartition(":"))
    if not place or not name:
        raise InputError(f"{kind} '{reference}': give it as FILE.py:NAME or MODULE:NAME")
    module = _from_file(kind, reference, Path(place)) if place.endswith(SUFFIX) else _by_name(kind, reference, place)
    if getattr(module, "__file__", None) is None:  # such as Python's own built-in functions
        raise InputError(
            f"{kind} '{reference}': {place} is not a file of Python code: name a function or class of your own",
            code="not-your-code",
            field=kind,
        )
    try:
        return getattr(module, name)
    except AttributeError:
        own = [known for known, value in vars(module).items() if _is_own(known, value, module)]
        raise unknown(f"name in {place}", name, own) from None


def digests(reference: str) -> dict[str, str]:
    """SHA-256 of the file behind a reference and of every module beside it that it has imported, by path.

    Args:
        reference: one that was loaded, see :func:`load`.

    Returns:
        Paths relative to the reference's folder; the file itself as the reference has it. Nothing for a module that
        lies among the installed packages: its version says what it is.
    """
    place = reference.rpartition(":")[0].strip()
    module = sys.modules[_module_name(Path(place))] if place.endswith(SUFFIX) else sys.modules[place]
    file = _resolved(str(module.__file__))
    if "site-packages" in file.parts:
        return {}
    shown = Path(place) if place.endswith(SUFFIX) else Path(file.name)
    found = {shown.as_posix(): _sha256(file)}
    for other in list(sys.modules.values()):
        beside = getattr(other, "__file__", None) or ""
        if _is_helper(other, beside, file.parent) and _resolved(beside) != file:
            found[(shown.parent / _resolved(beside).relative_to(file.parent)).as_posix()] = _sha256(Path(beside))
    return dict(sorted(found.items()))


def _is_helper(module: ModuleType, file: str, folder: Path) -> bool:
    """Whether a module is one of the user's own beside another: neither drfl's, nor a package, nor the program."""
    if module.__name__ == "__main__" or module.__name__.partition(".")[0] == "drfl":
        return False
    # Compiled packages name files that are not there; a virtual environment may lie in the user's folder.
    if not file.endswith(SUFFIX) or "site-packages" in Path(file).parts or not os.path.isabs(file):
        return False
    return _resolved(file).is_relative_to(folder)


@functools.cache
def _resolved(file: str) -> Path:
    """A module's file without links; a process has thousands of modules, and asks for every run."""
    return Path(file).resolve()


def _sha256(path: Path) -> str:
    return sha256_of(path)


def _module_name(path: Path) -> str:
    """One module per file, whatever else in the process has the file's name."""
    return f"drfl_user_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}_{path.stem}"


def _from_file(kind: str, reference: str, path: Path) -> ModuleType:
    if not os.path.isfile(path):  # unlike pathlib's, False for a name that is too long
        raise InputError(f"{kind} '{reference}': there is no file {path} in {Path.cwd()}")
    name = _module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise InputError(f"{kind} '{reference}': {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Before it is run: dataclasses and type hints look their module up there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _broken(kind, reference, path, error) from error
    return module


def _by_name(kind: str, reference: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise InputError(
                f"{kind} '{reference}': there is no module {name}: give a file as {name.replace('.', '/')}.py:…, or "
                "install the package"
            ) from None
        raise _broken(kind, reference, Path(name), error) from error
    except Exception as error:
        raise _broken(kind, reference, Path(name), error) from error


def _broken(kind: str, reference: str, path: Path, error: Exception) -> InputError:
    """One line that says where in the user's code it went wrong."""
    if isinstance(error, SyntaxError):
        return InputError(f"{kind} '{reference}': {path}, line {error.lineno}: {error.msg}")
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == path.name]
    where = f", line {lines[-1]}" if lines else ""
    reason = " ".join(str(error).split()) or "no reason given"
    return InputError(f"{kind} '{reference}': {path}{where}: {type(error).__name__}: {reason}")


def _is_own(name: str, value: object, module: ModuleType) -> bool:
    """Whether a name may be meant: what the module defines, and objects such as a metric; not what it imports."""
    if name.startswith("_"):
        return False
    made = not hasattr(value, "__name__") and (callable(value) or dataclasses.is_dataclass(value))
    return made or getattr(value, "__module__", None) == module.__name__
