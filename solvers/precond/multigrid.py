"""Algebraic multigrid: a cycle as an operator, by smoothed aggregation (Vaněk, Mandel and Brezina 1996).

The host sets the hierarchy up, in compiled code over all cores (`_hierarchy`); every cycle runs on the device
(`_cycles`), in a number of operations that depends on sizes alone, and so does a refresh (`_refresh`).

A smoother is a polynomial in D⁻¹A: Chebyshev's for the upper part of the spectrum, or damped Jacobi (Adams, Brezina, Hu
and Tuminaro 2003, Parallel multigrid smoothing: polynomial versus Gauss–Seidel). Such a polynomial is self-adjoint in
the inner product of D, so the same smoother before and after the coarse correction, with R = Pᴴ, makes the cycle
symmetric.

Traffic of a V-cycle at a level of n rows, for a smoother of degree d: 2·d products with A, one with R, one with P, and
16·d − 4 vectors of n as XLA fuses them. The first step from zero needs no product, and no residual is formed after the
last. With d = 2 that is four products a level: on 7-point Poisson, where all levels together have 1.6 times the entries
of the finest, 9 fine products a cycle, and more where formats pad; see `products_per_cycle`.
"""

import dataclasses
import functools
import warnings
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec

from jaxsparse_fmt._types import (
    floating_dtype,
    pytree,
    readable_bytes,
    real_number,
    requested_dtype,
    standard_promotion,
)
from jaxsparse_fmt.algebra import patterns
from jaxsparse_fmt.convert import from_scipy
from jaxsparse_fmt.core import mesh_axes
from jaxsparse_fmt.core.basis import IDENTITY, Basis
from jaxsparse_fmt.core.matrix import SparseMatrix
from solvers.core.arguments import int_at_least, proper_fraction
from solvers.core.diagonal import operand
from solvers.core.vectors import norm, probe
from solvers.precond import _checks as checks
from solvers.precond import _hierarchy, _refresh
from solvers.precond._cycles import Level, cycled

