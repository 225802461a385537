"""Tree functions that change index arrays, which no product may use; and those that change none."""

import copy
import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from tests.marks import few
from tests.zoo import CASES, FIRST_LAYOUTS

S = CASES["irregular"].scipy().tocsr()
WORDS = r"index arrays of this matrix .* were changed, as by jax.tree.map .* 2 \* A"


def twice(A):
    return jax.tree.map(lambda a: 2 * a, A)


@pytest.mark.parametrize("layout", few(FIRST_LAYOUTS, 4), ids=str)
def test_is_a_matrix_refused_whose_index_arrays_a_tree_function_changed(layout):
    A, x, y = layout.of(S), np.ones(S.shape[1]), np.ones(S.shape[0])
    for use in (
        lambda: twice(A) @ x,
        lambda: twice(A).T @ y,
        lambda: 2 * twice(A),
        lambda: twice(A).data,
        lambda: twice(A).to_scipy(),
        lambda: jax.tree.map(lambda a: -a, A).todense(),
        lambda: twice(jax.tree.map(jnp.copy, A)) @ x,
        lambda: twice(copy.copy(A)) @ x,
        lambda: jax.jit(lambda A: A @ x)(twice(A)),
        lambda: jax.jit(lambda A: twice(A) @ x)(A),
        lambda: jax.jit(lambda x: twice(A) @ x)(x),
        lambda: jax.grad(lambda d: jnp.sum(twice(A.with_data(d)) @ x))(A.data),
    ):
        with pytest.raises(ValueError, match=WORDS):
            use()
    assert "without its pattern" in repr(twice(A))


def test_is_a_matrix_with_its_transpose_refused_too():
    A = jsf.from_scipy(S, "csr", transpose=True)
    for use in (lambda: twice(A) @ np.ones(S.shape[1]), lambda: twice(A).T @ np.ones(S.shape[0])):
        with pytest.raises(ValueError, match=WORDS):
            use()


@pytest.mark.parametrize("name", ["csr", "ell", "dia"])
def test_is_a_matrix_taken_whose_arrays_are_copies_or_those_of_another(name):
    A = jsf.from_scipy(S, name)
    zeros = jax.tree.map(jnp.zeros_like, A)
    index = jnp.asarray([1, 0])
    stack = jax.tree.map(lambda *a: jnp.stack(a), A, jax.tree.map(lambda a: a[::-1].copy(), A))
    same = {
        "copied": jax.tree.map(jnp.copy, A),
        "on the host": jax.tree.map(np.array, A),
        "put": jax.device_put(A, jax.devices()[0]),
        "pickled": pickle.loads(pickle.dumps(A)),
        "in the tree of zeros": jax.tree.unflatten(jax.tree.structure(zeros), jax.tree.leaves(A)),
        "plus zeros": jax.tree.map(jnp.add, A, zeros),
        "of a stack": jax.tree.map(lambda a: a[1], jax.tree.map(lambda a: a[index], stack)),
        "of a stack, turned": jax.tree.map(lambda a: a[0], stack),
    }
    for how, B in same.items():
        np.testing.assert_array_equal(B.to_scipy().toarray(), S.toarray(), err_msg=how)
    assert jax.tree.structure(zeros) == jax.tree.structure(A)


def test_may_a_tree_get_the_arrays_of_another_pattern():
    A, B = (jsf.from_scipy(sp.csr_array(np.eye(6, k=k) + np.eye(6, k=k + 1)), "ell") for k in (0, -1))
    B = dataclasses.replace(B, nnz=A.nnz)
    C = jax.tree.map(lambda a, b: b, A, B)
    np.testing.assert_array_equal(C @ np.arange(6.0), B @ np.arange(6.0))
