"""Run the commands and code of the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.refusals import quotes

from drfl.cli.app import call

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_example_for_own_data_runs(capsys):
    (code,) = blocks("python")
    names: dict[str, object] = {}
    exec(code, names)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["accuracy", "A", "B", "C"]
    layout = names["drfl"].Layout.of(names["model"])  # pyright: ignore
    assert layout.flatten(names["model"]).equal(names["result"].model)  # pyright: ignore


@pytest.mark.long
def test_commands_for_a_folder_of_tables_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("sites").mkdir()
    for name in ("a", "b", "c"):
        rows = [f"{20 + 7 * i % 60},{i % 5},{(i * i) % 3 > 0:d}" for i in range(40)]
        Path(f"sites/{name}.csv").write_text("\n".join(["age,dose,ill", *rows, ""]))
    lines = [line.split(" #")[0].split() for block in blocks("sh") for line in block.splitlines() if "bin/drfl" in line]
    assert [words[1] for words in lines] == ["fit", "compare", "assess"]
    small = {"fit": ["--budget", "2"], "compare": ["--rounds", "2", "--seeds", "2"], "assess": []}
    for words in lines:
        assert call([*words[1:], *small[words[1]]]) == 0
    assert quotes(capsys.readouterr().out, "FedAvg", "95 %")


def test_every_link_resolves():
    for target in re.findall(r"\]\(([^)#]+)", README):
        assert (ROOT / target).exists(), target
