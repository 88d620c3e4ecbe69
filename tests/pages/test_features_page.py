"""Test that the pages on features match the command."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from drfl.cli import app
from drfl.data.features import recipe
from drfl.experiments.config.config import Config

PAGE = Path(__file__).parents[2] / "docs" / "features.md"
TEXT = PAGE.read_text(encoding="utf-8")
MEASURED = (PAGE.parent / "results" / "features.md").read_text(encoding="utf-8")


def test_every_option_exists_in_both_commands_and_as_a_key():
    rows = re.findall(r"^\| `--([\w-]+)` \| `(\w+)` \|", TEXT, flags=re.MULTILINE)
    assert [key for _, key in rows] == ["features", "backbone", "feature_count", "resize", "loss"]
    for option, key in rows:
        assert option.replace("-", "_") == key
        assert key in Config.model_fields
        assert all(key in inspect.signature(command).parameters for command in (app.run, app.compare))


def test_backbones_of_both_pages_exist():
    named = set(re.findall(r"`((?:resnet18|cnn)-[a-z0-9-]+)`", TEXT + MEASURED))
    assert len(named) >= 4
    assert named <= set(recipe.backbone_names())
    assert f"{recipe.COUNT:,}" in TEXT


def test_links_to_and_from_the_page_resolve():
    assert "(features.md)" in (PAGE.parent / "library.md").read_text(encoding="utf-8")
