"""What `solve` finds out about a system before it chooses, each fact when it is asked for; and what it remembers."""

import dataclasses
import functools
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsparse_fmt._tracing import concrete, device_of, is_traced
from jaxsparse_fmt.convert import from_dense
from jaxsparse_fmt.core.basis import IDENTITY
from jaxsparse_fmt.core.entry_index import index_arrays
from jaxsparse_fmt.core.kept import Kept, lasts
from jaxsparse_fmt.core.matrix import SparseMatrix
from jaxsparse_fmt.core.scipy_names import ScipyNames
from jaxsparse_fmt.core.transposed import Transposed
from solvers.batched import STEPS
from solvers.core import arguments
from solvers.core.linear_solve import Adjoint
from solvers.core.operators import is_function, promoted
from solvers.core.solve import Settings
from solvers.host import FREE, LITTLE, Host
from solvers.hosted import hosted
from solvers.patterns import pattern_of
from solvers.precond._checks import Refreshed, is_sharded
from solvers.superlu import OnHost

ROUGH = 20  # times the multiplications of a factorization: those of `Host.rough_cost`, at most
OUT_OF_REACH = 1.2e13  # multiplications, of an hour: SuperLU may take minutes to order such a matrix


class Facts:
    """A system's facts.

    Attributes:
      A: a matrix of jaxsparse_fmt without derivatives, of a dense array too; or a function.
      n, k: unknowns, and right-hand sides.
      is_known: whether A's values are not traced.
      is_plain: whether no derivative is asked for either, so that NumPy may solve.
      tries: whether another way may follow one that fails; not inside jit, nor without a right-hand side.
      hints: what the caller says of symmetry and definiteness; None: nothing.
      kind: "function", "sharded", or the platform.
      platform, devices: on which A lies, and on how many of it; "" for a function.
      rows: the basis of vectors as long as A's rows, if it is sharded.
    """

    def __init__(self, A: Any, b: Any, tries: bool, symmetric: bool | None = None, definite: bool | None = None):
        held = arguments.still(A)
        self.n, self.k = arguments.unknowns(A, b), int(np.shape(b)[1]) if np.ndim(b) == 2 else 1
        self.is_known, self.is_plain = not is_traced(held), not is_traced(A, b)
        self.devices = 1
        self.rows: Any = IDENTITY
        self.tries, self.hints = tries and self.is_known and self.k > 0, (symmetric, definite)
        if isinstance(held, jax.Array) and self.is_known:
            with concrete():
                held = from_dense(held, "csr")
        self.A: Any = held
        if is_function(A) or not isinstance(held, ScipyNames):
            self.A, self.kind, self.platform = A, "function", ""
        elif is_sharded(stored := held.T if isinstance(held, Transposed) else held):
            self.rows = stored.range  # pyright: ignore[reportAttributeAccessIssue]
            over = self.rows.over
            self.kind, self.devices, self.platform = "sharded", len(over.counts), over.mesh.devices.flat[0].platform
        else:
            self.kind = self.platform = device_of(held).platform

    def dtype(self, b: Any) -> Any:
        """That of x."""
        return promoted(self.A.dtype, b.dtype, np.dtype(np.float32))

    @functools.cached_property
    def host(self) -> Host:
        """A on the host, which knows it and holds all of it."""
        return hosted(self.A)

    @functools.cached_property
    def pattern(self) -> Host | None:
        """A matrix with A's pattern on the host; None if that is not known."""
        if self.is_known:
            return self.host if self.kind != "sharded" else None
        if not isinstance(self.A, SparseMatrix) or is_traced(self.A._without_values):
            return None
        with concrete():
            return pattern_of(self.n, self.A.row_ids, self.A.col_ids).host(np.ones(self.A.nnz))

    @functools.cached_property
    def symmetric(self) -> bool:
        """Whether A is known to be symmetric (Hermitian); a sharded one by two products."""
        hint, definite = self.hints
        if hint is not None or definite or not self.is_known:
            return bool(hint or definite)
        if self.kind == "sharded":
            return self._asked(lambda: _is_self_adjoint(self.A))
        return self.host.finite and self.host.symmetric

    @functools.cached_property
    def diagonal(self) -> Any:
        if self.kind != "sharded":
            return self.host.diagonal
        d, rows = self.A.diagonal(), self.rows
        return jnp.where(rows.numbers() < rows.over.starts[-1], d, 1) if rows.is_padded else d

    @property
    def maybe_definite(self) -> bool:
        """Whether A is symmetric with a positive diagonal, or definite as the caller says."""
        if self.hints[1] is not None:
            return self.hints[1]
        return self.is_known and self.symmetric and self._asked(lambda: bool((self.diagonal.real > 0).all()))

    def _asked(self, f: Callable[[], bool]) -> bool:
        """f(), also inside a jit that closes over a sharded A, whose shards are known there."""
        if self.kind != "sharded":
            return f()
        from jaxsparse_fmt.distributed.entries import untraced  # a tenth of a second for one device

        return untraced(lambda _: f(), self.A, self.rows.over.mesh)

    def lost(self, b: Any, rtol: Any, atol: Any) -> Any:
        """b's part along vectors, constant on A's parts, that a symmetric A takes to 0; None if it is within tolerance.

        No x has a smaller residual.
        """
        if not self.symmetric or (Z := self.host.constants) is None:
            return None
        b = np.asarray(arguments.still(b))
        part = Z @ (Z.T @ b)
        is_lost = np.linalg.norm(part, axis=0) > np.maximum(rtol * np.linalg.norm(b, axis=0), atol)
        return np.where(is_lost, part, 0).astype(b.dtype) if np.any(is_lost) else None

    @property
    def full_diagonal(self) -> bool:
        return self.is_known and bool((self.diagonal != 0).all())

    @functools.cached_property
    def factors(self) -> tuple[float, float]:
        """Entries and multiplications of the factors; of little ones, and those that are out of reach, from above."""
        if self.pattern is None or self.n**3 / 3 <= LITTLE:
            return self.n**2, self.n**3 / 3
        few_pivots = self.n <= FREE or not self.pattern.wants_pivots  # others fill more than the rough order tells
        bound = self.pattern.rough_cost if few_pivots else self.pattern.envelope
        if bound[1] <= LITTLE:
            return bound
        if self.least_work * ROUGH > OUT_OF_REACH:
            return self.pattern.rough_cost
        return self.pattern.factor_entries, self.pattern.factor_work

    @functools.cached_property
    def least_work(self) -> float:
        """Multiplications of the factorization from below, in a small part of the time that `factors` takes."""
        return 0.0 if self.n <= FREE or self.pattern is None else self.pattern.rough_cost[1] / ROUGH


