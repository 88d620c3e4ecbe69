"""Compute a site's answer to a message of a run, with a simulation whose only client is the site."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from drfl.data.row_scores import products
from drfl.engine import Simulation
from drfl.federation.client_table import ClientTable
from drfl.federation.local_method import OwnModels
from drfl.federation.requests import Gradients, Losses, MethodWork, Replies, Request, TrainRequest
from drfl.flower.messages import Answer, Ask, version
from drfl.flower.records import array_of, vector_of
from drfl.flower.site import Site
from drfl.flower.site_methods import SiteStates, load_method
from drfl.flower.site_task import check_same_model, engine_of, score_model

SHIFT_KEY = "drfl.shift"
"""Key of the shift in the memory that Flower gives a client for a run."""


def compute_answer(site: Site, ask: Ask, request: Request | None, memory: RecordDict) -> Answer:
    """Compute the answer to a message.

    The site's ``memory`` of this run may be lost at any time.
    """
    start = time.perf_counter()
    # Flower starts one process per message, and torch would use all cores of the machine in each.
    if site.threads is not None:
        torch.set_num_threads(site.threads)
    task = site.build_task(ask.model) if site.task is None else site.task
    check_same_model(ask.w, task)
    if isinstance(request, TrainRequest) and ask.version:
        # The request has no shift yet. The shift is in the message or in the site's memory.
        shift_row = _shift(ask, memory)
        if shift_row is None:
            return Answer(lacking=True, digest=site.digest)
        request = replace(request, shift=shift_row.unsqueeze(0))
    engine = engine_of(ask.model.engine, site.device)
    # Standardise again for each message, because a site keeps nothing between messages. Simulations use the same code,
    # so that the results are bit-identical.
    data = site.data if ask.standardisation is None else site.data.standardised(ask.standardisation)
    # With first=ask.client, the only client of this process draws the same samples as client `ask.client` in a
    # simulation of all clients.
    held = None if ask.holdout is None else ask.holdout.apply(data)
    # Omit validation rows, because one site's rows must not choose the threshold of rates.
    trained = data if held is None else replace(held, validation=None)
    fed = Simulation(trained, task, engine=engine, device=site.device, first=ask.client)
    client = torch.tensor([0])  # the only client of this process, whatever its index in the deployment
    work, w = None, ask.w
    if ask.method is not None:
        method = load_method(ask.method, site.policy, site.folder)
        layout, row = fed.layout_of(method), None
        if layout.size:
            row = SiteStates(site.folder, site.name).read(ask.method.number, w.new_empty(layout.size))[None]
        work = MethodWork(method, layout, row, {each.name: each.values.reshape(each.shape) for each in ask.context})
    if work is not None and ask.own:
        store = None if work.states is None else ClientTable.of(1, client, work.states)
        w = fed.own_models(OwnModels(w, work.method, store))[client][0]
        if ask.keep:
            SiteStates(site.folder, site.name).keep_own_model(task, w, ask.w)
    # The test and the request use the same w, so their order does not matter.
    test = also = both = validation = None
    if ask.validates:
        assert held is not None
        assert held.validation is not None
        tested = replace(
            held, test_inputs=held.inputs, test_targets=held.targets, test=held.validation, validation=None
        )
        validated = Simulation(tested, task, engine=engine, device=site.device)
        validation, _ = score_model(validated, w if ask.also is None else ask.also)
    if ask.test:
        test, rows = score_model(fed, w)
        if ask.also is not None:
            also, other = score_model(fed, ask.also)
            both = tuple((first, second) for first, second in products(rows, other, fed.measures).tolist())
    parts, shift_version = (), ""
    if request is not None:
        request = replace(request, cohort=client)
        if isinstance(request, TrainRequest):
            request = replace(request, work=work)
        parts = _parts(site, request, fed.ask(request))
        if isinstance(request, TrainRequest) and request.shift is not None:
            # DRDM and FedDyn change the shift −h_i by μ(w_i − w), and the server computes the same sum. If the two
            # differ, even in rounding, their versions differ too, and the server sends its shift.
            shift = request.shift[0].add(parts[0] - request.w, alpha=request.prox)
            memory[SHIFT_KEY] = ArrayRecord({"shift": array_of(shift)})
            shift_version = version(shift)
    return Answer(
        parts,
        test,
        gradients=fed.ledger.gradient_evaluations,
        losses=fed.ledger.loss_evaluations,
        seconds=time.perf_counter() - start,
        version=shift_version,
        # Every reply contains the digest, so that the server notices data that change during a run.
        digest=site.digest,
        also=also,
        products=both,
        validation=validation,
    )


def _parts(site: Site, request: Request, reply: Replies | Losses | Gradients) -> tuple[Tensor, ...]:
    """Return what the site sends of its only row of a reply, within the limits of its policy."""
    shorten = site.policy.shorten
    if isinstance(reply, Losses):
        return (reply.values[0],)
    if isinstance(reply, Gradients):
        return shorten(reply.values[0]), reply.losses[0]
    # Parts that the request does not need are None.
    models = tuple(shorten(part[0], request.w) for part in reply.models if part is not None)
    if isinstance(request, TrainRequest) and request.work is not None:
        models = tuple(model[~request.work.layout.private] for model in models)
    # A message is not a model, even if it is as long.
    messages = () if reply.messages is None else (shorten(reply.messages[0]),)
    # The state itself stays at the site.
    row = None if reply.states is None else SiteStates(site.folder, site.name).write(reply.states[0])
    return *models, *(() if row is None else (torch.tensor([row], dtype=torch.float64),)), *messages


def _shift(ask: Ask, memory: RecordDict) -> Tensor | None:
    """Return the shift (d,) that a message refers to; None if it was not sent and the site does not hold it."""
    if ask.shift is not None:
        return ask.shift
    if ask.version == "zero":
        return torch.zeros_like(ask.w)
    if SHIFT_KEY not in memory.array_records:
        return None
    shift = vector_of(memory.array_records[SHIFT_KEY]["shift"])
    # Compare bytes, not rounds: if the server did not use the site's reply, the two hold different shifts.
    return shift if version(shift) == ask.version else None
