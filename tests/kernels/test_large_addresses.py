"""Addresses from 2³¹ places on: 64 bits where they are needed, and only there."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest

from jaxsparse_fmt.kernels import sddmm, spmv
from jaxsparse_fmt.kernels.layout.address import Bisected, Jagged, Slices, Subwarp
from jaxsparse_fmt.kernels.layout.columns import Blocked, Delta, Diagonal, Explicit, Rule
from tests.kernels.test_spmv import kernels_in
from tests.lowering import SIGNATURES, equations, lowered
from tests.marks import few


def huge(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def rules(n_stored: int) -> dict[str, tuple[Rule, dict]]:
    """Of every kind of storage one with 128 entries a row, and its arrays, which need not exist."""
    n, ptr = n_stored // 128, jnp.int64 if n_stored >= 2**31 else jnp.int32
    shape = (n, n)

    def slices(length: int):
        return {"slice_ptr": huge(length + 1, dtype=ptr)}

    col_idx = {"col_idx": huge(n_stored, dtype=jnp.int32)}
    lengths = {"row_lengths": huge(n, dtype=jnp.int32)}
    diagonals = {"offsets": huge(128, dtype=jnp.int32), "pattern": huge(n_stored // 8, dtype=jnp.uint8)}
    deltas = {"delta": huge(n_stored, dtype=jnp.uint16), "col_base": huge(n, dtype=jnp.int32)}
    blocks = {"block_col": huge(n_stored // 16, dtype=jnp.int32)}
    given = {
        "csr": (Slices(n, 1), Explicit(), {**slices(n), **col_idx}),
        "csr, 16 lanes a row": (Slices(n, 1, 16), Explicit(), {**slices(n), **col_idx}),
        "ell": (Slices(n, n), Explicit(), col_idx),
        "ellr, 4 lanes a row": (Slices(n, n, 4), Explicit(), {**lengths, **col_idx}),
        "ellrt": (Subwarp(n, 2 * n, 2), Explicit(), {**lengths, **col_idx}),
        "hll": (Slices(n, 128), Explicit(), {**slices(n // 128), **col_idx}),
        "jds": (Jagged(n), Explicit(), {"col_start": huge(129, dtype=ptr), **lengths, **col_idx}),
        "biell": (Bisected(n), Explicit(), {**slices(6 * n // 32), **col_idx}),
        "dia": (Slices(n, n), Diagonal(True), diagonals),
        "sell": (Slices(n, 128), Delta(), {**slices(n // 128), **deltas}),
        "bsr": (Slices(n, 128), Blocked(4, 4), {**slices(n // 128), **blocks}),
    }
    return {name: (Rule(shape, n_stored, address, column), arrays) for name, (address, column, arrays) in given.items()}


def vectors_in_kernels(f, *args) -> set[str]:
    """The signed integer dtypes of the vectors inside the Pallas calls of a program."""
    out = (v.aval for eqn, within in equations(jax.make_jaxpr(f)(*args).jaxpr) if within for v in eqn.outvars)
    return {str(a.dtype) for a in out if getattr(a, "ndim", 0) == 1 and jnp.issubdtype(a.dtype, jnp.signedinteger)}


def operands(face: str, rule: Rule):
    x = huge(1, rule.shape[1], 1)
    return (huge(1, rule.n_stored), x) if face == "product" else (x, x)


@pytest.mark.parametrize("face", ["product", "outer"])
@pytest.mark.parametrize("name", few(rules(2**31), 5))
def test_addresses_are_64_bit_from_two_to_the_31_on(name, face):
    for n_stored, dtypes in ((2**31 - 2**14, {"int32"}), (2**31, {"int32", "int64"})):
        rule, arrays = rules(n_stored)[name]
        f = functools.partial(getattr(sddmm if face == "outer" else spmv, face), rule=rule)
        assert vectors_in_kernels(functools.partial(f, backend="triton"), *operands(face, rule), arrays) == dtypes


@pytest.mark.parametrize("dialect", SIGNATURES)
@pytest.mark.parametrize("name", few(rules(2**31), 5))
def test_kernels_with_64_bit_addresses_lower_for_cuda(name, dialect):
    rule, arrays = rules(2**31)[name]
    f = functools.partial(spmv.product, rule=rule, backend=dialect)
    assert kernels_in(lowered(f, *operands("product", rule), arrays), dialect) == 1


@pytest.mark.parametrize("face", ["product", "transposed", "outer"])
@pytest.mark.parametrize("name", few(rules(2**31), 5))
def test_references_count_places_in_64_bits(name, face):
    """No int32 runs over 2³¹ places or more."""
    rule, arrays = rules(2**31)[name]
    f = functools.partial(getattr(sddmm if face == "outer" else spmv, f"{face}_reference"), rule=rule)
    jaxpr = jax.make_jaxpr(f)(*operands("outer" if face == "outer" else "product", rule), arrays).jaxpr
    counters = (eqn.outvars[0].aval for eqn, _ in equations(jaxpr) if eqn.primitive.name == "iota")
    assert not [a for a in counters if max(a.shape) >= 2**31 and a.dtype == jnp.int32]


def test_a_stride_beyond_31_bits_is_not_multiplied_in_32():
    """ELL's stride is n_rows: the 17th column of 2²⁷ rows starts at 2³¹."""
    n, width = 2**27, 17
    rule = Rule((n, n), n * width, Slices(n, n), Explicit())
    f = functools.partial(spmv.product, rule=rule, backend="triton")
    program = str(jax.make_jaxpr(f)(*operands("product", rule), {"col_idx": huge(n * width, dtype=jnp.int32)}))
    assert re.search(rf"i64\[\] = mul \w+ {n}", program)
    assert not re.search(rf"i32\[\] = mul \w+ {n}", program)
