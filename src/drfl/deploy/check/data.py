"""Look at a site's data, as the site itself will load them."""

from __future__ import annotations

from collections.abc import Iterator

from drfl.deploy.check.verdict import Verdict, bad, ok
from drfl.deploy.folder import SiteFolder, read_toml
from drfl.errors import DrflError


def settings(site: SiteFolder) -> Iterator[Verdict]:
    """Whether site.toml can be read, and is this site's.

    Raises:
        InputError: it cannot be read.
    """
    name = read_toml(site.settings).get("name")
    if isinstance(name, str) and name:
        yield ok("site.toml", f"is of the site {name}")
    else:
        yield bad("site.toml", 'names no site; give it a line name = "…", as in server.toml')


def data(site: SiteFolder) -> Iterator[Verdict]:
    """Whether the data are there, can be loaded, and of what size and shape they are."""
    from drfl.flower.data import load_site  # brings torch along

    try:
        found = load_site(site.settings)
    except DrflError as error:
        yield bad("data", str(error))
        return
    except Exception as error:  # a site's own loader may fail in any way
        yield bad("data", f"they cannot be loaded, {type(error).__name__}: {error}; correct what {site.settings} names")
        return
    shape = "×".join(map(str, found.inputs.shape[1:])) or "one number"
    kinds = [str(values.dtype).removeprefix("torch.") for values in (found.inputs, found.targets)]
    counts = f"{sum(map(len, found.train)):,} training and {sum(map(len, found.test)):,} test samples"
    yield ok("data", f"{counts}, inputs {kinds[0]} of shape {shape}, targets {kinds[1]}")
