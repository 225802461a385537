"""A third dialect, for tests: kernels' address arithmetic run eagerly, tile by tile, with every read checked."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass
class Host:
    """What walks and column rules ask of a dialect. A ref is an array, or a function of the index where it is huge."""

    rows: int

    def lanes(self) -> Any:
        return jnp.arange(self.rows, dtype=jnp.int32)

    def full(self, value: Any, dtype: Any) -> Any:
        return jnp.full((self.rows,), value, dtype)

    def load(self, ref: Any, idx: Any, live: Any = None, other: Any = 0, once: bool = False) -> Any:
        del once
        live = np.broadcast_to(True if live is None else live, idx.shape)
        asked = np.asarray(idx)[live]
        if not callable(ref):
            assert np.all((asked >= 0) & (asked < ref.shape[0])), f"reads outside of {ref.shape[0]} places"
        read = np.asarray(ref(asked) if callable(ref) else np.asarray(ref)[asked])
        found = np.full(idx.shape, other, read.dtype)  # NumPy compiles nothing for the size of an array
        found[live] = read
        return jnp.asarray(found)


UNROLL = 4  # entries of a trip: lanes also ask for some past their last


def visits(A: Any, rows: int) -> dict[str, np.ndarray]:
    """What the lanes of a product meet, in tiles of `rows` lanes.

    Returns:
      One number each for every place that a lane meets: its `address`, `row` in the matrix, `column`, n_cols where
      there is none, and `sums`, in how many lanes the sum that it goes into is kept. Rows past the last are left out.
    """
    arrays, rule = A._without_values._arrays, A._rule
    perm = arrays.pop("perm", None)
    d = Host(rows)
    steps_a_trip = rule.column.unit * max(UNROLL // rule.column.unit, 1)
    met: dict[str, list] = {"address": [], "row": [], "column": [], "sums": []}
    for tile in range(-(-rule.address.width // d.rows)):
        for walk in rule.address.walks(d, arrays, jnp.int32(tile), rule.n_stored, jnp.int32):
            inside = np.asarray(walk.row < rule.shape[0])
            walk.matrix_row = walk.row if perm is None else d.load(perm, walk.row, walk.row < rule.shape[0], 0)
            for first in range(0, int(walk.longest), steps_a_trip):
                steps = [(e, *walk.entry(e)) for e in (jnp.int32(first + u) for u in range(steps_a_trip))]
                columns = rule.column.in_kernel(d, arrays, walk, steps, rule.shape[1])
                for (_, at, live), (column, exists) in zip(steps, columns, strict=True):
                    live = np.broadcast_to(live, d.rows) & inside
                    column = np.where(exists, column, rule.shape[1])
                    met["address"].append(np.asarray(at)[live])
                    met["row"].append(np.asarray(walk.matrix_row)[live])
                    met["column"].append(np.asarray(column)[live])
                    met["sums"].append(_summed_in(walk, d.rows)[live])
    return {k: np.concatenate(parts) if parts else np.zeros(0, int) for k, parts in met.items()}


def _summed_in(walk: Any, lanes: int) -> np.ndarray:
    """Of every lane, how many lanes of its group keep the sum: [lanes]. A group works on one row."""
    keep = np.ones(lanes, int) if walk.keep is None else np.broadcast_to(walk.keep, lanes).astype(int)
    rows, keep = (np.asarray(a).reshape(-1, walk.threads, walk.stride) for a in (walk.row, keep))
    assert np.all(rows == rows[:, :1])
    return np.broadcast_to(keep.sum(axis=1, keepdims=True), keep.shape).reshape(-1)
