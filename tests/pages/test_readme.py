"""The README's lines do what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from drfl.cli.app import call

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_ten_lines_for_your_own_data_run(capsys):
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line.strip()]) == 10
    names: dict[str, object] = {}
    exec(code, names)
    assert "worst_score=" in capsys.readouterr().out
    layout = names["drfl"].Layout.of(names["model"])  # pyright: ignore
    assert layout.flatten(names["model"]).equal(names["result"].model)  # pyright: ignore


@pytest.mark.parametrize("line", [line for block in blocks("sh") for line in block.splitlines() if "drfl " in line])
@pytest.mark.one_in(2)
def test_the_commands_shown_exist(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text("rounds = 1\n")
    words = line.split("#")[0].split()
    arguments = words[words.index(next(word for word in words if word.endswith("drfl"))) + 1 :]
    small = ["--rounds", "1", "--clients", "4", "--dataset", "digits"] if arguments[0] in ("run", "compare") else []
    assert call([*arguments, *small]) == 0
