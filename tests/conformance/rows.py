"""The claims of each algorithm of the registry, one row each, for the conformance suite and the mutation tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from tests.conformance import references
from tests.support.hidden import Hidden, HiddenBatchNorm

from drfl.algorithms import (
    AFL,
    DRDM,
    DRFA,
    DRFAGA,
    MIME,
    MOON,
    SCAFFOLD,
    TERM,
    AAggFFS,
    DeltaFL,
    Ditto,
    DRFAProx,
    DualDRDM,
    FedAvg,
    FedBN,
    FedDyn,
    FedLC,
    FedMGDAPlus,
    FedNova,
    FedProx,
    FedRep,
    FGDROKLAdam,
    PropFair,
    QFedAvg,
    ScaffPD,
)
from drfl.ambiguity import ChiSquareBall, CVaR
from drfl.federation import sampling
from drfl.federation.algorithm import Algorithm
from drfl.optim.local import LocalSGD
from drfl.testing import (
    AVERAGE,
    Q_FAIR,
    SADDLE,
    WEIGHTED,
    Reduction,
    Reference,
    Solves,
    Subject,
    ToyProblem,
    also_sampled,
    least_squares,
    subject_of,
)
from drfl.testing.convergence import losses_at, stationary

ONE, FOUR = LocalSGD(steps=1, lr=0.1), LocalSGD(steps=4, lr=0.1)
NOISY = LocalSGD(steps=2, lr=0.1, batch=2)


class Row(NamedTuple):
    """An algorithm's claims; ``reductions`` is called with the algorithm's class."""

    algorithm: Algorithm
    solves: Solves | None
    reference: Reference
    reductions: Callable[[type], list[Reduction]] = lambda ours: []
    rounds: int = 500
    tolerance: float = 1e-8
    problem: ToyProblem | None = None

    def subject(self, algorithm: Algorithm | None = None) -> Subject:
        """Return the row's claims about an algorithm, by default the row's own."""
        algorithm = self.algorithm if algorithm is None else algorithm
        return subject_of(
            algorithm,
            solves=self.solves,
            reductions=self.reductions(type(algorithm)),
            reference=self.reference,
            rounds=self.rounds,
            tolerance=self.tolerance,
            problem=self.problem,
        )


def uniform_mixture(ours, **options):
    """With Λ = {uniform}, λ stays uniform, so the run equals one without a dual step."""
    common = {"local": NOISY} | options
    return Reduction(
        "CVaR(1) keeps λ uniform", ours(ambiguity=CVaR(1.0), gamma=0.3, **common), ours(gamma=0.0, **common)
    )


def tilted(fed, algorithm, state):
    """Return the norm of the gradient of (1/t)·log Σ_i p_i e^{t·f_i}."""
    p = algorithm.weights(fed)
    return stationary(fed, state.w, torch.softmax(algorithm.tilt * losses_at(fed, state.w) + p.log(), 0))


def proportional(fed, algorithm, state):
    """Return the norm of the gradient of −Σ_i p_i log(M − f_i)."""
    return stationary(fed, state.w, algorithm.weights(fed) / (algorithm.baseline - losses_at(fed, state.w)))


ROWS = {
    "FedAvg": Row(FedAvg(local=ONE), WEIGHTED, references.fedavg),
    "FedProx": Row(
        FedProx(local=ONE, mu=0.3),
        WEIGHTED,
        references.fedprox,
        lambda ours: [Reduction("mu=0 is FedAvg", ours(m=3, mu=0.0, local=NOISY), FedAvg(m=3, local=NOISY))],
    ),
    "FedNova": Row(
        FedNova(local=ONE),
        WEIGHTED,
        references.fednova,
        lambda ours: [
            Reduction("with steps alike it is FedAvg", ours(m=3, local=NOISY), FedAvg(m=3, local=NOISY)),
        ],
    ),
    "SCAFFOLD": Row(SCAFFOLD(local=FOUR), also_sampled(AVERAGE), references.scaffold),
    "FedDyn": Row(FedDyn(local=FOUR, mu=2.5), also_sampled(AVERAGE), references.feddyn),
    "QFedAvg": Row(
        QFedAvg(local=ONE, q=2.0),
        Q_FAIR,
        references.qfedavg,
        lambda ours: [
            Reduction(
                "q=0 is FedAvg with uniform weights",
                ours(m=3, q=0.0, local=NOISY),
                FedAvg(m=3, by_samples=False, local=NOISY),
            )
        ],
    ),
    "DeltaFL": Row(
        DeltaFL(local=ONE, theta=0.4),
        None,
        references.deltafl,
        lambda ours: [Reduction("theta=0 is FedAvg", ours(m=3, theta=0.0, local=NOISY), FedAvg(m=3, local=NOISY))],
    ),
    "TERM": Row(
        TERM(local=ONE, tilt=2.0),
        Solves("the tilted optimum", tilted),
        references.term,
        lambda ours: [Reduction("tilt=0 is FedAvg", ours(m=3, tilt=0.0, local=NOISY), FedAvg(m=3, local=NOISY))],
    ),
    "PropFair": Row(
        PropFair(local=LocalSGD(steps=1, lr=1.5), baseline=20.0),
        Solves("the proportionally fair optimum", proportional),
        references.propfair,
    ),
    "FedMGDAPlus": Row(FedMGDAPlus(local=ONE, epsilon=0.15, server_lr=0.1), None, references.fedmgda_plus),
    "AAggFFS": Row(AAggFFS(local=ONE), None, references.aaggff_s),
    "AFL": Row(AFL(local=ONE, gamma=0.05), SADDLE, references.afl, lambda ours: [uniform_mixture(ours)]),
    "DRFA": Row(
        DRFA(m=3, local=ONE, gamma=0.05),
        SADDLE,
        references.drfa,
        lambda ours: [
            uniform_mixture(ours, m=3),
            Reduction(
                "with one step and everybody it is AFL with the dual gradient after the step",
                ours(
                    m=5,
                    gamma=0.1,
                    local=LocalSGD(steps=1, lr=0.1, batch=2),
                    dual_batch=2,
                    sampling=sampling.all_clients,
                ),
                AFL(gamma=0.1, local=LocalSGD(steps=1, lr=0.1, batch=2), dual_batch=2, dual_after=True),
            ),
        ],
    ),
    "DRFAProx": Row(
        DRFAProx(m=3, local=ONE, gamma=0.05),
        SADDLE,
        references.drfa,
        lambda ours: [
            uniform_mixture(ours, m=3),
            Reduction(
                "without a penalty it is DRFA",
                ours(m=3, gamma=0.1, local=NOISY, ambiguity=ChiSquareBall(0.2)),
                DRFA(m=3, gamma=0.1, local=NOISY, ambiguity=ChiSquareBall(0.2)),
            ),
        ],
    ),
    "DRFAGA": Row(
        DRFAGA(m=3, local=ONE, gamma=0.05), SADDLE, references.drfaga, lambda ours: [uniform_mixture(ours, m=3)]
    ),
    "ScaffPD": Row(
        ScaffPD(local=FOUR, sigma=0.05),
        SADDLE,
        references.scaffpd,
        lambda ours: [
            Reduction(
                "CVaR(1) keeps λ uniform",
                ours(local=NOISY, sigma=0.3, ambiguity=CVaR(1.0)),
                ours(local=NOISY, sigma=0.0),
            )
        ],
    ),
    "DRDM": Row(
        DRDM(m=3, local=FOUR, gamma=0.01, mu=2.5),
        AVERAGE,
        references.drdm,
        lambda ours: [uniform_mixture(ours, m=3), without_dual(ours)],
    ),
    "DualDRDM": Row(
        DualDRDM(m=3, local=FOUR, gamma=0.01, mu=2.5),
        SADDLE,
        references.dual_drdm,
        lambda ours: [uniform_mixture(ours, m=3), without_dual(ours)],
    ),
    "Ditto": Row(
        Ditto(local=ONE, lam=0.7),
        WEIGHTED,
        references.ditto,
        lambda ours: [Reduction("the global model is FedAvg's", ours(m=3, local=NOISY), FedAvg(m=3, local=NOISY))],
    ),
    "FedRep": Row(FedRep(local=FOUR, body_steps=2), None, references.fedrep, problem=Hidden()),
    "FedBN": Row(FedBN(local=FOUR), None, references.fedbn, problem=HiddenBatchNorm()),
    "FedLC": Row(FedLC(local=FOUR, tau=0.8), None, references.fedlc, problem=Hidden()),
    "MIME": Row(
        MIME(local=ONE, beta=0.5),
        WEIGHTED,
        references.mime,
        lambda ours: [
            Reduction(
                "beta=0 with one full step is FedAvg",
                ours(beta=0.0, local=LocalSGD(steps=1, lr=0.1, batch=None)),
                FedAvg(local=LocalSGD(steps=1, lr=0.1, batch=None)),
            )
        ],
    ),
    "MOON": Row(
        MOON(local=FOUR, mu=2.0),
        None,
        references.moon,
        lambda ours: [Reduction("mu=0 is FedAvg", ours(m=3, mu=0.0, local=NOISY), FedAvg(m=3, local=NOISY))],
        problem=Hidden(),
    ),
    "FGDROKLAdam": Row(
        FGDROKLAdam(local=FOUR, temperature=2.0, beta2=0.05),
        None,
        references.fgdro_kl_adam,
        problem=least_squares(),
    ),
}


def without_dual(ours):
    """λ stays uniform, so c is the mean of all h_i in both algorithms."""
    return Reduction(
        "with everybody and gamma=0 it is FedDyn",
        ours(m=5, gamma=0.0, mu=2.0, local=NOISY, sampling=sampling.all_clients),
        FedDyn(mu=2.0, local=NOISY),
    )