def _is_self_adjoint(A: Any) -> bool:
    """Whether vᴴ·A·u is the conjugate of uᴴ·A·v for random u and v."""
    rng = np.random.default_rng(0)
    u, v = (jnp.asarray(rng.standard_normal(A.shape[0]), A.dtype) for _ in range(2))
    Au = A @ u
    difference = jnp.abs(jnp.vdot(v, Au) - jnp.vdot(A @ v, u))
    return bool(difference <= 100 * jnp.finfo(A.dtype).eps * jnp.linalg.norm(v) * jnp.linalg.norm(Au))


class NotFinite(Exception):
    """A, b or x0 has a NaN or an infinity.

    Attributes:
      columns: whether each right-hand side has, or its start, or A: [k], or one flag.
    """

    def __init__(self, columns: Any):
        self.columns = columns


def check_finite(facts: Facts, b: Any, x0: Any) -> None:
    """Raises NotFinite if A is a matrix, and its values are known."""
    if facts.kind == "function" or not facts.tries:
        return
    arrays = [(a, None) for a in jax.tree.leaves(facts.A) if jnp.issubdtype(a.dtype, jnp.inexact)]
    arrays += [(facts.rows.placed(arguments.still(v)), 0) for v in (b, x0) if v is not None]
    finite = (facts.rows._shared(jnp.all(jnp.isfinite(a), axis)) for a, axis in arrays)
    wrong = functools.reduce(np.logical_or, [~np.asarray(flags) for flags in finite])
    if np.any(wrong):
        raise NotFinite(wrong)


# ------------------------------------------------------------------------------------------------- what is remembered

LARGEST = 2**30  # bytes of a preconditioner that is kept
_successes = Kept(8, "what solve remembers")


