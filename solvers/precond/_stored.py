"""Levels of multigrid in their formats, on one device."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from jaxsparse_fmt._tracing import concrete, is_concrete
from jaxsparse_fmt.convert import from_scipy
from jaxsparse_fmt.core.matrix import SparseMatrix
from solvers.precond import _checks as checks
from solvers.precond import _device_hierarchy
from solvers.precond._cycles import Level, recurrence

LONG = 8  # times the mean: longer rows delay csr's product


def large_levels(
    A: Any, B: Any, theta: float, most: int, degree: int, dtype: Any, kept: Sequence[Level] | None = None
) -> Any:
    """As `_device_hierarchy.large_levels`, in their formats.

    Args:
      kept: levels whose R and P stay.
    """

    def keep(made: _device_hierarchy.Made, k: int) -> Level:
        S, R, P, inverse = made.arrays()
        check_fits(made.largest, dtype, k)
        return on_device(Level(S, R, P, inverse, recurrence(degree, made.upper)), A, dtype, k, kept)

    with concrete(), jax.enable_x64(True):  # in float64, as on the host
        return _device_hierarchy.large_levels(A, B, theta, most, keep, kept)


def beside(A: Any, levels: tuple[Level, ...]) -> tuple[Level, ...]:
    """The levels on the devices to which A is committed whole."""
    values: Any = getattr(A, "values", None)
    if not is_concrete(values) or not values.committed or not values.sharding.is_fully_replicated:
        return levels
    with concrete():
        return jax.device_put(levels, values.sharding)


def check_fits(largest: tuple[float, float], dtype: Any, k: int) -> None:
    """Refuses level k if the dtype cannot hold the `largest` values of its matrix and its inverse diagonal."""
    checks.fits(largest[0], dtype, f"level {k}")
    checks.fits(largest[1], dtype, f"the inverse diagonal of level {k}")


def on_device(step: Level, users: Any, dtype: Any, k: int, kept: Sequence[Level] | None = None) -> Level:
    """Level k on the device, from one with matrices of SciPy, or with CSR on the device.

    Args:
      users: their matrix, which serves as the finest level itself if it is ours and sorts no rows.
      kept: levels whose R and P stay.
    """
    wide = jnp.promote_types(dtype, jnp.float32)

    def store(S: Any, format: str | None = None) -> SparseMatrix:
        format = format or format_of(S)
        if isinstance(S, SparseMatrix):
            S = S if S.dtype == dtype else S.astype(dtype)
            return S if S.name == format else S.asformat(format)
        return from_scipy(scipy.sparse.csr_array(S), format, dtype)

    serves = k == 0 and isinstance(users, SparseMatrix) and users.basis.perm is None
    A = users if serves else store(step.A, None if k else "auto")
    A = A if A.dtype == dtype else A.astype(dtype)
    R, P = (kept[k].R, kept[k].P) if kept else map(store, (step.R, step.P))
    narrow = jnp.finfo(wide).dtype
    d = jnp.asarray(step.inverse_diagonal, wide if step.inverse_diagonal.dtype.kind == "c" else narrow)
    return Level(A, R, P, d, jnp.asarray(step.recurrence, narrow))


def format_of(S: Any) -> str:
    """csr if its product is about as fast as any: no blocks, no long rows. A choice would take longer."""
    if jax.default_backend() == "cpu":
        return "csr"
    lengths = np.diff(np.asarray((S.csr_arrays() if isinstance(S, SparseMatrix) else S).indptr))
    return "csr" if getattr(S, "blocksize", (1, 1)) == (1, 1) and lengths.max() <= LONG * lengths.mean() else "auto"
