"""The column-major kernels: interpreted against the reference and dense arithmetic, and lowered for CUDA."""

from __future__ import annotations

import functools
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

from jaxsparse_fmt.kernels import columns
from tests.lowering import SIGNATURES, lowered
from tests.oracle import assert_close, draw, magnitude
from tests.zoo import CASES, FIRST_LAYOUTS, LAYOUTS, SORTED, Layout

STORED = [case for case in CASES.values() if case.data.size]  # without entries no kernel runs


def arguments(A) -> tuple[dict, dict]:
    """The arrays and the static layout that a format hands to the kernels."""
    col_idx, slice_ptr, row_lengths, perm = A.faces._unpack(A.structure)
    arrays = {"col_idx": col_idx, "slice_ptr": slice_ptr, "row_lengths": row_lengths, "perm": perm}
    return arrays, {"shape": A.shape, "slice_size": A.pitch}


@functools.partial(jax.jit, static_argnames=("backend", "shape", "slice_size"))
def product(values, x, arrays, **layout):
    return columns.product(values, x=x, **arrays, **layout)


@functools.partial(jax.jit, static_argnames=("backend", "shape", "slice_size"))
def outer(y, x, arrays, **layout):
    return columns.outer(y, x=x, **{k: v for k, v in arrays.items() if k != "row_lengths"}, **layout)


def check_against_reference(case, layout, rng, batch: int, p: int) -> None:
    """Both kernels, interpreted; the interpreter's outputs start as NaN, so a place left out shows."""
    A = layout.of(case.scipy())
    arrays, static = arguments(A)
    values = A.values * jnp.arange(1.0, batch + 1)[:, None]
    x, y = draw(rng, jnp.float64, batch, case.shape[1], p), draw(rng, jnp.float64, batch, case.shape[0], p)
    got = product(values, x, arrays, backend="interpret", **static)
    size = batch * magnitude(case.dense(), np.asarray(x))
    assert_close(got, np.asarray(product(values, x, arrays, backend="xla", **static)), size)
    want = np.arange(1, batch + 1)[:, None, None] * np.einsum("rc,bcp->brp", case.dense(), x)
    assert_close(got, want, size)
    sampled = outer(y, x, arrays, backend="interpret", **static)
    size = p * float(jnp.max(jnp.abs(x)) * jnp.max(jnp.abs(y)))
    assert_close(sampled, np.asarray(outer(y, x, arrays, backend="xla", **static)), size)
    padding = np.asarray(arrays["col_idx"]) == case.shape[1]
    np.testing.assert_array_equal(sampled[:, padding], 0)


@pytest.mark.parametrize("case", STORED, ids=str)
def test_interpreted_kernels_equal_the_reference_on_every_case(case, rng):
    check_against_reference(case, SORTED, rng, batch=1, p=3)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_interpreted_kernels_equal_the_reference_in_every_layout(layout, rng):
    check_against_reference(CASES["tall"], layout, rng, batch=1, p=1)


@pytest.mark.parametrize(
    "case, layout, batch, p",
    [
        ("irregular", Layout("csr"), 3, 1),
        ("irregular", Layout("ellr"), 1, 8),
        ("irregular", Layout("csr"), 2, 11),
        ("tall", SORTED, 3, 17),  # several tiles of rows, blocks of columns and batch entries at once
    ],
    ids=str,
)
def test_interpreted_kernels_equal_the_reference_for_batches_and_columns(case, layout, batch, p, rng):
    check_against_reference(CASES[case], layout, rng, batch, p)


@pytest.mark.parametrize("slice_size", [32, 128, 200, 256])
def test_slices_that_fill_a_block_or_part_of_one(slice_size, rng):
    """Slice sizes on both sides of the choice between one slice a block and lanes that look up their own slice."""
    lengths = rng.integers(0, 7, 300)
    row = np.repeat(np.arange(300), lengths)
    S = sp.coo_array((rng.standard_normal(row.size), (row, rng.integers(0, 50, row.size))), (300, 50))
    A = Layout("hll", (("slice_size", slice_size),)).of(S)
    arrays, static = arguments(A)
    x, y = rng.standard_normal((1, 50, 2)), rng.standard_normal((1, 300, 2))
    a = S.toarray()
    got = product(A.values[None], x, arrays, backend="interpret", **static)
    assert_close(got, np.einsum("rc,bcp->brp", a, x), magnitude(a, x))
    sampled = outer(y, x, arrays, backend="interpret", **static)
    np.testing.assert_allclose(sampled, outer(y, x, arrays, backend="xla", **static), rtol=1e-13, atol=1e-13)


