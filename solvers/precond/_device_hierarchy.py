"""The set-up of multigrid where A lies on an accelerator: the large levels of `_hierarchy`, found there.

For a real symmetric A with one unknown a point and one near-null vector. Only sizes and a few numbers come to the host,
which makes the small levels. The host's greedy aggregation takes points in their order, one after the other; here they
have hashed priorities, so that roots are found in few rounds, and a cycle takes as many steps or one more or less.

XLA compiles programs for the sizes of each level, for seconds, so only matrices for which the host takes as long come
here; later set-ups of such sizes take a fraction of the host's time.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsparse_fmt._types import CsrArrays, Target, index_dtype
from jaxsparse_fmt.algebra import on_device
from jaxsparse_fmt.algebra.on_device import on_accelerator
from jaxsparse_fmt.core import entry_index
from jaxsparse_fmt.core.matrix import SparseMatrix, build
from jaxsparse_fmt.kernels.layout.address import expand_ptr, row_pointers, take
from solvers.core.spectrum import spectrum
from solvers.precond._hierarchy import DAMPING, DENSEST, LANCZOS_STEPS, ROUNDING, STRICTER, WEAKER
from solvers.precond._inverse import NULL

ROWS = 2**21  # of a matrix up to which the host makes all levels
FEW = 2**22  # entries of a level up to which the host makes it, and those below it
ROOT = np.uint32(2**32 - 1)
SECOND = 2  # neighbours left over that a root of the second pass has, at least


class Descent(NamedTuple):
    """A level to go on from.

    Attributes:
      A: [n, n] in CSR, float64.
      near: [n] the near-null vector.
      unit: [n] size of the sums behind A's diagonal.
      theta: of strong couplings.
      definite: whether nothing was seen that tells A indefinite.
    """

    A: Any
    near: Array
    unit: Array
    theta: float
    definite: bool


def serves(A: Any, B: Any) -> bool:
    """Whether A may be set up here, as far as its type tells."""
    vector = B is None or (np.shape(B) in {A.shape[:1], (A.shape[0], 1)} and not np.iscomplexobj(B))
    ours = isinstance(A, SparseMatrix) and A.shape[0] == A.shape[1] and jnp.issubdtype(A.dtype, jnp.floating)
    return ours and vector and A.shape[0] > ROWS and not hasattr(A, "block_shape") and on_accelerator(A.values)


def begun(A: Any, B: Any, theta: float) -> Descent | None:
    """The finest level; None where the host has to look: it refuses A in words, or finds blocks."""
    near = None if B is None else jnp.asarray(B, np.float64).reshape(-1)
    usual, A, near, unit = _looked(A, near)
    return Descent(A, near, unit, theta, True) if usual else None


def descended(at: Descent) -> tuple[Descent, tuple[Any, ...], tuple[float, float]] | None:
    """The next level; A, R, P, the inverse diagonal and the bound of the spectrum of this one; its largest numbers.

    None where no coarser level can be made here.
    """
    A, theta, n = at.A, at.theta, at.A.shape[0]
    while True:
        found = _aggregated(A, at.near, at.unit, theta)
        count, inside, weak, negative, lowest, upper, *largest = (x.item() for x in jax.device_get(found.numbers))
        if not 0 < count < n:
            return None
        T, below = _tentative(found.agg, at.near, inside, count)
        G = A.with_data(found.step)
        try:
            P = (_kept(G, found.kept) if weak else G) @ T
            R, unit = _transposed(P, at.unit)
            coarse = R @ (A @ P)
        except ValueError:  # the lists of products are too large for the device, or for indices of 32 bits
            return None
        if coarse.nnz <= DENSEST * A.nnz or not 0 < theta < 1:
            break
        theta *= STRICTER
    definite = at.definite and not negative and lowest >= -ROUNDING * upper
    return Descent(coarse, below, unit, WEAKER * theta, definite), (A, R, P, found.inverse, upper), tuple(largest)


class Found(NamedTuple):
    agg: Array  # [n] int32, -1 in none
    step: Array  # [nnz] values of I − ω/λ·D⁻¹·A'
    kept: Array  # [nnz] where A' has entries
    inverse: Array  # [n] of the diagonal
    numbers: tuple[Array, ...]


def _csr(arrays: Any, shape: tuple[int, int], dtype: Any = np.float64) -> Any:
    return build(CsrArrays(*arrays, shape=shape), "csr", Target(np.dtype(dtype)))


@jax.jit
def _looked(A: Any, near: Array | None) -> Any:
    """Whether A is symmetric, has no zero on its diagonal, is not made of blocks, and all is finite; and the level."""
    data, col, ptr = A.csr_arrays()
    data, n, nnz = data.astype(np.float64), A.shape[0], A.nnz
    near = jnp.ones(n) if near is None else near
    A, row, number = _csr((data, col, ptr), A.shape), expand_ptr(jnp, ptr, nnz), lax.iota(ptr.dtype, nnz)
    diagonal, place, largest = A.diagonal(), entry_index.sorted_by(col, number), jnp.max(jnp.abs(data))
    usual = jnp.all((take(row, place) == col) & (take(col, place) == row))
    usual &= jnp.all(jnp.abs(take(data, place) - data) <= 1e-12 * largest) & jnp.all(diagonal != 0)
    usual &= jnp.isfinite(largest) & jnp.all(jnp.isfinite(near))
    for b in (b for b in (2, 3, 5) if n % b == 0):  # a block of 4 or 6 holds blocks of 2
        # Each entry is beside the first of its b columns, and below the first of its b rows.
        k = number - take(ptr, row)
        above = jnp.minimum(take(ptr, row - row % b) + k, nnz - 1)
        dense = (take(col, number - k % b) + k % b == col) & (col % b == k % b) & (take(col, above) == col)
        usual &= ~(jnp.all(jnp.diff(ptr) % b == 0) & jnp.all(dense))
    return usual, A, near, jnp.abs(diagonal)


@jax.jit
def _aggregated(A: Any, near: Array, unit: Array, theta: Array) -> Found:
    data, col, ptr = A.csr_arrays()
    n, row = A.shape[0], expand_ptr(jnp, ptr, A.nnz)
    own, size, d = row == col, jnp.abs(data), A.diagonal()
    live = jnp.abs(d) > NULL * unit
    inverse = jnp.where(live, 1 / jnp.where(live, d, 1), 0)
    bound = jnp.max(jnp.abs(inverse) * (A.with_data(size) @ jnp.ones(n)))
    lowest, largest = spectrum(lambda z: A @ z, lambda w: inverse * w, near, LANCZOS_STEPS)
    upper = jnp.where((largest > 0) & jnp.isfinite(lowest), jnp.minimum(largest, bound), bound)
    upper = jnp.where(upper > 0, upper, 1)
    root = jnp.sqrt(jnp.abs(d))
    strong = (size >= theta * take(root, row) * take(root, col)) & ~own
    agg, count = aggregates(row, col, strong, size, n)
    # A' is A itself where the near-null vector is not the same at all points.
    kept = strong | own | jnp.any(near != near[0])
    weak = A.with_data(jnp.where(kept, 0, data)) @ jnp.ones(n)
    scale = DAMPING / upper * inverse
    step = jnp.where(kept, -take(scale, row) * data, 0) + jnp.where(own, 1 - take(scale * weak, row), 0)
    numbers = count, jnp.sum(agg >= 0), ~jnp.all(kept), jnp.any(inverse < 0), lowest, upper
    numbers += jnp.max(size), jnp.max(jnp.abs(inverse))
    return Found(agg, step, kept, inverse, numbers)


def aggregates(
    row: Array,  # [nnz] rising
    col: Array,  # [nnz]
    strong: Array,  # [nnz] couplings with others
    size: Array,  # [nnz]
    n: int,
) -> tuple[Array, Array]:
    """The aggregate of each point, -1 without strong neighbours, and the number of aggregates.

    A root forms an aggregate with its strong neighbours. Roots are those points, of all with strong neighbours and by
    falling priority, that share no neighbour with a root before: a maximal independent set of distance two. A second
    such set among the points left over, of those with `SECOND` neighbours there, keeps aggregates as small as a greedy
    pass in the order of a grid (Kelley and Rajamanickam 2022). The rest joins the neighbour with the strongest
    coupling, the first of equal ones.
    """
    number, priority = lax.iota(np.int32, n), _priorities(lax.iota(np.uint32, n))

    def of_rows(values: Array) -> Array:
        return jax.ops.segment_max(values, row, n, indices_are_sorted=True)

    def roots(inside: Array, eligible: Array) -> Array:
        """A maximal set of eligible points of which no two share a neighbour, where each is its own neighbour too."""
        column = jnp.where(inside, col, n)

        def step(key: Array) -> Array:  # 0 for points that are out, `ROOT` for those that are in
            nearest = key.at[column].max(take(key, row), mode="drop")
            found = jnp.maximum(of_rows(jnp.where(inside, take(nearest, col), 0)), nearest)
            decided = jnp.where(found == ROOT, 0, jnp.where(found == key, ROOT, key))
            return jnp.where((key > 0) & (key < ROOT), decided, key)

        open_ = lambda key: jnp.any((key > 0) & (key < ROOT))  # noqa: E731
        return lax.while_loop(open_, step, jnp.where(eligible, priority, 0)) == ROOT

    def covered(root_of: Array, least: Array) -> tuple[Array, None]:
        inside = strong & take(root_of < 0, row) & take(root_of < 0, col)
        others = jax.ops.segment_sum(inside.astype(np.int32), row, n, indices_are_sorted=True)
        new = roots(inside, (root_of < 0) & (others >= least))
        column = jnp.where(inside & take(new, row), col, n)
        return jnp.where(new, number, root_of).at[column].set(row, mode="drop"), None

    root_of, _ = lax.scan(covered, jnp.full(n, -1, np.int32), jnp.array([1, SECOND]))
    is_root = root_of == number
    joins = strong & take(root_of < 0, row) & take(root_of >= 0, col)
    strongest = of_rows(jnp.where(joins, size, -1))
    best = jnp.where(joins & (size == take(strongest, row)), col, n)
    best = jax.ops.segment_min(best, row, n, indices_are_sorted=True)
    joined = jnp.where((root_of < 0) & (best < n), take(root_of, jnp.clip(best, 0, n - 1)), root_of)
    agg = jnp.where(joined < 0, -1, take(jnp.cumsum(is_root, dtype=np.int32) - 1, jnp.maximum(joined, 0)))
    return agg, jnp.sum(is_root)


def _priorities(number: Array) -> Array:
    """A priority for each number [n] uint32: all differ, and none is 0 or `ROOT` below 2³¹."""
    h = number + np.uint32(2**30)  # the finalizer of MurmurHash3, a bijection
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


@functools.partial(jax.jit, static_argnums=(2, 3))
def _tentative(agg: Array, near: Array, inside: int, count: int) -> tuple[Any, Array]:
    """T [n, count], whose columns are the normalized parts of the near-null vector, and their lengths."""
    at = jnp.where(agg >= 0, agg, count)
    order = entry_index.sorted_by(at, lax.iota(np.int32, agg.size))[:inside]  # a product adds in it, in no other
    squares = _csr((take(near, order) ** 2, order, row_pointers(take(at, order), count)), (count, agg.size))
    below = jnp.sqrt(squares @ jnp.ones(agg.size))
    values = near / jnp.where(below > 0, below, 1)[jnp.minimum(at, count - 1)]
    ptr = jnp.concatenate([jnp.zeros(1, index_dtype(inside)), jnp.cumsum(agg >= 0, dtype=index_dtype(inside))])
    here = jnp.nonzero(agg >= 0, size=inside)[0]
    return _csr((values[here], agg[here], ptr), (agg.shape[0], count)), below


def _kept(A: Any, kept: Array) -> Any:
    data, col, ptr = A.csr_arrays()
    S, at = on_device.masked(on_device.pattern(col, ptr, A.shape), kept)
    return _csr((take(data, at), S.indices, S.indptr), A.shape)


@jax.jit
def _transposed(P: Any, unit: Array) -> tuple[Any, Array]:
    """R = Pᵀ, and the sizes of the sums behind the diagonal of R·A·P."""
    R = _csr(entry_index.transposed(P.csr_arrays())[0], P.shape[::-1])
    return R, R.with_data(R.data**2) @ unit
