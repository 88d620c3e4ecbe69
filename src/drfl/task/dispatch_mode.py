"""A mode that sees every operation of torch."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """A base class that does not load torch's compiler, which takes over a second."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # With True, torch would wrap __torch_dispatch__ in a function of its compiler.
        return False
