"""Real matrices, of the folder that JAXSPARSE_MATRICES names."""

import os
import pathlib
from typing import Any

import pytest

FOLDER = os.environ.get("JAXSPARSE_MATRICES")
FILES = sorted(pathlib.Path(FOLDER).glob("*.mtx*")) if FOLDER else []


def each_file(test: Any) -> Any:
    """A deep test with an argument `path`, of every file."""
    skips = pytest.mark.skipif(not FILES, reason="JAXSPARSE_MATRICES names no folder of Matrix Market files")
    return pytest.mark.deep(skips(pytest.mark.parametrize("path", FILES, ids=lambda p: p.name.partition(".")[0])(test)))


def is_hermitian_with_positive_diagonal(S: Any) -> bool:
    if S.shape[0] != S.shape[1] or S.nnz == 0 or (S.diagonal().real <= 0).any():
        return False
    return abs(S - S.conj().T).max() <= 1e-12 * abs(S).max()
