"""Factors by libraries that run inside XLA's programs: CHOLMOD and KLU on a CPU, cuDSS on NVIDIA GPUs.

sparsax has CHOLMOD and KLU; it keeps the analysis of patterns and the factors of the last values, so that new values
are factored once. spineax has cuDSS. A token there names the factors of certain values; the next factorization on its
pattern may take over the analysis, and renames it. Whoever still solves with the old token has its factors made anew.
"""

import dataclasses
import functools
import importlib
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsparse_fmt._arguments import check_choice
from jaxsparse_fmt._caches import Recent
from jaxsparse_fmt._pytrees import pytree
from jaxsparse_fmt._tracing import concrete, device_of, is_traced
from jaxsparse_fmt.core.kept import Kept
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.kernels.cpu import ffi
from jaxsparse_fmt.kernels.layout.address import row_pointers, when_run
from solvers.core import arguments
from solvers.host_calls import HostFactors
from solvers.hosted import hosted
from solvers.solution import SolverError, Status

LIBRARIES = {"cholmod": ("sparsax", "direct"), "klu": ("sparsax", "direct"), "cudss": ("spineax", "cudss")}
PLATFORMS = {"sparsax": "cpu", "spineax": "gpu"}
HEAVY = 1e9  # multiplications, of about a second, for which "auto" takes CHOLMOD
TOKENS = 8  # of cuDSS, whose analyses new values may take over; spineax keeps as many factors
_fitting = Kept(64, "patterns whose factors fit")
_tokens = Recent(TOKENS, "analyses of cuDSS")  # patterns, by the names of tokens


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class LibraryFactors(HostFactors):
    """Factors that the library keeps which is the recipe; A's entries are by row.

    Attributes:
      token: cuDSS's name of the factors; the others find theirs by the values.
      is_symmetric: whether A = Aᵀ.
    """

    token: Any = None
    is_symmetric: bool = dataclasses.field(default=False, metadata={"static": True})
    device: int = dataclasses.field(default=0, metadata={"static": True})  # among this process's

    @property
    def library(self) -> str:
        return self.recipe[0]

    @property
    def T(self) -> "LibraryFactors":
        if self.is_symmetric:
            return self
        transposed = super().T
        if self.library == "klu":
            return transposed
        # cuDSS has no transposed solves.
        row, col = when_run(self.row), when_run(self.col)
        by_column = jnp.lexsort((row, col))
        row, col, values = (a[by_column] for a in (col, row, self.values))
        return _by_cudss(dataclasses.replace(transposed, row=row, col=col, values=values))

    def solve(self, r: Array) -> Array:
        """For r of [n] or [n, k]; without derivatives."""
        if jnp.iscomplexobj(r) and not jnp.iscomplexobj(self.values):
            return lax.complex(self.solve(r.real), self.solve(r.imag))
        if self.library == "cudss":
            from spineax import cudss  # pyright: ignore[reportMissingImports]

            return cudss.solve(self.token, r.astype(self.dtype).T).T
        _check_mode(self.library, "solve")  # which may have changed since the factorization
        solve, attribute = ("solve", "mode") if self.library == "cholmod" else ("lu_solve", "trans")
        call = jax.ffi.ffi_call(_target(solve), jax.ShapeDtypeStruct(r.shape, np.float64), vmap_method="sequential")
        values, options = self.values.astype(np.float64), {attribute: np.int64(self.is_transposed)}
        return call(self.row, self.col, values, r.astype(np.float64), **options).astype(r.dtype)


@functools.cache
def _target(solve: str) -> str:
    """The name for XLA of a solve of sparsax. Its own would end a program with an error where there are no factors."""
    importlib.import_module("sparsax")  # checks its version of JAX
    target = f"jaxsparse_{solve}"
    ffi.register_guarded(target, getattr(importlib.import_module("sparsax_cpp"), f"{solve}_f64_capsule")())
    return target


@jax.jit
def _by_cudss(F: LibraryFactors) -> LibraryFactors:
    """F with the token of its values."""
    from spineax import cudss  # pyright: ignore[reportMissingImports]

    ptr, col = row_pointers(F.row, F.n).astype(jnp.int32), when_run(F.col)
    kind = "symmetric" if F.is_symmetric else "general"
    analyze = functools.partial(cudss.analyze, mtype_id=kind, mview_id="full", device_id=F.device)
    facts = F.n, F.values.size, F.dtype, F.is_symmetric, F.is_transposed, F.device

    def taken(words: Any) -> np.ndarray:
        digest = np.asarray(words)[..., :4]
        return np.full((*digest.shape[:-1], 1), _taken((facts, digest.tobytes())), np.int32)

    def kept(words: Any) -> np.ndarray:
        digest, name = np.split(np.asarray(words), [4], axis=-1)
        _tokens.put(int(name.ravel()[0]), (facts, digest.tobytes()))
        return name.astype(np.int32)

    def on_host(f: Any, *words: Array) -> Array:
        given = jnp.concatenate(words)
        return jax.pure_callback(f, jax.ShapeDtypeStruct((1,), jnp.int32), given, vmap_method="broadcast_all")

    # The name depends on the values, so that XLA does not take it out of a loop, and a batch of them has names.
    digest, values = _digest(ptr, col), F.values
    of_values = lax.bitcast_convert_type(values[:1].real.astype(jnp.float32), jnp.uint32)
    token = jax.eval_shape(analyze, values, ptr, col)
    name = on_host(taken, digest, of_values)
    token = cudss.factorize(dataclasses.replace(token, id=name, values=values, offsets=ptr, columns=col), values)
    name = on_host(kept, digest, token.id.astype(jnp.uint32))
    return dataclasses.replace(F, token=dataclasses.replace(token, id=name))