CHECKED = 6  # cycles whose growth warns
MAX_COARSE = 500


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Multigrid:
    """M ≈ A⁻¹, one cycle from zero: `M @ r`. Linear in r, except for K-cycles; equal shapes share programs.

    Attributes:
      levels: from the finest down, without the coarsest.
      coarse_inverse: [m, m], generalized inverse of the coarsest matrix, which is A itself where A is small.
      renewals: what `refreshed` needs of each level; None without `refreshable=True`.
      cycle: "V", "W", "F" or "K".
      symmetric: whether the operator is its own transpose.
      order: of the vectors inside the cycle, those of a sharded matrix.
    """

    levels: tuple[Level, ...]
    coarse_inverse: Array
    renewals: tuple[_refresh.Renewal, ...] | None
    cycle: str = dataclasses.field(metadata={"static": True})
    symmetric: bool = dataclasses.field(metadata={"static": True})
    order: Basis = IDENTITY

    @property
    def shape(self) -> tuple[int, int]:
        n = getattr(self.order, "n", (self.levels[0].A if self.levels else self.coarse_inverse).shape[0])
        return n, n

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the stored numbers. The vectors of the cycle have this dtype too, but at least 32 bits."""
        return self.coarse_inverse.dtype

    @property
    def T(self) -> Self:
        """The transposed operator: itself where it is symmetric, else a view that makes transposed products."""
        if self.symmetric:
            return self
        cycle = self.cycle.swapcase() if self.cycle in "Ff" else self.cycle
        levels, inverse = tuple(level.T for level in self.levels), self.coarse_inverse.T
        return dataclasses.replace(self, levels=levels, coarse_inverse=inverse, renewals=None, cycle=cycle)

    def entered(self, basis: Basis) -> Any:
        """The same operator between vectors that have entered `basis`; without exchanges if the cycle runs there."""
        inside = dataclasses.replace(self, order=IDENTITY)
        return inside if basis.same(self.order) else lambda r: basis.enter(self @ basis.leave(r))

    @standard_promotion
    def __matmul__(self, r: Any) -> Array:
        """One cycle for r [n] or [n, k], in the wider of the two dtypes.

        Raises:
          ValueError: r has another shape.
        """
        return _cycled(self, operand(self, r, self.coarse_inverse, 2))

    @standard_promotion
    def refreshed(self, A: Any) -> Self:
        """The same hierarchy for new values on A's pattern; inside jit too, on the device, and differentiable.

        Aggregates and strong couplings stay, as does the near-null space; prolongations, coarse matrices, smoothers and
        the coarsest inverse are those of the new values, by plans made with `refreshable=True`.

        Args:
          A: [n, n], in any format. Outside jit only its shape and its number of entries are compared with the pattern.

        Raises:
          ValueError: another shape or number of entries, or an M made without `refreshable=True`. TypeError: A is
            complex and M is not.
        """
        checks.square(A, "multigrid")
        checks.renewing(self, A.shape, A.dtype)
        if self.renewals is None:
            raise ValueError(
                "M holds no plans for a refresh; make it with precond.multigrid(A, refreshable=True), which takes "
                "no sharded A, make M anew, or keep M while A changes little, since a preconditioner may be approximate"
            )
        levels, coarse_inverse = _refresh.renewed(self.levels, self.coarse_inverse, self.renewals, A)
        return dataclasses.replace(self, levels=levels, coarse_inverse=coarse_inverse)

    # --------------------------------------------------------------------------------------------------- measures

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Rows and stored entries of every level; the coarsest is dense."""
        m = self.coarse_inverse.shape[0]
        rows = lambda A: getattr(getattr(A, "range", None), "n", A.shape[0])  # noqa: E731
        return [(rows(level.A), level.A.nnz) for level in self.levels] + [(m, m * m)]

    @property
    def grid_complexity(self) -> float:
        """Rows of all levels over those of the finest."""
        return sum(n for n, _ in self.sizes) / self.sizes[0][0]

    @property
    def operator_complexity(self) -> float:
        """Entries of all levels over those of the finest."""
        return sum(nnz for _, nnz in self.sizes) / self.sizes[0][1]

    @property
    def products_per_cycle(self) -> float:
        """Bytes that a cycle moves over those of one product with the finest matrix as stored here, vectors counted."""
        word = jnp.promote_types(self.dtype, jnp.float32).itemsize
        moved = self.coarse_inverse.nbytes
        if not self.levels:
            return 1.0
        for level in self.levels:
            (n, m), d = level.P.shape, level.recurrence.shape[0]
            moved += 2 * d * (_nbytes(level.A) + 2 * n * word) + (16 * d - 4) * n * word
            moved += _nbytes(level.R) + _nbytes(level.P) + 2 * (n + m) * word
        return moved / (_nbytes(self.levels[0].A) + 2 * self.shape[0] * word)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self))

    def __repr__(self) -> str:
        n, depth = self.shape[0], len(self.levels)
        if not all(isinstance(leaf, (jax.Array, np.ndarray)) for leaf in jax.tree.leaves(self)):
            return f"<multigrid {n}×{n}, {depth + 1} levels, leaves {jax.tree.leaves(self)}>"
        head = (
            f"<multigrid {n}×{n}, {jnp.dtype(self.dtype).name}, {readable_bytes(self.nbytes)}: grid complexity "
            f"{self.grid_complexity:.2f}, operator complexity {self.operator_complexity:.2f}, "
            f"{self.products_per_cycle:.1f} fine products a cycle"
        )
        rows: list[tuple[Any, ...]] = [("level", "rows", "nnz", "A", "R, P", "bytes")]
        for k, level in enumerate(self.levels):
            stored = [getattr(matrix, "A", matrix) for matrix in (level.A, level.R, level.P)]
            names = stored[0].name, ", ".join(matrix.name for matrix in stored[1:])
            rows.append((k, *self.sizes[k], *names, readable_bytes(sum(matrix.nbytes for matrix in stored))))
        rows.append((depth, *self.sizes[depth], "inverse", "", readable_bytes(self.coarse_inverse.nbytes)))
        table = [f"{k:>6}{size:>11}{nnz:>12}  {own:<9}{pair:<12}{b:>8}" for k, size, nnz, own, pair, b in rows]
        return "\n".join([head, *table]) + ">"


