"""``python -m drfl`` is the command ``drfl``."""

from drfl.cli import main

main()
