"""`drfl new`: the folder of a small study of one's own, which runs as it is."""

from drfl.cli.new.project import write

__all__ = ["write"]
