"""Test guards for reported losses, alone and in sequence."""

from __future__ import annotations

import math

import pytest
import torch
from tests.resilience.federations import EVERYBODY, LOCAL, N, fed_of
from tests.support.problems import pools, task_of
from tests.support.refusals import refused

from drfl import Key
from drfl.engine import Loop
from drfl.federation.requests import Losses, LossRequest
from drfl.resilience import (
    Audit,
    Clip,
    LambdaConcentration,
    PeerAudit,
    Protected,
    Quarantine,
    RobustClip,
    ServerProbe,
    Trim,
)
from drfl.resilience.guards import apply_guards, first_memories
from drfl.resilience.protected import GuardingFederation
from drfl.testing import ConstantFederation, Recording
from drfl.testing.attacks import ConstantLosses, InflatedLosses

KEY = Key(2)


def losses(*values):
    return torch.tensor(values, dtype=torch.float64)


def request_to(clients, n=N):
    return LossRequest(torch.tensor(clients), ConstantFederation([0.0] * n).w0, KEY, None)


def judged(guard, values, clients=None, memory=None, n=N, fed=None):
    clients = list(range(len(values))) if clients is None else clients
    memory = guard.start(n) if memory is None else memory
    fed = ConstantFederation([0.0] * n) if fed is None else fed
    return guard.judge(Losses(torch.tensor(clients), losses(*values)), request_to(clients, n), fed, memory)


def test_clip_at_a_fixed_bound():
    assert judged(Clip(2.0), (1.0, 2.5, -7.0)).values.tolist() == [1.0, 2.0, -2.0]


def test_robust_clip_uses_its_own_reports_in_the_first_round():
    found = judged(RobustClip(k=2, floor=0), (1.0, 2.0, 3.0, 4.0, 100.0))
    assert found.values.tolist() == [1.0, 2.0, 3.0, 4.0, pytest.approx(3 + 2 * 1.4826)]
    found = judged(RobustClip(k=10, floor=1.0), (1.0, 1.0, 1.0, 1e9))
    assert found.values.tolist() == [1.0, 1.0, 1.0, 11.0]
    assert found.memory.tolist() == pytest.approx([1.0, 1.0, 1.0, 11.0, *[math.nan] * 4, 1.0], nan_ok=True)


def test_robust_clip_remembers_clipped_reports():
    guard = RobustClip(k=2, floor=0.5)
    memory = judged(guard, (1.0, 1.0, 1.2, 0.9)).memory
    found = judged(guard, (50.0,), clients=[5], memory=memory)  # without memory, the report would be its own median
    assert found.values.tolist() == [2.0]
    found = judged(guard, (70.0, 60.0), clients=[5, 6], memory=found.memory)
    assert found.values.max() < 3.0
    assert torch.equal(found.memory[5:7], found.values)


def test_robust_clip_stays_wide_after_falls_and_common_jumps():
    guard = RobustClip(k=10, floor=1.0)
    memory = judged(guard, [2.3] * N).memory
    for value in (0.1, 1e-4):
        memory = judged(guard, [value] * N, memory=memory).memory
    late = judged(guard, [1e-4] * (N - 1) + [20.0], memory=memory)
    assert late.values[-1] == 20.0
    assert judged(guard, [500.0] * N, memory=late.memory).values.tolist() == [500.0] * N


def test_robust_clip_limits_values_that_distort_the_scale():
    found = judged(RobustClip(k=3, floor=0.1), (1.0, 1.0, 1.0, 0.0, -1e9))
    assert found.values.tolist() == [1.0, 1.0, 1.0, 0.0, pytest.approx(-1.3)]


def test_robust_clip_without_spread_changes_nothing():
    assert judged(RobustClip(), (0.0, 0.0, 0.0, 5.0)).values.tolist() == [0.0, 0.0, 0.0, 5.0]


@pytest.mark.parametrize("liars", [1, 2, 3])
def test_minority_of_attackers_hardly_moves_the_bound(liars):
    honest = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6][: 8 - liars]
    bounds = {float(judged(RobustClip(3, 0.1), [*honest, *[claim] * liars]).values.max()) for claim in (1e3, 1e6, 1e12)}
    assert len(bounds) == 1
    assert bounds.pop() < 4.0


def test_trim_drops_the_largest_reports_of_each_request():
    assert judged(Trim(2), (3.0, 9.0, 1.0, 9.5)).mask.tolist() == [True, False, True, False]
    assert judged(Trim(1), (4.0, 4.0, 4.0), clients=[6, 2, 3]).mask.tolist() == [True, False, True]
    assert not judged(Trim(3), (1.0, 2.0)).mask.any()


def test_probe_replaces_reports_that_are_too_large():
    def score(w, clients):
        return torch.where(clients == 2, math.nan, 1.0 + clients)

    found = judged(Audit(score, factor=2.0, slack=0.5), (2.5, 4.6, 99.0, 1.0))
    assert found.values.tolist() == [2.5, 2.0, 99.0, 1.0]


def test_probe_has_a_few_training_rows_of_each_client():
    data, task = pools((3, 40, 50)), task_of()
    probe, again = (ServerProbe.of(data, task, rows=8, engine=Loop()) for _ in range(2))
    w, clients = task.w0, torch.tensor([2, 0])
    assert torch.equal(probe(w, clients), again(w, clients))
    assert torch.equal(probe(w, clients), probe(w, torch.arange(3))[clients])
    whole = ServerProbe.of(data, task, rows=50, engine=Loop())(w, torch.arange(3))
    assert probe(w, clients)[1] == pytest.approx(float(whole[0]))  # all three rows
    assert probe(w, clients)[0] != whole[2]
    assert probe(w, clients)[0] == pytest.approx(float(whole[2]), rel=0.6)


