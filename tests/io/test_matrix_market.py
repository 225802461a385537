"""Matrix Market: what has one meaning is read, all else is refused by file, line and cure; nothing crashes."""

import bz2
import csv
import functools
import gzip
import io as stdlib_io
import os
import pathlib
import re
import threading

import numpy as np
import pytest
import scipy.sparse as sp

from jaxsparse_fmt import gallery
from jaxsparse_fmt.io import files
from tests.io.oracle import assert_same_csr
from tests.oracle import assert_refused
from tests.process import allocating_at_most

BANNER = "%%MatrixMarket matrix coordinate real general\n"


@pytest.fixture
def write(tmp_path):
    def to(text, name="a.mtx"):
        (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
        return tmp_path / name

    return to


def table(variable: str, name: str) -> list[dict[str, str]]:
    """The rows of a list of files, in the folder that an environment variable names; none without it."""
    folder = os.environ.get(variable)
    if not folder:
        return []
    with open(pathlib.Path(folder, name), newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


MALFORMED = table("JAXSPARSE_MALFORMED", "EXPECTED.tsv")
# Read although not to the letter of the format, and what they hold: rows, columns, entries.
LENIENT = {
    **{"CUDALibrarySam__matrix.mtx": (5, 5, 11), "russell__ok_general.mtx": (5, 5, 12)},
    **{"SuiteSparse__mangled14.mtx": (3, 4, 2), "SuiteSparse__mangled_skew.mtx": (6, 6, 20)},
    **{f"SuiteSparse__{name}.mtx": (7, 7, 12) for name in ("mangled_int32", "mangled_uint32")},
    **{f"SuiteSparse__{name}.mtx": (7, 7, 12) for name in ("matrix_fp32", "matrix_uint64")},
    **{"SuiteSparse__west0067_jumbled.mtx": (67, 67, 294), "fast_matrix_ma__overflow_value_gt_int64.mtx": (3, 3, 3)},
    "fast_matrix_ma__windows_lineendings_nist_ex1_more_freeformat.mtx": (5, 5, 8),
}


@pytest.mark.parametrize("row", MALFORMED, ids=lambda row: row["name"])
def test_malformed_files_are_refused_by_name_or_read_right(row):
    path = pathlib.Path(os.environ["JAXSPARSE_MALFORMED"], row["name"])
    if row["name"] in LENIENT:
        assert row["expected"] != "reject"
        matrix = files.read_scipy(path)
        assert (*matrix.shape, matrix.nnz) == LENIENT[row["name"]]
    else:
        assert_refused(lambda: files.read_scipy(path), ValueError, rf"^{re.escape(str(path))}, line \d+: ")


# Rows rise, or not.
@pytest.mark.parametrize("lines", ["2 2 1\n1 2 0\n2 2 0.5\n2 1 3\n", "1 2 0\n2 2 1\n2 1 3\n2 2 0.5\n"])
def test_explicit_zeros_stay_and_duplicates_are_summed(write, lines):
    matrix = files.read_scipy(write(f"{BANNER}2 2 4\n{lines}"))
    assert matrix.has_canonical_format
    assert_same_csr(matrix, sp.csr_array(([0, 3, 1.5], [1, 0, 1], [0, 1, 3])))


def test_matrices_without_entries_are_read(write):
    for size in ("0 0 0", "0 3 0", "3 0 0", "3 4 0", "0 0", "0 3", "3 0"):
        rows, cols, *entries = map(int, size.split())
        kind = "coordinate" if entries else "array"
        matrix = files.read_scipy(write(f"%%MatrixMarket matrix {kind} real general\n{size}\n"))
        assert matrix.shape == (rows, cols) and matrix.nnz == 0


@pytest.mark.parametrize(
    "text",
    [
        BANNER + "2 2 2\n1 1 -150\n2 2 3\n",
        BANNER + "2 2 2\n1 1 -150\n2 2 3",
        (BANNER + "2 2 2\n1 1 -150\n2 2 3\n").replace("\n", "\r\n"),
        "\ufeff" + BANNER + "2 2 2\n1 1 -150\n2 2 3\n",
        BANNER + "  % note\n\n 2   2\t2 \n\n  1 1 -150\n% between\n2 2 3 % behind\n\n% end",
        BANNER + "2 2 2\n1 1 -1.5D+02\n2 2 3d0\n",
        BANNER + "2 2 2\n1 1 -1.5E+2\n+2 +2 +3\n",
        BANNER + "+2 2 2 % size\n\v1\f1\v\f-150\f\n2 2 3 \v\n\f\n",
        BANNER.encode() + b"% caf\xe9 \xff\0\n2 2 2\n1 1 -150 % \xe9\n2 2 3\n",
        b"\xef\xbb\xbf" + BANNER.replace("\n", "\r\n").encode() + b"2 2 2\r\n1 1 -150\r\n2 2 3\r\n\r\n",
        BANNER.replace("real", "double").upper() + "2 2 2\n2 2 3.\n1 1 -.15e3\n",
        BANNER.replace("general", "spd") + "2 2 2\n1 1 -150\n2 2 3\n",
    ],
)
def test_departures_with_one_meaning_are_read(write, text):
    np.testing.assert_array_equal(files.read_scipy(write(text)).toarray(), [[-150, 0], [0, 3]])


@functools.cache
def large() -> tuple[bytes, sp.csr_array]:
    """A file of many blocks and the matrix in it, by other means."""
    matrix = gallery.irregular(2000, mean=20, spread=300)
    row = np.repeat(np.arange(2000), np.diff(matrix.indptr)) + 1
    lines = [f"{i} {j + 1} {v!r}\n" for i, j, v in zip(row, matrix.indices, matrix.data.tolist(), strict=True)]
    return (BANNER + f"2000 2000 {matrix.nnz}\n" + "".join(lines)).encode(), matrix


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress])
def test_a_file_of_many_blocks_is_read_exactly_by_path_from_a_pipe_and_while_open(write, pack, tmp_path):
    text, expected = large()
    assert len(text) > 10 * 2**16
    path, fifo = write(pack(text)), tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_bytes(path.read_bytes()))
    writer.start()
    matrices = [files.read_scipy(source) for source in (path, fifo, stdlib_io.BytesIO(path.read_bytes()))]
    writer.join()
    with open(path, "rb") as file:
        matrices.append(files.read_scipy(file))
    for matrix in matrices:
        assert_same_csr(matrix, expected)