def test_vectors_are_not_read_where_nothing_is_stored():
    """By padding, by dead lanes, past the last row: NaN in columns and rows without entries changes nothing."""
    case = CASES["empty_rows"]
    S = sp.coo_array((case.data, (case.row, case.col + 1)), (case.shape[0], case.shape[1] + 2))
    a = S.toarray()
    x = np.where(a.any(axis=0), 1, np.nan)[None, :, None]
    y = np.where(a.any(axis=1), 1, np.nan)[None, :, None]
    for layout in FIRST_LAYOUTS:
        A = layout.of(S)
        arrays, static = arguments(A)
        got = product(A.values[None], x, arrays, backend="interpret", **static)
        np.testing.assert_array_equal(got[0, :, 0], a.sum(axis=1))
        sampled = outer(y, x, arrays, backend="interpret", **static)
        np.testing.assert_array_equal(sampled[0], np.asarray(arrays["col_idx"]) < S.shape[1])


def test_row_sums_are_bit_identical_in_every_format(rng):
    case = CASES["irregular"]
    x = draw(rng, jnp.float32, 1, case.shape[1], 2)
    results = []
    for layout in LAYOUTS:
        A = layout.of(case.scipy(np.float32))
        arrays, static = arguments(A)
        results.append(np.asarray(product(A.values[None], x, arrays, backend="interpret", **static)))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_bfloat16_accumulates_in_float32_in_the_kernel():
    A = Layout("csr").of(sp.csr_array([[1.0] + [1 / 256] * 64]), dtype=jnp.bfloat16)
    arrays, static = arguments(A)
    ones = jnp.ones((1, 65, 1), jnp.bfloat16)
    y = product(A.values[None], ones, arrays, backend="interpret", **static)
    assert y.dtype == jnp.bfloat16 and float(y[0, 0, 0]) == 1.25


# ---------------------------------------------------------------------------------------------------- the reference


def test_one_long_row_does_not_set_the_pace_of_all():
    """60,000 rows, one of them full: column by column that would be 3.6·10⁹ places, more than int32 counts."""
    n = 60_000
    row = np.concatenate([np.arange(n), np.zeros(n, int)])
    S = sp.csr_array((np.ones(2 * n), (row, np.concatenate([np.arange(n), np.arange(n)]))), (n, n))
    A, x = Layout("csr").of(S, backend="xla"), jnp.ones(n)
    A @ x
    start = time.perf_counter()
    (A @ x).block_until_ready()
    assert time.perf_counter() - start < 0.5


# ----------------------------------------------------------------------------------------- lowered for CUDA on the CPU


@pytest.mark.parametrize("C", [1, 32, 64, 128, 200, 300])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64, jnp.bfloat16], ids=lambda d: d.__name__)
@pytest.mark.parametrize("dialect", SIGNATURES)
def test_every_kernel_lowers_for_cuda(dialect, dtype, C, rng):
    n = 300
    S = sp.random_array((n, n), density=0.02, rng=rng, format="csr")
    A = Layout("ell").of(S) if n == C else Layout("hll", (("slice_size", C), ("sigma", 600))).of(S)
    A = A.astype(dtype)
    arrays, static = arguments(A)
    x = jnp.ones((1, n, 2), jnp.promote_types(dtype, jnp.float32))
    texts = [
        lowered(lambda v, x, a: product(v, x, a, backend=dialect, **static), A.values[None], x, arrays),
        lowered(lambda y, x, a: outer(y, x, a, backend=dialect, **static), x, x, arrays),
    ]
    for text in texts:
        assert text.count(f"custom_call @{'__gpu$' if dialect == 'triton' else ''}{SIGNATURES[dialect]}") == 1
        assert not any(name in text for name in SIGNATURES.values() if name != SIGNATURES[dialect])


