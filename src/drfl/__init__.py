"""Distributionally robust federated learning: min_w max_{λ∈Λ} Σ_i λ_i f_i(w) over clients that keep their data.

Names are imported lazily: ``import drfl`` alone loads neither torch nor any other package.

Example:
    >>> import torch, drfl
    >>> x, y = torch.randn(3, 40, 5), torch.randint(0, 2, (3, 40))
    >>> data = drfl.ClientData.from_arrays(list(zip(x, y)))
    >>> fed = drfl.Simulation(data, drfl.Task(torch.nn.Linear(5, 2)))
    >>> result = drfl.run(drfl.DRFA(m=2), fed, rounds=3)
    >>> result.history.last.round
    3
"""

from __future__ import annotations

# The stub __init__.pyi is the only list of public names. Each line reads `from MODULE import NAME as NAME`. A trailing
# `# module` marks a module that is an attribute of drfl and that `from drfl import *` does not import.
_LINES = [line.split() for line in __spec__.loader.get_data(f"{__file__}i").decode().splitlines()]
_NAMES = {words[3]: words[1] for words in _LINES if words[:1] == ["from"] and words[-1] != "module"}
_MODULES = {words[3]: f"{words[1]}.{words[3]}" for words in _LINES if words[-1:] == ["module"]}

__all__ = sorted(_NAMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    """Import a public name or module when it is first used."""
    from importlib import import_module

    if name in _MODULES:
        value = import_module(_MODULES[name])
    elif name in _NAMES:
        module = import_module(_NAMES[name])
        value = getattr(module, name) if hasattr(module, name) else import_module(f"{_NAMES[name]}.{name}")
    else:
        from difflib import get_close_matches

        by_lower = {known.lower(): known for known in {**_NAMES, **_MODULES}}
        near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.75)
        hint = f". Did you mean '{by_lower[near[0]]}'?" if near else ""
        raise AttributeError(f"module 'drfl' has no attribute '{name}'{hint}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the names that are loaded and those that can be."""
    return sorted({*globals(), *_NAMES, *_MODULES})
