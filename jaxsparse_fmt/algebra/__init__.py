"""Sums, products, slices and assembly of sparse matrices: the patterns where the matrices lie, the values in JAX."""
