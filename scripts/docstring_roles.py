"""Cross-references of docstrings, `:class:` and its like, as links of the documentation site; a griffe extension."""

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
    """Makes :class:`drfl.Key` a link where the reference has the name, and code where it has not."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401
        """Rewrite the docstring of whatever was found."""
        if obj.docstring is not None:
            text = ROLE.sub(lambda role: linked(role["path"].removeprefix("~")), obj.docstring.value)
            text = text.replace("``", "`")
            # Griffe knows the arguments of a dataclass, not those of a NamedTuple.
            if isinstance(obj, griffe.Class) and any(str(base) == "NamedTuple" for base in obj.bases):
                text = text.replace("\nArgs:\n", "\nAttributes:\n")
            obj.docstring.value = text


def linked(path: str) -> str:
    """Convert a name of a docstring to Markdown."""
    shown, target = path.removeprefix("drfl."), named().get(path)
    return f"`{shown}`" if target is None else f"[`{path.rpartition('.')[2]}`][{target}]"
