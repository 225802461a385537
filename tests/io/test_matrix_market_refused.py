"""Malformed Matrix Market files are refused by line, with the cure, before anything large is allocated."""

import bz2
import gzip
import re
import tracemalloc

import pytest

from jaxsparse_fmt.io import files
from tests.io.test_matrix_market import BANNER


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "empty"),
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
        (BANNER + f"3 3 1\n1 1{'0' * 5000} 1\n", 3, "an index outside 3 × 3"),
        (BANNER.replace("real", "pattern") + "3 3 1\n1 0%\n", 3, "counts from 0"),
    ],
)
def test_a_malformed_file_is_refused_by_line_and_cure(write, text, line, said):
    path = write(text)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}, line {line}: .*{said}"):
        files.read_mtx(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BANNER.replace("general", "symmetric") + "2 2 2\n1 2 4\n2 1 4\n", r"\(1, 2\) and \(2, 1\).*count twice"),
        (BANNER.replace("general", "skew-symmetric") + "2 2 1\n1 1 4\n", "diagonal"),
        (BANNER.replace("real general", "complex hermitian") + "2 2 1\n1 1 4 1\n", "diagonal"),
    ],
)
def test_what_symmetry_excludes_is_refused(write, text, said):
    path = write(text)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: .*{said}"):
        files.read_mtx(path)


@pytest.mark.parametrize("size", ["9 9 99999999999", "999999999999 9 1", "999999999 999999999 1"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress])
def test_sizes_that_the_file_cannot_hold_are_refused_before_anything_is_allocated(write, size, pack):
    path = write(pack((BANNER + size + "\n1 1 1\n").encode()))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"line 2: .*the size line is wrong"):
            files.read_mtx(path)
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()
