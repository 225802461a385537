"""Sums, products, slices and assembly of sparse matrices: the patterns on the host, the values in JAX."""
