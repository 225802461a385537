"""ELLR-T: the storage permuted for T threads a row."""

import jax
import numpy as np
import pytest

import jaxsparse_fmt as jsf
from tests.formats.pictures import LENGTHS, RAGGED, assert_as_drawn, drawn_matrix, stored

every_number_of_threads = pytest.mark.parametrize("threads", [1, 2, 4, 8, 16, 32])


def test_the_arrays_are_those_of_the_picture():
    assert_as_drawn(jsf.from_scipy(drawn_matrix("ellrt"), "ellrt", threads_per_row=2))


@every_number_of_threads
def test_neighbouring_threads_hold_consecutive_entries_of_their_row(threads):
    A = stored("ellrt", threads_per_row=threads)
    by_step = np.asarray(A.values).reshape(-1, 128, threads)  # step, row, thread
    rows = np.moveaxis(by_step, 1, 0).reshape(128, -1)
    there = np.arange(rows.shape[1]) < np.append(LENGTHS, np.zeros(29))[:, None]
    np.testing.assert_array_equal(rows[there], RAGGED.data)
    assert not np.any(rows[~there])


def test_one_thread_a_row_is_ellpack_r():
    jax.tree.map(
        np.testing.assert_array_equal,
        jax.tree.leaves(stored("ellrt", threads_per_row=1)),
        jax.tree.leaves(stored("ellr")),
    )
