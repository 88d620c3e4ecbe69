"""Deliver a model from the server to the sites, signed with the server's key."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

from flwr.serverapp import Grid

from drfl.core.audit_log import AuditLog
from drfl.core.audit_signatures import SigningKey
from drfl.core.errors import InputError, Notice, listing
from drfl.experiments.run.artifacts import json_text, run_files
from drfl.experiments.run.finished import FinishedRun
from drfl.flower.ask_once import ask_once
from drfl.flower.client_app import DELIVERY, DELIVERY_KIND
from drfl.flower.deploy.paths import DELIVERY_FILE, RECEIVED
from drfl.flower.messages import MOST_MODEL_BYTES, Delivery, Receipt
from drfl.flower.nodes import Roster
from drfl.flower.records import write
from drfl.flower.settings import ServerSettings

LOG = logging.getLogger("drfl.flower")


def deliver(
    grid: Grid, roster: Roster, model: bytes, key: SigningKey | None, timeout: float, audit: AuditLog | None = None
) -> dict[str, object]:
    """Send the sites a model, and log which of them use it now.

    Args:
        grid: Flower's grid.
        roster: Mapping from clients to nodes.
        model: Content of the model file.
        key: Private key of the server; None for an unsigned model, which most sites refuse.
        timeout: Seconds to wait for the sites.
        audit: Audit log of the server; None for no log.

    Returns:
        The content of ``delivery.json``: time and digest of the model, and for each site "received" or the reason why
        it did not receive the model.

    Raises:
        InputError: If the model is too large.
    """
    if len(model) > MOST_MODEL_BYTES:
        raise InputError(
            f"the model has {len(model):,} bytes, and at most {MOST_MODEL_BYTES:,} can be delivered. Copy the file to "
            "the sites yourself, or set deliver = false",
            code="file-too-large",
            field="deliver",
        )
    # The time is part of the signed statement, so that nobody can deliver an older model of the server again.
    signed = datetime.now(UTC).isoformat(timespec="milliseconds")
    message = Delivery(model, signed)
    if key is not None:
        message = Delivery(model, signed, key.sign(message.statement))
    # All sites share one encoded message, because the model may have a gigabyte.
    contents = dict.fromkeys(range(len(roster.names)), write(message))
    receipts, reasons = ask_once(grid, roster, contents, DELIVERY, DELIVERY_KIND, Receipt, timeout, audit)
    outcome: dict[str, str] = {}
    for client, name in enumerate(roster.names):
        outcome[name] = RECEIVED if client in receipts else reasons[client]
        if client in reasons:
            text = f"{name} did not receive the model: {reasons[client]}"
            LOG.warning(Notice(text, "model-not-received", name))
    if receipts:
        LOG.info("model delivered to %s", listing([roster.names[client] for client in sorted(receipts)], "site"))
    return {"signed": signed, "sha256": message.sha256, "sites": outcome}


def deliver_result(
    finished: FinishedRun, settings: ServerSettings, folder: Path, grid: Grid, roster: Roster, audit: AuditLog | None
) -> dict[str, str]:
    """Deliver the model of a run that reached its end, and return the file about it; none if nothing is delivered."""
    is_wanted = settings.key is not None if settings.deliver is None else settings.deliver
    if not is_wanted or not finished.has_ended or finished.checks.failure is not None:
        return {}
    # The bytes of the run's own file, so that its digest is that of the file at the sites.
    model = dict(run_files(finished))["model.safetensors"]
    outcome = deliver(grid, roster, model, settings.signing_key(folder), settings.timeout, audit)
    return {DELIVERY_FILE: json_text(outcome, indent=2) + "\n"}
