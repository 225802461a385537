"""Matrices, right-hand sides and solutions in files."""

from typing import TYPE_CHECKING

from jaxsparse_fmt._late import import_late
from jaxsparse_fmt.io.files import VECTOR_SUFFIXES, read_scipy, read_vector, write_mtx, write_vector

if TYPE_CHECKING:
    from jaxsparse_fmt.convert import read_mtx

__all__ = ["VECTOR_SUFFIXES", "read_mtx", "read_scipy", "read_vector", "write_mtx", "write_vector"]

import_late(__name__, {"jaxsparse_fmt.convert": "read_mtx"})
