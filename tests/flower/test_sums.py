"""Test the sums over test rows that sites report.

They equal the simulation's, contain only aggregates, and are checked for contradictions.
"""

import math

import msgspec
import pytest
import torch
from flwr.app import RecordDict
from tests.support.refusals import refused

from drfl.core.key import Key
from drfl.data import ClientData
from drfl.data.row_scores import products
from drfl.engine import Loop, Simulation
from drfl.flower import messages
from drfl.flower.client_app import Site, client_app
from drfl.flower.compute_answer import compute_answer
from drfl.flower.deployed_federation import measures_of
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import Answer, Ask, ModelRecipe
from drfl.flower.possible_tests import valid_tests
from drfl.flower.records import ProtocolError, read, write
from drfl.flower.site_task import task_of
from drfl.task.metrics import metric_of

from .conftest import MODEL, federation, with_field

NAN = math.nan
METRIC_NAMES = ("accuracy", "brier", "log_loss", "auc", "f1", "sensitivity")


def part(i, classes):
    generator = torch.Generator().manual_seed(i)
    x = torch.randn(25 + 4 * i, 6, generator=generator)
    return x, (x.sum(1) + torch.randn(len(x), generator=generator)).abs().long() % classes


def deployed(classes):
    """Make a federation of two sites behind a grid, and a simulation of the same clients."""
    sites = {name: Site(name, ClientData.from_arrays({name: part(i, classes)}, {name: part(9 + i, classes)}))
             for i, name in enumerate("ab")}  # fmt: skip
    grid = InProcessGrid(client_app(lambda context: sites[context.node_config["name"]]), [{"name": n} for n in "ab"])
    fed = federation(grid, "ab", classes=classes, metrics=METRIC_NAMES)
    train, test = ({name: part(k + i, classes) for i, name in enumerate("ab")} for k in (0, 9))
    with Key(0).fold("model").torch_scope():
        task = task_of(ModelRecipe("linear", "cross-entropy", "float32", classes, "loop", METRIC_NAMES), (6,))
    return fed, Simulation(ClientData.from_arrays(train, test), task, engine=Loop())


@pytest.mark.parametrize("classes", [2, 3])
def test_sums_equal_the_simulation_bitwise(classes):
    fed, simulated = deployed(classes)
    assert [m.rows for m in fed.measures] == [m.rows for m in simulated.measures]
    for w in (fed.w0, 3 * fed.w0):
        found, expected = fed.evaluate(w).sums, simulated.evaluate(w).sums
        assert torch.equal(found.nan_to_num(-1), expected.nan_to_num(-1))


def test_products_of_two_models_equal_those_of_rows():
    fed, simulated = deployed(2)
    assert fed.products is None
    one, other = fed.w0, fed.w0.flip(0)
    fed.evaluate_later([one, other])()
    for i in range(2):
        each = [simulated.row_scores(w) for w in (one, other)]
        start, end = each[0].starts[i : i + 2]
        parts = [{name: v[start:end] for name, v in e.scores.items()} for e in each]
        own = [e._replace(starts=each[0].starts[i : i + 2] - start, scores=p) for e, p in zip(each, parts, strict=True)]
        expected = products(*own, fed.measures)
        assert torch.equal(fed.products[i, 0], expected[0])
        assert torch.equal(fed.products[i, 3], expected[3])
        assert torch.allclose(fed.products[i], expected, rtol=1e-12, equal_nan=True)
    assert fed.products[:, 4:].isnan().all()
    assert fed.products[:, :4].isfinite().all()


def test_answer_contains_only_aggregates():
    site = Site("a", ClientData.from_arrays({"a": part(0, 2)}, {"a": part(9, 2)}), threads=1)
    model = ModelRecipe("linear", "cross-entropy", "float32", 2, "loop", METRIC_NAMES)
    w = task_of(model, (6,)).w0
    content = write(compute_answer(site, Ask(0, model, w, test=True, also=2 * w), None, RecordDict()))
    assert set(content) == {"vectors", "message"}
    assert dict(content.array_records["vectors"]) == {}
    found = msgspec.msgpack.decode(content.config_records["message"]["fields"])
    several = len(METRIC_NAMES)
    test = {"score": 0, "loss": 0, "samples": 0, "others": [several - 1], "sums": [several, 5]}
    none = dict.fromkeys(("gradients", "losses", "seconds", "version", "lacking", "digest", "validation"), 0)
    assert shape(found) == {"parts": [0], "test": test, "also": test, "products": [several, 2], **none}


