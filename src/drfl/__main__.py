"""Run the ``drfl`` command with ``python -m drfl``."""

from drfl.cli import main

main()
