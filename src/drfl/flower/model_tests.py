"""Test finished models, and a site's own scores, on the site's test rows."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from drfl.core.errors import InputError
from drfl.core.user_code import is_reference
from drfl.data.row_scores import RowScores, products
from drfl.engine import Loop, Simulation
from drfl.experiments.assess.labelled_table import GivenOutputs
from drfl.flower.messages import AnswerTests, AskTests, ModelRecipe, SiteTest
from drfl.flower.site import Site, private_errors
from drfl.flower.site_task import check_same_model, engine_of, score_model
from drfl.task.task import Task

SMALLEST = 1e-12
"""Probabilities are at least this far from 0 and 1, so that log-odds are finite."""


def answer_tests(site: Site, request: AskTests) -> AnswerTests:
    """Test models on a site's test rows, and compare the first with each other row by row.

    Only sums over the rows leave the site, as in the tests of a run.
    """
    if site.threads is not None:
        torch.set_num_threads(site.threads)
    tests, rows, measures = list[SiteTest](), list[RowScores](), ()
    for each in request.models:
        task = site.build_task(each.model)
        check_same_model(each.w, task)
        data = site.data if each.standardisation is None else site.data.standardised(each.standardisation)
        fed = Simulation(data, task, engine=engine_of(each.model.engine, site.device), device=site.device)
        test, scores = score_model(fed, each.w)
        tests.append(test)
        rows.append(scores)
        measures = fed.measures
    own = None
    if site.own_scores is not None:
        with private_errors(site.name, "read its scores"):
            own, scores = _test_scores(site, site.own_scores(), request.models[0].model)
        rows.append(scores)
    both = tuple(
        tuple((first, second) for first, second in products(rows[0], other, measures).tolist()) for other in rows[1:]
    )
    return AnswerTests(tuple(tests), own, both, site.digest)


def _test_scores(site: Site, scores: Tensor, model: ModelRecipe) -> tuple[SiteTest, RowScores]:
    """Test a site's own scores (n,) as if they were the outputs of a model."""
    data, built = site.data, site.build_task(model)
    is_own = is_reference(model.loss) and not data.targets.is_floating_point()
    # Rows whose target the loss ignores are dropped with their scores: both have the same place in the pool.
    pool = torch.zeros(len(data.test_inputs), dtype=torch.float64).index_copy(0, data.test[0], scores)
    if is_own or model.loss in ("cross-entropy", "binary-cross-entropy"):
        outside = (scores < 0) | (scores > 1)
        if bool(outside.any()) or model.classes > 2:
            raise InputError(
                f"column '{site.policy.score_column}' must have the probability of the second of two classes; "
                f"{int(outside.sum())} of its values are not in [0, 1], and the model has {model.classes} outputs",
                code="out-of-range",
                field="score_column",
            )
        odds = torch.logit(pool.clamp(0, 1), SMALLEST)[:, None]
        outputs = odds if model.classes == 1 else torch.cat([torch.zeros_like(odds), odds], 1)
    else:
        outputs = pool[:, None]
    score, *others = built.measures
    task = Task(GivenOutputs(), built.criterion.given, score, tuple(others))
    targets = data.test_targets
    tested = dataclasses.replace(
        data, inputs=outputs, targets=targets, train=data.test, test_inputs=outputs, test_targets=targets,
        columns=None, schema=None, patients=data.patients, validation=None,
    )  # fmt: skip
    return score_model(Simulation(tested, task, engine=Loop()), task.w0)
