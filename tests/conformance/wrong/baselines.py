"""SCAFFOLD, FedDyn, q-FedAvg and their kin, each with one mistake."""

from __future__ import annotations

import torch
from tests.conformance.wrong.trap import right

from drfl.algorithm import Info
from drfl.algorithms import SCAFFOLD, DeltaFL, FedAvg, FedDyn, FedProx, QFedAvg
from drfl.cohort import Cohort
from drfl.federation import Losses
from drfl.wrapped import WrappedFederation


class WrongSCAFFOLD(SCAFFOLD):
    """SCAFFOLD whose controls come from ``slope`` in place of (x − y_i)/(Kη)."""

    def slope(self, right_one):
        return right_one

    def share(self, answered, n):
        return answered / n

    def round(self, state, fed, key):
        new, info = right(self, SCAFFOLD).round(state, fed, key)
        if info.empty:
            return new, info
        S = info.answered
        change = self.slope(new.c_i[S] - state.c_i[S] + state.c) - state.c
        c = state.c + self.share(len(S), fed.n) * change.mean(0)
        return new._replace(c=c, c_i=state.c_i.add(S, change)), info


class SignFlipped(WrongSCAFFOLD):
    def slope(self, right_one):
        return -right_one


class OneOverEpochs(WrongSCAFFOLD):
    """(x − y_i) divided by the number of epochs, here one, instead of by Kη."""

    def slope(self, right_one):
        return right_one * self.local.steps * self.local.lr


class DecayedRate(WrongSCAFFOLD):
    """The learning rate has been decayed between training and the controls."""

    def slope(self, right_one):
        return right_one / 0.9


class ShareForgotten(WrongSCAFFOLD):
    def share(self, answered, n):
        return 1.0


class DividesByAsked(SCAFFOLD):
    """The mean move of those who answered, divided by the number of those asked."""

    def round(self, state, fed, key):
        new, info = right(self, SCAFFOLD).round(state, fed, key)
        share = len(info.answered) / len(info.cohort.clients)
        return new._replace(w=state.w + share * (new.w - state.w)), info


class ControlsOfTheAsked(SCAFFOLD):
    """A client that was asked and did not answer gets a new control all the same, from its old model."""

    def round(self, state, fed, key):
        new, info = right(self, SCAFFOLD).round(state, fed, key)
        silent = torch.tensor(
            sorted(set(info.cohort.clients.tolist()) - set(info.answered.tolist())), dtype=torch.int64
        )
        return new._replace(c_i=new.c_i.add(silent, -state.c.expand(len(silent), -1))), info


class NoPull(WrappedFederation):
    def train(self, cohort, w, local, key, *, prox=0.0, **options):
        return self.fed.train(cohort, w, local, key, **options)


class PullLost(FedDyn):
    """Half of the penalty is gone: no gradient flows through it."""

    def round(self, state, fed, key):
        return right(self, FedDyn).round(state, NoPull(fed), key)


class DecayLost(WrappedFederation):
    def train(self, cohort, w, local, key, *, prox=0.0, shift, **options):
        return self.fed.train(cohort, w, local, key, shift=shift - prox * w, **options)


class DecayForgotten(FedDyn):
    """Of μ(u − w) only −μw is left: the part μu was to come from a weight decay that nobody set."""

    def round(self, state, fed, key):
        return right(self, FedDyn).round(state, DecayLost(fed), key)


class HistoryOfTheCohort(FedDyn):
    """c is the mean over the cohort, not over all N."""

    def round(self, state, fed, key):
        new, info = right(self, FedDyn).round(state, fed, key)
        if info.empty:
            return new, info
        c = new.h[info.answered].mean(0)
        return new._replace(w=new.w + (new.c - c) / self.mu, c=c), info


class HistorySign(FedDyn):
    """w̄ ← mean of the w_i plus c/μ."""

    def round(self, state, fed, key):
        new, info = right(self, FedDyn).round(state, fed, key)
        return (state if info.empty else new._replace(w=new.w + 2 * new.c / self.mu)), info


class LossesAfter(WrappedFederation):
    """Every client reports the loss of the model that it is about to train."""

    def __init__(self, fed, local) -> None:
        super().__init__(fed)
        self.local = local

    def report(self, before, after):
        return after

    def losses(self, cohort, w, key, *, batch=None):
        before = self.fed.losses(cohort, w, key, batch=batch)
        trained = dict(zip(cohort.tolist(), self.fed.train(cohort, w, self.local, key.fold("local")).w, strict=False))
        values = [
            self.report(value, self.fed.losses(i[None], trained[int(i)], key, batch=batch).values.sum())
            for i, value in zip(before.clients, before.values, strict=True)
            if int(i) in trained
        ]
        known = torch.tensor([i for i in before.clients.tolist() if i in trained], dtype=torch.int64)
        return Losses(known, torch.tensor(values, dtype=torch.float64))


