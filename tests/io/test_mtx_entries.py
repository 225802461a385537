"""The reader reads what an independent reader reads, refuses what that refuses, and rounds as Python does."""

import gzip
import io
import os
import random

import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from jaxsparse_fmt.io import matrix_market, mtx_entries
from tests.io import oracle
from tests.process import allocating_at_most

MUTATIONS = int(os.environ.get("JAXSPARSE_MUTATIONS", 3000))  # a million takes five minutes


def ours(data: bytes) -> tuple[tuple[int, ...], list[tuple[int, int, complex]]] | None:
    try:
        got = matrix_market.parse(io.BytesIO(data))
    except ValueError as error:
        assert str(error).startswith("the stream")
        return None
    if sp.issparse(got):
        return got.shape, list(zip(got.row.tolist(), got.col.tolist(), got.data.astype(complex).tolist(), strict=True))
    return got.shape, [(i, j, complex(got[i, j])) for i, j in np.ndindex(got.shape)] if got.size else []


def agrees(data: bytes) -> bool:
    """Whether the reader and its oracle say the same of a file; True means that both read it."""
    got = ours(data)
    try:
        shape, entries = oracle.read(data)
    except oracle.Refused as why:
        assert got is None, (data, why)
        return False
    assert got is not None and got[0] == shape, data
    if b"skew" in data.lower() and b"array" in data.lower():  # an array has a diagonal of zeros
        entries += [(i, i, 0j) for i in range(shape[0])]
    found, wanted = oracle.sorted_entries(got[1]), oracle.sorted_entries(entries)
    np.testing.assert_array_equal(found, wanted, err_msg=repr(data))
    return True


def test_mutated_files_are_read_or_refused_as_an_independent_reader_does():
    assert all(map(agrees, oracle.FILES))
    rng = random.Random(19)
    read = sum(agrees(oracle.mutated(rng)) for _ in range(MUTATIONS))
    assert MUTATIONS / 20 < read < MUTATIONS / 2


def test_where_a_file_is_cut_into_pieces_changes_nothing(monkeypatch):
    rng = random.Random(20)
    for piece in (1, 7, 40):
        monkeypatch.setattr(matrix_market, "_PIECE", piece)
        for _ in range(max(100, MUTATIONS // 100)):
            agrees(oracle.mutated(rng))


def test_comments_may_be_as_many_as_entries_and_some_more(monkeypatch):
    monkeypatch.setattr(mtx_entries, "_NOTES", 10)
    head = b"%%MatrixMarket matrix coordinate real general\n9 9 40\n"
    assert ours(head + b"1 2 3 % one\n% another\n" * 40) is not None
    assert ours(head + b"1 2 3 % one\n% another\n\n" * 40) is None


def test_every_decimal_is_rounded_as_pythons_float_rounds_it():
    rng = random.Random(21)
    floats = np.frombuffer(rng.randbytes(8 * 8000), np.float64)
    floats = floats[np.isfinite(floats)].tolist()
    texts = [f"{x!r}" for x in floats] + [f"{x:.{rng.randrange(12, 25)}e}" for x in floats]
    texts += [f"{rng.getrandbits(1 + rng.randrange(70))}e{rng.randrange(-345, 287)}" for _ in range(8000)]
    texts += ["9007199254740993", "9007199254740992.9999999999999999999", "1.7976931348623157e308", "5e-324", "2e-324"]
    texts += ["2.2250738585072011e-308", "2.2250738585072014e-308", "0e99999999", "-0", "1e-99999999999", "00001.50000"]
    lines = "".join(f"{k} 1 {text}\n" for k, text in enumerate(texts, 1))
    head = f"%%MatrixMarket matrix coordinate real general\n{len(texts)} 1 {len(texts)}\n"
    got = matrix_market.parse(io.BytesIO(f"{head}{lines}".encode())).data
    want = np.array([float(text) for text in texts])
    np.testing.assert_array_equal(got.view(np.int64), want.view(np.int64))  # the sign of zero, too


@pytest.mark.parametrize("symmetry", ["general", "symmetric"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_reading_takes_little_more_memory_than_the_file(symmetry, pack, tmp_path, monkeypatch):
    monkeypatch.setattr(matrix_market, "_PIECE", 1 << 16)
    n = 40_000
    values = np.random.default_rng(23).standard_normal(n).tolist()
    lines = [f"{100_000 + k} {k + 1} {v!r}\n" for k, v in enumerate(values)]
    head = f"%%MatrixMarket matrix coordinate real {symmetry}\n200000 200000 {n}\n"
    text = (head + "".join(lines)).encode()
    path = tmp_path / "a.mtx"
    path.write_bytes(pack(text))
    nnz = n * (1 + (symmetry == "symmetric"))
    with allocating_at_most((2 if symmetry == "general" else 3) * max(len(text), 12 * nnz + 4 * 200_001)):
        S = jsf.io.read_scipy(path)
    assert S.nnz == nnz and S.indices.dtype == S.indptr.dtype == np.int32
