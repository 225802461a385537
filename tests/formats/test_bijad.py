"""BiJAD: BiELL with all rows sorted. What the two share is asked in `test_biell.py`."""

import numpy as np

from tests.formats.pictures import LENGTHS, RAGGED, stored


def test_all_rows_are_sorted():
    assert stored("bijad").perm.tolist() == sorted(range(99), key=lambda r: -LENGTHS[r])


def test_it_stores_less_than_biell_and_the_same_as_biell_of_the_sorted_matrix():
    A, B = stored("bijad"), stored("biell", matrix=RAGGED[np.argsort(-LENGTHS, stable=True)])
    assert A.n_stored < stored("biell").n_stored
    for name in ("values", "col_idx", "slice_ptr", "row_lengths"):
        np.testing.assert_array_equal(getattr(A, name), getattr(B, name))
