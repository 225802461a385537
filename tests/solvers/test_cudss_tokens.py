"""How often cuDSS analyses a pattern, by a stand-in for spineax with its rules.

A token names factors of certain values, a factorization renames it, and a token whose name is gone is analysed and
factored anew.
"""

import dataclasses
import importlib.util
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import jaxsparse_fmt as jsf
from jaxsparse_fmt._pytrees import pytree
from solvers import backends, direct, factorized

FIND = importlib.util.find_spec


@pytree
@dataclasses.dataclass(frozen=True)
class Token:
    id: jax.Array
    values: jax.Array
    offsets: jax.Array
    columns: jax.Array
    dtype: np.dtype = dataclasses.field(metadata={"static": True})


class Spineax(types.ModuleType):
    """`spineax`, whose `cudss` is itself."""

    def __init__(self):
        super().__init__("spineax")
        self.cudss, self.entries, self.names, self.analyses = self, {}, iter(range(1, 1000)), 0

    def analyze(self, values, offsets, columns, *, mtype_id, mview_id, device_id):
        name = jax.pure_callback(lambda: np.zeros(1, np.int32), jax.ShapeDtypeStruct((1,), np.int32))
        return Token(name, values, offsets, columns, values.dtype)

    def _analysed(self, offsets, columns):
        self.analyses += 1
        return np.array(offsets), np.array(columns)

    def _factors(self, pattern, values):
        offsets, columns = pattern
        return pattern, spla.splu(sp.csr_array((np.array(values), columns, offsets)).tocsc())

    def factorize(self, token, values):
        def renamed(name, offsets, columns, values):
            if values.ndim == 2:  # of a batch, for which spineax refuses a single name
                assert len(name) == len(values)
                return np.stack([renamed(i, offsets[0], columns[0], v) for i, v in zip(name, values, strict=True)])
            pattern, _ = self.entries.pop(int(name[0]), (None, None))
            pattern = self._analysed(offsets, columns) if pattern is None else pattern
            assert all(map(np.array_equal, pattern, (offsets, columns)))  # else cuDSS's factors would be garbage
            name = next(self.names)
            self.entries[name] = self._factors(pattern, values)
            return np.array([name], np.int32)

        given = token.id, token.offsets, token.columns, values
        name = jax.pure_callback(renamed, jax.ShapeDtypeStruct((1,), np.int32), *given, vmap_method="expand_dims")
        return dataclasses.replace(token, id=name, values=values)

    def solve(self, token, b):
        def solved(name, offsets, columns, values, b):
            if int(name[0]) not in self.entries:
                self.entries[int(name[0])] = self._factors(self._analysed(offsets, columns), values)
            return self.entries[int(name[0])][1].solve(np.array(b).T).T

        given = token.id, token.offsets, token.columns, token.values, b
        return jax.pure_callback(solved, jax.ShapeDtypeStruct(b.shape, b.dtype), *given, vmap_method="sequential")


@pytest.fixture
def spineax(monkeypatch):
    found = Spineax()
    monkeypatch.setitem(sys.modules, "spineax", found)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "spineax" or FIND(name))
    monkeypatch.setitem(backends.PLATFORMS, "spineax", "cpu")
    backends._tokens.clear()
    yield found
    backends._by_cudss.clear_cache()
    jax.clear_caches()


S = sp.csr_array(jsf.gallery.convection_diffusion(4))
B = np.random.default_rng(0).standard_normal(S.shape[0])
X = np.linalg.solve(S.toarray(), B)


def test_new_values_outside_of_jit_and_in_one_program_are_analysed_once(spineax):
    A = jsf.from_scipy(S, "csr")
    solve = jax.jit(lambda data, b: direct(A.with_data(data), b, backend="cudss").x)
    other = jax.jit(lambda A, b: direct(A, b, backend="cudss").x)  # the pattern is an argument
    for scale in (1, 2, 3):
        np.testing.assert_allclose(direct(scale * A, B, backend="cudss", symmetric=False).x, X / scale, rtol=1e-9)
        np.testing.assert_allclose(solve(scale * A.data, B), X / scale, rtol=1e-9)
        np.testing.assert_allclose(other(-scale * jsf.from_scipy(S, "coo"), B), -X / scale, rtol=1e-9)
    assert spineax.analyses == 1
    lower = sp.csr_array(sp.tril(S) + sp.eye_array(64, k=1))
    np.testing.assert_allclose(lower @ direct(jsf.from_scipy(lower, "csr"), B, backend="cudss").x, B, atol=1e-9)
    assert spineax.analyses == 2


def test_older_factors_stay_those_of_their_matrix(spineax):
    A = jsf.from_scipy(S, "csr")
    F = [factorized(scale * A, backend="cudss") for scale in (1.0, 2.0, 4.0)]
    for _ in range(3):
        for k in (0, 1, 2):
            np.testing.assert_allclose(F[k] @ B, X / 2**k, rtol=1e-9)
        np.testing.assert_allclose(F[0].T @ B, np.linalg.solve(S.toarray().T, B), rtol=1e-9)
    assert spineax.analyses == 4  # three, and one of the transpose, whose pattern is the same here


def test_a_loop_and_a_gradient_analyse_once(spineax):
    A = jsf.from_scipy(S, "csr")

    @jax.jit
    def step(data):
        return jax.lax.scan(lambda x, s: (direct(A.with_data(s * data), x, backend="cudss").x, None), B, jnp.ones(3))[0]

    for _ in range(2):
        x = step(A.data)
    np.testing.assert_allclose(x, np.linalg.matrix_power(np.linalg.inv(S.toarray()), 3) @ B, rtol=1e-8)
    assert spineax.analyses == 1
    loss = lambda name: lambda data: jnp.sum(jnp.sin(direct(A.with_data(data), B, backend=name).x))  # noqa: E731
    gradient = jax.jit(jax.grad(loss("cudss")))
    for scale in (1, 2, 3):
        got, want = gradient(scale * A.data), jax.grad(loss("superlu"))(scale * A.data)
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    assert spineax.analyses == 2
    batch = jax.jit(jax.vmap(lambda data: direct(A.with_data(data), B, backend="cudss").x))
    np.testing.assert_allclose(batch(np.array([[1.0], [2.0]]) * A.data), [X, X / 2], rtol=1e-9)