def _taken(pattern: Any) -> int:
    """The name of a token with the analysis of a pattern, which nobody else takes; 0, for which cuDSS makes one.

    The oldest: its factors are the last to be used again, by another thread for instance.
    """
    names = [name for name, one in list(_tokens.results.items()) if one == pattern]
    return next((name for name in names if _tokens.results.pop(name, None)), 0)


def _digest(*arrays: Array) -> Array:
    """[2·k] 32-bit words, which differ between patterns."""

    def mixed(x: Array) -> Array:  # the last steps of MurmurHash3
        x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
        x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
        return x ^ (x >> 16)

    def word(a: Array, seed: int) -> Array:
        place = mixed(jnp.arange(a.size, dtype=jnp.uint32) + jnp.uint32(seed))
        return jnp.sum(mixed(a.astype(jnp.uint32) ^ place), dtype=jnp.uint32)

    return jnp.stack([word(a, seed) for a in arrays for seed in (1, 0x9E3779B9)])


def choice(backend: str, A: Any, symmetric: bool | None, maker: str) -> str:
    """The library that factors A, or "superlu". Errors as of `factorized`."""
    check_choice("backend", backend, ("auto", "superlu", *LIBRARIES))
    if backend == "auto":
        return "superlu" if symmetric is False else _suited(A)
    if backend == "superlu":
        return backend
    module, extra = LIBRARIES[backend]
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(
            f"{maker}: backend={backend!r} needs {module}; pip install 'jaxsparse[{extra}]', or use backend='superlu'"
        )
    platform = device_of(A).platform
    if platform != PLATFORMS[module]:
        raise ValueError(f"{maker}: backend={backend!r} runs on a {PLATFORMS[module]}, and A lies on a {platform}")
    _check_mode(backend, maker)
    if backend != "cudss" and jnp.issubdtype(A.dtype, jnp.complexfloating):
        raise TypeError(f"{maker}: backend={backend!r} takes real matrices, and A is {A.dtype}; use 'superlu'")
    return backend


def _check_mode(library: str, maker: str) -> None:
    if library != "cudss" and not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError(f"{maker}: backend={library!r} computes in float64; set JAX_ENABLE_X64=1, or use 'superlu'")


def _suited(A: Any) -> str:
    """CHOLMOD for large matrices on a CPU whose values are known, and which may be positive definite."""
    ours = isinstance(A, SparseMatrix) and not is_traced(A)
    if not ours or A.dtype != np.float64 or A.shape[0] != A.shape[1] or importlib.util.find_spec("sparsax") is None:
        return "superlu"
    if A.shape[0] ** 3 < HEAVY or device_of(A).platform != "cpu":
        return "superlu"
    host = hosted(A)
    suits = host.finite and host.symmetric and np.all(host.diagonal > 0) and host.envelope[1] > HEAVY  # from above
    return "cholmod" if suits and host.factor_work > HEAVY else "superlu"


def made(A: Any, library: str, maker: str, symmetric: bool | None) -> LibraryFactors:
    """The factors of a matrix by a library.

    Raises:
      SolverError: the values are known, and CHOLMOD finds that they are not those of a symmetric positive definite
        matrix, or KLU those of a singular one. ValueError: they are known, and the factors do not fit into the memory.
    """
    if is_traced(A):
        return _of_entries(A, library, library == "cholmod" or bool(symmetric))
    with concrete():  # inside jit, too, so that a failure is seen while another library may follow
        if not bool(jnp.all(jnp.isfinite(A.data))):
            raise SolverError(Status.NON_FINITE, f"{maker} needs finite entries, and A has a NaN or an infinity")
        free = arguments.memory.of_host if library != "cudss" else lambda: arguments.memory.free(A)
        _fitting.get(library, [A.row_ids, A.col_ids], lambda: hosted(A).check_memory(free) or library)
        is_symmetric = hosted(A).symmetric if symmetric is None else symmetric
        if library == "cholmod" and not is_symmetric:
            raise SolverError(Status.NOT_SYMMETRIC, f"{maker}: backend='cholmod' needs a symmetric A; use 'klu'")
        F = _of_entries(A, library, is_symmetric)
        if library != "cudss":
            _try(F, maker)
    return F


def _of_entries(A: Any, library: str, is_symmetric: bool) -> LibraryFactors:
    is_symmetric = is_symmetric and not jnp.issubdtype(A.dtype, jnp.complexfloating)  # a Hermitian A is not Aᵀ
    values = lax.stop_gradient(A.data).astype(jnp.promote_types(A.dtype, jnp.float32))
    device = device_of(A).local_hardware_id or 0
    given = {"token": None, "is_symmetric": is_symmetric, "device": device}
    F = LibraryFactors(A.row_ids, A.col_ids, values, A.shape[0], (library,), **given)
    return _by_cudss(F) if library == "cudss" else F


def _try(F: LibraryFactors, maker: str) -> None:
    """Factors, which the library keeps for the solves."""
    import sparsax  # pyright: ignore[reportMissingImports]

    factor = sparsax.logdet if F.library == "cholmod" else sparsax.lu_logdet
    try:
        jax.block_until_ready(factor(F.row, F.col, F.values.astype(np.float64), F.n))
    except (RuntimeError, ValueError) as error:
        status = Status.NOT_POSITIVE_DEFINITE if F.library == "cholmod" else Status.SINGULAR
        raise SolverError(status, f"{maker}: {error}; {status.message}") from None
