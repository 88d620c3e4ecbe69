"""The local step, u ← u − η·(g + shift + prox·(u − w) + weight_decay·u), in place."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from drfl.local import LocalSGD


def rounded(values: list[float], like: Tensor) -> list[float]:
    """Numbers in the models' type: one too large for it is infinite, and the run diverges; torch would refuse it."""
    return torch.tensor(values, dtype=like.dtype).tolist()


class Descent(NamedTuple):
    """A step as u ← u − lr·((fixed + pull·u) + g), where fixed = shift − prox·w is folded once.

    fixed and pull·u are added first: where u = w they cancel, and the model stays where it is. With (1 − lr·pull)·u
    instead, the rounding of that factor would move it a little further in every step.

    Args:
        lr: η.
        pull: prox + weight_decay.
        momentum: β of v ← β·v + direction, u ← u − lr·v.
    """

    lr: float
    pull: float
    momentum: float

    @classmethod
    def of(cls, local: LocalSGD, prox: float, like: Tensor) -> Descent:
        """The numbers of a solver, in the type of the models."""
        lr, pull = rounded([local.lr, prox + local.weight_decay], like)
        return cls(lr, pull, local.momentum)

    def step(self, u: Tensor, g: Tensor, fixed: Tensor | None, velocity: Tensor | None) -> None:
        """Move a parameter u against its gradient g; neither g nor ``fixed`` (None = 0) is written to."""
        rest = fixed
        if self.pull:
            rest = self.pull * u if fixed is None else torch.add(fixed, u, alpha=self.pull)
        if velocity is None:
            if rest is not None:
                u.sub_(rest, alpha=self.lr)
            u.sub_(g, alpha=self.lr)
            return
        velocity.mul_(self.momentum).add_(g)
        if rest is not None:
            velocity.add_(rest)
        u.sub_(velocity, alpha=self.lr)


def fixed_part(w: Tensor, prox: float, shift: Tensor | None) -> Tensor | None:
    """The part of the direction that no step changes, shift − prox·w; None where there is none."""
    if shift is None:
        return -prox * w if prox else None
    return shift - prox * w if prox else shift
