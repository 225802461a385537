"""Matrices and meshes that the tests of this folder share."""

import jax
import numpy as np
import scipy.sparse as sp

from jaxsparse_fmt.distributed import halo

DEVICES = 8
MESH = jax.make_mesh((DEVICES,), ("rows",), devices=jax.devices("cpu")[:DEVICES])  # also where there are GPUs

KINDS = {"permute": -(2**60), "all_to_all": 2**60}


def take(kind: str, monkeypatch) -> None:
    """Has all plans of an exchange take this kind; two devices have no choice."""
    monkeypatch.setattr(halo, "ROUND", KINDS[kind])


def irregular(n_rows: int = 90, n_cols: int = 90, seed: int = 0) -> sp.csr_array:
    """Rows of 0 to 6 entries, two long ones, a run of empty ones; no symmetry."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, min(7, n_cols), n_rows)
    lengths[[5, n_rows - 2]] = min(60, n_cols), min(33, n_cols)
    lengths[n_rows - 20 : n_rows - 10] = 0
    cols = np.concatenate([rng.choice(n_cols, k, replace=False) for k in lengths])
    data = rng.standard_normal(cols.size)
    S = sp.coo_array((data, (np.repeat(np.arange(n_rows), lengths), cols)), shape=(n_rows, n_cols)).tocsr()
    S.sort_indices()
    return S
