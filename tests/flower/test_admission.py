"""Test the reports of a site against the limits in the server's file."""

import re

import msgspec
import pytest
import torch
from tests.support.refusals import logged, refused

from drfl.flower import nodes, server_app
from drfl.flower.claims import admit
from drfl.flower.client_app import client_app, identity
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import ModelRecipe, SiteIdentity, short_name
from drfl.flower.records import read, write
from drfl.flower.settings import SiteEntry, read_server
from drfl.flower.site_task import task_of

from .conftest import grid_of, site, with_field


def member(name="a", train=30, classes=3):
    return SiteIdentity(name, (6,), classes, train, 15, "0" * 32)


def members(**claims):
    return {0: member("a"), 1: member("b", **claims), 2: member("c")}


def entries(**limits):
    return [SiteEntry(name="a"), SiteEntry(name="b", **limits), SiteEntry(name="c")]


@pytest.mark.parametrize(
    ("limits", "claims", "error"),
    [
        ({"rows": 40}, {"train": 41}, ("site-limit", "b", "41", "server.toml", "40")),
        ({"classes": 2}, {}, ("site-limit", "b", "3", "server.toml", "2")),
        ({"max_share": 0.5}, {"train": 61}, ("site-limit", "b", "0.5041")),
    ],
)
def test_site_above_its_limits_is_refused_by_name(limits, claims, error):
    with refused(*error):
        admit(members(**claims), entries(**limits))


def test_limits_are_inclusive_and_optional(caplog):
    admit(members(train=40), entries(rows=40, classes=3, max_share=0.4))
    admit(members(train=10**9), entries())
    assert not caplog.messages


def test_site_with_another_name_is_reported(caplog):
    admit({0: member("a"), 1: member("=1+1"), 2: member("c")}, entries())
    assert logged(caplog) == [("other-name", "b")]
    assert "'=1+1'" in caplog.text


@pytest.mark.parametrize(
    ("usual", "odd", "quoted"),
    [
        ({"schema": "a" * 64}, {"schema": "b" * 64}, ("bbbbbbbb…", "aaaaaaaa…")),
        ({"schema": "a" * 64}, {}, ("aaaaaaaa…",)),
        ({"features": tuple("uvwxyz")}, {"features": tuple("uwvxyz")}, ("column 2", "'w'", "'v'")),
        ({"class_names": ("0", "1", "2")}, {"class_names": ("1", "2", "3")}, ("'1'", "'0'")),
        ({"majority": 0.5}, {}, ("targets",)),
    ],
)
@pytest.mark.parametrize("place", [0, 2])
def test_different_sites_are_refused_by_name(usual, odd, quoted, place):
    names = "abc"
    reports = {
        i: msgspec.structs.replace(member(name), **(odd if i == place else usual)) for i, name in enumerate(names)
    }
    with refused("sites-differ", names[place], f"'{names[place]}'", *quoted):
        admit(reports, [SiteEntry(name=name) for name in names])


def test_sites_without_column_names_are_not_compared():
    reports = {0: member("a"), 1: msgspec.structs.replace(member("b"), features=tuple("uvwxyz"))}
    admit(reports, [SiteEntry(name=name) for name in "ab"])


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"features": ("a",)}, "one name for each column"),
        ({"class_names": ("a",)}, "one name for each class"),
        ({"features": ("a", "b", "c", "d", "e", "\x1b[2J")}, "printable"),
        ({"counts": torch.ones(3, dtype=torch.float64)}, "counts"),
    ],
)
def test_contradictory_descriptions_are_refused(claims, reason):
    with pytest.raises(ValueError, match=reason):
        msgspec.structs.replace(member(), **claims)


def test_long_names_stay_distinct_and_fit_a_message():
    names = ["x" * 300 + end for end in "ab"]
    short = [short_name(name) for name in names]
    assert len(set(short)) == 2
    assert max(map(len, short)) <= 128
    assert short_name("age") == "age"
    about = SiteIdentity(
        "a", (4096,), 2, 30, 15, "0" * 32, features=tuple(short_name(f"{k} " + "é" * 200) for k in range(4096))
    )
    assert read(write(about), SiteIdentity).features == about.features


def test_refused_site_stops_training_and_leaves_no_folder(tmp_path):
    path = tmp_path / "server.toml"
    path.write_text(
        'insecure = true\nwait = 0.05\n[job]\nrounds = 1\n[[sites]]\nname = "a"\nrows = 29\n[[sites]]\nname = "b"\n'
    )
    grid = grid_of("ab")
    with refused("site-limit", "a", "30"):
        server_app.serve(grid, path)
    assert {one.name for one in tmp_path.iterdir()} == {"server.toml", "server.lock"}  # no run
    assert set(grid.count.values()) == {2}  # two identity requests and nothing else


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("rows = 0", ("invalid-value", "sites.0.rows")),
        ("max_share = 1.5", ("invalid-value", "sites.0.max_share")),
        ("max_share = nan", ("invalid-value", "sites.0.max_share")),
        ('name = "a\\u001b[2J"', ("invalid-value", "sites.0.name")),
    ],
)
def test_invalid_limits_are_refused(tmp_path, more, error):
    name = "" if "name" in more else 'name = "a"'
    path = tmp_path / "server.toml"
    path.write_text(f"insecure = true\n[job]\n[[sites]]\n{name}\n{more}\n")
    with refused(*error):
        read_server(path)


@pytest.mark.parametrize(
    ("head", "job", "error"),
    [
        ("grace = 5.0", "", ("invalid-value", None, "job.min_replies")),
        ("grace = inf", "min_replies = 1", ("invalid-value", "grace")),
        ("timeout = inf", "", ("invalid-value", "timeout")),
        ("", "min_replies = 3", ("invalid-value", None, "job.min_replies", "3", "1")),
    ],
)
def test_invalid_deadlines_are_refused(tmp_path, head, job, error):
    path = tmp_path / "server.toml"
    path.write_text(f'insecure = true\n{head}\n[job]\n{job}\n[[sites]]\nname = "a"\n')
    with refused(*error):
        read_server(path)


def test_oversized_model_is_refused_before_it_is_created():
    with refused("model-too-large", "model", "1099511693312", "1073741824"):
        task_of(ModelRecipe("linear", "cross-entropy", "float32", 2**16), (2**24,))


def test_site_describes_itself_or_reports_missing_test_rows():
    told = read(identity(site("a")), SiteIdentity)
    assert (told.name, told.train, told.test, told.classes, told.shape) == ("a", 30, 15, 3, (6,))
    named = site("a")
    object.__setattr__(named, "name", "x" * 200)
    with refused("invalid-value", None, "name", "128"):
        identity(named)


def test_rejected_description_names_the_field_without_quoting(caplog):
    class Lying(InProcessGrid):
        def answer(self, message, context):
            reply = super().answer(message, context)
            reply.content = with_field(reply.content, "train", "\x1b[2J")
            return reply

    sites = {name: site(name) for name in "ab"}
    grid = Lying(client_app(lambda context: sites[context.node_config["name"]]), [{"name": name} for name in "ab"])
    with refused("sites-missing", None, "a, b"):
        nodes.gather_members(grid, nodes.NameRoster("ab", 1.0), 0.01, 1.0)
    assert re.search(r"rejected\b.*\btrain\b.*`int`, got `str`$", caplog.text, flags=re.MULTILINE)
