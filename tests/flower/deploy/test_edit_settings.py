"""Test that edits of server.toml leave all other bytes unchanged."""

from __future__ import annotations

import tomllib

import pytest
from tests.support.refusals import refused

from drfl.flower.deploy.edit_settings import add_limits, remove_site, replace

TEXT = """\
out = "run"   # here

# The sites, in the order of the clients.
# rows = 1000

[[sites]]
name = "a"

# Hospital B
# ask for Eve
[[ sites ]]  # the second
public_key = "keys/b.pub"
name = 'b'
# rows = 300

# The north
[sites.probe]
csv = "b.csv"

# The south

# Hospital C
[[sites]]
name = "c"
# the end

[job]
rounds = 3
note = "[[sites]]"
# last
"""


def test_removed_site_takes_only_its_own_comments_and_tables():
    found = remove_site(TEXT, "b")
    start, stop = TEXT.index("# Hospital B"), TEXT.index("\n# The south")
    assert found == TEXT[:start] + TEXT[stop + 1 :]


@pytest.mark.parametrize("name", ["a", "b", "c"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_any_site_can_be_removed_without_changing_the_rest(name, end):
    text = TEXT.replace("\n", end)
    before = tomllib.loads(text)
    after = tomllib.loads(remove_site(text, name))
    assert after == {**before, "sites": [site for site in before["sites"] if site["name"] != name]}
    for comment in ("# The sites", "# The south", "# last"):
        assert comment in remove_site(text, name)
    assert remove_site(text, name).count("\r") in (0, remove_site(text, name).count("\n"))


def test_last_line_without_newline():
    text = '[job]\n[[sites]]\nname = "a"\n\n[[sites]]\nname = "b"'
    assert remove_site(text, "b") == '[job]\n[[sites]]\nname = "a"'
    assert tomllib.loads(add_limits(text, {"b": {"rows": 2}}))["sites"] == [{"name": "a"}, {"name": "b", "rows": 2}]


def test_limits_are_inserted_below_the_names():
    found = add_limits(TEXT, {"b": {"rows": 9, "max_share": 0.5}})
    assert "name = 'b'\nrows = 9\nmax_share = 0.5\n# rows = 300\n" in found
    assert tomllib.loads(found)["sites"][0] == {"name": "a"}


@pytest.mark.parametrize(
    "text",
    [
        'sites = [{name = "a"}, {name = "b"}]\n',
        '[[sites]]\nname = "a"\n[[sites]]\nname = "b"\n[job]\n[job.x]\n[sites.probe]\ncsv = "x"\n',
        '[[sites]]\nname = "a"\nx = """\n[[sites]]\n"""\n[[sites]]\nname = "b"\n',
        '[[sites]]\nname = "a"\n[[sites]]\nname = "b"\nx = [\n[1]\n]\n',
    ],
)
def test_file_that_cannot_be_edited_by_line_is_refused(text):
    tomllib.loads(text)
    with refused("cannot-edit", "server.toml"):
        remove_site(text, "b")


def test_limits_inside_a_text_are_refused():
    text = '[[sites]]\nnote = """\nname = 1\n"""\nname = "a"\n'
    with refused("cannot-edit", "server.toml"):
        add_limits(text, {"a": {"rows": 2}})


def test_old_file_is_kept_and_a_link_stays_a_link(tmp_path):
    real = tmp_path / "real.toml"
    real.write_bytes(b"a = 1\r\n")
    link = tmp_path / "server.toml"
    link.symlink_to(real)
    kept = replace(link, "a = 2\r\n")
    assert (real.read_bytes(), kept.read_bytes(), link.is_symlink()) == (b"a = 2\r\n", b"a = 1\r\n", True)


def test_file_that_cannot_be_replaced_is_unchanged(tmp_path, monkeypatch):
    from drfl.core import atomic_files

    path = tmp_path / "server.toml"
    path.write_text("a = 1\n")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_files.os, "replace", full)
    with refused("cannot-write", "server.toml"):
        replace(path, "a = 2\n")
    assert [one.name for one in tmp_path.iterdir()] == ["server.toml"]
    assert path.read_text() == "a = 1\n"
