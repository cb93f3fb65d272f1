"""Measurements. `python -m benchmarks.kernel` prints the figures of the kernel."""
