"""Turn cross-references in docstrings, such as `:class:`, into links of the site: a griffe extension."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.reference import named

ROLE = re.compile(r":(?:class|func|mod|data|meth|attr|exc):`(?P<path>~?[\w.]+)`")


class Roles(griffe.Extension):
    """Turns :class:`drfl.Key` into a link if the reference has the name, and into code otherwise."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            text = ROLE.sub(lambda role: linked(role["path"].removeprefix("~")), obj.docstring.value)
            text = text.replace("``", "`")
            # Griffe reads the arguments of a dataclass, but not those of a NamedTuple.
            if isinstance(obj, griffe.Class) and any(str(base) == "NamedTuple" for base in obj.bases):
                text = text.replace("\nArgs:\n", "\nAttributes:\n")
            obj.docstring.value = text


def linked(path: str) -> str:
    """Convert a name in a docstring to Markdown."""
    shown, target = path.removeprefix("drfl."), named().get(path)
    return f"`{shown}`" if target is None else f"[`{path.rpartition('.')[2]}`][{target}]"
