"""DRFA, DRDM and related algorithms with one mistake each."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from tests.conformance.wrong.trap import right
from torch import Tensor

from drfl.algorithms import AFL, DRDM, DRFA, DRFAProx, DualDRDM, ScaffPD
from drfl.algorithms.drfa import DRFAState
from drfl.ambiguity import AmbiguitySet, Simplex
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import References
from drfl.federation.federation import WrappedFederation
from drfl.federation.requests import LossRequest, TrainRequest
from drfl.federation.sampling import Cohort


class UniformCohort(DRFA):
    """The cohort is uniform instead of following λ."""

    def round(self, state, fed, key):
        return right(self, DRFA, sampling=lambda lam, m, k: sampling.uniform(len(lam), m, k)).round(state, fed, key)


class CountsOnce(DRFA):
    """A client that is drawn twice counts once."""

    def round(self, state, fed, key):
        def draw(lam, m, key):
            clients, counts = self.sampling(lam, m, key)
            return Cohort(clients, torch.ones_like(counts))

        return right(self, DRFA, sampling=draw).round(state, fed, key)


class LeavesOutTau(DRFA):
    """``randint(1, tau)``: the upper end is not included."""

    def round(self, state, fed, key):
        last = max(1, self.local.steps - 1)
        return right(self, DRFA).round(state, SnapshotAt(fed, lambda i: key.fold("t").integer(1, last)), key)


class SnapshotPerClient(DRFA):
    """t' differs between clients."""

    def round(self, state, fed, key):
        tau = self.local.steps
        return right(self, DRFA).round(state, SnapshotAt(fed, lambda i: key.fold("t", i).integer(1, tau)), key)


class SnapshotAt(WrappedFederation):
    def __init__(self, fed, step_of) -> None:
        super().__init__(fed)
        self.step_of = step_of

    def ask(self, request):
        if not isinstance(request, TrainRequest):
            return self.fed.ask(request)
        parts = [
            self.fed.ask(replace(request.only(torch.tensor([j])), snapshot=self.step_of(int(i))))
            for j, i in enumerate(request.cohort)
        ]
        columns = zip(*parts, strict=True)
        return type(parts[0])(*(None if column[0] is None else torch.cat(column) for column in columns))


class DecayOnSelf(DRFA):
    """γ shrinks with every round, counted on the object."""

    def round(self, state, fed, key):
        done = getattr(self, "done", 0)
        object.__setattr__(self, "done", done + 1)
        return right(self, DRFA, gamma=self.gamma * 0.99**done).round(state, fed, key)


class CountedState(NamedTuple):
    w: Tensor
    lam: Tensor
    squares: Tensor
    reference: References | None
    done: Tensor


class DecayInState(DRFA):
    """γ shrinks with every round, counted in the state."""

    def init(self, fed):
        return CountedState(*super().init(fed), torch.zeros((), dtype=torch.int64))

    def round(self, state, fed, key):
        *inner, done = state
        algorithm = right(self, DRFA, gamma=self.gamma * 0.99 ** int(done))
        new, info = algorithm.round(DRFAState(*inner), fed, key)
        return (state if info.is_empty else CountedState(*new, done + 1)), info


class FloorOfTheFirst(DRFA):
    """Only the first λ_i = 0 is lifted to the floor."""

    def round(self, state, fed, key):
        new, info = right(self, DRFA, ambiguity=Simplex()).round(state, fed, key)
        lam, zeros = new.lam.clone(), (new.lam == 0).nonzero()
        if len(zeros):
            lam[zeros[0]] = getattr(self.ambiguity, "floor", 0.0) or 1e-3
        return new._replace(lam=lam), info


class FloorByRenormalising(DRFA):
    """λ is lifted to the floor and divided by its sum, not projected."""

    def round(self, state, fed, key):
        new, info = right(self, DRFA, ambiguity=Simplex()).round(state, fed, key)
        lam = new.lam.clamp(min=getattr(self.ambiguity, "floor", 0.0))
        return new._replace(lam=lam / lam.sum()), info


class TypeTested(DRFA):
    """Any float counts as a valid report, including NaN."""

    def round(self, state, fed, key):
        return right(self, DRFA, ambiguity=Trusting()).round(state, fed, key)


class Trusting(Simplex):
    def project(self, v):
        if not all(isinstance(x, float) for x in v.tolist()):
            raise TypeError("losses must be floats")
        v = v.double()
        if torch.isfinite(v).all():
            return super().project(v)
        e = (v - v.max()).exp()
        return e / e.sum()

    def prox(self, v, step):
        return self.project(v)


class GlobalDraw(DRFA):
    """The cohort is drawn by NumPy's global generator."""

    def round(self, state, fed, key):
        def draw(lam, m, key):
            np.random.seed(key.integer(0, 2**31))
            drawn = np.random.choice(len(lam), size=m, p=lam.numpy() / lam.numpy().sum())
            clients, counts = np.unique(drawn, return_counts=True)
            return Cohort(torch.from_numpy(clients), torch.from_numpy(counts).double())

        return right(self, DRFA, sampling=draw).round(state, fed, key)


class ScaledByAsked(DRFA):
    """v_i = (N/m)·ℓ_i with the m clients that were asked."""

    def round(self, state, fed, key):
        return right(self, DRFA).round(state, Shrunk(fed), key)


class Shrunk(WrappedFederation):
    def ask(self, request):
        reply = self.fed.ask(request)
        if not isinstance(request, LossRequest):
            return reply
        return reply._replace(values=reply.values * (len(reply.clients) / len(request.cohort)))