def test_peers_are_drawn_by_key_and_asked_at_the_same_model():
    fed = Recording(ConstantFederation([1.0, 1.1, 1.2, 0.9, 1.0, 1.0, 1.0, 1.0]))
    found = judged(PeerAudit(peers=3, k=2, floor=0.5), (50.0, 1.5), clients=[0, 4], fed=fed)
    assert found.values[0] < 2.5
    assert found.values[1] == 1.5
    (call,) = fed.of("losses")
    asked = call.cohort.tolist()
    assert len(set(asked) - {0, 4}) == 3
    assert asked == sorted(asked)
    assert (call.key, call.batch) == (KEY, None)
    judged(PeerAudit(peers=3), (1.0,), clients=[0], fed=fed)
    other = LossRequest(torch.tensor([0, 4]), fed.w0, Key(5), None)
    drawn = set()
    for i in range(8):
        PeerAudit(peers=3).judge(
            Losses(other.cohort, losses(1, 1)), LossRequest(other.cohort, fed.w0, Key(i), None), fed, losses()
        )
        drawn.add(tuple(fed.calls[-1].cohort.tolist()))
    assert len(drawn) > 3


def test_too_few_peers_are_completed_by_other_reports():
    everybody = judged(PeerAudit(peers=3, k=1, floor=1.0), [1.0] * (N - 1) + [90.0])
    assert everybody.values.tolist() == [1.0] * (N - 1) + [2.0]
    fed = ConstantFederation([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1e9])  # the only remaining peer is malicious
    found = judged(PeerAudit(peers=3, k=1, floor=1.0), [1.0] * (N - 2) + [90.0], fed=fed)
    assert found.values[-1] == 2.0


def test_guards_are_applied_in_order():
    guards = (Trim(1), Clip(5.0), RobustClip(k=1, floor=0.1))
    memory = first_memories(guards, N)
    assert memory.shape == (N + 1,)
    request = request_to(range(6))
    found = apply_guards(
        guards, Losses(request.cohort, losses(1, 1, 1, 1, 70, 60)), request, ConstantFederation([0.0] * N), memory
    )
    assert found.mask.tolist() == [True, True, True, True, False, True]
    assert found.values[5] == pytest.approx(1.1)
    assert found.memory[4].isnan()  # dropped before the last guard
    nobody = apply_guards(
        (Trim(9), Clip(1.0)), Losses(request.cohort, losses(*range(6))), request, ConstantFederation([0.0]), losses()
    )
    assert not nobody.mask.any()


def test_reports_with_gradients_are_guarded_and_dropped_together():
    fed = InflatedLosses(fed_of(), [3], 1e6)
    honest = fed_of().gradients(EVERYBODY, fed.w0, KEY)
    clipped = GuardingFederation(fed, (Clip(4.0),), losses()).gradients(EVERYBODY, fed.w0, KEY)
    assert torch.equal(clipped.losses, honest.losses.clamp(max=4.0).index_fill(0, torch.tensor([3]), 4.0))
    assert torch.equal(clipped.values, honest.values)
    trimmed = GuardingFederation(fed, (Trim(1),), losses()).gradients(EVERYBODY, fed.w0, KEY)
    rest = [0, 1, 2, 4, 5, 6, 7]
    assert trimmed.clients.tolist() == rest
    assert torch.equal(trimmed.values, honest.values[rest])
    assert torch.equal(trimmed.losses, honest.losses[rest])


def test_models_and_unchanged_reports_are_passed_on():
    class Same(type(fed_of())):
        """Return the same objects every time."""

        def ask(self, request):
            return self.__dict__.setdefault(f"reply to {request.kind}", super().ask(request))

    fed = fed_of()
    fed.__class__ = Same
    guarded = GuardingFederation(fed, (RobustClip(),), RobustClip().start(N))
    assert guarded.train(EVERYBODY, fed.w0, LOCAL, KEY) is vars(fed)["reply to train"]
    assert guarded.losses(EVERYBODY, fed.w0, KEY) is vars(fed)["reply to losses"]
    assert (guarded.clipped, bool(guarded.changed.any())) == (0, False)
    assert not guarded.memory[:N].isnan().any()


def test_changed_reports_are_counted():
    guarded = GuardingFederation(ConstantLosses(fed_of(), [2, 5], 1e9), (Clip(1e3), Trim(1)), losses())
    guarded.losses(EVERYBODY, guarded.w0, KEY)
    guarded.losses(torch.tensor([5]), guarded.w0, KEY)
    assert guarded.changed.nonzero().flatten().tolist() == [2, 5]
    assert guarded.clipped == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: Clip(0.0),
        lambda: Clip(math.nan),
        lambda: RobustClip(k=0),
        lambda: RobustClip(floor=-1),
        lambda: Trim(0),
        lambda: Audit(lambda w, clients: w, factor=0.5),
        lambda: Audit(lambda w, clients: w, slack=-1.0),
        lambda: PeerAudit(peers=0),
        lambda: Quarantine(strikes=0),
        lambda: Quarantine(rounds=0),
        lambda: LambdaConcentration(share=1.5),
        lambda: LambdaConcentration(long=0),
        lambda: Protected(None, norm=-1.0),
        lambda: ServerProbe.of(pools((3, 4)), task_of(), rows=0),
    ],
)
def test_impossible_values_are_refused(make):
    with refused("out-of-range"):
        make()
