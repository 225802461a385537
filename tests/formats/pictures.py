"""The pictures at the head of the formats' files, read back: the matrix that they show, and the arrays.

A line of a picture is `name [numbers] [shape] dtype`, with a row of the matrix before it. Bars separate columns and
slices; · and * are padding, `0…` fills up a column, and a ' behind a number is the mark in its highest bit.
"""

import dataclasses
import re
import sys
from typing import Any

import numpy as np
import scipy.sparse as sp

import jaxsparse_fmt as jsf

_ROW = re.compile(r"[⎡⎢⎣]([^⎤⎥⎦]*)[⎤⎥⎦]")
_ARRAY = re.compile(r" +(\w+) +(?:\[([-·*'… |‖,\d]+)\]|None)(.*)")
_DTYPE = re.compile(r"\bu?int\d+")

# Rows of 0 to 12 entries and one of 40, three rows beyond whole warps; no two entries are equal.
_rng = np.random.default_rng(3)
LENGTHS = np.append(_rng.integers(0, 13, 98), 40)
RAGGED = sp.csr_array(np.argsort(_rng.random((99, 120)), axis=1) < LENGTHS[:, None], dtype=np.float64)
RAGGED.data[:] = np.arange(1, RAGGED.nnz + 1)
LONGER = np.sum(LENGTHS[:, None] > np.arange(40), axis=0)  # rows longer than j, for every j


def stored(format: str, matrix: sp.csr_array = RAGGED, **layout) -> Any:
    return jsf.from_scipy(matrix, format, **layout)


def drawn_matrix(format: str) -> sp.csr_array:
    """The matrix of the picture."""
    rows = _ROW.findall(_text(jsf.FORMATS[format]))
    return sp.csr_array(np.array([[0.0 if t == "." else float(t) for t in row.split()] for row in rows]))


def assert_as_drawn(A: jsf.SparseMatrix) -> None:
    """A's arrays are those of the picture, in number, content and dtype."""
    pictures = dict(_arrays(_text(type(A)), A))
    stored = {f.name: getattr(A, f.name) for f in dataclasses.fields(A) if f.name in pictures or _is_array(A, f.name)}
    assert set(stored) == set(pictures)
    for name, (numbers, dtype) in pictures.items():
        if numbers is None:
            assert stored[name] is None
            continue
        np.testing.assert_array_equal(stored[name], numbers, err_msg=name)
        assert stored[name].dtype == (A.dtype if name == "values" else dtype), name


def holes(A) -> np.ndarray:
    """The places that `pattern` calls padding."""
    if A.pattern is None:
        return np.zeros(0, int)
    return np.flatnonzero(np.unpackbits(np.asarray(A.pattern), count=A.n_stored, bitorder="little") == 0)


def _text(cls: type) -> str:
    return sys.modules[cls.__module__].__doc__ or ""


def _array_of(line: str):
    return _ARRAY.match(_ROW.sub("", line))


def _is_array(A: jsf.SparseMatrix, name: str) -> bool:
    return hasattr(getattr(A, name), "dtype") and name != "dtype"


def _arrays(text: str, A: jsf.SparseMatrix):
    for match in filter(None, map(_array_of, text.splitlines())):
        name, numbers, rest = match.groups()
        dtype = _DTYPE.search(rest)
        yield name, (numbers and _numbers(name, numbers, A), dtype and dtype[0])


def _numbers(name: str, drawn: str, A: jsf.SparseMatrix) -> list[float]:
    """The numbers of one line; a column that ends in … goes on to the length that it has in A."""
    columns = re.split(r"[|‖]", drawn)
    padding, mark = {"·": 0, "*": {"delta": 0xFFFF, "marked_delta": 0x7FFF}.get(name, 0)}, 0x8000
    numbers: list[float] = []

    def number(token: str) -> float:
        token, marked = token.removesuffix("'"), token.endswith("'")
        return (padding[token] if token in padding else float(token)) + mark * marked

    for column in columns:
        *tokens, last = column.replace(",", " ").split()
        filled = last.endswith("…")
        tokens = [number(t) for t in [*tokens, last.removesuffix("…")]]
        height = A.n_stored // len(columns) if filled else len(tokens)
        numbers += tokens + tokens[-1:] * (height - len(tokens))
    return numbers
