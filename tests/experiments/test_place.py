"""Folders appear whole or not at all, and nothing that is there is lost."""

from __future__ import annotations

import pytest

from drfl.errors import InputError
from drfl.experiments.place import default_directory, staged


def fill(path, text="mine", **options):
    with staged(path, **options) as stage:
        (stage.folder / "file").write_text(text)
    return stage.final


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_with_its_parents(tmp_path):
    assert fill(tmp_path / "a/b/c") == tmp_path / "a/b/c"
    assert (tmp_path / "a/b/c/file").read_text() == "mine"
    assert names(tmp_path / "a/b") == ["c"]


def test_nothing_is_there_before_the_end(tmp_path):
    with staged(tmp_path / "a") as stage:
        (stage.folder / "file").write_text("mine")
        assert not (tmp_path / "a").exists()
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_nothing_not_even_parents(error, tmp_path):
    with pytest.raises(error), staged(tmp_path / "a/b/c"):
        raise error
    assert names(tmp_path) == []


def test_a_failure_leaves_what_others_put_into_the_parents(tmp_path):
    def fail():
        with staged(tmp_path / "runs/a"):
            fill(tmp_path / "runs/b")
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    assert names(tmp_path / "runs") == ["b"]


def test_what_appeared_in_the_meantime_stays_and_so_does_this(tmp_path):
    with staged(tmp_path / "a") as stage:
        (stage.folder / "file").write_text("second")
        assert fill(tmp_path / "a", "first") == tmp_path / "a"
    assert stage.final == tmp_path / "a-2"
    assert (tmp_path / "a/file").read_text() == "first"
    assert (tmp_path / "a-2/file").read_text() == "second"
    assert names(tmp_path) == ["a", "a-2"]


def test_an_empty_folder_is_filled_and_a_dangling_link_is_left(tmp_path):
    (tmp_path / "a").mkdir()
    assert fill(tmp_path / "a") == tmp_path / "a"
    (tmp_path / "link").symlink_to(tmp_path / "nowhere/x")
    assert fill(tmp_path / "link") == tmp_path / "link-2"
    assert (tmp_path / "link").is_symlink()


def test_overwriting_replaces_all_of_it(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/old").write_text("old")
    assert fill(tmp_path / "a", overwrite=True) == tmp_path / "a"
    assert names(tmp_path / "a") == ["file"]
    assert names(tmp_path) == ["a"]


def test_a_place_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="cannot write"):
        fill(tmp_path / "file/a")
    assert (tmp_path / "file").read_text() == "mine"


def test_default_names_count_up(tmp_path):
    found = []
    for _ in range(3):
        found.append(fill(default_directory(tmp_path, "run")).name)
    assert found == ["run", "run-2", "run-3"]
