"""Sums over test rows that sites report: those of a simulation, nothing else, and none that contradict themselves."""

import math

import pytest
import torch

from drfl.data import ClientData
from drfl.engine import Loop, Simulation
from drfl.engine.row_scores import products
from drfl.flower import messages
from drfl.flower.client_app import Site, client_app, task_of, work
from drfl.flower.federation import measures_of
from drfl.flower.in_process import InProcessGrid
from drfl.flower.messages import Answer, Ask, Model, read_answer, write_answer
from drfl.flower.possible_tests import believed
from drfl.flower.schema import ProtocolError
from drfl.key import Key
from drfl.metrics import metric_of

from .conftest import MODEL, federation

NAN = math.nan
METRIC_NAMES = ("accuracy", "brier", "log_loss", "auc", "f1")


def part(i, classes):
    generator = torch.Generator().manual_seed(i)
    x = torch.randn(25 + 4 * i, 6, generator=generator)
    return x, (x.sum(1) + torch.randn(len(x), generator=generator)).abs().long() % classes


def deployed(classes):
    """A federation of two sites behind a grid, and the same clients in a simulation."""
    sites = {name: Site(name, ClientData.from_arrays({name: part(i, classes)}, {name: part(9 + i, classes)}))
             for i, name in enumerate("ab")}  # fmt: skip
    grid = InProcessGrid(client_app(lambda context: sites[context.node_config["name"]]), [{"name": n} for n in "ab"])
    fed = federation(grid, "ab", classes=classes, metrics=METRIC_NAMES)
    train, test = ({name: part(k + i, classes) for i, name in enumerate("ab")} for k in (0, 9))
    with Key(0).fold("model").torch_scope():
        task = task_of(Model("linear", "cross-entropy", "float32", classes, "loop", METRIC_NAMES), (6,))
    return fed, Simulation(ClientData.from_arrays(train, test), task, engine=Loop())


@pytest.mark.parametrize("classes", [2, 3])
def test_sums_are_those_of_the_simulation_to_the_last_bit(classes):
    fed, simulated = deployed(classes)
    assert [m.rows for m in fed.measures] == [m.rows for m in simulated.measures]
    for w in (fed.w0, 3 * fed.w0):
        found, expected = fed.evaluate(w).sums, simulated.evaluate(w).sums
        assert torch.equal(found.nan_to_num(-1), expected.nan_to_num(-1))


def test_products_of_two_models_are_those_of_their_rows():
    fed, simulated = deployed(2)
    assert fed.products is None
    one, other = fed.w0, fed.w0.flip(0)
    fed.evaluate_later([one, other])()
    for i in range(2):
        each = [simulated.row_scores(w) for w in (one, other)]
        start, end = each[0].starts[i : i + 2]
        own = [e._replace(scores={name: v[start:end] for name, v in e.scores.items()}) for e in each]
        expected = products(*own, fed.measures)
        assert fed.products[i, 0] == expected[0]
        assert torch.allclose(fed.products[i], expected, rtol=1e-12, equal_nan=True)
    assert fed.products[:, 3:].isnan().all()


def test_an_answer_holds_aggregates_and_nothing_of_a_row():
    site = Site("a", ClientData.from_arrays({"a": part(0, 2)}, {"a": part(9, 2)}), threads=1)
    model = Model("linear", "cross-entropy", "float32", 2, "loop", METRIC_NAMES)
    w = task_of(model, (6,)).w0
    content = write_answer(work(site, Ask(0, model, w, test=True, also=2 * w), None, type(write_answer(Answer()))()))
    assert set(content) == {"vectors", "numbers", "answer"}
    assert dict(content.array_records["vectors"]) == {}
    numbers = dict(content.metric_records["numbers"])
    lengths = {name: len(value) if isinstance(value, list) else 0 for name, value in numbers.items()}
    several = len(METRIC_NAMES)
    test = {"score": 0, "loss": 0, "samples": 0, "others": several - 1, "sums": 3 * several}
    expected = {f"{which} {name}": length for which in ("test", "also") for name, length in test.items()}
    assert lengths == {"gradients": 0, "losses": 0, "seconds": 0, "products": several, **expected}


MEASURES = tuple(map(metric_of, ("accuracy", "brier", "mae", "auc", "f1")))
SUMS = ((10.0, 6.0, 6.0), (10.0, 2.0, 1.5), (10.0, -30.0, 100.0), (4.0, 6.0, 16.5), (10.0, NAN, NAN))
VALUES = (0.6, 0.2, -3.0, 16.5 / 24, 0.4)
PRODUCTS = (5.0, 1.2, 90.0, NAN, NAN)