@jax.jit
def _cycled(M: Multigrid, r: Array) -> Array:
    inside = jnp.promote_types(M.dtype, jnp.float32)
    if jnp.issubdtype(r.dtype, jnp.complexfloating):
        inside = jnp.result_type(inside, jnp.complex64)
    x = M.order.leave(cycled(M.levels, M.coarse_inverse, M.cycle, M.order.enter(r.astype(inside))))
    return x.astype(jnp.result_type(M.dtype, r.dtype))


def _nbytes(matrix: Any) -> int:
    return getattr(matrix, "A", matrix).nbytes


@standard_promotion
def multigrid(
    A: Any,
    B: Any = None,
    *,
    candidates: str = "constant",
    block_size: int | None = None,
    cycle: str = "V",
    smoother: str = "chebyshev",
    degree: int | None = None,
    fraction: float | None = None,
    theta: float = 0.08,
    format: str = "auto",
    dtype: Any = None,
    max_coarse: int | None = None,
    max_levels: int = 20,
    refreshable: bool = False,
    setup: Any = None,
) -> Multigrid:
    """Algebraic multigrid as a preconditioner, set up on the host in float64.

    The method is made for symmetric positive definite matrices of elliptic equations; it also works for singular ones
    and for convection with diffusion. The symmetry of A is detected.

    Args:
      A: [n, n] matrix of jaxsparse_fmt or scipy.sparse. If A is sharded, aggregates lie within shards, unknowns
        are not grouped into points, and block_size, candidates, refreshable and setup are not accepted.
      B: [n, k], the near-null space: columns that A maps almost to zero, except at boundaries. In elasticity
        `gallery.rigid_body_modes(points)`. None takes `candidates`.
      candidates: "constant" takes a constant for each unknown of a point; "adaptive" finds b·(b + 1)/2 columns for
        b unknowns a point, as many as an elastic body has rigid motions. Take it for unknowns that have units of their
        own, and if you do not know the near-null space; the set-up then takes several times as long.
      block_size: unknowns of a point, numbered together. None takes the blocks of a BSR matrix, or looks for dense
        ones; matrices of systems whose blocks have holes need it.
      cycle: "V", "W", "F" or "K". "F" and "K" call for a flexible method, such as `fcg`.
      smoother: "chebyshev"; "jacobi" for `degree` damped steps; or "l1_jacobi", which needs no eigenvalue and divides
        by the sums of absolute values in the rows (Baker, Falgout, Kolev and Yang 2011).
      degree: of the polynomial in D⁻¹A; None takes 2 for "chebyshev" and 1 for the others.
      fraction: the smoother acts on the eigenvalues of D⁻¹A from this fraction of the largest up to the largest. None
        takes 0.15 for "chebyshev", 1/3 for "jacobi", which means damping by 1.5 over the largest; "l1_jacobi" takes 1.
      theta: a[i, j] is a strong coupling where |a[i, j]| ≥ theta·√(a[i, i]·a[j, j]), on the finest level; the next
        level takes a quarter of it. Larger values follow stronger anisotropy and coarsen less. Where the next level
        would have more than twice as many blocks, as in many graphs, theta is multiplied by 3 until it has not; not for
        theta=0, and not for a sharded A.
      format: of coarser levels and of R and P, as in `from_scipy`. With "auto" the finest level keeps the format of a
        jaxsparse_fmt matrix, unless that format sorts rows, and shares its arrays if the dtype is the same.
      dtype: of the numbers stored and the vectors inside the cycle: "float32" under a float64 solver moves about half
        the bytes. None takes A's.
      max_coarse: rows up to which a level is inverted densely instead of coarsened. None takes 500; or fewer, but at
        least 50, for an A of more rows on one device where 500² is more than a tenth of A's entries.
      max_levels: levels at most, the coarsest included.
      refreshable: make the plans that `M.refreshed` needs. On a CPU they take 1 to 7 times the memory of A, least where
        unknowns form blocks; on a GPU 20 to 70 times.
      setup: levels made elsewhere, instead of aggregation: a solver of PyAMG, such as
        `pyamg.ruge_stuben_solver(S)`, or another object whose `levels` have A, R and P.

    Raises:
      TypeError: A is not a sparse matrix, or is traced.
      ValueError: A is empty, not square, has a zero on its diagonal or a number that is not finite; an argument out of
        range; a hierarchy that stops coarsening too early or that `dtype` cannot hold.

    Warns:
      RuntimeWarning: the cycle diverges, found by a power iteration on I − M·A. A hierarchy of a matrix that is
        Hermitian and, as far as the set-up saw, positive semidefinite is not examined: its V-cycle converges in
        the norm of A.
    """
    names = ("cycle", cycle, "VWFK"), ("smoother", smoother, list(_hierarchy.SMOOTHERS))
    for name, value, known in (*names, ("candidates", candidates, ("constant", "adaptive"))):
        if value not in known:
            raise ValueError(f"unknown {name} {value!r}; choose one of {', '.join(known)}")
    usual_degree, usual_fraction = _hierarchy.SMOOTHERS[smoother]
    degree = usual_degree if degree is None else int_at_least(degree, "degree", 1)
    fraction = usual_fraction if fraction is None else proper_fraction(fraction, "fraction")
    chosen = _hierarchy.Smoother(smoother, degree, fraction)
    most = MAX_COARSE if max_coarse is None else int_at_least(max_coarse, "max_coarse", 1)
    max_levels = int_at_least(max_levels, "max_levels", 1)
    theta = real_number("theta", theta)
    if not 0 <= theta < 1:
        raise ValueError(f"theta must be at least 0 and below 1; got {theta:g}")
    S = None if getattr(A, "name", None) == "sharded" and A.shape[0] > most else checks.host(A)
    stored = floating_dtype(A.dtype, "A") if dtype is None else requested_dtype(dtype)
    if S is None:
        from solvers.precond import _sharded  # with the code for many devices

        usual = {"refreshable": False, "setup": None, "candidates": "constant", "block_size": None}
        given = {"refreshable": refreshable, "setup": setup, "candidates": candidates, "block_size": block_size}
        for name, value in given.items():
            if value is not usual[name] and value != usual[name] and (name, value) != ("block_size", 1):
                raise ValueError(
                    f"multigrid of a sharded matrix takes no {name}={value!r}; leave it out, pass B= for a system, or "
                    "gather A by from_scipy(A.to_scipy())"
                )
        levels, inverse, definite, hermitian = _sharded.build(
            A, B, theta=theta, smoother=chosen, format=format, dtype=stored, max_coarse=most, max_levels=max_levels
        )
        symmetric = cycle != "F" and hermitian and A.dtype.kind == "f"
        return _examined(Multigrid(levels, inverse, None, cycle, symmetric, A.domain), definite)
    if setup is not None:
        coarsening = _hierarchy.Given(getattr(setup, "levels", setup))
    else:
        if max_coarse is None and S.shape[0] > most:
            most = min(most, max(50, int((S.nnz / 10) ** 0.5)))
        b = checks.block_size(A, S) if block_size is None else int_at_least(block_size, "block_size", 1)
        if S.shape[0] % b:
            raise ValueError(f"block_size {b} does not divide the {S.shape[0]} rows of A")
        aggregation = functools.partial(
            _hierarchy.Aggregation, b=b, theta=theta, max_coarse=most, max_levels=max_levels
        )
        if B is not None:
            B = checks.near_null(np.asarray(B), S.shape[0], S.dtype)
            checks.finite_near_null(B)
            near = np.ascontiguousarray(B, S.dtype)
        elif candidates == "adaptive":
            near = _hierarchy.adapted(S, b * (b + 1) // 2, aggregation, chosen)
        else:
            near = np.tile(np.eye(b, dtype=S.dtype), (S.shape[0] // b, 1))
        coarsening = aggregation(near)

    host_levels: list[_hierarchy.HostLevel] = []
    finest = A if isinstance(A, SparseMatrix) and format == "auto" and A.basis.perm is None else None

    def keep(step: _hierarchy.HostLevel, k: int) -> Level:
        if refreshable:
            host_levels.append(step)
        return _on_device(step, None if k else finest, format, stored, k)

    built = _hierarchy.build(S, coarsening, chosen, keep)
    symmetric = cycle != "F" and built.hermitian and S.dtype.kind == "f"
    checks.fits(_hierarchy.largest(built.coarse_inverse), stored, "the inverse of the coarsest level")
    renewals = _refresh.renewals(built.hermitian, host_levels, chosen) if refreshable else None
    inverse = jnp.asarray(built.coarse_inverse, stored)
    return _examined(Multigrid(tuple(built.levels), inverse, renewals, cycle, symmetric), built.definite)


def _examined(M: Multigrid, definite: bool) -> Multigrid:
    """M, with a warning if its cycle diverges."""
    if M.levels and not definite and (rate := float(_growth(dataclasses.replace(M, order=IDENTITY)))) > 1:
        warnings.warn(
            f"this multigrid cycle diverges: the error grows by a factor of {rate:.3g} a cycle, so that only gmres may "
            "gain from it. For an indefinite or strongly convective A take incomplete_lu, or more smoothing by degree=",
            RuntimeWarning,
            stacklevel=3,
        )
    return M


@jax.jit
def _growth(M: Multigrid) -> Array:
    """The factor by which I − M·A magnifies a vector after some cycles."""
    return mesh_axes.by_xla(_grown, (M,), PartitionSpec())


def _grown(M: Multigrid) -> Array:
    A = M.levels[0].A

    def step(x: Array, _: None) -> tuple[Array, Array]:
        x = x / norm(x)
        x = x - M @ (A @ x)
        return x, norm(x)

    start = probe(jnp.zeros(M.shape[0], jnp.promote_types(M.dtype, jnp.float32)))
    return lax.scan(step, start, length=CHECKED)[1][-1]


def _on_device(step: _hierarchy.HostLevel, given: Any, format: str, dtype: Any, k: int) -> Level:
    """A level on the device; `given` is the user's matrix at the finest level where that serves, else None."""
    checks.fits(_hierarchy.largest(step.A.data), dtype, f"level {k}")
    checks.fits(_hierarchy.largest(step.inverse_diagonal), dtype, f"the inverse diagonal of level {k}")
    wide = jnp.promote_types(dtype, jnp.float32)
    store = functools.partial(from_scipy, format=format, dtype=dtype)
    if format == "auto" and jax.default_backend() == "cpu":  # which takes CSR anyway
        store = functools.partial(_in_csr, dtype=dtype, owned=step.transfer is not None)
    if given is not None:
        A = given if given.dtype == dtype else given.astype(dtype)
    else:
        A = store(step.A) if k else from_scipy(step.A, format, dtype)
    R, P = map(store, (step.R, step.P))
    narrow = jnp.finfo(wide).dtype
    d = jnp.asarray(step.inverse_diagonal, wide if step.inverse_diagonal.dtype.kind == "c" else narrow)
    return Level(A, R, P, d, jnp.asarray(step.recurrence, narrow))


def _in_csr(S: Any, dtype: Any, owned: bool) -> SparseMatrix:
    """S in CSR; on a CPU without a copy of arrays that nothing else holds."""
    if not owned or S.dtype != dtype:
        return from_scipy(S, "csr", dtype)
    return patterns.matrix(S, "csr", "auto").with_data(jax.device_put(S.data))
