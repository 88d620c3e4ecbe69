"""Programs that some tests need besides Python packages."""

from __future__ import annotations

import os
import shutil

import pytest


def needed(program: str, package: str) -> str:
    """Return the path of a program.

    If it is missing, skip the test. Fail in continuous integration, which installs it.
    """
    found = shutil.which(program)
    if found is None:
        message = f"{program} is not installed (Debian's package {package})"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found