def changed(place=None, sums=(), value=None, products=PRODUCTS, other=SUMS):
    """An answer with two tests; of the first, one metric has other sums or another value."""
    all_sums, values = list(SUMS), list(VALUES)
    if place is not None:
        all_sums[place] = sums or SUMS[place]
        values[place] = VALUES[place] if value is None else value
    first = messages.Tested(values[0], 0.1, 10, tuple(values[1:]), tuple(all_sums))
    return Answer((), first, also=messages.Tested(VALUES[0], 0.1, 10, VALUES[1:], other), products=products)


@pytest.mark.parametrize(
    "answer",
    [
        changed(),
        changed(3, (10.0, 0.0, 0.0), NAN),  # one class alone
        changed(2, (NAN, NAN, NAN), NAN, products=(5.0, 1.2, NAN, NAN, NAN)),  # outputs that are not finite
        changed(0, (10.0, 0.0, 0.0), 0.0, products=(0.0, *PRODUCTS[1:])),
        changed(products=(2.0, *PRODUCTS[1:])),
    ],
)
def test_answers_that_can_have_come_out_so(answer):
    assert believed(read_answer(write_answer(answer)), 2, MEASURES) != []


@pytest.mark.parametrize(
    "answer",
    [
        changed(0, (9.0, 6.0, 6.0)),  # of other rows than the samples
        changed(0, (10.0, 6.5, 6.5), 0.65),  # half a row
        changed(0, (10.0, 6.0, 5.0)),
        changed(0, (10.0, 11.0, 11.0), 1.0),
        changed(0, (10.0, 7.0, 7.0)),  # not the score
        changed(0, (NAN, NAN, NAN)),
        changed(1, (10.0, -2.0, 1.5), -0.2),
        changed(1, (10.0, 2.0, 2.5)),  # squares above the numbers, which lie in [0, 1]
        changed(1, (10.0, 2.0, 0.3)),  # squares below those of ten numbers alike
        changed(1, (10.0, 2.1, 1.5)),
        changed(2, (10.0, -30.0, 80.0)),
        changed(2, (10.0, -30.0, math.inf)),
        changed(2, (10.0, -30.0, NAN)),
        changed(2, (10.0, 1e150, 1e300), 1e149),
        changed(3, (4.0, 5.0, 16.5)),
        changed(3, (4.5, 5.5, 16.5), 16.5 / 24.75),
        changed(3, (4.0, 6.0, 16.25), 16.25 / 24),
        changed(3, (4.0, 6.0, 25.0), 25 / 24),
        changed(3, (-4.0, 14.0, 16.5)),
        changed(3, (10.0, 0.0, 0.0), 0.5),
        changed(4, (10.0, 4.0, 4.0)),
        changed(4, (9.0, NAN, NAN)),
        changed(products=(1.0, *PRODUCTS[1:])),  # 6 and 6 of 10 rows share two at least
        changed(products=(7.0, *PRODUCTS[1:])),
        changed(products=(5.5, *PRODUCTS[1:])),
        changed(products=(5.0, 2.5, *PRODUCTS[2:])),
        changed(products=(5.0, 1.2, 101.0, NAN, NAN)),
        changed(products=(5.0, 1.2, NAN, NAN, NAN)),
        changed(products=(5.0, 1.2, 90.0, 1.0, NAN)),
        changed(products=PRODUCTS[:4]),
        changed(other=SUMS[:4]),
        changed()._replace(test=messages.Tested(0.6, 0.1, 10, VALUES[1:])),
    ],
)
def test_answers_that_contradict_themselves_are_not_believed(answer):
    assert believed(read_answer(write_answer(answer)), 2, MEASURES) == []


def test_products_without_a_second_test_and_sums_that_are_no_threes_cannot_be_read():
    for answer in (changed()._replace(also=None), changed()._replace(products=None)):
        with pytest.raises(ProtocolError, match="products"):
            read_answer(write_answer(answer))
    with pytest.raises(ProtocolError, match="three sums"):
        read_answer(write_answer(changed(0, (10.0, 6.0))))


@pytest.mark.parametrize(
    ("loss", "classes", "rows"),
    [
        ("cross-entropy", 2, ["binary", "unit", "ranks"]),
        ("cross-entropy", 3, ["binary", "real", "whole"]),
        ("squared", 3, ["binary", "real", "whole"]),
        ("binary-cross-entropy", 1, ["binary", "unit", "ranks"]),
        ("binary-cross-entropy", 4, ["unit", "unit", "whole"]),
        ("", 0, ["real", "real", "whole"]),  # a model of the sites' own
    ],
)
def test_the_server_knows_what_sites_metrics_say_of_a_row(loss, classes, rows):
    model = Model(MODEL.model, loss, "float32", classes, metrics=("accuracy", "brier", "auc"))
    assert [m.rows for m in measures_of(model)] == rows