def shape(value):
    """Return the lengths of lists, and the fields of objects, without values."""
    if isinstance(value, dict):
        return {name: shape(part) for name, part in value.items()}
    if not isinstance(value, list):
        return 0
    inner = {tuple(shape(part) or ()) for part in value}
    assert len(inner) <= 1
    return [len(value), *(inner.pop() if inner else ())]


MEASURES = tuple(map(metric_of, ("accuracy", "brier", "mae", "auc", "f1", "sensitivity")))
NONE, UNKNOWN = (0.0, 0.0), (NAN, NAN)
RANKS = (79.25, 52.25)
"""Squares of 4 positive rows above 2, 3, 5.5 and 6 of 6 others, which are below 1, 2, 2.5, 3, 4 and 4 of them."""
SUMS = (
    (10.0, 6.0, 6.0, *NONE),
    (10.0, 2.0, 1.5, *NONE),
    (10.0, -30.0, 100.0, *NONE),
    (4.0, 6.0, 16.5, *RANKS),
    (10.0, NAN, NAN, *UNKNOWN),
    (4.0, 3.0, 3.0, *NONE),
)
VALUES = (0.6, 0.2, -3.0, 16.5 / 24, 0.4, 0.75)
PRODUCTS = ((5.0, 0.0), (1.2, 0.0), (90.0, 0.0), (70.0, 48.0), UNKNOWN, UNKNOWN)


def changed(place=None, sums=(), value=None, products=PRODUCTS, other=SUMS, also=None):
    """Return an answer with two tests, in which one metric of the first (or, with ``also``, the second) is changed."""
    all_sums, values = list(SUMS), list(VALUES)
    if place is not None:
        all_sums[place] = sums or SUMS[place]
        values[place] = VALUES[place] if value is None else value
    first = messages.SiteTest(values[0], 0.1, 10, tuple(values[1:]), tuple(all_sums))
    others = VALUES[1:] if also is None else tuple(also if at == place else x for at, x in enumerate(VALUES))[1:]
    return Answer((), first, also=messages.SiteTest(VALUES[0], 0.1, 10, others, other), products=products)


def products_with(place, *values):
    found = list(PRODUCTS)
    found[place] = values
    return tuple(found)


ONE_CLASS = (10.0, 0.0, 0.0, *NONE)
"""The sums of an AUC if all rows are positive."""


@pytest.mark.parametrize(
    "answer",
    [
        changed(),
        changed(3, ONE_CLASS, NAN, products_with(3, 0.0, 0.0), (*SUMS[:3], ONE_CLASS, *SUMS[4:]), also=NAN),
        changed(2, (NAN, NAN, NAN, *UNKNOWN), NAN, products_with(2, *UNKNOWN)),  # outputs that are not finite
        changed(0, (10.0, 0.0, 0.0, *NONE), 0.0, products_with(0, 0.0, 0.0)),
        changed(products=products_with(0, 2.0, 0.0)),
        changed(3, (4.0, 6.0, 24.0, 144.0, 96.0), 1.0),  # all pairs in order
        changed(5, (0.0, 0.0, 0.0, *NONE), NAN),  # no row that counts
    ],
)
def test_consistent_answers_are_accepted(answer):
    assert valid_tests(read(write(answer), Answer), 2, MEASURES) != []


