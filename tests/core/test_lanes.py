"""Elimination without pivoting of many matrices with one pattern, against dense algebra."""

import functools
import itertools

import jax
import numpy as np
import pytest
import scipy.sparse

from jaxsparse_fmt.core import lanes
from jaxsparse_fmt.kernels.backends import selection
from jaxsparse_fmt.kernels.cpu.abi import LANES
from solvers.patterns import Pattern
from tests.kernels.test_spmv import kernels_in
from tests.lowering import lowered, quick_jit

BATCH = LANES + 3


def some_pattern(n=30):
    S = scipy.sparse.random_array((n, n), density=0.1, rng=np.random.default_rng(1))
    return scipy.sparse.coo_array(S + scipy.sparse.eye_array(n))


def planned(S) -> lanes.Elimination:
    plan = Pattern(S.shape[0], S.row.astype(np.int32), S.col.astype(np.int32)).plan
    assert plan is not None
    return plan


def matrices(S, rng, dtype):
    values = rng.standard_normal((BATCH, S.nnz)).astype(dtype)
    if np.issubdtype(dtype, np.complexfloating):
        values = values + 1j * rng.standard_normal(values.shape)
    values = np.where(S.row == S.col, 4 + values, values).astype(dtype)
    dense = np.zeros((BATCH, *S.shape), dtype)
    dense[:, S.row, S.col] = values
    return values, dense


@pytest.mark.parametrize("backend", ["numba", "xla", "interpret"])
@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_factors_solve_every_system_and_its_transpose(backend, dtype, rng):
    S = some_pattern()
    plan = planned(S)
    values, dense = matrices(S, rng, dtype)
    r = rng.standard_normal((BATCH, 2, S.shape[0])).astype(dtype)

    @quick_jit
    def both(values, r):
        F = lanes.factored(plan, values)
        return lanes.solved(plan, F, r, False), lanes.solved(plan, F, r, True)

    with selection.use_backend(backend):
        x, y = both(values, r)
    tolerance = 200 * np.finfo(dtype).eps
    np.testing.assert_allclose(np.einsum("bij,bkj->bki", dense, x), r, rtol=0, atol=tolerance)
    np.testing.assert_allclose(np.einsum("bji,bkj->bki", dense, y), r, rtol=0, atol=tolerance)


@pytest.mark.parametrize("backend", ["numba", "xla"])
def test_entries_of_one_place_add_up(backend, rng):
    S = some_pattern(12)
    row, col = np.append(S.row, S.row), np.append(S.col, S.col)
    plan = planned(scipy.sparse.coo_array((np.ones(len(row)), (row, col)), shape=(12, 12)))
    values, _ = matrices(S, rng, np.float64)
    with selection.use_backend(backend):
        F = lanes.factored(plan, np.concatenate([0.25 * values, 0.75 * values], axis=1))
        once = lanes.factored(planned(S), values)
    np.testing.assert_allclose(F, once, rtol=1e-12)


@pytest.mark.parametrize("backend", ["numba", "xla"])
def test_a_pivot_of_zero_spoils_its_own_lane_alone(backend, rng):
    S = some_pattern(12)
    values, _ = matrices(S, rng, np.complex128)
    spoilt = values.copy()
    spoilt[4] = 0
    with selection.use_backend(backend):
        F, whole = (np.asarray(lanes.factored(planned(S), v)) for v in (spoilt, values))
    assert not np.all(np.isfinite(F[0, :, 4]))
    np.testing.assert_array_equal(np.delete(F[0], 4, axis=-1), np.delete(whole[0], 4, axis=-1))


def test_no_chunk_changes_a_place_twice_or_reads_one_that_it_changes():
    plan = planned(some_pattern(60))
    reads = (slice(0, 3), slice(1, 2), slice(1, 2))  # of the factors; of the unknowns
    for (starts, *tables), read in zip(plan.steps, reads, strict=True):
        assert starts[0] == 0 and starts[-1] == len(tables[0]) and np.all(np.diff(starts) > 0)
        for begin, end in itertools.pairwise(starts):
            target, *sources = (a[begin:end] for a in tables)
            assert len(np.unique(target)) == len(target)
            assert not np.isin(target, np.stack(sources[read])).any()


@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
@pytest.mark.parametrize("dialect", ["triton", "mosaic"])
def test_both_dialects_have_kernels_of_the_updates(dialect, dtype):
    S = some_pattern(12)
    values, r = (jax.ShapeDtypeStruct((BATCH, *shape), dtype) for shape in ((S.nnz,), (2, 12)))

    def both(values, r):
        F = lanes.factored(planned(S), values)
        return lanes.solved(planned(S), F, r, False)

    with selection.use_backend(dialect):
        assert kernels_in(lowered(both, values, r), dialect) == 3


def test_a_batch_of_batches_is_more_tiles(rng):
    S = some_pattern(12)
    plan = planned(S)
    values, _ = matrices(S, rng, np.float64)
    r = rng.standard_normal((BATCH, 1, 12))
    solve = lambda values, r: lanes.solved(plan, lanes.factored(plan, values), r, False)  # noqa: E731
    twice = quick_jit(jax.vmap(solve, (0, None)))(np.stack([values, 2 * values]), r)
    once = quick_jit(functools.partial(solve))(values, r)
    np.testing.assert_allclose(twice, np.stack([once, once / 2]), rtol=1e-12)
