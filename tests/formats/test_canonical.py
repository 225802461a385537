"""What comes to the formats from SciPy's arrays."""

import numpy as np
import pytest
import scipy.sparse as sp

from jaxsparse_fmt.formats.canonical import canonical
from tests.oracle import assert_refused
from tests.zoo import CASES


def test_is_what_is_canonical_looked_at_once():
    S = CASES["duplicates"].scipy()
    csr = canonical(S)
    assert canonical(csr) is csr and csr.has_canonical_format


def test_is_a_matrix_of_the_user_looked_at_anew_each_time():
    S = sp.csr_array(np.eye(3))
    first = canonical(S)
    S.indices[0] = 2
    assert canonical(S) is not first is not S and "found" not in vars(S)
    np.testing.assert_array_equal(canonical(S).toarray(), S.toarray())


@pytest.mark.parametrize("kind", ["csr", "csc", "bsr"])
def test_are_too_few_numbers_for_the_indices_refused_before_they_are_read(kind):
    S = sp.csr_array(np.eye(6)).asformat(kind)
    S.data = S.data[:2]
    assert_refused(lambda: canonical(S), ValueError, "at most the 2 stored entries")