@pytest.mark.parametrize(
    "answer",
    [
        changed(0, (9.0, 6.0, 6.0, *NONE)),  # the sum covers 9 of 10 samples
        changed(0, (10.0, 6.5, 6.5, *NONE), 0.65),  # half a row
        changed(0, (10.0, 6.0, 5.0, *NONE)),
        changed(0, (10.0, 11.0, 11.0, *NONE), 1.0),
        changed(0, (10.0, 7.0, 7.0, *NONE)),  # contradicts the score
        changed(0, (NAN, NAN, NAN, *UNKNOWN)),
        changed(0, (10.0, 6.0, 6.0, 11.0, 0.0)),  # a patient has more rows than the site
        changed(0, (10.0, 6.0, 6.0, 1.5, 0.0)),
        changed(0, (10.0, 6.0, 6.0, 0.0, 1.0)),
        changed(0, (10.0, 6.0, 6.0, *UNKNOWN)),
        changed(1, (10.0, -2.0, 1.5, *NONE), -0.2),
        changed(1, (10.0, 2.0, 2.5, *NONE)),  # squares above the numbers, which are in [0, 1]
        changed(1, (10.0, 2.0, 0.3, *NONE)),  # squares below those of ten equal numbers
        changed(1, (10.0, 2.1, 1.5, *NONE)),
        changed(2, (10.0, -30.0, 80.0, *NONE)),
        changed(2, (10.0, -30.0, math.inf, *NONE)),
        changed(2, (10.0, -30.0, NAN, *NONE)),
        changed(2, (10.0, 1e150, 1e300, *NONE), 1e149),
        changed(3, (4.0, 5.0, 16.5, *RANKS)),
        changed(3, (4.5, 5.5, 16.5, *RANKS), 16.5 / 24.75),
        changed(3, (4.0, 6.0, 16.25, *RANKS), 16.25 / 24),
        changed(3, (4.0, 6.0, 25.0, 156.25, 104.25), 25 / 24),
        changed(3, (-4.0, 14.0, 16.5, *RANKS)),
        changed(3, (10.0, 0.0, 0.0, *NONE), 0.5),
        changed(3, (4.0, 6.0, 16.5, 68.0, 52.25)),  # squares below those of four equal placements
        changed(3, (4.0, 6.0, 16.5, 79.25, 45.0)),
        changed(3, (4.0, 6.0, 16.5, 99.25, 52.25)),  # a positive row above more than the six others
        changed(3, (4.0, 6.0, 16.5, 79.25, 66.25)),
        changed(3, (4.0, 6.0, 16.5, 79.3, 52.25)),
        changed(3, (4.0, 6.0, 16.5, math.inf, 52.25)),
        changed(3, (4.0, 6.0, 16.5, 79.25, NAN)),
        changed(3, (10.0, 0.0, 0.0, 1.0, 0.0), NAN),
        changed(4, (10.0, 4.0, 4.0, *NONE)),
        changed(4, (9.0, NAN, NAN, *UNKNOWN)),
        changed(4, (10.0, NAN, NAN, *NONE)),
        changed(5, (11.0, 3.0, 3.0, *NONE), 3 / 11),  # more rows than exist
        changed(5, (3.0, 4.0, 4.0, *NONE), 4 / 3),
        changed(5, (4.0, 3.0, 2.0, *NONE)),
        changed(5, (4.0, 2.0, 2.0, *NONE)),
        changed(5, (4.5, 3.0, 3.0, *NONE), 3 / 4.5),
        changed(5, (0.0, 0.0, 0.0, *NONE), 1.0),
        changed(products=products_with(0, 1.0, 0.0)),  # 6 and 6 of 10 rows share at least two
        changed(products=products_with(0, 7.0, 0.0)),
        changed(products=products_with(0, 5.5, 0.0)),
        changed(products=products_with(0, 5.0, 1.0)),
        changed(products=products_with(1, 2.5, 0.0)),
        changed(products=products_with(2, 101.0, 0.0)),
        changed(products=products_with(2, *UNKNOWN)),
        changed(products=products_with(3, 80.0, 48.0)),  # violates Cauchy-Schwarz
        changed(products=products_with(3, 70.0, 53.0)),
        changed(products=products_with(3, -1.0, 48.0)),
        changed(products=products_with(3, *UNKNOWN)),
        changed(products=products_with(4, 1.0, NAN)),
        changed(products=products_with(5, 3.0, 0.0)),
        changed(products=PRODUCTS[:4]),
        changed(3, (5.0, 5.0, 16.5, 79.25, 54.5), 0.66),  # the second model has other positive rows
        changed(other=SUMS[:4]),
        msgspec.structs.replace(changed(), test=messages.SiteTest(0.6, 0.1, 10, VALUES[1:])),
    ],
)
def test_contradictory_answers_are_rejected(answer):
    assert valid_tests(read(write(answer), Answer), 2, MEASURES) == []


def test_malformed_products_and_sums_are_refused():
    for field in ("also", "products"):
        with refused("protocol", None, "products", kind=ProtocolError):
            read(with_field(write(changed()), field, None), Answer)
    with refused("protocol", None, "sums", kind=ProtocolError):
        read(write(changed(0, (10.0, 6.0))), Answer)
    with refused("protocol", None, "products", kind=ProtocolError):
        read(write(changed(products=products_with(0, 5.0))), Answer)


@pytest.mark.parametrize(
    ("loss", "classes", "rows"),
    [
        ("cross-entropy", 2, ["binary", "unit", "ranks"]),
        ("cross-entropy", 3, ["binary", "real", "whole"]),
        ("squared", 3, ["binary", "real", "whole"]),
        ("binary-cross-entropy", 1, ["binary", "unit", "ranks"]),
        ("binary-cross-entropy", 4, ["real", "real", "whole"]),
        ("", 0, ["real", "real", "whole"]),  # a model of the sites' own
    ],
)
def test_server_knows_the_kind_of_row_values(loss, classes, rows):
    model = ModelRecipe(MODEL.model, loss, "float32", classes, metrics=("accuracy", "brier", "auc"))
    assert [m.rows for m in measures_of(model)] == rows
