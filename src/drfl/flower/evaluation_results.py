"""The results of testing finished models at the sites: intervals, comparisons row by row, and their files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from drfl.core.csv_cells import csv_text
from drfl.core.errors import DrflError
from drfl.core.files import sha256_of
from drfl.experiments.run.artifacts import exact_text, json_text, sum_columns
from drfl.federation.federation import Evaluation
from drfl.flower.deploy.paths import EVALUATION_FILE
from drfl.flower.deployed_federation import combined
from drfl.flower.messages import AnswerTests, Products, SiteTest
from drfl.flower.model_description import DescribedModel
from drfl.flower.possible_tests import are_possible_pairs, is_possible
from drfl.task.measure import Rows
from drfl.task.metrics import Metric
from drfl.training.history import DIGITS, Metrics

if TYPE_CHECKING:
    from drfl.assessment.gains import GainAssessment

OWN_SCORES = "site's own scores"
"""Name of the row for the scores of the sites."""

CLIENTS, PAIRED = "clients.csv", "paired.csv"
"""Files of an evaluation, besides its summary."""


@dataclass(frozen=True, eq=False)
class TestedModel:
    """The tests of one model, or of the sites' own scores.

    Args:
        label: Name of the model in tables.
        names: (N,) names of the sites that tested it.
        evaluation: The results.
        products: (N, M, 2) sums of products with the first model; None for the first model.
    """

    label: str
    names: tuple[str, ...]
    evaluation: Evaluation
    products: Tensor | None


@dataclass(frozen=True, eq=False)
class Evaluations:
    """The tests of all models.

    Args:
        measures: The metrics, the score first.
        tested: The models in their order, then the sites' own scores if a site has any.
        missing: Why the other sites have no results, by name.
    """

    measures: tuple[Metric, ...]
    tested: tuple[TestedModel, ...]
    missing: Mapping[str, str]

    @classmethod
    def of(
        cls,
        models: Sequence[DescribedModel],
        measures: tuple[Metric, ...],
        names: Sequence[str],
        answers: Mapping[int, AnswerTests],
        reasons: Mapping[int, str],
    ) -> Evaluations:
        """Collect the sites' answers; an answer that contradicts itself is not used."""
        missing = {names[client]: reason for client, reason in reasons.items()}
        usable = dict[int, AnswerTests]()
        for client, answer in sorted(answers.items()):
            tests = [*answer.tests, *([] if answer.scores is None else [answer.scores])]
            is_possible_answer = (
                len(answer.tests) == len(models)
                and all(is_possible(test, measures) for test in tests)
                and all(
                    are_possible_pairs(tests[0], test, both, measures)
                    for test, both in zip(tests[1:], answer.products, strict=True)
                )
            )
            if is_possible_answer:
                usable[client] = answer
            else:
                missing[names[client]] = "its results contradict themselves"
        if not usable:
            raise DrflError(
                "no site has tested the models: " + "; ".join(f"{name}: {reason}" for name, reason in missing.items()),
                code="site-untested",
            )
        # Runs give their models the same file name.
        labels = [model.path.name for model in models]
        if len(set(labels)) < len(labels):
            labels = [f"{i}: {model.path.parent.name}/{model.path.name}" for i, model in enumerate(models, 1)]
        tested = []
        for i in range(len(models)):
            parts = {
                names[client]: (answer.tests[i], None if i == 0 else answer.products[i - 1])
                for client, answer in usable.items()
            }
            tested.append(_collect(labels[i], parts))
        own = {
            names[client]: (answer.scores, answer.products[-1])
            for client, answer in usable.items()
            if answer.scores is not None
        }
        if own:
            tested.append(_collect(OWN_SCORES, own))
        return cls(measures, tuple(tested), missing)

    def gain(self, tested: TestedModel) -> GainAssessment | None:
        """Compare a model with the first one at the sites that tested both; None if the score has no rows to pair."""
        from drfl.assessment.gains import assess_gain  # scipy takes a while to load

        score, first = self.measures[0], self.tested[0]
        if tested.products is None or not score.rows.paired:
            return None
        places = [first.names.index(name) for name in tested.names]
        one, other = first.evaluation.sums, tested.evaluation.sums
        assert one is not None
        assert other is not None
        sums = (each.numpy() for each in (one[places, 0], other[:, 0], tested.products[:, 0]))
        return assess_gain(score, tested.names, *sums)


