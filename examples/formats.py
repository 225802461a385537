"""One matrix in every format: the places and bytes of each, and a check that all give the same product.

    python examples/formats.py FILE.mtx.gz
    python examples/formats.py elasticity 6       a problem of `jsf.gallery` and its numbers

Without arguments the matrix is of a mesh with local refinement. A format that would take memory out of proportion to
the matrix raises an error with the reason.
"""

import sys

import jax
import numpy as np

import jaxsparse_fmt as jsf

jax.config.update("jax_enable_x64", True)


def matrix(name, *numbers):
    """A SciPy matrix from the gallery or a file."""
    if name in jsf.gallery.__all__:
        return getattr(jsf.gallery, name)(*map(int, numbers))
    return jsf.io.read_mtx(name)


S = matrix(*(sys.argv[1:] or ("adaptive_poisson", 3)))
x, first = np.random.default_rng(0).standard_normal(S.shape[1]), None
size = (abs(S) @ abs(x)).max()  # rounding errors are in proportion to this
print(f"{S.shape[0]} × {S.shape[1]}, {S.nnz} entries")
print(f"{'format':8}{'places':>10}{'fill':>7}{'MB':>9}{'difference':>12}")
for name in jsf.FORMATS:
    try:
        A = jsf.from_scipy(S, name)
    except ValueError as refusal:
        print(f"{name:8}{refusal}")
        continue
    y = np.asarray(A @ x)
    first = y if first is None else first
    difference = np.abs(y - first).max() / size
    print(f"{name:8}{A.n_stored:10}{A.fill:7.3f}{A.nbytes / 1e6:9.3f}{difference:12.0e}")
    assert difference < 1e-12, f"{name} disagrees with {next(iter(jsf.FORMATS))}"
