"""``drfl new``: the folder of a small study that runs as it is and that you adapt."""

from drfl.cli.new.project import write

__all__ = ["write"]
