"""Compare your FedAdam with DRFA and dual DRDM, with your own CNN, AUC and F1, a schedule and early stopping."""

from collections import namedtuple
from dataclasses import dataclass

from torch import nn

import drfl

AdamState = namedtuple("AdamState", "w m v")


@dataclass(frozen=True)
class FedAdam:  # Reddi et al. 2021, algorithm 2
    m: int
    local: drfl.LocalSGD

    def init(self, fed):
        return AdamState(fed.w0, 0 * fed.w0, 0 * fed.w0)

    def round(self, s, fed, key):
        D = drfl.sampling.uniform(fed.n, self.m, key.fold("cohort"))
        up = fed.train(D.clients, s.w, self.local, key.fold("sgd"))
        if not len(up.clients):
            return s, drfl.Info.without_replies(D)
        move = up.w.mean(0) - s.w
        m, v = 0.9 * s.m + 0.1 * move, 0.99 * s.v + 0.01 * move**2
        return AdamState(s.w + 0.03 * m / (v.sqrt() + 1e-3), m, v), drfl.Info(D, up.clients)


def clients(seed):
    parts = drfl.DirichletDrop(clients=10, alpha=0.3)
    return drfl.ClientData.from_dataset(drfl.load("digits"), parts, drfl.Key(seed)).with_validation(0.2)


def task(seed):
    layers = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(288, 10)
    return drfl.Task(drfl.models.without_batch_norm(nn.Sequential(*layers)), score="auc", metrics=("f1", "accuracy"))


local = drfl.LocalSGD(lr=0.2, lr_schedule=drfl.schedules.Cosine(60, final=0.1))
mine = {"FedAdam": FedAdam(5, local), "DRFA": drfl.DRFA(5, local=local), "DualDRDM": drfl.DualDRDM(5, local=local)}
result = drfl.compare(mine, clients, task, rounds=60, select="worst", patience=15, out="runs/own")
print(result.to_markdown())
result.plot("worst", "avg").savefig("runs/own/worst.pdf")