def test_a_fault_far_into_a_file_is_found_by_line(write):
    lines = large()[0].split(b"\n")
    for entry in (b"5 7 x", b"5 7 1 1", b"0 7 1", b"5 2001 1", b"5 7 1e310", b"5 7 1 1 1 1\n"):  # as two lines' words
        path = write(b"\n".join([*lines[:30_000], entry, *lines[30_001:]]))
        assert_refused(lambda path=path: files.read_scipy(path), ValueError, "line 30001: ")


def test_a_file_that_is_open_as_text_is_refused_with_the_cure(write):
    with open(write(BANNER + "1 1 1\n1 1 1\n")) as file:
        assert_refused(lambda: files.read_scipy(file), TypeError, "mode 'rb'")


def test_a_damaged_archive_is_refused(write):
    packed = gzip.compress(large()[0])
    for damaged in (packed[:8], packed[: len(packed) // 2], packed[:-4], packed[:9] + b"\xff\xff" + packed[11:]):
        path = write(damaged, "a.mtx.gz")
        words = f"^{re.escape(str(path))}: damaged or cut short: .*fetch it again"
        assert_refused(lambda path=path: files.read_scipy(path), ValueError, words)


# --------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "empty"),
        ("PK\x03\x04" + 26 * "\0" + "shape.npy", 1, "is not Matrix Market; it is an .npz file: take jaxsparse.load"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", 1, "git lfs pull"),
        ("<!DOCTYPE html>\n<html></html>\n", 1, "web page"),
        ("\n" + BANNER + "1 1 0\n", 1, "blank space"),
        ("%MatrixMarket matrix coordinate real general\n1 1 0\n", 1, "make it %%MatrixMarket"),
        ("title\n 3 1 1\nrua 4 4 16 0\n(26I3) (40I2)\n", 1, "hb_read"),
        ("x" * 257 + "ustar\n", 1, "unpack"),
        ("3 3 1\n1 1 5\n", 1, "no banner"),
        (BANNER.replace("\n", "\r") + "1 1 0\r", 1, "lines end"),
        ("%%MatrixMarket matrix coordinate real\n1 1 0\n", 1, "4 words in the banner"),
        (BANNER.replace("matrix ", "vector ") + "1 1 0\n", 1, "unknown object 'vector'; use one of matrix"),
        (BANNER.replace("general", "hermitian") + "1 1 0\n", 1, "real and hermitian"),
        ("%%MatrixMarket matrix coordinate pattern skew-symmetric\n1 1 0\n", 1, "and pattern exclude"),
        (BANNER + "% only\n% comments\n", 4, "rows columns entries"),
        (BANNER + f"3 3 1{'0' * 30}\n1 1 1\n", 2, "rows columns entries"),
        (BANNER.replace("general", "symmetric") + "3 4 1\n1 1 1\n", 2, "3 × 4 is not square"),
        (BANNER + "3 3 99\n1 1 1\n", 2, "99 entries take at least 593 bytes"),
        (BANNER + "3 3 3\n1 1 1.0000\n2 2 1.0000\n", 4, "ends 1 short of the 3"),
        (BANNER + "3 3 1\n1 1 1\n2 2 1\n", 4, "more than the 1 entries"),
        (BANNER + "3 3 2\n1 1 1\n\n0 2 5\n", 5, "'0 2 5'.*count from 1.*counts from 0"),
        (BANNER + "3 3 1\n-1 2 5\n", 3, "'-1 2 5'.*outside 3 × 3"),
        (BANNER + "3 3 2\n1 1 1\n1.5 2 3\n", 4, "'1.5 2 3' is not 'row, column, value'"),
        (BANNER + "3 3 2\n1 1 1\n2 2\n", 4, "'2 2' is not"),
        (BANNER + "3 3 2\n1 1 1\n2 2 x\n", 4, "'2 2 x' is not"),
        (BANNER + "3 3 2\n1 1 1\r2 2 3\r", 3, "is not"),
        (BANNER + "3 3 2\n1 1 1\n2 2 1e310\n", 4, "'1e310' exceeds"),
        (BANNER.replace("real", "complex") + "3 3 1\n1 1 1\n", 3, "real part, imaginary part"),
        ("%%MatrixMarket matrix array real symmetric\n2 2\n1.5\n2.5\n", 4, "ends 1 short of the 3"),
        ("%%MatrixMarket matrix array real general\n2 1\n1\n2\n3\n", 5, "more than the 2 entries"),
        ("\ufeff".encode("utf-16") + BANNER.encode("utf-16"), 1, "save it as UTF-8"),
        (BANNER + "% " + "x" * 70_000 + "\n1 1 0\n", 2, "a line of more than 65536 bytes"),
        (BANNER + "1 1 1\n1 1 1\n% " + "x" * 70_000 + "\n", 4, "a line of more than 65536 bytes"),
        (BANNER + "\n" * 300_000, 262145, "more than 262144 blank lines and comments.*remove them"),
        (BANNER + "1 1 1\n1 1 1\n" + "%\n" * 300_000, 300003, "more than 262144 blank lines and comments"),
        (BANNER + "1 1 1\n" + f"%{'x' * 65000}\n" * 270 + "1 1 1\n", 262, "or 16 MB of them"),
        (BANNER + f"3 3 1\n1 1{'0' * 5000} 1\n", 3, "an index outside 3 × 3"),
        (BANNER.replace("real", "pattern") + "3 3 1\n1 0%\n", 3, "counts from 0"),
        (BANNER.replace("general", "symmetric") + "2 2 2\n1 2 4\n2 1 4\n", 0, r"\(1, 2\) and \(2, 1\).*count twice"),
        (BANNER.replace("general", "skew-symmetric") + "2 2 1\n1 1 4\n", 0, "diagonal"),
        (BANNER.replace("real general", "complex hermitian") + "2 2 1\n1 1 4 1\n", 0, "diagonal"),
    ],
)
def test_a_malformed_file_is_refused_by_line_and_cure(write, text, line, said):
    path = write(text)
    words = f"^{re.escape(str(path))}{f', line {line}' if line else ''}: .*{said}"
    assert_refused(lambda: files.read_scipy(path), ValueError, words)


@pytest.mark.parametrize("size", ["9 9 99999999999", "999999999999 9 1", "999999999 999999999 1"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress])
def test_sizes_that_the_file_cannot_hold_are_refused_before_anything_is_allocated(write, size, pack):
    path = write(pack((BANNER + size + "\n1 1 1\n").encode()))
    with allocating_at_most(10e6), pytest.raises(ValueError, match=r"line 2: .*the size line is wrong"):
        files.read_scipy(path)