class Place(int):
    """Stands for an array of the matrix, by its number among them."""


@dataclasses.dataclass(frozen=True)
class Success:
    """What solved a system, for others with the same pattern. It holds no array of the matrix."""

    order: tuple[Any, ...]  # the trials to make next time, first that which succeeded
    M: Any  # its preconditioner, in which a `Place` stands for each array of the matrix; None: not kept
    values: Any  # a weak reference to those for which M was made
    # The settings and b's dtype of a call which asked for nothing but x by factors, its limits, and x's dtype; or None.
    asked: Any
    limits: Any
    dtype: Any

    def has(self, values: Any) -> bool:
        """Whether M was made for these very values."""
        return self.values() is values and lasts(values)


def recalled(A: Any, of_values: bool = False) -> Success | None:
    """What solved a system with this pattern, or with these very values."""
    leaves, tree = jax.tree.flatten(A)
    found = _successes.find(_key(A, tree), _of_pattern(A, leaves))
    return None if of_values and found is not None and not found.has(leaves[0]) else found


def _of_pattern(A: Any, leaves: list[Any]) -> list[Any]:
    """The arrays of A's pattern; a dense A."""
    return index_arrays(A) if isinstance(A, ScipyNames) else leaves


def _key(A: Any, tree: Any) -> Any:
    """Of a pattern, with what decides the dtypes of x and M: that of A's values, and JAX's mode of 32 or 64 bits."""
    return tree, getattr(A, "dtype", None), jax.dtypes.canonicalize_dtype(float)


class Memory:
    """The last success with A's pattern, found by the identity of JAX's arrays, until one of these is freed.

    Attributes:
      found: that success; None: there is none.
      order: the trials to begin with.
      has_values: whether a system with these very values was solved.
    """

    def __init__(self, A: Any, b: Any, asked: Settings, settings: Settings):
        self.A, self.b, self.asked, self.settings = A, b, asked, settings
        self.leaves, self.tree = jax.tree.flatten(A)
        self.found = recalled(A)

    @property
    def order(self) -> tuple[Any, ...]:
        return () if self.found is None else self.found.order

    @property
    def has_values(self) -> bool:
        return self.found is not None and self.found.has(self.leaves[0])

    @property
    def in_words(self) -> str:
        """What is remembered, in words that are the same in all processes."""
        is_kept = self.found is not None and self.found.M is not None
        return f"{[trial.way.name for trial in self.order]} {self.has_values} {is_kept}"

    def made(self, name: str | None) -> Any:
        """The preconditioner made before for A's values, or refreshed for them; None: there is none of that name."""
        if self.found is None or self.found.M is None or name != self.order[0].way.M:
            return None
        M = jax.tree.map(lambda leaf: self.leaves[leaf] if type(leaf) is Place else leaf, self.found.M)
        if self.has_values:
            return M
        return M.refreshed(self.A) if isinstance(M, Refreshed) else None

    def keep(self, order: tuple[Any, ...], M: Any) -> int:
        """Keeps the order, and M, by which the first succeeded, unless that is large; returns its bytes, or 0."""
        places = {id(a): Place(i) for i, a in enumerate(self.leaves)}
        M = jax.tree.map(lambda leaf: places.get(id(leaf), leaf), M)
        size = sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(M))
        if size > LARGEST:
            M, size = None, 0
        else:
            order = order[0]._replace(set_up=0.0), *order[1:]
        asked = limits = dtype = None
        if isinstance(getattr(M, "factors", None), OnHost) and is_plain(self.asked):
            asked, dtype = (self.asked, self.b.dtype), promoted(self.A.dtype, self.b.dtype, np.float32)
            limits = self.settings.limits(STEPS)
        values = weakref.ref(self.leaves[0])
        kept = Success(order, M, values, asked, limits, dtype)
        _successes.keep(_key(self.A, self.tree), _of_pattern(self.A, self.leaves), kept)
        return size


PLAIN = {str, float, int, bool, type(None), Adjoint}


def is_plain(settings: Settings) -> bool:
    """Whether settings can be compared, and ask for nothing but x."""
    plain = settings.history is False and settings.maxiter != 0
    return plain and {type(value) for value in vars(settings).values()} <= PLAIN
