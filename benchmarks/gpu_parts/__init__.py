"""The parts of benchmarks/gpu.py, in the order in which it runs them."""
