"""The values of a product of two sparse matrices, as a trilinear form of its own.

    t(a, b, c) = Σ a[i]·b[j]·c[n]    over all products of an entry i of A, in row r and column k, with an entry j of B
                                     in row k and column s; n is the entry of C = A·B in row r and column s

Its faces are the values of C and both derivatives, so the primitives of `core/form.py` give every order and `vmap`. No
list of the products is stored: every call walks the three patterns anew (Gustavson, 1978). On a CPU compiled code walks
them with a row of C in scratch; elsewhere jnp takes `BLOCK` products at a time. The terms of a row of C are added by
rising column of A.
"""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsparse_fmt._types import Array, Csr, index_dtype, pytree
from jaxsparse_fmt.core.pattern import Absent, Pattern
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.csr import CSR
from jaxsparse_fmt.formats.merging import prefix_length
from jaxsparse_fmt.kernels.backends.tuning import LAUNCH
from jaxsparse_fmt.kernels.coordinates import accumulator, gather
from jaxsparse_fmt.kernels.cpu import ffi
from jaxsparse_fmt.kernels.cpu.over_rows import equal_pieces

BLOCK = 2**20  # products of which the reference holds indices at a time
PIECES = 32  # of the rows, for threads; each has n_cols numbers of scratch


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Gustavson(Pattern):
    """The form of one A·B; its `values` are those of A [nnz], x those of B and y those of C.

    Attributes:
      a_ptr, a_col: [n_rows + 1], [nnz of A] int32; b_ptr and b_col, c_ptr and c_col likewise. None in a kept plan,
        which takes the operand's own.
      cuts: [PIECES + 1] int32, the rows where pieces of equally many products begin.
      n_cols: of C's pattern.
      products: how many there are in the patterns.
      sizes: (m, q, w) of patterns of whole blocks m×q of A, q×w of B and m×w of C; the values are in the order of CSR.
    """

    a_ptr: Array
    a_col: Array
    b_ptr: Array
    b_col: Array
    c_ptr: Array
    c_col: Array
    cuts: Array
    n_cols: int
    products: int
    sizes: tuple[int, int, int] = (1, 1, 1)

    def product_face(self, values: Array, x: Array, backend: str) -> Array:
        return self._face("product", (_columns(values, x), _flat(x)), x, backend)

    def transposed_face(self, values: Array, y: Array, backend: str) -> Array:
        return self._face("transposed", (_columns(values, y), _flat(y)), y, backend)

    def outer_face(self, y: Array, x: Array, backend: str) -> Array:
        return jnp.sum(self._face("outer", (_flat(y), _flat(x)), x, backend), axis=2)

    def _face(self, face: str, operands: tuple[Array, Array], like: Array, backend: str) -> Array:
        """The face of operands [b·p, …] as [b, …, p], with b and p of `like`."""
        out = self._by_kernel(face, *operands) if backend == "numba" else None
        out = self._by_blocks(face, *operands) if out is None else out
        return jnp.moveaxis(out.reshape(like.shape[0], like.shape[2], -1), 1, 2)

    def _length(self, face: str) -> int:
        """How many numbers a face returns: the entries of C, B or A."""
        m, q, _ = self.sizes
        return {"product": self.shape[0], "transposed": self.shape[1], "outer": m * q * self.a_col.shape[0]}[face]

    def _by_kernel(self, face: str, a: Array, b: Array) -> Array | None:
        batch, n_out, (m, q, w) = a.shape[0], self._length(face), self.sizes
        pieces = 1 if self.products < LAUNCH.serial_entries else max(PIECES // batch, 1)
        if face == "transposed":  # pieces add into copies of the result
            pieces = max(min(m * q * w * self.products // n_out, LAUNCH.most_copies, pieces), 1)
        out = ffi.call(
            f"{face} {'' if w == 1 else f'{w}-'}pairs",
            (a, b),
            {
                "columns": self.a_col, "ptr": self.a_ptr, "perm": self.cuts, "pattern": self.c_ptr,
                "base": self.b_col, "start": self.b_ptr, "wide": self.c_col,
            },
            (batch, pieces if face == "transposed" else 1, n_out),
            scratch=w * self.n_cols,
            n_places=n_out,
            pieces=pieces,
            **({} if w == 1 else {"block_rows": m, "block_columns": q}),
        )  # fmt: skip
        return None if out is None else jnp.sum(out, axis=1) if out.shape[1] > 1 else out[:, 0]

    def _by_blocks(self, face: str, a: Array, b: Array) -> Array:
        """The reference, in plain jnp: scatter-adds, on a GPU in no fixed order."""
        if self.sizes != (1, 1, 1):
            return self._of_numbers()._by_blocks(face, a, b)
        n = self._length(face)
        lengths = self.b_ptr[self.a_col + 1] - self.b_ptr[self.a_col]
        index = index_dtype(self.products + BLOCK)
        before = jnp.concatenate([jnp.zeros(1, index), jnp.cumsum(lengths, dtype=index)])
        acc = accumulator(a.dtype, b.dtype)
        first, second, target = {"product": "abc", "transposed": "acb", "outer": "cba"}[face]

        def add(k: Array, out: Array) -> Array:
            at, live = self._products(before, k)
            one = lambda u, v: gather(u, at[first], live).astype(acc) * gather(v, at[second], live).astype(acc)  # noqa: E731
            to = jnp.where(live, at[target], n)
            return out.at[:, to].add(jax.vmap(one)(a, b), mode="drop")

        out = lax.fori_loop(0, -(-self.products // BLOCK), add, jnp.zeros((a.shape[0], n), acc))
        return out.astype(jnp.result_type(a.dtype, b.dtype))

    def _of_numbers(self) -> Self:
        """The same form with patterns of numbers instead of blocks."""
        m, q, w = self.sizes
        named = (("a", m, q), ("b", q, w), ("c", m, w))
        arrays: dict[str, Array] = {}
        for name, rows, columns in named:
            arrays |= _in_numbers(name, getattr(self, f"{name}_ptr"), getattr(self, f"{name}_col"), rows, columns)
        counts = {"n_cols": w * self.n_cols, "products": m * q * w * self.products}
        return dataclasses.replace(self, **arrays, **counts, sizes=(1, 1, 1))

    def _products(self, before: Array, k: Array) -> tuple[dict[str, Array], Array]:
        """The entries of A, B and C in the products of block k, and which of these are products at all."""
        size = min(BLOCK, self.products)
        p = k.astype(before.dtype) * size + jnp.arange(size, dtype=before.dtype)
        live = p < self.products
        p = jnp.where(live, p, 0)
        i = jnp.searchsorted(before, p, side="right").astype(self.a_col.dtype) - 1
        j = self.b_ptr[self.a_col[i]] + (p - before[i]).astype(self.b_ptr.dtype)
        row = jnp.searchsorted(self.a_ptr, i, side="right") - 1
        col, low, high = self.b_col[j], self.c_ptr[row], self.c_ptr[row + 1]
        before_it = prefix_length(lambda k: self.c_col[low + k] < col, high - low, self.n_cols)
        return {"a": i, "b": j, "c": low + before_it}, live


pytree(Gustavson, ("values", "a_ptr", "a_col", "b_ptr", "b_col", "c_ptr", "c_col", "cuts"))


def _in_numbers(name: str, ptr: Array, col: Array, rows: int, columns: int) -> dict[str, Array]:
    """The pattern of the numbers in blocks rows×columns."""
    lengths = jnp.repeat(columns * jnp.diff(ptr), rows)
    to = jnp.concatenate([jnp.zeros(1, ptr.dtype), jnp.cumsum(lengths, dtype=ptr.dtype)])
    number = jnp.arange(rows * columns * col.shape[0], dtype=ptr.dtype)
    row = jnp.searchsorted(to, number, side="right") - 1
    at = number - to[row]
    return {f"{name}_ptr": to, f"{name}_col": columns * col[ptr[row // rows] + at // columns] + at % columns}


def made(
    A: tuple[Any, Csr],
    B: tuple[Any, Csr],
    C: tuple[Any, Csr],
    before: np.ndarray,
    backend: str,
    sizes: tuple[int, int, int] = (1, 1, 1),
) -> Gustavson:
    """The form of A·B = C, without the arrays of operands that store their pattern as the form does.

    So the form does not keep its operands alive. `completed` adds these arrays.

    Args:
      A, B, C: matrices or None, and their patterns on the host; C's values do not matter.
      before: [n_rows + 1], the products in the rows before.
      sizes: as in `Gustavson`.
    """
    (m, q, w), patterns = sizes, (A[1], B[1], C[1])
    a, b, c = (S.nnz * size for S, size in zip(patterns, (m * q, q * w, m * w), strict=True))
    index = index_dtype(max(a, b, c))
    arrays: list[Any] = [x for M, S in (A, B) for x in ((None, None) if _own(M, index) else _copied(S, index))]
    arrays += _own(C[0], index) or _copied(C[1], index)
    cuts = equal_pieces(before, PIECES).astype(np.int32)
    arrays = [*map(building.on_device, (*arrays, cuts))]
    form: Any = Gustavson  # its values are absent
    return form(Absent((a,)), (c, b), a, backend, *arrays, B[1].shape[1], int(before[-1]), sizes)


def completed(form: Gustavson, A: Any, B: Any) -> Gustavson:
    """The form with the arrays of the operands that it lacks."""
    of_a = {"a_ptr": A.row_ptr, "a_col": A.col_idx} if form.a_ptr is None else {}
    of_b = {"b_ptr": B.row_ptr, "b_col": B.col_idx} if form.b_ptr is None else {}
    return dataclasses.replace(form, **of_a, **of_b)


def _own(M: Any, index: Any) -> tuple[Array, Array] | None:
    """The arrays of a matrix that stores its pattern as the form does."""
    return (M.row_ptr, M.col_idx) if isinstance(M, CSR) and M.row_ptr.dtype == index else None


def _copied(S: Csr, index: Any) -> tuple[np.ndarray, np.ndarray]:
    return S.indptr.astype(index), S.indices.astype(np.int32)


def _flat(v: Array) -> Array:
    """[b, n, p] as [b·p, n]."""
    return jnp.moveaxis(v, 2, 1).reshape(-1, v.shape[1])


def _columns(values: Array, v: Array) -> Array:
    """The values [b, n_stored] once for each column of v [b, n, p]."""
    return jnp.repeat(values, v.shape[2], axis=0)
