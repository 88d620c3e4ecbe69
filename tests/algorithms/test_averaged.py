"""Test the averaged iterate.

It is the mean of the virtual global models over all local steps, for any participation. SCAFF-PD instead averages the
models and client weights after each round, weighted by σ_r.
"""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from tests.support.marks import crossed, long_except
from tests.support.refusals import refused

from drfl.algorithms import (
    AFL,
    DRDM,
    DRFA,
    DRFAGA,
    SCAFFOLD,
    DeltaFL,
    DualDRDM,
    FedAvg,
    FedDyn,
    FedProx,
    QFedAvg,
    ScaffPD,
)
from drfl.core.key import Key
from drfl.optim.local import LocalSGD
from drfl.testing import DropoutFederation, QuadraticFederation
from drfl.testing.problems import curved_quadratics
from drfl.training.loop import run

FULL = {"dual_batch": None, "gamma": 0.01}
METHODS = {
    "FedAvg": FedAvg(m=3),
    "FedProx": FedProx(m=3),
    "DeltaFL": DeltaFL(m=4),
    "SCAFFOLD": SCAFFOLD(m=3, server_lr=0.6),
    "FedDyn": FedDyn(m=3, mu=3.0),
    "AFL": AFL(**FULL),
    "DRFA": DRFA(m=4, **FULL),
    "DRFAGA": DRFAGA(m=4, gamma=0.01),
    "DRDM": DRDM(m=4, mu=3.0, **FULL),
    "DualDRDM": DualDRDM(m=4, mu=3.0, **FULL),
}
KEPT = ("FedAvg", "FedDyn", "DRFA", "DualDRDM")
LOSSES = {"everybody answers": (), "two do not train": (1, 4), "nobody trains": range(6)}


@pytest.mark.parametrize(
    ("method", "momentum", "silent"), crossed(long_except(KEPT, METHODS.values(), METHODS), [0.0, 0.6], LOSSES)
)
def test_average_is_the_mean_over_local_steps(method, momentum, silent):
    """A round of t steps ends at the model that a round of four steps from the same state has after t steps."""
    f = curved_quadratics().functions
    whole = QuadraticFederation(f.hessians, f.linear, f.losses(torch.zeros(f.d, dtype=torch.float64)))
    fed, local = (
        DropoutFederation(whole, train=silent),
        LocalSGD(steps=4, lr=0.02, batch=None, momentum=momentum, weight_decay=0.1),
    )
    algorithm = dataclasses.replace(method, local=local)
    steps, models, mixtures = [], [], []
    average = run(algorithm, fed, rounds=4, seed=3, averaged=True, callbacks=[steps.append]).average
    for before, step in itertools.pairwise(steps):
        if step.info.is_empty:
            continue
        for t in range(1, 5):
            shorter = dataclasses.replace(algorithm, local=dataclasses.replace(local, steps=t))
            models.append(shorter.round(before.state, fed, Key(3).fold("round", step.round))[0].w)
        mixtures.append(before.row.lam)
    assert int(average.rounds) == len(mixtures)
    if mixtures:
        torch.testing.assert_close(average.w, torch.stack(models).mean(0), rtol=0, atol=1e-13)
        torch.testing.assert_close(average.lam, torch.stack(mixtures).mean(0), rtol=0, atol=1e-13)


@pytest.mark.parametrize("silent", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("options", [{}, {"mu": 5.0}, {"mu": 5.0, "m": 4, "server_lr": 0.6}], ids=str)
def test_scaffpd_averages_its_iterates_by_the_paper(options, silent):
    """E.40 averages x^{r+1} and λ^{r+1} as in E.39; the weight t_r = σ_r/σ_0 grows by 1/θ per round."""
    f = curved_quadratics().functions
    whole = QuadraticFederation(f.hessians, f.linear, f.losses(torch.zeros(f.d, dtype=torch.float64)))
    local, steps = LocalSGD(steps=4, lr=0.02, batch=None, weight_decay=0.1), []
    fed, algorithm = DropoutFederation(whole, train=silent), ScaffPD(sigma=0.02, local=local, **options)
    average = run(algorithm, fed, rounds=5, averaged=True, callbacks=[steps.append]).average
    t = [1.0]
    for step in steps[1:-1]:
        t.append(t[-1] / float(step.state.theta))
    assert (t[-1] > 1.1) == ("mu" in options)
    t = torch.tensor(t, dtype=torch.float64)
    for part in ("w", "lam"):
        iterates = torch.stack([getattr(step.state, part) for step in steps[1:]])
        torch.testing.assert_close(getattr(average, part), t @ iterates / t.sum(), rtol=0, atol=1e-13)


def test_qfedavg_has_no_mean_of_local_models():
    """Its step is not affine in the local models."""
    f = curved_quadratics().functions
    fed = QuadraticFederation(f.hessians, f.linear, f.losses(torch.zeros(f.d, dtype=torch.float64)))
    with refused("no-average", "averaged", "QFedAvg"):
        run(QFedAvg(), fed, rounds=1, averaged=True)
