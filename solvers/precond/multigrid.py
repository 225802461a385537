"""Algebraic multigrid: a cycle as an operator, by smoothed aggregation (Vaněk, Mandel and Brezina 1996).

The host sets the hierarchy up (`_hierarchy`), but accelerators set up the large levels of a matrix that they hold
(`_device_hierarchy`; `_device_shards` for several). Every cycle runs on the device (`_cycles`); sizes alone decide the
number of its operations.

The smoother is Chebyshev's polynomial in D⁻¹A for the upper part of the spectrum (Adams, Brezina, Hu and Tuminaro 2003,
Parallel multigrid smoothing: polynomial versus Gauss–Seidel). It is self-adjoint in the inner product of D, so the same
smoother before and after the coarse correction, with R = Pᴴ, makes the cycle symmetric.

Traffic of a V-cycle at a level of n rows, for a smoother of degree d: 2·d products with A, one with R, one with P, and
16·d − 4 vectors of n as XLA fuses them. The first step from zero needs no product, and no residual is formed after the
last. With d = 2 that is four products a level: on 7-point Poisson, where all levels together have 1.6 times the entries
of the finest, 9 fine products a cycle, and more where formats pad.
"""

import dataclasses
import functools
import warnings
from collections import Counter
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from jaxsparse_fmt._arguments import real_number
from jaxsparse_fmt._dtypes import floating_dtype, requested_dtype
from jaxsparse_fmt._progress import staged
from jaxsparse_fmt._pytrees import exportable, pytree
from jaxsparse_fmt._text import readable_bytes
from jaxsparse_fmt._tracing import in_trace, standard_promotion
from jaxsparse_fmt.core.basis import IDENTITY, Basis, Operator
from jaxsparse_fmt.core.transposed import Transposed
from solvers.core import arguments
from solvers.core.operators import operand
from solvers.precond import _checks as checks
from solvers.precond import _device_hierarchy, _given, _hierarchy, _stored
from solvers.precond._cycles import DEGREE, Level, cycled, growth
from solvers.precond._rows import Rows, of_one_shard

MAX_COARSE = 500


@exportable
@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Multigrid(Operator):
    """M ≈ A⁻¹, one cycle from zero: `M @ r`. Linear in r; equal shapes share programs.

    Attributes:
      levels: from the finest down, without the coarsest.
      coarse_inverse: [m, m], generalized inverse of the coarsest matrix, which is A itself where A is small.
      cycle: "V" or "W".
      symmetric: whether the operator is its own transpose.
      order: of the vectors inside the cycle, those of a sharded matrix.
      whole: levels, the last ones, that every device of a sharded matrix has whole.
    """

    levels: tuple[Level, ...]
    coarse_inverse: Array
    cycle: str = dataclasses.field(metadata={"static": True})
    symmetric: bool = dataclasses.field(metadata={"static": True})
    order: Basis = IDENTITY
    whole: int = dataclasses.field(default=0, metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        n = getattr(self.order, "n", (self.levels[0].A if self.levels else self.coarse_inverse).shape[0])
        return n, n

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the stored entries. The vectors of the cycle have this dtype too, but at least 32 bits."""
        return self.coarse_inverse.dtype

    @property
    def T(self) -> Self:
        """The transposed operator: itself where it is symmetric, else a view that makes transposed products."""
        if self.symmetric:
            return self
        levels, inverse = tuple(level.T for level in self.levels), self.coarse_inverse.T
        return dataclasses.replace(self, levels=levels, coarse_inverse=inverse)

    def _entered(self, basis: Basis) -> Any:
        return dataclasses.replace(self, order=IDENTITY) if basis.same(self.order) else None

    def _partition(self, axis: Any) -> Self | None:
        piece: Any = PartitionSpec(axis)
        same: Any = PartitionSpec()
        first = self.levels[: len(self.levels) - self.whole]
        maps = [[a._partition(axis) for a in (level.A, level.R, level.P)] for level in first]
        if not maps or not self.order.is_identity or any(None in specs for specs in maps):
            return None
        levels: Any = *(Level(A, R, P, piece, same) for A, R, P in maps), *(same,) * self.whole
        return dataclasses.replace(self, levels=levels, coarse_inverse=same)

    @standard_promotion
    def __matmul__(self, r: Any) -> Array:
        """One cycle for r [n] or [n, k], in the wider of the two dtypes.

        Raises:
          ValueError: r has another shape.
        """
        return _cycled(self, operand(self, r, self.coarse_inverse, 2, self.order))

    def refreshed(self, A: Any) -> "Multigrid":
        """Multigrid of a matrix with other values, by the same R and P: no points are aggregated anew.

        The coarse matrices R·A·P, smoothers and the coarsest inverse are made anew; those of a sharded matrix by hosts,
        each by its own rows. While A changes by a small factor, a solve takes about as many steps as with a new set-up.

        Args:
          A: [n, n] as for `multigrid`; a sharded one is cut as that of M.

        Raises:
          ValueError, TypeError: as `multigrid`, or A is of another size, cut otherwise, or complex where M is not.
        """
        return _refreshed(A, self)

    # --------------------------------------------------------------------------------------------------- measures

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Rows and stored entries of every level; the coarsest is dense."""
        m = self.coarse_inverse.shape[0]
        maps = [level.A for level in self.levels]
        ranges = [getattr(A, "range", None) for A in maps]  # of sharded ones, whose shape counts padded places
        rows = [A.shape[0] if of is None else sum(of.over.counts) for A, of in zip(maps, ranges, strict=True)]
        return [*zip(rows, [A.nnz for A in maps], strict=True), (m, m * m)]

    @property
    def operator_complexity(self) -> float:
        """Entries of all levels over those of the finest."""
        return sum(nnz for _, nnz in self.sizes) / self.sizes[0][1]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self))

    def __repr__(self) -> str:
        n, leaves = self.shape[0], jax.tree.leaves(self)
        if not all(isinstance(leaf, (jax.Array, np.ndarray)) for leaf in leaves):
            return f"<multigrid {n}×{n}, {len(self.levels) + 1} levels, leaves {leaves}>"
        rows, name, on_each = [rows for rows, _ in self.sizes], jnp.dtype(self.dtype).name, ""
        maps: list[Any] = [getattr(level.A, "A", level.A) for level in self.levels]
        names = [getattr(A, "name", "sharded") for A in maps] + ["inverse"]
        if not self.order.is_identity:
            on_each = f", at most {readable_bytes(_most_on_a_device(leaves))} a device"
            for k, A in enumerate(maps[: len(maps) - self.whole]):
                names[k] = "{} to {} a device".format(*(f(A.range.over.counts) for f in (min, max)))
            names[len(maps) - self.whole :] = (f"{name}, whole" for name in names[-1 - self.whole :])
        levels = " → ".join(f"{rows} ({name})" for rows, name in zip(rows, names, strict=True))
        return (
            f"<multigrid {n}×{n}, {name}, {readable_bytes(self.nbytes)}{on_each}, operator complexity "
            f"{self.operator_complexity:.2f}: rows {levels}>"
        )