class ReportsOfTheTrained(DRFA):
    """The clients that trained report their losses, instead of a uniform sample."""

    def round(self, state, fed, key):
        return right(self, DRFA).round(state, SameClients(fed), key)


class SameClients(WrappedFederation):
    def ask(self, request):
        if isinstance(request, TrainRequest):
            self.cohort = request.cohort
        return self.fed.ask(replace(request, cohort=self.cohort))


class TrainedSamples(DRFA):
    """Losses use the samples on which the clients have just trained."""

    def round(self, state, fed, key):
        return right(self, DRFA).round(state, SameKey(fed), key)


class SameKey(WrappedFederation):
    def ask(self, request):
        if isinstance(request, TrainRequest):
            self.key = request.key
        return self.fed.ask(replace(request, key=self.key))


class OneKey(DRFA):
    """Every round draws from the same key."""

    def round(self, state, fed, key):
        return right(self, DRFA).round(state, fed, Key(0))


class SingleMixture(DRFA):
    """λ in float32."""

    def round(self, state, fed, key):
        new, info = right(self, DRFA).round(state._replace(lam=state.lam.double()), fed, key)
        return (state if info.is_empty else new._replace(lam=new.lam.float())), info


class AverageOfTheLast(DRFA):
    """The mean over the round's steps is replaced by the model at the start of the round, which is one round late."""

    def round(self, state, fed, key):
        new, info = right(self, DRFA).round(state, fed, key)
        return new, (info if info.average is None else info._replace(average=state.w))


class PenaltyForgotten(DRFAProx):
    """The dual step projects onto Λ and ignores ψ."""

    def round(self, state, fed, key):
        return right(self, DRFAProx, ambiguity=Projecting(self.ambiguity)).round(state, fed, key)


class Projecting(NamedTuple):
    inner: AmbiguitySet
    penalised: bool = False

    def project(self, v):
        return self.inner.project(v)

    def prox(self, v, step):
        return self.inner.project(v)


class Promoted(AFL):
    """λ in float64 promotes the mean over the round's steps to float64."""

    def round(self, state, fed, key):
        new, info = right(self, AFL).round(state, fed, key)
        return new, (info if info.average is None else info._replace(average=info.average.double()))


class InPlace(DRFA):
    """λ is modified in place, which changes the given state."""

    def round(self, state, fed, key):
        new, info = right(self, DRFA).round(state, fed, key)
        state.lam.copy_(new.lam)
        return new._replace(lam=state.lam), info


class ByThreads(AFL):
    """Sums are split by the number of threads, and the last part is lost."""

    def round(self, state, fed, key):
        new, info = right(self, AFL).round(state, fed, key)
        threads = torch.get_num_threads()
        return new._replace(w=new.w * (1 + 1e-9 * (threads - 1))), info


class KnowsTheEngine(AFL):
    """The result depends on the class of the backend."""

    def round(self, state, fed, key):
        new, info = right(self, AFL).round(state, fed, key)
        stacked = type(getattr(fed, "engine", None)).__name__ == "Stacked"
        return new._replace(w=new.w * (1 + 1e-6 * stacked)), info


class CacheOnSelf(ScaffPD):
    """The losses of the previous round are stored on the object."""

    def round(self, state, fed, key):
        nothing = torch.zeros(fed.n, dtype=torch.float64)
        kept = state.reports._replace(losses=getattr(self, "losses", nothing))
        new, info = right(self, ScaffPD).round(state._replace(reports=kept), fed, key)
        object.__setattr__(self, "losses", new.reports.losses)
        return (state if info.is_empty else new._replace(reports=new.reports._replace(losses=nothing))), info


class DriftCountedTwice(DRDM):
    """A client that is drawn twice moves its h_i twice."""

    def round(self, state, fed, key):
        new, info = right(self, DRDM).round(state, fed, key)
        if info.is_empty:
            return new, info
        counts = dict(zip(info.cohort.clients.tolist(), info.cohort.counts.tolist(), strict=True))
        again = torch.tensor([float(counts[i] > 1) for i in info.answered.tolist()], dtype=new.h.dtype)
        change = (new.h[info.answered] - state.h[info.answered]) * again[:, None]
        return new._replace(h=new.h.add(info.answered, change)), info


class UniformMean(DRDM):
    """DRDM as published, with the claim that it reaches the saddle point."""


class OldMixture(DualDRDM):
    """c is not recomputed after λ has moved: the h_i are weighted by the first λ."""

    def round(self, state, fed, key):
        new, info = right(self, DualDRDM).round(state, fed, key)
        if info.is_empty:
            return new, info
        stale = torch.full_like(state.lam, 1 / fed.n)
        return new._replace(w=new.w + new.h.mix(state.lam - stale) / self.mu), info


class Uncentred(DualDRDM):
    """The mean of the reports is not subtracted."""

    def round(self, state, fed, key):
        return right(self, DualDRDM, centred=False).round(state, fed, key)


class CentredByReports(DualDRDM):
    """The centred reports are scaled by N/k', as without centring, which is too short by (k'−1)/k'·N/(N−1)."""

    def round(self, state, fed, key):
        return right(self, DualDRDM, centred=False).round(state, LessTheirMean(fed), key)


class LessTheirMean(WrappedFederation):
    def ask(self, request):
        reply = self.fed.ask(request)
        if not isinstance(request, LossRequest) or len(reply.clients) < 2:
            return reply
        return reply._replace(values=reply.values - reply.values.mean())
