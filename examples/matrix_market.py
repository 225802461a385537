"""A matrix file in, a solution out, from Python; `jaxsparse solve FILE` does the same from a shell.

    python examples/matrix_market.py FILE.mtx.gz [FORMAT]

Without a file it writes a small one first.
"""

import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

import jaxsparse_fmt as jsf
from solvers import cg, precond

jax.config.update("jax_enable_x64", True)

if len(sys.argv) > 1:
    path = Path(sys.argv[1])
else:
    path = Path(tempfile.mkdtemp()) / "poisson.mtx.gz"
    jsf.io.write_mtx(path, jsf.gallery.poisson(20))

A = jsf.read_mtx(path, *sys.argv[2:3])
print(A)
b = A @ np.ones(A.shape[1])
solution = cg(A, b, M=precond.jacobi(A), rtol=1e-10).raise_for_status()
print(solution)
print(f"largest error against the known solution: {np.abs(solution.x - 1).max():.1e}")