def test_complex_numbers_take_the_reference_on_the_gpu():
    A = SORTED.of(CASES["irregular"].scipy(np.complex128))
    for backend in ("auto", "triton", "mosaic"):
        B = SORTED.of(CASES["irregular"].scipy(np.complex128), backend=backend)
        text = lowered(lambda A, x: A @ x, B, np.ones(A.shape[1]))
        assert not any(name in text for name in SIGNATURES.values())


# --------------------------------------------------------------------------------------------------- large addresses


def huge(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def pallas_vectors(jaxpr) -> set:
    """The integer dtypes of the vectors inside the Pallas calls of a program."""
    found = set()

    def walk(jaxpr, inside):
        for eqn in jaxpr.eqns:
            within = inside or eqn.primitive.name == "pallas_call"
            if within:
                found.update(v.aval.dtype for v in eqn.outvars if getattr(v.aval, "ndim", 0) == 1)
            for inner in jax.tree.leaves(eqn.params, is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr")):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    walk(inner, within)

    walk(jaxpr, False)
    return {d for d in found if jnp.issubdtype(d, jnp.integer)}


@pytest.mark.parametrize("n_stored, dtypes", [(2**31 - 128, {"int32"}), (2**31, {"int32", "int64"})])
def test_addresses_are_64_bit_from_two_to_the_31_on(n_stored, dtypes):
    n = n_stored // 128
    arrays = {
        "col_idx": huge(n_stored, dtype=jnp.int32),
        "slice_ptr": huge(n // 128 + 1, dtype=jnp.int64 if n_stored >= 2**31 else jnp.int32),
        "row_lengths": None,
        "perm": None,
    }
    static = {"shape": (n, n), "slice_size": 128, "backend": "triton"}
    x = huge(1, n, 1)
    for face, operands in ((product, (huge(1, n_stored), x)), (outer, (x, x))):
        found = pallas_vectors(jax.make_jaxpr(lambda *a: face(*a, **static))(*operands, arrays).jaxpr)  # noqa: B023
        assert {str(d) for d in found} == dtypes
        for backend in SIGNATURES:
            text = lowered(lambda *a: face(*a, **(static | {"backend": backend})), *operands, arrays)  # noqa: B023
            assert SIGNATURES[backend] in text


def test_addresses_are_64_bit_when_only_the_batch_of_vectors_is_large():
    A = Layout("ell").of(CASES["even_rows"].scipy(np.float32))
    arrays, static = arguments(A)
    x = huge(2**18, 12, 1024)
    found = pallas_vectors(
        jax.make_jaxpr(lambda v, x: product(v, x, arrays, backend="triton", **static))(huge(2**18, A.n_stored), x).jaxpr
    )
    assert jnp.dtype("int64") in found


@pytest.mark.parametrize("face", ["product", "transposed", "outer"])
def test_the_reference_takes_64_bit_slice_pointers(face):
    n_stored, n = 2**31, 2**24
    col_idx, slice_ptr = huge(n_stored, dtype=jnp.int32), huge(n // 128 + 1, dtype=jnp.int64)
    v, x = huge(1, n_stored), huge(1, n, 1)
    f, operands = {
        "product": (lambda c, s, v, x: columns.product_reference(v, c, x, s, None, None, **static), (v, x)),
        "transposed": (lambda c, s, v, y: columns.transposed_reference(v, c, y, s, None, **static), (v, x)),
        "outer": (lambda c, s, y, x: columns.outer_reference(y, c, x, s, None, **static), (x, x)),
    }[face]
    static = {"shape": (n, n), "slice_size": 128}
    jax.jit(f).lower(col_idx, slice_ptr, *operands)


def test_a_stride_beyond_31_bits_is_not_multiplied_in_32():
    """ELL's stride is n_rows: the 17th column of 2²⁷ rows starts at 2³¹."""
    n, width = 2**27, 17
    arrays = {"col_idx": huge(n * width, dtype=jnp.int32), "slice_ptr": None, "row_lengths": None, "perm": None}
    program = str(
        jax.make_jaxpr(
            lambda v, x, a: product(v, x, a, shape=(n, n), slice_size=n, backend="triton"),
        )(huge(1, n * width), huge(1, n, 1), arrays)
    )
    assert re.search(rf"i64\[\] = mul \w+ {n}", program)
    assert not re.search(rf"i32\[\] = mul \w+ {n}", program)
