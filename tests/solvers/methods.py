"""The registry of methods that the tests of every method run over: plain data."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import solvers

N = 60


@dataclasses.dataclass(frozen=True)
class Case:
    """A method, its options, the kind of matrix that it takes, and its like in SciPy."""

    name: str
    solver: Callable[..., solvers.Solution]
    kind: str  # "definite", "symmetric", "general", or "complex symmetric", definite where it is real
    scipy: Callable[..., Any] | None = None

    def __str__(self) -> str:
        return self.name

    def system(self, seed: int = 0, dtype: Any = np.float64) -> tuple[sp.csr_array, np.ndarray]:
        return matrix(self.kind, seed, dtype), right_hand_side(seed + 1, dtype)


CASES = [
    Case("cg", solvers.cg, "definite", spla.cg),
    Case("cg-one_reduction", functools.partial(solvers.cg, one_reduction=True), "definite", spla.cg),
    Case("fcg", solvers.fcg, "definite", spla.cg),
    Case("minres", solvers.minres, "symmetric", spla.minres),
    Case("bicgstab", solvers.bicgstab, "general", spla.bicgstab),
    Case("gmres", solvers.gmres, "general", spla.gmres),
    Case("gmres-flexible", functools.partial(solvers.gmres, flexible=True, restart=20), "general"),
    Case("idrs", solvers.idrs, "general"),
    Case("cocg", solvers.cocg, "complex symmetric"),
]
REFINED = [
    Case(f"refine-{method}-{dtype}", functools.partial(solvers.refine, method=method, dtype=dtype), kind)
    for method, kind, dtype in [
        ("cg", "definite", "float32"),
        ("cg", "definite", "bfloat16"),
        ("fcg", "definite", "float32"),
        ("minres", "symmetric", "float32"),
        ("bicgstab", "general", "float32"),
        ("gmres", "general", "float32"),
    ]
]


def matrix(kind: str, seed: int = 0, dtype: Any = np.float64, n: int = N) -> sp.csr_array:
    """A random sparse matrix with a condition number of about 30: definite, Hermitian, its own transpose, or none."""
    rng = np.random.default_rng(seed)
    B = sp.random_array((n, n), density=0.05, rng=rng)
    if np.issubdtype(dtype, np.complexfloating):
        B = B + 1j * sp.random_array((n, n), density=0.05, rng=rng)
    if kind == "definite":
        S = B.conj().T @ B + 0.3 * sp.eye_array(n)
    elif kind == "complex symmetric":
        S = B.real.T @ B.real + 0.3 * sp.eye_array(n) + 1j * (B.imag + B.imag.T)
        S = S if np.issubdtype(dtype, np.complexfloating) else S.real
    elif kind == "symmetric":
        S = B + B.conj().T + sp.diags_array(np.where(np.arange(n) % 3 == 0, -2.0, 2.0))
    else:
        S = B + sp.diags_array(1.5 + rng.random(n))
    S = sp.csr_array(S).astype(dtype)
    S.sum_duplicates()
    return S


def right_hand_side(seed: int = 1, dtype: Any = np.float64, columns: tuple[int, ...] = ()) -> np.ndarray:
    rng = np.random.default_rng(seed)
    b = rng.standard_normal((N, *columns))
    if np.issubdtype(dtype, np.complexfloating):
        b = b + 1j * rng.standard_normal((N, *columns))
    return b.astype(dtype)


def rotated(d: np.ndarray, seed: int = 0) -> np.ndarray:
    """A dense symmetric matrix with the eigenvalues d."""
    Q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((d.size, d.size)))
    A = (Q * d) @ Q.T
    return (A + A.T) / 2


def neumann(n: int) -> sp.csr_array:
    """The Laplacian of a path of n points: constants are its null space."""
    ends = np.isin(np.arange(n), (0, n - 1))
    return sp.csr_array(sp.diags_array([-1.0, 2.0 - ends, -1.0], offsets=[-1, 0, 1], shape=(n, n)))
