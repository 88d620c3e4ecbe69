"""The site's end of a Flower app."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from pydantic import ValidationError

from drfl.errors import InputError
from drfl.flower.data import load_site
from drfl.flower.schema import PROTOCOL, Identity, note, validation_message
from drfl.flower.site import Site, work
from drfl.flower.site_settings import read_site
from drfl.flower.watchdog import within
from drfl.flower.wire import read_ask, write_answer

IDENTITY = "query.identity"
"""The message that asks a site who it is; the others are "train" and "evaluate"."""

SITE = "site"
"""The key of a SuperNode's --node-config that has the path of the site's file."""


def reply(message: Message, context: Context, site: Site) -> Message:
    """The reply to one of drfl's messages, for those who have a ``ClientApp`` of their own.

    Args:
        message: what came; drfl's server sent it.
        context: of the run; a shift is kept in its state, nothing else.
        site: whose data.

    Raises:
        InputError: the message, the data and the model do not fit each other.
        HungError: it took longer than the site allows.
    """
    ask, shift = read_ask(message.content)
    answer = within(site.timeout, partial(work, site, ask, shift, context.state))
    return Message(write_answer(answer), reply_to=message)


def identity(site: Site) -> RecordDict:
    """What a server must know of a site before it can begin: no sample is in it.

    The digest tells it, with every reply and where a run is resumed, that the data are still the same.

    Raises:
        InputError: the site has no samples, or more of something than a message may say.
    """
    data = site.data
    labels = not data.targets.is_floating_point()
    classes = int(max(data.targets.max(), data.test_targets.max())) + 1 if labels else 1
    about = {
        "protocol": PROTOCOL, "name": site.name, "shape": list(data.inputs.shape[1:]), "classes": classes,
        "train": len(data.train[0]), "test": len(data.test[0]), "digest": site.digest,
        "drfl": importlib.metadata.version("drfl"), "torch": importlib.metadata.version("torch"),
    }  # fmt: skip
    try:
        return RecordDict({"identity": note(Identity.model_validate(about))})
    except ValidationError as error:
        raise InputError(f"the site '{site.name}' cannot take part: {validation_message(error)}") from None


def client_app(load: Callable[[Context], Site]) -> ClientApp:
    """A ``ClientApp`` that answers drfl's server.

    Args:
        load: the site, from what Flower knows of the node; asked once a message.
    """
    found = ClientApp()

    @found.train()
    def train(message: Message, context: Context) -> Message:
        return reply(message, context, load(context))

    @found.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return reply(message, context, load(context))

    @found.query("identity")
    def who(message: Message, context: Context) -> Message:
        return Message(identity(load(context)), reply_to=message)

    return found


def site_of(context: Context) -> Site:
    """The site whose file a SuperNode was started with: ``--node-config 'site="/path/to/site.toml"'``.

    Raises:
        InputError: there is none, or it cannot be used.
    """
    path = context.node_config.get(SITE)
    if path is None:
        raise InputError("this SuperNode names no site: start it with --node-config 'site=\"/path/to/site.toml\"'")
    return _site(Path(str(path)))


@cache
def _site(path: Path) -> Site:
    settings = read_site(path)
    data = within(settings.timeout, partial(load_site, path))
    return Site(settings.name, data, None, settings.timeout, settings.device, settings.threads)


app = client_app(site_of)
"""The ready one."""
