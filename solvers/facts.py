"""What `solve` finds out about a system before it chooses; each fact is computed when it is asked for."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._tracing import concrete
from jaxsparse_fmt.convert import from_dense
from solvers.core import arguments
from solvers.host import Host, hosted
from solvers.remembered import Memory


class Facts:
    """A system's facts.

    Attributes:
      A: a matrix of jaxsparse_fmt without derivatives, of a dense array too; or a function.
      memory: what an earlier solve found out; None: nothing may be remembered.
      n, k: unknowns, and right-hand sides.
      is_plain: whether no derivative is asked for either, so that NumPy may solve.
      tries: whether another way may follow one that fails; not inside jit.
      hints: the caller's `symmetric` and `definite`; None where there is none.
      kind: "function", "sharded", or the platform.
    """

    A: Any

    def __init__(self, A: Any, b: Any, tries: bool, symmetric: bool | None, definite: bool | None, remember: bool):
        held = arguments.still(A)
        self.n, self.k = arguments.unknowns(A, b), int(np.shape(b)[1]) if np.ndim(b) == 2 else 1
        is_known = not arguments.is_traced(held)
        self.tries, self.hints, self.memory = tries and is_known, (symmetric, definite), None
        if remember and self.tries and not arguments.is_function(A):
            self.memory = Memory(held)
        if isinstance(held, jax.Array) and is_known:
            held = _sparse(held)
        self.A, self.is_known, self.is_plain = held, is_known, not arguments.is_traced(A, b)
        if arguments.is_function(A) or not hasattr(held, "to_scipy"):
            self.A, self.kind = A, "function"
        elif getattr(getattr(held, "A", held), "name", "") == "sharded":
            self.kind = "sharded"
        else:
            self.kind = arguments.memory.device(held).platform

    def dtype(self, b: Any) -> Any:
        """That of x."""
        return arguments.promoted(self.A.dtype, b.dtype, np.dtype(np.float32))

    def wrong_columns(self, b: Any, x0: Any) -> Any:
        """Whether each right-hand side, or its start, or A, has a NaN or an infinity: [k], or one flag."""
        was_finite = self.memory is not None and self.memory.has_values
        if _is_finite((None if was_finite else self.A, b, x0)):
            return np.zeros((), bool)
        flags = [~np.asarray(_finite_columns(v)) for v in (b, x0) if v is not None]
        return np.any(flags, axis=0) | (not _is_finite(self.A))

    @functools.cached_property
    def look(self) -> "Host | Probe | None":
        """What has the diagonal, and whether A is symmetric; None if its values are not known."""
        if not self.is_known:
            return None
        return Probe(self.A) if self.kind == "sharded" else self.host

    @property
    def host(self) -> Host:
        """A on the host, which knows it and holds all of it."""
        return hosted(self.A)

    @functools.cached_property
    def pattern(self) -> Host | None:
        """A matrix with A's pattern on the host; None if that is not known."""
        if self.is_known:
            return self.host if self.kind != "sharded" else None
        if not hasattr(self.A, "_without_values") or arguments.is_traced(self.A._without_values):
            return None
        with concrete():
            return Host(self.A.with_data(jnp.ones(self.A.nnz)).to_scipy())

    @property
    def symmetric(self) -> bool:
        """Whether A is known to be symmetric (Hermitian)."""
        hint, definite = self.hints
        return bool(hint or definite or (hint is None and self.look is not None and self.look.symmetric))

    @property
    def maybe_definite(self) -> bool:
        """Symmetric with a positive diagonal."""
        definite = self.hints[1]
        if definite is None and self.symmetric and self.look is not None:
            return bool((self.look.diagonal.real > 0).all())
        return bool(definite)

    @property
    def full_diagonal(self) -> bool:
        return self.look is not None and bool((self.look.diagonal != 0).all())

    @property
    def factors(self) -> tuple[float, float]:
        """Entries and multiplications of the factors."""
        return (
            (self.n**2, self.n**3 / 3)
            if self.pattern is None
            else (self.pattern.factor_entries, self.pattern.factor_work)
        )


class Probe:
    """Of a sharded matrix, which the host does not hold."""

    def __init__(self, A: Any):
        self.A = A

    @functools.cached_property
    def symmetric(self) -> bool:
        """Whether vᴴ·A·u is the conjugate of uᴴ·A·v for random u and v."""
        rng, A = np.random.default_rng(0), self.A
        u, v = (jnp.asarray(rng.standard_normal(A.shape[0]), A.dtype) for _ in range(2))
        Au = A @ u
        difference = jnp.abs(jnp.vdot(v, Au) - jnp.vdot(A @ v, u))
        return bool(difference <= 100 * jnp.finfo(A.dtype).eps * jnp.linalg.norm(v) * jnp.linalg.norm(Au))

    @functools.cached_property
    def diagonal(self) -> Any:
        return self.A.diagonal()


def _sparse(A: jax.Array) -> Any:
    with concrete():
        return from_dense(A, "csr")


def _is_finite(tree: Any) -> bool:
    """Whether all numbers of a pytree of known arrays are."""
    arrays = [a for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.inexact)]
    spread = [a for a in arrays if not getattr(a, "is_fully_addressable", True)]  # over several processes
    if spread and not _are_finite(spread):
        return False
    arrays = [a for a in arrays if not any(a is other for other in spread)]
    if not arrays:  # which a GPU could not stack
        return True
    if arguments.memory.device(arrays).platform == "cpu":
        return all(np.isfinite(np.asarray(a)).all() for a in arrays)
    return bool(_are_finite(arrays))


@jax.jit
def _finite_columns(v: jax.Array) -> jax.Array:
    return jnp.all(jnp.isfinite(v), axis=0)


@jax.jit
def _are_finite(arrays: list[Any]) -> Any:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(a)) for a in arrays]))
