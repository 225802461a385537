"""Numba kernels for the CPU, and XLA's interface for calling them."""
