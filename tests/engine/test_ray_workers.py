"""Test that a run over Ray workers equals that of one machine, for any division, and if a worker dies."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading

import numpy
import pytest
import torch
from tests.support.fake_ray import FakeRay
from tests.support.marks import crossed, long_except
from tests.support.problems import federation
from tests.support.refusals import refused

import drfl
from drfl.core.errors import DrflError
from drfl.core.key import Key
from drfl.engine import Loop, RayWorkers, Stacked, ray_cluster, ray_workers
from drfl.engine.ray_cluster import Cluster
from drfl.federation.sampling import Cohort
from drfl.optim.local import LocalSGD
from drfl.task import models
from drfl.testing.state import leaves

SIZES = (3, 30, 8, 9, 41, 5, 12)
IMAGES = {"model": models.cnn, "shape": (1, 8, 8)}


@pytest.fixture
def ray(monkeypatch):
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


FEDAVG = drfl.FedAvg(m=5)


def ran(engine, algorithm=FEDAVG, rounds=2, **options):
    fed = federation(SIZES, engine=engine, **options)
    return drfl.run(algorithm, fed, rounds=rounds), fed.ledger.totals()


@pytest.mark.parametrize(
    ("algorithm", "pieces"),
    crossed(
        {"DRFA": drfl.DRFA(m=5), "DRDM": drfl.DRDM(m=5), "ScaffPD": drfl.ScaffPD()}, {"whole": False, "pieces": True}
    ),
)
@pytest.mark.usefixtures("ray")
def test_run_without_sums_equals_the_plain_run_bitwise(algorithm, pieces, monkeypatch):
    monkeypatch.setattr(ray_workers, "PIECE", 200 if pieces else 10**9)
    monkeypatch.setattr(ray_workers, "ROOM", 2000 if pieces else 10**9)
    plain, counted = ran(Loop(), algorithm)
    found, also = ran(RayWorkers(3, engine=Loop(), sums=False), algorithm)
    assert counted == also
    expected, state = leaves(plain.state), leaves(found.state)
    assert [name for name in expected if not torch.equal(expected[name], state[name])] == []
    assert torch.equal(plain.evaluation.loss, found.evaluation.loss)
    assert torch.equal(plain.evaluation.sums, found.evaluation.sums)


@pytest.mark.parametrize(
    ("workers", "options"), crossed(long_except(["2"], [1, 2, 4, 20]), {"linear": {}, "cnn": IMAGES})
)
@pytest.mark.usefixtures("ray")
def test_sharded_run_with_sums_agrees_up_to_rounding(workers, options):
    options = {**options, "dtype": torch.float32}
    plain, counted = ran(None, rounds=2, **options)
    found, also = ran(RayWorkers(workers, sums=True), rounds=2, **options)
    assert counted == also
    assert (plain.model - found.model).abs().max() < 5e-6  # float32; processors differ


def test_mean_needs_one_message_per_worker(ray):
    fed = federation(SIZES, engine=RayWorkers(2, engine=Stacked(), sums=True))
    D = Cohort(torch.arange(7), torch.arange(7).double())
    _, mean = fed.mean(D, fed.w0, LocalSGD(steps=3, lr=0.1), Key(0), prox=0.3, snapshot=2)
    assert [name for name, _ in ray.calls] == ["mean", "mean"]
    answers = [what for what in ray.puts if isinstance(what, list)]
    assert [[part is None or part.shape for part in own] for own in answers] == 2 * [[(15,), (15,), True]]
    plain = federation(SIZES, engine=Loop())
    _, expected = plain.mean(D, fed.w0, LocalSGD(steps=3, lr=0.1), Key(0), prox=0.3, snapshot=2)
    torch.testing.assert_close(mean.w, expected.w, rtol=0, atol=1e-12)
    torch.testing.assert_close(mean.snapshot, expected.snapshot, rtol=0, atol=1e-12)
    assert fed.ledger.totals() == plain.ledger.totals()


def test_pool_is_sent_once(ray):
    ran(RayWorkers(2))
    pools = [what.ndim for what in ray.puts if isinstance(what, numpy.ndarray) and what.size >= 100]
    assert pools == [2, 1]  # inputs and targets of the training rows
    assert sum(isinstance(what, drfl.Task) for what in ray.puts) == 1


def test_losses_and_gradients_are_in_cohort_order(ray):
    cohort = torch.tensor([6, 0, 3, 5])
    fed, plain = (federation(SIZES, engine=engine) for engine in (RayWorkers(3, engine=Loop()), Loop()))
    assert torch.equal(
        fed.losses(cohort, fed.w0, Key(1), batch=4).values, plain.losses(cohort, fed.w0, Key(1), batch=4).values
    )
    for one, other in zip(fed.gradients(cohort, fed.w0, Key(1)), plain.gradients(cohort, fed.w0, Key(1)), strict=True):
        assert torch.equal(one, other)


def test_work_is_divided_evenly_without_empty_parts():
    def sizes(work, count):
        return [span.stop - span.start for span in ray_workers._spans(torch.tensor(work), count)]

    assert sizes([1] * 9, 3) == [3, 3, 3]
    assert sizes([1] * 2, 5) == [1, 1]
    assert sizes([4, 1, 1, 1, 1, 4], 3) == [1, 4, 1]
    assert sizes([1, 1, 100], 3) == [3]


def test_repeatedly_lost_worker_is_a_one_line_error(ray):
    ray.lost = 3
    with refused("worker-lost", kind=DrflError):
        ran(RayWorkers(2))


def test_missing_ray_is_a_one_line_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with refused("package-missing", "ray", "'drfl[ray]'"):
        ran(RayWorkers(2))


@pytest.mark.long
@pytest.mark.parametrize(
    "address", long_except(["head:0", ":6379"], ["nowhere", "ray://head:10001", "head:0", "head:port", ":6379"])
)
def test_invalid_address_is_refused(address):
    with refused("invalid-value", "ray", address):
        Cluster(address).connected()


@pytest.mark.parametrize(
    ("says", "told"),
    [pytest.param(None, "timed out", marks=pytest.mark.long), (b"SSH-2.0-x\r\n", "HOST:PORT"), (b"", "HOST:PORT")],
)
def test_other_server_at_the_address_is_refused(says, told, monkeypatch):
    monkeypatch.setattr(ray_cluster, "PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def answer():
            connection = server.accept()[0]
            held.append(connection)
            if says is not None:
                with contextlib.suppress(OSError):  # the client may have disconnected
                    connection.sendall(says)
                    connection.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with refused("cluster-unreachable", address, told):
            Cluster(address).connected()
        thread.join()
        held[0].close()


def test_unanswered_address_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with refused("cluster-unreachable", f"127.0.0.1:{port}"):
        Cluster(f"127.0.0.1:{port}").connected()


@pytest.fixture
def real():
    yield Cluster("local", 3).connected()
    sys.modules["ray"].shutdown()


def pids(engine):
    import ray

    return ray.get([worker.__ray_call__.remote(lambda self: os.getpid()) for worker in engine._workers])


@pytest.mark.usefixtures("ray")
@pytest.mark.long
def test_stacked_network_on_workers_equals_the_plain_one_up_to_rounding():
    """This holds for three rounds: in the fourth, a rounding error of 1e-8 moves a unit across its kink."""
    options = {**IMAGES, "dtype": torch.float32}
    plain, _ = ran(Stacked(), drfl.DRFA(m=5), rounds=3, **options)
    found, _ = ran(RayWorkers(4, engine=Stacked(), sums=False), drfl.DRFA(m=5), rounds=3, **options)
    assert (plain.model - found.model).abs().max() < 5e-6  # float32; processors differ


@pytest.mark.long
@pytest.mark.first
@pytest.mark.usefixtures("real")
def test_run_survives_a_killed_worker():
    options = {"dtype": torch.float32}
    plain, _ = ran(None, drfl.DRFA(m=5), rounds=4, **options)
    engine = RayWorkers(3, sums=True)
    whole, _ = ran(engine, drfl.DRFA(m=5), rounds=4, **options)
    before = pids(engine)
    fed = federation(SIZES, engine=engine, **options)
    killed = drfl.run(
        drfl.DRFA(m=5), fed, rounds=4, callbacks=[lambda step: step.round == 2 and os.kill(before[1], signal.SIGKILL)]
    )
    after = pids(engine)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True]
    assert torch.equal(killed.model, whole.model)
    assert (plain.model - whole.model).abs().max() < 5e-6
