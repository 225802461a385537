"""What is kept by arrays: as long as they live, and only if nobody can change them."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsparse_fmt.core.kept import Kept


def test_is_a_value_kept_as_long_as_its_arrays_and_at_most_so_many():
    table, arrays = Kept(2), [jnp.arange(3) for _ in range(3)]
    for number, a in enumerate(arrays):
        assert table.keep("number", [a], number) == number
    assert [table.find("number", [a]) for a in arrays] == [None, 1, 2]
    del a, arrays[2]
    gc.collect()
    assert len(table.table) == 1
    assert table.get("number", arrays[1:], lambda: 5) == 1 and table.get("other", arrays[1:], lambda: 5) == 5


@pytest.mark.parametrize("with_numpy", [np.ones, lambda n: np.asarray(jnp.ones(n))], ids=["writable", "read-only"])
def test_is_anything_kept_by_an_array_that_may_change(with_numpy):
    table, given = Kept(2), [jnp.ones(3), with_numpy(3)]
    assert table.keep("key", given, "value") == table.get("key", given, lambda: "value") == "value"
    assert table.find("key", given) is None and not table.table
    assert table.get("key", given, lambda: "another") == "another"


def test_is_anything_found_by_an_array_that_was_deleted():
    table, arrays = Kept(2), [jnp.ones(3), jnp.zeros(3)]
    table.keep("key", arrays, "value")
    assert table.find("key", arrays) == "value"
    arrays[1].delete()
    assert table.find("key", arrays) is None


def test_is_anything_kept_by_no_array_which_nothing_would_free_or_by_a_traced_one():
    table = Kept(2)
    table.keep("key", [], "value")
    assert table.find("key", []) is None
    jax.jit(lambda a: table.get("sum", [a], a.sum))(np.arange(3))
    assert not table.table