def _collect(label: str, parts: Mapping[str, tuple[SiteTest, Products | None]]) -> TestedModel:
    evaluation = combined([test for test, _ in parts.values()])
    products = [both for _, both in parts.values() if both is not None]
    return TestedModel(
        label, tuple(parts), evaluation, torch.tensor(products, dtype=torch.float64) if products else None
    )


def evaluation_files(evaluations: Evaluations, models: Sequence[Path]) -> dict[str, str]:
    """Return the files of an evaluation, text by name."""
    from drfl.assessment.assess_evaluation import client_intervals, worst_interval  # scipy takes a while to load

    score, measures = evaluations.measures[0], evaluations.measures
    summaries, rows, gains = list[dict[str, object]](), list[Sequence[object]](), list[dict[str, object]]()
    columns: tuple[str, ...] = ()
    for i, tested in enumerate(evaluations.tested):
        evaluation = tested.evaluation
        assert evaluation.sums is not None
        low, high = client_intervals(evaluation, score) or ([math.nan] * len(tested.names),) * 2
        interval = worst_interval(evaluation, score)
        others = {m.name: values.tolist() for m, values in zip(measures[1:], evaluation.others, strict=True)}
        sites = [
            {
                "site": name,
                "samples": int(evaluation.samples[k]),
                score.name: float(evaluation.score[k]),
                "low": float(low[k]),
                "high": float(high[k]),
                "loss": float(evaluation.loss[k]),
                **{name: values[k] for name, values in others.items()},
            }
            for k, name in enumerate(tested.names)
        ]
        sums = sum_columns(measures, evaluation.sums)
        columns = ("model", *sites[0], *sums)
        for k, site in enumerate(sites):
            cells = (f"{x:.{DIGITS}f}" if isinstance(x, float) else x for x in site.values())
            rows.append((tested.label, *cells, *(values[k] for values in sums.values())))
        summaries.append(
            {
                "label": tested.label,
                "sha256": sha256_of(models[i]) if i < len(models) else None,
                **Metrics.of(evaluation, score).as_dict(score.name),
                "worst_interval": interval,
                "sites": sites,
            }
        )
        gain = evaluations.gain(tested)
        if gain is not None:
            gains.append(
                {
                    "model": tested.label,
                    "over": evaluations.tested[0].label,
                    "worst": {"low": gain.worst.low, "high": gain.worst.high},
                    "sites": gain.to_frame().rename(columns={"client": "site"}).to_dict("records"),
                    "better": gain.better,
                    "worse": gain.worse,
                }
            )
    summary = {
        "measures": [measure.to_plain() for measure in measures],
        "models": summaries,
        "gains": gains,
        "missing": dict(evaluations.missing),
    }
    paired = _paired_rows(evaluations)
    return {
        CLIENTS: csv_text(columns, rows),
        **({PAIRED: csv_text(PAIRED_COLUMNS, paired)} if paired else {}),
        # Write this file last, because a folder with it is complete.
        EVALUATION_FILE: json_text(summary, indent=2) + "\n",
    }


PAIRED_COLUMNS = ("model", "over", "site", "measure", "both", "only_model", "only_over", "neither")
"""Columns of the table with the numbers of rows that one of two models, both or neither predict correctly."""


def _paired_rows(evaluations: Evaluations) -> list[Sequence[object]]:
    """Return the 2×2 counts of each model and the first, for measures of 0 and 1 per row."""
    first, rows = evaluations.tested[0], list[Sequence[object]]()
    for tested in evaluations.tested[1:]:
        assert tested.products is not None
        assert tested.evaluation.sums is not None
        assert first.evaluation.sums is not None
        for k, name in enumerate(tested.names):
            for j, measure in enumerate(evaluations.measures):
                n, right = tested.evaluation.sums[k, j, :2].tolist()
                over, both = (
                    float(first.evaluation.sums[first.names.index(name), j, 1]),
                    float(tested.products[k, j, 0]),
                )
                if measure.rows is Rows.BINARY and math.isfinite(both):
                    counts = (both, right - both, over - both, n - right - over + both)
                    texts = (exact_text(count, whole=True) for count in counts)
                    rows.append((tested.label, first.label, name, measure.name, *texts))
    return rows
