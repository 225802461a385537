"""Factors by libraries that run inside XLA's programs: CHOLMOD and KLU on a CPU, cuDSS on NVIDIA GPUs.

sparsax calls CHOLMOD and KLU, and spineax cuDSS. Both keep the analysis of a pattern, and sparsax the factors of values
that it has seen, so that new values are factored once, and no Python runs between.
"""

import dataclasses
import importlib.util
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsparse_fmt._arguments import check_choice
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._tracing import concrete, is_on_cpu
from solvers.core import arguments
from solvers.host import hosted
from solvers.precond import _checks as checks
from solvers.solution import SolverError, Status

LIBRARIES = {"cholmod": ("sparsax", "direct"), "klu": ("sparsax", "direct"), "cudss": ("spineax", "cudss")}
HEAVY = 1e9  # multiplications, of about a second, for which "auto" takes CHOLMOD


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class LibraryFactors:
    """Factors that a library keeps.

    Attributes:
      row, col, values: [nnz], A's entries by row.
      token: cuDSS's name of the factors; the others find theirs by the values.
    """

    row: Array
    col: Array
    values: Array
    token: Any
    n: int = dataclasses.field(metadata={"static": True})
    library: str = dataclasses.field(metadata={"static": True})

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def T(self) -> Self:
        if self.library == "cholmod":
            return self
        by_column = jnp.lexsort((self.row, self.col))
        row, col, values = (a[by_column] for a in (self.col, self.row, self.values))
        return dataclasses.replace(
            self, row=row, col=col, values=values, token=_token(self.library, self.n, row, col, values)
        )

    def solve(self, r: Array) -> Array:
        """For r of [n] or [n, k]; without derivatives."""
        if jnp.iscomplexobj(r) and not jnp.iscomplexobj(self.values):
            return lax.complex(self.solve(r.real), self.solve(r.imag))
        if self.library == "cudss":
            from spineax import cudss  # pyright: ignore[reportMissingImports]

            columns = r.astype(self.dtype).reshape(self.n, -1).T
            return lax.map(lambda c: cudss.solve(self.token, c), columns).T.reshape(r.shape)
        import sparsax  # pyright: ignore[reportMissingImports]

        solve = sparsax.solve if self.library == "cholmod" else sparsax.lu_solve
        return solve(self.row, self.col, self.values.astype(np.float64), r.astype(np.float64)).astype(r.dtype)


def _token(library: str, n: int, row: Array, col: Array, values: Array) -> Any:
    if library != "cudss":
        return None
    from spineax import cudss  # pyright: ignore[reportMissingImports]

    ptr = jnp.searchsorted(row, jnp.arange(n + 1, dtype=row.dtype)).astype(jnp.int32)
    return cudss.factorize(cudss.analyze(values, ptr, col, mtype_id="general", mview_id="full"), values)


def choice(backend: str, A: Any, maker: str) -> str:
    """The library that factors A, or "superlu". Errors as of `factorized`."""
    check_choice("backend", backend, ("auto", "superlu", *LIBRARIES))
    if backend == "auto":
        return _suited(A)
    if backend == "superlu":
        return backend
    module, extra = LIBRARIES[backend]
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(
            f"{maker}: backend={backend!r} needs {module}; pip install 'jaxsparse[{extra}]', or take backend='superlu'"
        )
    if backend != "cudss" and not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError(f"{maker}: backend={backend!r} computes in float64; set JAX_ENABLE_X64=1, or take 'superlu'")
    if backend != "cudss" and jnp.issubdtype(A.dtype, jnp.complexfloating):
        raise TypeError(f"{maker}: backend={backend!r} takes real matrices, and A is {A.dtype}; take 'superlu'")
    return backend


def _suited(A: Any) -> str:
    """CHOLMOD for large matrices on a CPU whose values are known, and which may be positive definite."""
    ours = hasattr(A, "entries") and getattr(A, "name", "") != "sharded" and not arguments.is_traced(A)
    if not ours or A.dtype != np.float64 or A.shape[0] != A.shape[1] or importlib.util.find_spec("sparsax") is None:
        return "superlu"
    if A.shape[0] ** 3 < HEAVY or not is_on_cpu(jax.tree.leaves(A)[0]):
        return "superlu"
    host = hosted(A)
    suits = host.finite and host.symmetric and np.all(host.diagonal > 0) and host.envelope[1] > HEAVY  # from above
    return "cholmod" if suits and host.factor_work > HEAVY else "superlu"


def made(A: Any, library: str, maker: str) -> LibraryFactors:
    """The factors of a matrix by a library.

    Raises:
      SolverError: CHOLMOD, and the values are known, and not those of a symmetric positive definite matrix. ValueError:
        they are known, and the factors do not fit into the memory. Of traced values CHOLMOD raises an error at run
        time, and KLU of singular ones.
    """
    if checks.is_transpose(A):
        return made(A.T, library, maker).T
    if arguments.is_traced(A):
        return _of_entries(A, library)
    host = hosted(A)
    if not host.finite:
        raise SolverError(Status.NON_FINITE, f"{maker} needs finite entries, and A has a NaN or an infinity")
    host.check_memory()
    if library == "cholmod" and not host.symmetric:
        raise SolverError(Status.NOT_SYMMETRIC, f"{maker}: backend='cholmod' needs a symmetric A; take 'klu'")
    with concrete():  # inside jit, too, so that a failure is seen while another library may follow
        F = _of_entries(A, library)
        if library in ("cholmod", "klu"):
            _try(F, maker)
    return F


def _of_entries(A: Any, library: str) -> LibraryFactors:
    values = lax.stop_gradient(A.data).astype(jnp.promote_types(A.dtype, jnp.float32))
    row, col, n = A.row_ids, A.col_ids, A.shape[0]
    return LibraryFactors(row, col, values, _token(library, n, row, col, values), n, library)


def _try(F: LibraryFactors, maker: str) -> None:
    """Factors, which the library keeps for the solves."""
    import sparsax  # pyright: ignore[reportMissingImports]

    factor = sparsax.logdet if F.library == "cholmod" else sparsax.lu_logdet
    try:
        jax.block_until_ready(factor(F.row, F.col, F.values.astype(np.float64), F.n))
    except (RuntimeError, ValueError) as error:
        status = Status.NOT_POSITIVE_DEFINITE if F.library == "cholmod" else Status.SINGULAR
        raise SolverError(status, f"{maker}: {error}; {status.message}") from None
