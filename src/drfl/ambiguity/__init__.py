"""Ambiguity sets Λ and regularisers ψ: the client weights λ against which a model is robust."""

from __future__ import annotations

from drfl.ambiguity.ambiguity_set import AmbiguitySet, Constraint, WorstCase
from drfl.ambiguity.by_name import AMBIGUITY_SETS, parse
from drfl.ambiguity.chi_square import ChiSquare, ChiSquareBall
from drfl.ambiguity.kl import KL, KLBall
from drfl.ambiguity.simplex import Box, CVaR, Simplex

__all__ = [
    "AMBIGUITY_SETS",
    "KL",
    "AmbiguitySet",
    "Box",
    "CVaR",
    "ChiSquare",
    "ChiSquareBall",
    "Constraint",
    "KLBall",
    "Simplex",
    "WorstCase",
    "parse",
]
