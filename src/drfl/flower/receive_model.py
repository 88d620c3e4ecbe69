"""Receive a model at a site: check it, and store it as the current one."""

from __future__ import annotations

import logging
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from drfl.core.audit_signatures import is_signed
from drfl.data.model_file import read_model_file
from drfl.data.model_store import SUFFIX, ModelStore
from drfl.data.personal_models import has_own_models
from drfl.flower.messages import Delivery, Receipt, SiteIdentity
from drfl.flower.model_description import describe_model
from drfl.flower.site import Site
from drfl.flower.site_methods import SiteStates
from drfl.flower.site_policy import RefusedError

LOG = logging.getLogger("drfl.flower")

FUTURE = timedelta(hours=24)
"""How far the server's clock may be ahead. A model signed in the far future would block all later ones."""


def receive_model(site: Site, delivery: Delivery, about: SiteIdentity) -> Receipt:
    """Store a delivered model, if the site's policy allows it.

    Raises:
        RefusedError: If the policy forbids it, or the signature is not valid.
        InputError: If the model is damaged, older than one received before, or does not fit the site's data.
    """
    policy = site.policy
    if policy.receive_models == "none":
        raise RefusedError("this site receives no models (policy.receive_models)", field="receive_models")
    if policy.receive_models == "signed":
        if site.server_key is None:
            raise RefusedError(
                "this site cannot verify models, because site.toml names no server_key. Set it, or "
                'policy.receive_models = "any"',
                field="server_key",
            )
        if not is_signed(delivery.statement, delivery.signature, site.server_key):
            raise RefusedError(
                "the model is not signed with the server's key (server_key)", code="bad-signature", field="signature"
            )
    if datetime.fromisoformat(delivery.signed) > datetime.now(UTC) + FUTURE:
        raise RefusedError(
            f"the model was signed in the future ({delivery.signed}). Check the clocks of the server and this site",
            field="signed",
        )
    # The reader of model files maps a file instead of reading bytes.
    with tempfile.NamedTemporaryFile(suffix=SUFFIX) as file:
        file.write(delivery.model)
        file.flush()
        content = read_model_file(Path(file.name))
        model = describe_model(content, name="the model", approved=policy.code.values())
        model.check_fits(about, site.name)
        own = (
            SiteStates(site.folder, site.name).own_model_of(content.weights) if has_own_models(content.about) else None
        )
    is_new = ModelStore(site.folder / policy.models).add(delivery.model, delivery.signed, own)
    digest = delivery.sha256
    LOG.info("%s: model %s is %s", site.name, digest[:16], "now the current one" if is_new else "the current one")
    return Receipt(digest, is_new)
