"""Every format under grad, vmap and jit, against dense arithmetic."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

from tests.lowering import quick_jit
from tests.marks import few
from tests.oracle import assert_derivatives_agree, draw
from tests.zoo import CASES, FIRST_LAYOUTS, SORTED, Layout

every_format = pytest.mark.parametrize("layout", few(FIRST_LAYOUTS, 4), ids=str)

IRREGULAR = CASES["irregular"]


# ------------------------------------------------------------------------------------------------------- derivatives


SPLIT = next(layout for layout in FIRST_LAYOUTS if layout.format == "sell")  # in two parts, with a tail
# The rules of derivatives know no formats, so one is asked for complex numbers, and for every way to differentiate.
ASKED = [(SORTED, "complex128"), *few([(layout, "float64") for layout in FIRST_LAYOUTS], 2)]


@pytest.mark.parametrize("layout, dtype", ASKED, ids=str)
def test_derivatives_to_second_order_equal_those_of_the_dense_product(layout, dtype, rng):
    A, (row, col) = layout.of(IRREGULAR.scipy(dtype)), IRREGULAR.places()
    x, Y = draw(rng, dtype, 13, 2), draw(rng, dtype, 17, 2)
    both = lambda A, x: jnp.concatenate([A @ x, A.T @ Y])  # noqa: E731
    ours = lambda data, x: both(A.with_data(data), x)  # noqa: E731
    dense = lambda data, x: both(jnp.zeros(IRREGULAR.shape, dtype).at[row, col].set(data), x)  # noqa: E731
    assert_derivatives_agree(ours, dense, A.data, x, rtol=1e-11, every_way=dtype == "complex128")


@every_format
def test_padding_takes_no_gradient_even_from_poison(layout):
    case = IRREGULAR
    A = layout.of(case.scipy())

    @quick_jit
    def gradient(A, x):
        return jax.grad(lambda values: jnp.sum(A._with_values(values) @ x))(A.values)

    padding = np.asarray(quick_jit(lambda A: A.entries()[2])(A)) >= A.nnz
    assert np.count_nonzero(~padding) == A.nnz
    for poison in (1.0, np.nan, np.inf):
        got = np.asarray(gradient(A, jnp.full(13, poison)))
        np.testing.assert_array_equal(got[padding], 0)
        np.testing.assert_array_equal(got[~padding], poison)


# ------------------------------------------------------------------------------------------------------------ vmap


@pytest.mark.parametrize("layout", few([Layout("csr"), SORTED, SPLIT], 1), ids=str)
def test_vmap_maps_over_vectors_data_and_both(layout, rng):
    A, (row, col), vmap = layout.of(IRREGULAR.scipy()), IRREGULAR.places(), jax.vmap
    X, Y, D = rng.standard_normal((4, 13)), rng.standard_normal((4, 17)), rng.standard_normal((4, A.nnz))

    def ways(matrix):
        f = lambda data, x: matrix(data) @ x  # noqa: E731
        loss = lambda data, x, y: jnp.dot(y, jnp.sin(f(data, x)))  # noqa: E731
        return {
            "x": vmap(f, (None, 0))(A.data, X),
            "x, last axis": vmap(f, (None, 1), 1)(A.data, X.T),
            "data": vmap(f, (0, None))(D, X[0]),
            "both": vmap(f)(D, X),
            "both, across": vmap(f, (0, 1))(D, X.T),
            "nested": vmap(vmap(f, (None, 0)), (0, None))(D, X),
            "X": vmap(lambda X: f(A.data, X.T), 0)(jnp.stack([X, 2 * X])),
            "transposed": vmap(lambda data, y: matrix(data).T @ y)(D, Y),
            "vmap of grad": vmap(jax.grad(loss, (0, 1)))(D, X, Y),
            "grad of vmap": jax.grad(lambda D, X: jnp.sum(vmap(loss)(D, X, Y)), (0, 1))(D, X),
        }

    dense = lambda data: jnp.zeros(IRREGULAR.shape).at[row, col].set(data)  # noqa: E731
    got, want = (quick_jit(lambda matrix=matrix: ways(matrix))() for matrix in (A.with_data, dense))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12), got, want)


# ------------------------------------------------------------------------------------------------------ jit and memory


@every_format
def test_another_matrix_of_the_same_layout_shape_does_not_recompile(layout, rng):
    traces, seen = [], set()

    @jax.jit
    def step(A, x):
        traces.append(1)
        return A.T @ (A @ x)

    base, x = CASES["even_rows"], rng.standard_normal(12)
    moved = scipy.sparse.coo_array((base.data[::-1], (base.row, (base.col + 5) % 12)), shape=(12, 12))
    for S in (base.scipy(), moved, 2 * base.scipy()):
        A, a = layout.of(S), S.toarray()
        np.testing.assert_allclose(step(A, x), a.T @ (a @ x), rtol=1e-12, atol=1e-12)
        seen.add(str(jax.tree.map(jax.typeof, A)))
    # The number of diagonals changed with the columns.
    assert len(traces) == len(seen) == 1 + (layout.format in ("dia", "hdia"))


def largest_intermediate(f, *args) -> int:
    """Elements of the largest array in the program that XLA gets, whatever loop it is in."""
    text = jax.jit(f).lower(*args).as_text()
    shapes = re.findall(r"tensor<((?:\d+x)+)[a-z]", text)
    assert "stablehlo.while" in text or "stablehlo.gather" in text  # the lowering is in there
    return max(math.prod(int(n) for n in shape.split("x")[:-1]) for shape in shapes)


@every_format
def test_a_product_with_many_vectors_makes_no_array_of_entries_times_vectors(layout, rng):
    n, K, p = 64, 16, 64
    col = np.stack([rng.choice(n, K, replace=False) for _ in range(n)])
    S = scipy.sparse.csr_array((rng.random(n * K), (np.repeat(np.arange(n), K), col.ravel())), (n, n))
    A = layout.of(S, backend="xla")
    X = rng.standard_normal((n, p))
    # The sums of the six groups of a warp are added at the end.
    lanes = 6 * n if layout.format in ("biell", "bijad") else n
    limit = max(2 * A.n_stored, 2 * n * p, lanes * p)
    assert limit < A.nnz * p / 2

    def gradients(A, X):
        return jax.grad(lambda v, X: jnp.sum((A._with_values(v) @ X) ** 2), (0, 1))(A.values, X)

    assert largest_intermediate(lambda A, X: A @ X, A, X) <= limit
    assert largest_intermediate(lambda A, X: A.T @ X, A, X) <= limit
    assert largest_intermediate(gradients, A, X) <= limit
