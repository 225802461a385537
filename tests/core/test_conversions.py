"""Which conversions of a matrix on an accelerator the host makes."""

import jax
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from jaxsparse_fmt.core import conversions, entry_index
from jaxsparse_fmt.core.matrix import SparseMatrix
from tests.oracle import assert_same_storage

S = jsf.gallery.poisson(5)


@pytest.fixture
def there(monkeypatch):
    """All matrices lie on an accelerator, for all that conversions see; returns what came to the host."""
    came, reads = [], SparseMatrix._read_only
    for module in (conversions, entry_index):
        monkeypatch.setattr(module, "is_on_cpu", lambda a: False)
    monkeypatch.setattr(SparseMatrix, "_read_only", lambda A: (came.append(A.name), reads(A))[1])
    conversions._count.cache_clear()
    return came


@pytest.mark.parametrize("name", ["dia", "bsr", "coo"])
def test_the_host_makes_the_first_of_a_size_and_the_device_the_others(name, there):
    A, expected = jsf.from_scipy(S, "ell"), jsf.from_scipy(S, name)
    for k in range(conversions.RENTED + 2):
        assert_same_storage(A.with_data(A.data).asformat(name), expected)
        assert len(there) == min(k + 1, conversions.RENTED)
    jsf.from_scipy(S, "ell", np.float32).asformat(name)
    assert len(there) == conversions.RENTED + 1


def test_the_device_converts_many_entries_and_what_is_traced(there, monkeypatch):
    A = jsf.from_scipy(S, "ell")
    assert_same_storage(jax.jit(lambda A: A.asformat("csc"))(A), jsf.from_scipy(S, "csc"))
    monkeypatch.setattr(conversions, "FEW", A.nnz)
    assert_same_storage(A.asformat("coo"), jsf.from_scipy(S, "coo"))
    assert (A.to_scipy() != S).nnz == 0 and not there
