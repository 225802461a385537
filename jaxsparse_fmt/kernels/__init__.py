"""Pallas kernels over plain arrays, each beside a plain-jnp reference with the same signature."""
