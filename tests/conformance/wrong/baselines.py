"""SCAFFOLD, FedDyn, q-FedAvg and related algorithms with one mistake each."""

from __future__ import annotations

from dataclasses import replace

import torch
from tests.conformance.wrong.trap import right

from drfl.algorithms import SCAFFOLD, DeltaFL, FedAvg, FedDyn, FedProx, QFedAvg
from drfl.federation.algorithm import Info
from drfl.federation.federation import WrappedFederation
from drfl.federation.requests import Losses, LossRequest, TrainRequest
from drfl.federation.sampling import Cohort


class WrongSCAFFOLD(SCAFFOLD):
    """SCAFFOLD whose controls come from ``slope`` in place of (x − y_i)/(Kη)."""

    def slope(self, right_one):
        return right_one

    def share(self, answered, n):
        return answered / n

    def round(self, state, fed, key):
        new, info = right(self, SCAFFOLD).round(state, fed, key)
        if info.is_empty:
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
    """The mean update of the answering clients is divided by the number of clients that were asked."""

    def round(self, state, fed, key):
        new, info = right(self, SCAFFOLD).round(state, fed, key)
        share = len(info.answered) / len(info.cohort.clients)
        return new._replace(w=state.w + share * (new.w - state.w)), info


class ControlsOfTheAsked(SCAFFOLD):
    """A client that did not answer gets a new control variate from its old model."""

    def round(self, state, fed, key):
        new, info = right(self, SCAFFOLD).round(state, fed, key)
        silent = torch.tensor(
            sorted(set(info.cohort.clients.tolist()) - set(info.answered.tolist())), dtype=torch.int64
        )
        return new._replace(c_i=new.c_i.add(silent, -state.c.expand(len(silent), -1))), info


class NoPull(WrappedFederation):
    def ask(self, request):
        return self.fed.ask(replace(request, prox=0.0) if isinstance(request, TrainRequest) else request)


class PullLost(FedDyn):
    """Half of the penalty has no gradient."""

    def round(self, state, fed, key):
        return right(self, FedDyn).round(state, NoPull(fed), key)


class DecayLost(WrappedFederation):
    def ask(self, request):
        if isinstance(request, TrainRequest):
            request = replace(request, prox=0.0, shift=request.shift - request.prox * request.w)
        return self.fed.ask(request)


class DecayForgotten(FedDyn):
    """Of μ(u − w) only −μw remains, because μu relies on a weight decay that is not set."""

    def round(self, state, fed, key):
        return right(self, FedDyn).round(state, DecayLost(fed), key)


class HistoryOfTheCohort(FedDyn):
    """c is the mean over the cohort, not over all N."""

    def round(self, state, fed, key):
        new, info = right(self, FedDyn).round(state, fed, key)
        if info.is_empty:
            return new, info
        c = new.h[info.answered].mean(0)
        return new._replace(w=new.w + (new.c - c) / self.mu, c=c), info


class HistorySign(FedDyn):
    """w̄ ← mean of the w_i plus c/μ."""

    def round(self, state, fed, key):
        new, info = right(self, FedDyn).round(state, fed, key)
        return (state if info.is_empty else new._replace(w=new.w + 2 * new.c / self.mu)), info


class LossesAfter(WrappedFederation):
    """Every client reports the loss after training."""

    def __init__(self, fed, local) -> None:
        super().__init__(fed)
        self.local = local

    def report(self, before, after):
        return after

    def ask(self, request):
        before = self.fed.ask(request)
        if not isinstance(request, LossRequest):
            return before
        cohort, key = request.cohort, request.key
        up = self.fed.train(cohort, request.w, self.local, key.fold("local"))
        trained = dict(zip(cohort.tolist(), up.w, strict=False))
        values = [
            self.report(value, self.fed.losses(i[None], trained[int(i)], key, batch=request.batch).values.sum())
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
        if info.is_empty:
            return new, info
        F = torch.stack([recorded.reported[i] for i in recorded.up.clients.tolist()])
        L, q = 1 / self.local.lr, self.q
        dw = L * (state.w - recorded.up.w)
        scaled = (F**q)[:, None].to(dw) * dw
        h = q * F ** (q - 1) * scaled.norm(dim=1).double() ** 2 + L * F**q
        return new._replace(w=state.w - scaled.sum(0) / h.sum().to(dw)), info


class Remembering(WrappedFederation):
    def ask(self, request):
        reply = self.fed.ask(request)
        if isinstance(request, LossRequest):
            self.reported = dict(zip(reply.clients.tolist(), reply.values, strict=True))
        elif isinstance(request, TrainRequest):
            self.up = reply
        return reply


class ZeroMeansDefault(FedProx):
    """``mu or 0.1``."""

    def round(self, state, fed, key):
        return right(self, FedProx, mu=self.mu or 0.1).round(state, fed, key)


class WeightsOfTheAsked(FedAvg):
    """Weights are normalised over the clients that were asked."""

    def round(self, state, fed, key):
        new, info = right(self, FedAvg).round(state, fed, key)
        lam = self.weights(fed)
        share = lam[info.answered].sum() / lam[info.cohort.clients].sum()
        return new._replace(w=(share * new.w).to(new.w)), info


class MeanOfNobody(DeltaFL):
    """The mean of no models is NaN."""

    def round(self, state, fed, key):
        new, info = right(self, DeltaFL).round(state, fed, key)
        return (new._replace(w=new.w * float("nan")) if info.is_empty and info.losses is not None else new), info


class SumOfNobody(FedAvg):
    """The sum of no models is zero."""

    def round(self, state, fed, key):
        new, info = right(self, FedAvg).round(state, fed, key)
        return (new._replace(w=torch.zeros_like(new.w)) if info.is_empty else new), info


class TellsWhoWasAsked(FedAvg):
    def round(self, state, fed, key):
        new, info = right(self, FedAvg).round(state, fed, key)
        return new, (info if info.is_empty else Info(info.cohort, info.cohort.clients))


class FirstCountsDouble(FedAvg):
    """A client is treated by its index."""

    def weights(self, fed):
        lam = super().weights(fed).clone()
        lam[0] *= 2
        return lam / lam.sum()


class RowsInCohortOrder(FedDyn):
    """Rows of the replies are assumed to be in cohort order."""

    def round(self, state, fed, key):
        return right(self, FedDyn).round(state, InOrder(fed), key)


class InOrder(WrappedFederation):
    def ask(self, request):
        reply = self.fed.ask(request)
        return reply._replace(clients=reply.clients.sort().values) if isinstance(request, TrainRequest) else reply


class UniformThoughBySamples(FedAvg):
    """The objective is weighted by samples, but the mean is not."""

    def round(self, state, fed, key):
        return right(self, FedAvg, by_samples=False).round(state, fed, key)


class TailOfTheLucky(DeltaFL):
    """The tail with the *smallest* losses trains."""

    def round(self, state, fed, key):
        return right(self, DeltaFL).round(state, Negated(fed), key)


class Negated(WrappedFederation):
    def ask(self, request):
        reply = self.fed.ask(request)
        return reply._replace(values=-reply.values) if isinstance(request, LossRequest) else reply


class CohortWithoutKey(FedAvg):
    """The cohort is drawn by a new generator without a seed."""

    def round(self, state, fed, key):
        rng = torch.Generator()
        rng.seed()
        m = fed.n if self.m is None else self.m
        D = torch.randperm(fed.n, generator=rng)[:m].sort().values
        return self.train_and_average(state, fed, Cohort(D, torch.ones(len(D), dtype=torch.float64)), key.fold("sgd"))
