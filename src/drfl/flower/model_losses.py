"""Compute sums of the losses of models on a site's validation rows, from which the server chooses a model."""

from __future__ import annotations

import torch

from drfl.engine import Simulation
from drfl.experiments.fit.validation_rows import SimulatedRows, scored_by_loss
from drfl.flower.messages import AnswerLosses, AskLosses, LossSums
from drfl.flower.site import Site
from drfl.flower.site_task import check_same_model, engine_of


def answer_losses(site: Site, request: AskLosses) -> AnswerLosses:
    """Compute the losses of models on a site's validation rows, of which only sums leave the site."""
    if site.threads is not None:
        torch.set_num_threads(site.threads)
    task = scored_by_loss(site.build_task(request.model) if site.task is None else site.task)
    for model in request.models:
        check_same_model(model, task)
    data = site.data if request.standardisation is None else site.data.standardised(request.standardisation)
    engine = engine_of(request.model.engine, site.device)
    rows = SimulatedRows(Simulation(request.holdout.apply(data), task, engine=engine, device=site.device))
    compared = rows.compare(request.models)
    first = compared.losses[0]
    losses, gains = (
        tuple(LossSums(float(each.mean[0]), float(each.squares[0]), float(each.cross[0])) for each in moments)
        for moments in compared
    )
    return AnswerLosses(int(first.rows[0]), int(first.units[0]), float(first.sizes[0]), losses, gains, site.digest)
