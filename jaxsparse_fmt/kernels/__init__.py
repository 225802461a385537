"""Kernels over plain arrays, each with a plain-jnp reference of the same signature.

spmv              A·x by a storage rule; `spmv_cpu`: rows and diagonals on a CPU (Numba)
sddmm             the sampled outer product by a storage rule
row_kernels       the common part of spmv and sddmm: tiles, trips, the choice of blocks
csr5              the product over tiles
coordinates       the same from coordinates alone, in jnp
vector_pass       one pass over vectors for Krylov methods
layout/           where an entry is stored, and how its column is decoded (16-bit and 32-bit indices)
backends/         selection of a backend, launch, tuning constants; the dialects Triton and Mosaic GPU
cpu/              Numba kernels and XLA's interface to them
"""
