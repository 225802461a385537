"""Factors: direct solves with new values by each backend, beside SuperLU's two modes, and what determinants cost.

    python -m benchmarks factors --json out.json     a minute or two on a CPU

CPU milliseconds, the least of several calls of one jitted function, each with values that it has not seen. "COLAMD" and
"symmetric" are SciPy's `splu` with a solve, in its default mode and with MMD of A + Aᵀ, SymmetricMode and a threshold
of 0.001. "sparsax" calls CHOLMOD alone. A gradient is that of `logdet` by all entries.
"""

import argparse
import functools
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from benchmarks import report, timing
from benchmarks.report import Row
from solvers import direct, logdet
from solvers.host import THRESHOLD

ROUNDS = 2
SYMMETRIC = {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": THRESHOLD, "options": {"SymmetricMode": True}}


def circuit(n: int) -> sp.csr_array:
    """A resistor network with a few nodes of many branches, as supplies are."""
    rng = np.random.default_rng(0)
    chain = np.arange(n - 1)
    ends = np.append(chain, rng.integers(0, 5, n)), np.append(chain + 1, rng.integers(0, n, n))
    G = sp.coo_array((rng.uniform(0.1, 1, len(ends[0])), ends), shape=(n, n))
    G = sp.csr_array(G + 0.5 * G.T)  # a gain makes it unsymmetric
    return sp.csr_array(sp.diags_array(np.asarray(G.sum(axis=1)) + 0.1) - G)


def milliseconds(f: Callable[[float], Any]) -> float:
    jax.block_until_ready(f(1.0))
    return 1e3 * min(timing.timed(lambda k=k: f(1.5 + k))[2] for k in range(ROUNDS))


def solves(small: bool) -> Iterator[Row]:
    n = 10 if small else 30
    problems = {
        f"Poisson, {10 * n}²": jsf.gallery.poisson(10 * n, dim=2),
        f"Poisson, {n}³": jsf.gallery.poisson(n),
        f"elasticity, {n * 2 // 5}³ × 3": jsf.gallery.elasticity(n * 2 // 5),
        f"convection and diffusion, {n * 2 // 3}³": jsf.gallery.convection_diffusion(n * 2 // 3),
        "circuit": circuit(300 * n),
    }
    has_sparsax = importlib.util.find_spec("sparsax") is not None
    for name, S in problems.items():
        S, b = sp.csr_array(S).astype(np.float64), np.ones(S.shape[0])
        A, column = jsf.from_scipy(S, "csr"), S.tocsc()
        data, definite = jnp.asarray(S.data), abs(S - S.T).max() == 0
        row: Row = {"problem": name, "n": S.shape[0]}
        row["COLAMD"] = milliseconds(lambda s, S=column, b=b: spla.splu(S * s).solve(b))
        row["symmetric"] = milliseconds(lambda s, S=column, b=b: spla.splu(S * s, **SYMMETRIC).solve(b))
        backends = {"superlu": True, "cholmod": has_sparsax and definite, "klu": has_sparsax and name == "circuit"}
        for backend in (name for name, wanted in backends.items() if wanted):
            solve = jax.jit(lambda d, A=A, b=b, backend=backend: direct(A.with_data(d), b, backend=backend).x)
            row[backend] = milliseconds(lambda s, f=solve, d=data: f(s * d))
        if "cholmod" in row:
            import sparsax  # pyright: ignore[reportMissingImports]

            solve = jax.jit(lambda d, A=A, b=b, f=sparsax.solve: f(A.row_ids, A.col_ids, d, b))
            row["sparsax"] = milliseconds(lambda s, f=solve, d=data: f(s * d))
        yield row


def determinants(small: bool) -> Iterator[Row]:
    for n in (20,) if small else (100, 300):
        S = sp.csr_array(jsf.gallery.poisson(n, dim=2) + 0.1 * sp.eye_array(n * n))
        A, data = jsf.from_scipy(S, "csr"), jnp.asarray(S.data)
        f = jax.jit(lambda d, A=A: logdet(A.with_data(d)))
        g = jax.jit(jax.grad(lambda d, A=A: logdet(A.with_data(d))))
        value, gradient = (milliseconds(lambda s, f=f, d=data: f(s * d)) for f in (f, g))
        yield {"problem": f"Poisson, {n}²", "n": n * n, "value": value, "gradient": gradient}


def sections(args: argparse.Namespace, header: dict[str, str]) -> report.Sections:
    return {f.__name__: functools.partial(f, args.small) for f in (solves, determinants)}
