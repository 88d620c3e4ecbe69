"""Deployments over Flower: write the folder, check it, run it. This package runs Flower's programs as subprocesses."""
