"""What the library keeps between calls: counted, dropped on request, bounded, and freed with the arrays it is from."""

import gc

import jax
import jax.numpy as jnp
import numpy as np

import jaxsparse as js
from jaxsparse_fmt import _caches
from jaxsparse_fmt.core.kept import Kept

S = js.gallery.poisson(3, dim=2)
B = np.arange(9.0)


def test_does_a_cleared_cache_hold_nothing_and_are_results_the_same_afterwards():
    A = js.from_scipy(S, "csr")
    before = js.cg(A, B, rtol=1e-10).x, js.solve(A, B).x, A.data, (A @ A).data
    kept = js.cache_info()
    kinds = "programs of solvers", "what solve remembers", "copies on the host"
    assert all(kept[kind].entries > 0 for kind in kinds), kept
    assert kept["copies on the host"].nbytes > 16 * S.nnz
    js.clear_caches()
    assert {info.entries for info in js.cache_info().values()} == {0}
    after = js.cg(A, B, rtol=1e-10).x, js.solve(A, B).x, A.data, (A @ A).data
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)


def test_is_the_least_recently_used_result_the_one_that_goes():
    made = []
    square = _caches.remembered(2, "squares")(lambda n: made.append(n) or n * n)
    assert [square(n) for n in (1, 2, 1, 3, 1, 2)] == [1, 4, 1, 9, 1, 4]
    assert made == [1, 2, 3, 2] and js.cache_info()["squares"][:2] == (2, 2)


def test_is_what_was_put_again_the_newest():
    recent = _caches.Recent(2, "letters")
    for key, letter in ((1, "a"), (2, "b"), (1, "a"), (3, "c")):
        recent.put(key, letter)
    assert recent.results == {1: "a", 3: "c"} and js.cache_info()["letters"] == (2, 2, 0)
    recent.put(4, "d", room=3)
    assert len(recent.values()) == 3


def test_are_results_counted_while_their_arrays_live():
    table, arrays = Kept(2, "tests"), [jnp.arange(n) for n in (3, 4, 5)]
    for a in arrays:
        table.get("double", [a], lambda a=a: 2 * a)
    del a
    assert js.cache_info()["tests"] == (2, 2, 9 * arrays[0].dtype.itemsize)
    arrays.pop()
    gc.collect()
    assert js.cache_info()["tests"].entries == 1
    del table
    gc.collect()
    assert "tests" not in js.cache_info()


def test_may_caches_be_cleared_while_a_function_is_traced():
    A = js.from_scipy(S, "csr")

    def f(b):
        js.clear_caches()
        return js.cg(A, b, rtol=1e-10).x

    np.testing.assert_allclose(jax.jit(f)(B), js.cg(A, B, rtol=1e-10).x, rtol=1e-8)