class LossesDuring(LossesAfter):
    def report(self, before, after):
        return (before + after) / 2


class LossAfterTraining(QFedAvg):
    def round(self, state, fed, key):
        return right(self, QFedAvg).round(state, LossesAfter(fed, self.local), key)


class LossDuringTraining(QFedAvg):
    def round(self, state, fed, key):
        return right(self, QFedAvg).round(state, LossesDuring(fed, self.local), key)


class NormOfTheScaled(QFedAvg):
    """h_k holds ‖F_k^q·Δw_k‖² instead of ‖Δw_k‖²."""

    def round(self, state, fed, key):
        recorded = Remembering(fed)
        new, info = right(self, QFedAvg).round(state, recorded, key)
        if info.empty:
            return new, info
        F = torch.stack([recorded.reported[i] for i in recorded.up.clients.tolist()])
        L, q = 1 / self.local.lr, self.q
        dw = L * (state.w - recorded.up.w)
        scaled = (F**q)[:, None].to(dw) * dw
        h = q * F ** (q - 1) * scaled.norm(dim=1).double() ** 2 + L * F**q
        return new._replace(w=state.w - scaled.sum(0) / h.sum().to(dw)), info


class Remembering(WrappedFederation):
    def losses(self, cohort, w, key, *, batch=None):
        f = self.fed.losses(cohort, w, key, batch=batch)
        self.reported = dict(zip(f.clients.tolist(), f.values, strict=True))
        return f

    def train(self, *args, **options):
        self.up = self.fed.train(*args, **options)
        return self.up


class ZeroMeansDefault(FedProx):
    """``mu or 0.1``."""

    def round(self, state, fed, key):
        return right(self, FedProx, mu=self.mu or 0.1).round(state, fed, key)


class WeightsOfTheAsked(FedAvg):
    """Weights that sum to 1 over those who were asked."""

    def round(self, state, fed, key):
        new, info = right(self, FedAvg).round(state, fed, key)
        share = state.lam[info.answered].sum() / state.lam[info.cohort.clients].sum()
        return new._replace(w=(share * new.w).to(new.w)), info


class MeanOfNobody(DeltaFL):
    """The mean of no model at all is NaN."""

    def round(self, state, fed, key):
        new, info = right(self, DeltaFL).round(state, fed, key)
        return (new._replace(w=new.w * float("nan")) if info.empty and info.losses is not None else new), info


class SumOfNobody(FedAvg):
    """Weights times no model at all are zeros."""

    def round(self, state, fed, key):
        new, info = right(self, FedAvg).round(state, fed, key)
        return (new._replace(w=torch.zeros_like(new.w)) if info.empty else new), info


class TellsWhoWasAsked(FedAvg):
    def round(self, state, fed, key):
        new, info = right(self, FedAvg).round(state, fed, key)
        return new, (info if info.empty else Info(info.cohort, info.cohort.clients))


class FirstCountsDouble(FedAvg):
    """A client is treated by its index."""

    def init(self, fed):
        state = super().init(fed)
        lam = state.lam.clone()
        lam[0] *= 2
        return state._replace(lam=lam / lam.sum())


class RowsInCohortOrder(FedDyn):
    """Rows of the replies are taken for the cohort's order."""

    def round(self, state, fed, key):
        return right(self, FedDyn).round(state, InOrder(fed), key)


class InOrder(WrappedFederation):
    def train(self, cohort, *args, **options):
        reply = self.fed.train(cohort, *args, **options)
        return reply._replace(clients=reply.clients.sort().values)


class UniformThoughBySamples(FedAvg):
    """The objective is weighted by samples, the mean is not."""

    def round(self, state, fed, key):
        even = state._replace(lam=torch.full_like(state.lam, 1 / fed.n))
        new, info = right(self, FedAvg).round(even, fed, key)
        return new._replace(lam=state.lam), info


class TailOfTheLucky(DeltaFL):
    """The tail with the *smallest* losses trains."""

    def round(self, state, fed, key):
        return right(self, DeltaFL).round(state, Negated(fed), key)


class Negated(WrappedFederation):
    def losses(self, cohort, w, key, *, batch=None):
        f = self.fed.losses(cohort, w, key, batch=batch)
        return f._replace(values=-f.values)


class CohortWithoutKey(FedAvg):
    """The cohort is drawn by a fresh generator that nobody has seeded."""

    def round(self, state, fed, key):
        rng = torch.Generator()
        rng.seed()
        m = fed.n if self.m is None else self.m
        D = torch.randperm(fed.n, generator=rng)[:m].sort().values
        up = fed.train(D, state.w, self.local, key.fold("sgd"), average=self.averaged)
        return self.mean_of(state, Cohort(D, torch.ones(len(D), dtype=torch.float64)), up)
