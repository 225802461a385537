"""Matrices and meshes that the tests of this folder share."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from jaxsparse_fmt.distributed import halo, padding

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


def brought_together(matrices):
    """As shards of one matrix would be."""
    forms = [padding.Form.of(A) for A in matrices]
    matrices = [padding.general(A, forms) for A in matrices]
    form = padding.agreed([padding.Form.of(A) for A in matrices])
    made = [padding.arrays_in(A, form) for A in matrices]
    return [padding.like(matrices[0], {k: jnp.asarray(a) for k, a in arrays.items()}, form) for arrays in made]
