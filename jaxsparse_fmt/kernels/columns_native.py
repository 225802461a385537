"""The faces of `columns.py` on a CPU, with the same arguments, by the kernels of `native.py`; each is None where those
do not do it: for 16-bit numbers, for rules without a kernel, and where Numba fails.

    Slices with Explicit columns                  every face: CSR, ELL, HLL, and what stores or borrows these
    Spread, Bisected with Explicit columns        the product: sums of lanes, which XLA folds
    Slices, Starts with Diagonal columns          the product, of one slice: DIA, SDIA and their transposed

A call is cut into pieces by its sizes alone, whatever the machine: so results are the same to the last bit, with any
number of threads. Below `LAUNCH.serial_entries` it is one piece. Transposed pieces add into copies of the result, as
many as cost little beside their entries, and XLA adds these in order.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxsparse_fmt._types import index_dtype
from jaxsparse_fmt.kernels import ffi
from jaxsparse_fmt.kernels.address import Arrays, Bisected, Chunked, Slices, Spread, Starts
from jaxsparse_fmt.kernels.column_rule import Diagonal, Explicit, is_read
from jaxsparse_fmt.kernels.dialect import LAUNCH
from jaxsparse_fmt.kernels.rule import Rule

Array = jax.Array


def product(values: Array | None, x: Array, arrays: Arrays, *, rule: Rule) -> Array | None:  # [b, n_rows, p]
    """A·x, the same arguments as `columns.product`."""
    if values is None or not ffi.takes(values.dtype, x.dtype):
        return None
    if isinstance(rule.column, Diagonal):
        return _product_of_diagonals(values, x, arrays, rule)
    if rule.column != Explicit() or isinstance(rule.address, Starts):
        return None
    address, (batch, _, p) = rule.address, x.shape
    if isinstance(address, Slices):
        n_rows, perm = rule.shape[0], arrays.get("perm")
    elif isinstance(address, Spread | Bisected):
        n_rows, perm = address.bounds(jnp, arrays, rule.n_stored)[0].shape[0] * address.lanes, None
    else:
        return None
    sizes = {"n_a": values.shape[1], "n_b": x.shape[1] * p, "n_out": n_rows * p, "n_rows": n_rows}
    y = _by_slices("product", values, x, arrays, perm, (batch, n_rows, p), rule, p, _pieces(rule, p), sizes)
    if y is None or isinstance(address, Slices):
        return y
    y = jax.vmap(address.fold)(y.reshape(batch, -1, address.lanes, p))
    return y.at[:, arrays["perm"]].set(y, unique_indices=True) if "perm" in arrays else y


def transposed(values: Array, y: Array, arrays: Arrays, *, rule: Rule) -> Array | None:  # [b, n_cols, p]
    """Aᵀ·y, the same arguments as `columns.transposed`."""
    if not _in_slices(rule) or not ffi.takes(values.dtype, y.dtype):
        return None
    (batch, n_rows, p), n_cols = y.shape, rule.shape[1]
    copies = min(rule.n_stored // max(LAUNCH.entries_a_copy * n_cols, 1), LAUNCH.most_copies, _pieces(rule, p))
    copies = max(copies, 1)
    sizes = {"n_a": values.shape[1], "n_b": n_rows * p, "n_out": n_cols * p, "n_rows": n_rows}
    perm, shape = arrays.get("perm"), (batch, copies, n_cols, p)
    x = _by_slices("transposed", values, y, arrays, perm, shape, rule, p, copies, sizes)
    return None if x is None else x[:, 0] if copies == 1 else jnp.sum(x, axis=1)


def outer(y: Array, x: Array, arrays: Arrays, *, rule: Rule) -> Array | None:  # [b, n_stored]
    """Σ_p y[row, p]·x[col, p] at every stored place, the same arguments as `columns.outer`."""
    if not _in_slices(rule) or not ffi.takes(y.dtype, x.dtype):
        return None
    batch, n_rows, p = y.shape
    sizes = {"n_a": n_rows * p, "n_b": x.shape[1] * p, "n_out": rule.n_stored, "n_rows": n_rows}
    perm, shape = arrays.get("perm"), (batch, rule.n_stored)
    return _by_slices("outer", y, x, arrays, perm, shape, rule, p, _pieces(rule, p), sizes)


def _in_slices(rule: Rule) -> bool:
    return isinstance(rule.address, Slices) and not isinstance(rule.address, Starts) and rule.column == Explicit()


def _by_slices(face, a, b, arrays, perm, shape, rule: Rule, p, pieces, sizes) -> Array | None:
    address, ptr = rule.address, arrays.get("slice_ptr")
    assert isinstance(address, Chunked)
    if ptr is None:
        ptr = jnp.array([0, rule.n_stored], index_dtype(rule.n_stored))
    in_order = perm is None
    perm = jnp.zeros(1, jnp.int32) if perm is None else perm
    return ffi.call(
        f"{face} {'rows' if address.lanes == 1 else 'lanes'}",
        a,
        b,
        (arrays["col_idx"], ptr, perm),
        shape,
        **sizes,
        n_cols=rule.shape[1],
        p=p,
        lanes=address.lanes,
        n_index=arrays["col_idx"].shape[0],
        n_ptr=ptr.shape[0],
        n_perm=0 if in_order else perm.shape[0],
        batch=shape[0],
        pieces=pieces * shape[0],
    )


def _product_of_diagonals(values: Array, x: Array, arrays: Arrays, rule: Rule) -> Array | None:
    address, offsets, (n_rows, n_cols) = rule.address, arrays["offsets"], rule.shape
    if not isinstance(address, Slices) or address.lanes < n_rows or "slice_ptr" in arrays or "perm" in arrays:
        return None
    pattern = arrays.get("pattern")
    masked = 0 if pattern is None else 2 if is_read(pattern) else 1
    pattern = pattern if pattern is not None and masked == 2 else jnp.zeros(1, jnp.uint8)
    start = arrays.get("start")
    if start is None:
        start = jnp.arange(offsets.shape[0], dtype=index_dtype(rule.n_stored)) * address.lanes
    batch, _, p = x.shape
    return ffi.call(
        "product diagonals",
        values,
        x,
        (offsets, start, pattern),
        (batch, n_rows, p),
        n_a=values.shape[1],
        n_b=n_cols * p,
        n_out=n_rows * p,
        n_rows=n_rows,
        n_cols=n_cols,
        p=p,
        n_index=offsets.shape[0],
        n_ptr=start.shape[0],
        n_perm=pattern.shape[0],
        masked=masked,
        batch=batch,
        pieces=_pieces(rule, p, offsets.shape[0] * n_rows) * batch,
    )


def _pieces(rule: Rule, p: int, entries: int | None = None) -> int:
    """Into how many pieces a member of the batch is cut."""
    work = ((rule.n_stored if entries is None else entries) + rule.shape[0]) * p
    return 1 if work < LAUNCH.serial_entries else min(max(work // LAUNCH.piece_entries, 1), LAUNCH.most_pieces)
