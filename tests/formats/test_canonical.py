"""What comes to the formats from SciPy's arrays."""

import numpy as np
import scipy.sparse as sp

from jaxsparse_fmt.formats.canonical import canonical
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