def _most_on_a_device(leaves: list[Any]) -> int:
    held: Counter[Any] = Counter()
    for leaf in leaves:
        held.update({shard.device: shard.data.nbytes for shard in leaf.addressable_shards})
    return max(held.values())


@jax.jit
def _cycled(M: Multigrid, r: Array) -> Array:
    inside = jnp.promote_types(M.dtype, jnp.float32)
    if jnp.issubdtype(r.dtype, jnp.complexfloating):
        inside = jnp.result_type(inside, jnp.complex64)
    x = M.order.leave(cycled(M.levels, M.coarse_inverse, M.cycle, M.order.enter(r.astype(inside))))
    return x.astype(jnp.result_type(M.dtype, r.dtype))


@arguments.door
@staged
def multigrid(
    A: Any,
    B: Any = None,
    *,
    cycle: str = "V",
    degree: int = DEGREE,
    theta: float = 0.08,
    dtype: Any = None,
    max_coarse: int | None = None,
    progress: bool = False,
) -> Multigrid:
    """Algebraic multigrid as a preconditioner, set up in float64.

    The host sets it up. If A lies on an accelerator, is real and symmetric, has one unknown a point, one near-null
    vector and more than four million entries a device, accelerators set up the large levels. The first such set-up
    waits two seconds or more for XLA to compile programs, which later matrices of similar sizes share.

    The method is made for symmetric positive definite matrices of elliptic equations; it also works for singular ones
    and for convection with diffusion. It detects the symmetry of A. While A changes little, M may stay as it is.

    Args:
      A: [n, n] matrix of jaxsparse_fmt or scipy.sparse. The unknowns of a point are numbered together. A BSR matrix
        has one block for them; of another matrix the largest dense blocks are taken, so pass a system whose blocks have
        holes as BSR, `S.tobsr((b, b))`. If A is sharded, each shard coarsens its own rows, on its device or on the
        host of its process, and only rows of halos travel. The finest level keeps the format of a jaxsparse matrix,
        unless that format sorts rows, and shares its arrays if the dtype is the same.
      B: [n, k], the near-null space: columns that A maps almost to zero, except at boundaries. In elasticity
        `gallery.rigid_body_modes(points)`. None takes a constant for each unknown of a point.
      cycle: "V" or "W".
      degree: of the smoother, Chebyshev's polynomial in D⁻¹A.
      theta: a[i, j] is a strong coupling if |a[i, j]| ≥ theta·√(a[i, i]·a[j, j]), on the finest level; the next level
        takes a quarter of theta. Larger values follow stronger anisotropy and coarsen less. theta is multiplied by 3
        while the next level would have more than twice as many blocks, as in many graphs. It is quartered while most
        points have no strong coupling, though their couplings sum up to more than half their diagonal, as with elements
        on cubes. theta=0 stays.
      dtype: of the stored entries and the vectors inside the cycle: "float32" under a float64 solver moves about half
        the bytes. None takes A's.
      max_coarse: rows up to which a level is inverted densely instead of coarsened. None takes 500;
        for an A of more rows min(500, max(50, √(A.nnz / 10))).
      progress: True shows a bar on standard error after a second.

    Raises:
      TypeError: A is not a sparse matrix, or is traced.
      ValueError: A is empty, not square, has a zero on its diagonal or an entry that is not finite; an argument out of
        range; a hierarchy that stops coarsening too early or that `dtype` cannot hold.

    Warns:
      RuntimeWarning: the cycle diverges, found by a power iteration on I − M·A. A Hermitian matrix that looked positive
        semidefinite in the set-up is not examined: its V-cycle converges in the norm of A. Inside jit none is.

    Examples:
      >>> M = js.precond.multigrid(A, max_coarse=4)
      >>> js.cg(A, b, M=M, rtol=1e-8).success, len(M.sizes)
      (True, 2)
    """
    degree = _checked(cycle, degree)
    most = MAX_COARSE if max_coarse is None else arguments.int_at_least(max_coarse, "max_coarse", 1)
    if not 0 <= (theta := real_number("theta", theta)) < 1:
        raise ValueError(f"theta must be at least 0 and below 1; got {theta:g}")

    def coarsest(A: Any) -> int:
        if max_coarse is not None or A.shape[0] <= most:
            return most
        return min(most, max(50, int((A.nnz / 10) ** 0.5)))

    settings = cycle, degree, dtype
    if checks.is_sharded(A):
        checks.refuse_traced(A)
        A._check_users_order("multigrid")
        A._agree(B=B, cycle=cycle, theta=theta, degree=degree, dtype=_dtype(A, dtype), max_coarse=most)
        if A.shape[0] > most:
            from jaxsparse_fmt.distributed.entries import untraced
            from solvers.precond import _sharded  # a tenth of a second for one device

            def built(A: Any) -> tuple[Multigrid, bool]:
                spread = _sharded.Spread(A, _dtype(A, dtype))
                large = _sharded.large_levels(A, B, theta, coarsest(A), spread, degree)
                if large is None:
                    rows, near = _sharded.on_hosts(A, B)
                    large = rows, _hierarchy.Aggregation(near, theta, coarsest(A)), None
                rows, coarsening, start = large
                return _built(A, rows, coarsening, *settings, start, spread)

            return _examined(*untraced(built, A, A.range.over.mesh))
        if not arguments.is_addressable(A):
            raise ValueError(f"A has {A.shape[0]} rows on several processes; pass max_coarse= below that number")
    large = _device_hierarchy.serves(A, B) and _stored.large_levels(A, B, theta, coarsest(A), degree, _dtype(A, dtype))
    if large:
        rows, coarsening, start = large
        return _examined(*_built(A, rows, coarsening, *settings, start))
    S = checks.host(A)
    b = checks.block_size(A, S)
    near = np.tile(np.eye(b, dtype=S.dtype), (S.shape[0] // b, 1))
    if B is not None:
        B = checks.near_null(np.asarray(B), S.shape[0], S.dtype)
        checks.finite(B, "B")
        near = np.ascontiguousarray(B, S.dtype)
    coarsening = _hierarchy.Aggregation({0: near}, theta, coarsest(S))
    return _examined(*_built(A, of_one_shard(S, b), coarsening, *settings))


@arguments.door
def multigrid_from(
    levels: Any, A: Any = None, *, cycle: str = "V", degree: int = DEGREE, dtype: Any = None
) -> Multigrid:
    """Multigrid with levels made elsewhere: the smoother, the cycle and the rest are those of `multigrid`.

    Args:
      levels: a solver of PyAMG, such as `pyamg.ruge_stuben_solver(S)`, another object whose `levels` have A, R and P,
        or these levels.
      A: the finest matrix as a matrix of jaxsparse_fmt, whose arrays the finest level then shares; None takes that of
        the first level.
      cycle, degree, dtype: as in `multigrid`, which has the errors and warnings, too.

    Examples:
      >>> levels = pyamg.ruge_stuben_solver(sp.csr_matrix(S))  # doctest: +SKIP
      >>> M = js.precond.multigrid_from(levels, A)  # doctest: +SKIP
    """
    degree, coarsening = _checked(cycle, degree), _given.Given(getattr(levels, "levels", levels))
    A = coarsening.levels[0].A if A is None else A
    if checks.is_sharded(A):
        raise ValueError("levels made elsewhere lie on one device; gather A by from_scipy(A.to_scipy())")
    return _examined(*_built(A, of_one_shard(checks.host(A)), coarsening, cycle, degree, dtype), 4)


@arguments.door
def _refreshed(A: Any, M: Multigrid) -> Multigrid:
    checks.square(A, "multigrid", 1)
    checks.renewing(M, A)
    checks.refuse_traced((A, M))
    if any(isinstance(level.A, Transposed) for level in M.levels):
        raise ValueError("a transposed M cannot be refreshed; refresh M and transpose the result, M.refreshed(A).T")
    degree = len(M.levels[0].recurrence) if M.levels else DEGREE
    if M.order.is_identity:
        large, levels = None, _stored.beside(A, M.levels)
        if levels and M.symmetric and _device_hierarchy.renews(A):
            large = _stored.large_levels(A, None, 0.0, 0, degree, M.dtype, levels)
        rows, _, start = large or (of_one_shard(checks.host(A)), None, None)
        below = levels[len(start.levels) if start else 0 :]
        coarsening = _given.OfTransfers([functools.partial(_given.of_one, level) for level in below], M.symmetric)
        return _examined(*_built(A, rows, coarsening, M.cycle, degree, M.dtype, start, None, levels))
    if not checks.is_sharded(A) or not A.domain.same(M.order):
        raise ValueError("M.refreshed(A) takes a matrix that is sharded as the one that M was made of")
    from jaxsparse_fmt.distributed.entries import untraced
    from solvers.precond import _sharded

    def built(A: Any) -> tuple[Multigrid, bool]:
        rows, levels, spread = _sharded.renewed(A, M)
        return _built(A, rows, _given.OfTransfers(levels, M.symmetric), M.cycle, degree, M.dtype, None, spread)

    A._agree(M=M)
    return _examined(*untraced(built, A, A.range.over.mesh))


def _checked(cycle: str, degree: Any) -> int:
    if cycle not in ("V", "W"):
        raise ValueError(f"unknown cycle {cycle!r}; choose V or W")
    return arguments.int_at_least(degree, "degree", 1)


def _dtype(A: Any, dtype: Any) -> Any:
    return floating_dtype(A.dtype, "A") if dtype is None else requested_dtype(dtype)


def _built(
    A: Any,
    rows: Rows,
    coarsening: Any,
    cycle: str,
    degree: int,
    dtype: Any,
    start: _hierarchy.Start | None = None,
    spread: Any = None,
    kept: Any = None,
) -> tuple[Multigrid, bool]:
    """The preconditioner of A, whose rows, or those of its coarse matrix after the levels of `start`, are on hosts; and
    whether it looked definite. `spread` puts the levels in shards on their devices; R and P of `kept` levels stay.
    """
    stored = _dtype(A, dtype)

    def keep(step: _hierarchy.Step, k: int) -> Level:
        sizes = step.A.each(lambda S, d: (_hierarchy.largest(S.data), _hierarchy.largest(d)), step.inverse_diagonal)
        of_A, of_inverse = zip(*step.A.halo.cut.of_all(sizes), strict=True)
        _stored.check_fits((max(of_A), max(of_inverse)), stored, k)
        if step.A.halo.cut.over is not None:
            return spread(step, k)
        one = Level(step.A.S[0], step.R[0], step.P.S[0], step.inverse_diagonal[0], step.recurrence)
        return _stored.on_device(one, A, stored, k, kept)

    built = _hierarchy.build(rows, coarsening, degree, keep, start, 0 if spread is None else spread.whole)
    checks.fits(_hierarchy.largest(built.coarse_inverse), stored, "the inverse of the coarsest level")
    inverse = jnp.asarray(built.coarse_inverse, stored)
    symmetric = built.hermitian and built.coarse_inverse.dtype.kind == "f"
    M = Multigrid(tuple(built.levels), inverse, cycle, symmetric)
    return (M, built.definite) if spread is None else spread.finished(M, built.definite)


def _examined(M: Multigrid, definite: bool, frames: int = 5) -> Multigrid:
    """M, with a warning, of the caller that many frames above, if its cycle diverges; not inside jit."""
    if not M.levels or definite or in_trace():
        return M
    if (rate := float(growth(dataclasses.replace(M, order=IDENTITY)))) > 1:
        warnings.warn(
            f"this multigrid cycle diverges: the error grows by a factor of {rate:.3g} a cycle, so that only gmres may "
            "gain from it. For an indefinite or strongly convective A use incomplete_lu, or more smoothing by degree=",
            RuntimeWarning,
            stacklevel=frames,
        )
    return M
