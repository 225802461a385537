"""The backends of kernels: selection, launch, tuning constants, JAX versions, and the two Pallas dialects."""
