"""Matrices, right-hand sides and solutions in files."""

from jaxsparse_fmt.io.files import VECTOR_SUFFIXES, read_mtx, read_vector, write_mtx, write_vector

__all__ = ["VECTOR_SUFFIXES", "read_mtx", "read_vector", "write_mtx", "write_vector"]
