"""Deliver a model from the server to the sites, signed with the server's key."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from drfl.core.errors import InputError, Notice
from drfl.experiments.run.artifacts import json_text, run_files
from drfl.experiments.run.finished import FinishedRun
from drfl.flower.ask_once import ask_once
from drfl.flower.client_app import DELIVERY
from drfl.flower.deploy.paths import DELIVERY_FILE, RECEIVED
from drfl.flower.messages import MOST_MODEL_BYTES, Delivery, Receipt
from drfl.flower.records import write
from drfl.flower.session import Session

LOG = logging.getLogger("drfl.flower")


def deliver(session: Session, model: bytes) -> dict[str, str]:
    """Send the sites a model, and log which of them use it now. Without a key it is unsigned, and most sites refuse it.

    Returns:
        The file ``delivery.json``: time and digest of the model, and for each site "received" or the reason why it did
        not receive the model.
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
    message, key = Delivery(model, signed), session.settings.signing_key(session.folder)
    if key is not None:
        message = Delivery(model, signed, key.sign(message.statement))
    # All sites share one encoded message, because the model may have a gigabyte.
    names = session.roster.names
    receipts, reasons = ask_once(session, dict.fromkeys(range(len(names)), write(message)), DELIVERY, Receipt)
    outcome, digest = dict[str, str](), message.sha256
    for client in [client for client, receipt in receipts.items() if receipt.sha256 != digest]:
        reasons[client] = f"it confirmed another model, with the SHA-256 {receipts.pop(client).sha256}"
    for client, name in enumerate(names):
        outcome[name] = RECEIVED if client in receipts else reasons[client]
        if client in reasons:
            text = f"{name} did not receive the model: {reasons[client]}"
            LOG.warning(Notice(text, "model-not-received", name))
    if receipts:
        LOG.info("model delivered to %s", ", ".join(names[client] for client in sorted(receipts)))
    content = {"signed": signed, "sha256": digest, "sites": outcome}
    return {DELIVERY_FILE: json_text(content, indent=2) + "\n"}


def deliver_result(finished: FinishedRun, session: Session) -> dict[str, str]:
    """Deliver the model of a run that reached its end, and return the file about it; none if nothing is delivered."""
    settings = session.settings
    is_wanted = settings.key is not None if settings.deliver is None else settings.deliver
    if not is_wanted or not finished.has_ended or finished.checks.failure is not None:
        return {}
    # Send the bytes of the run's own file, so that its digest is that of the file at the sites.
    model = dict(run_files(finished))["model.safetensors"]
    return deliver(session, model)
