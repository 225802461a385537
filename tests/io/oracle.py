"""An independent strict reader of Matrix Market files: regular expressions over whole lines, slow and plain.

It follows the grammar that `jaxsparse_fmt/io/mtx_entries.py` states, and shares no code with it. And mutations of small
files, on which the two must agree.
"""

import math
import random
import re

import numpy as np
import scipy.sparse as sp

BLANK = rb"[ \t\v\f\r]"
INDEX = rb"([-+]?[0-9]+)"
VALUE = rb"([-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eEdD][-+]?[0-9]+)?|(?i:inf|infinity|nan)))"
LONGEST, MOST_ROWS = 65_536, 10**8
FIELDS = {b"real": 1, b"double": 1, b"integer": 1, b"unsigned-integer": 1, b"complex": 2, b"pattern": 0}
SYMMETRIES = (b"general", b"symmetric", b"spd", b"skew-symmetric", b"hermitian")


class Refused(Exception):
    """The file is not Matrix Market."""


def check(holds: object, why: str) -> None:
    if not holds:
        raise Refused(why)


def words(line: bytes) -> list[bytes]:
    return [word for word in re.split(BLANK, line.partition(b"%")[0]) if word]


def read(data: bytes) -> tuple[tuple[int, int], list[tuple[int, int, complex]]]:
    """The shape, and all entries, mirrored ones too; those of an array by columns, zeros too. Raises `Refused`."""
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    check(all(len(line) <= LONGEST for line in lines), "a line too long")
    check(re.match(rb"(?i)%%matrixmarket" + BLANK, lines[0]), "no banner")
    banner = [word.lower() for word in re.split(BLANK, lines[0]) if word]
    check(len(banner) == 5, "a banner of another length")
    _, thing, format, field, symmetry = banner
    check(thing == b"matrix" and format in (b"coordinate", b"array"), "an unknown object or format")
    check(field in FIELDS and symmetry in SYMMETRIES, "an unknown field or symmetry")
    check(symmetry != b"hermitian" or field == b"complex", "a real Hermitian matrix")
    check(field != b"pattern" or (format == b"coordinate" and symmetry != b"skew-symmetric"), "an array of a pattern")
    said = [line for line in lines[1:] if words(line)]
    check(said, "no size line")
    size = words(said[0])
    sparse = format == b"coordinate"
    check(len(size) == 2 + sparse, "a size line of another length")
    check(all(re.fullmatch(rb"\+?[0-9]{1,18}", word) for word in size), "a size that is no number")
    n_rows, n_cols = int(size[0]), int(size[1])
    check(symmetry == b"general" or n_rows == n_cols, "not square")
    check(n_rows <= max(MOST_ROWS, len(data)), "too many rows")

    numbers = [INDEX] * 2 * sparse + [VALUE] * FIELDS[field]
    pattern = re.compile(BLANK + b"*" + (BLANK + b"+").join(numbers) + BLANK + b"*(?:%.*)?", re.DOTALL)
    entries = []
    for line in said[1:]:
        found = pattern.fullmatch(line)
        check(found, "a line that is no entry")
        texts = found.groups()
        if sparse:
            i, j = int(texts[0]), int(texts[1])
            check(1 <= i <= n_rows and 1 <= j <= n_cols, "an index outside")
            texts = texts[2:]
        else:
            i = j = 0
        parts = [float(re.sub(rb"[dD]", b"e", text)) for text in texts]
        check(
            not any(math.isinf(x) and re.search(rb"[0-9]", t) for x, t in zip(parts, texts, strict=True)), "too large"
        )
        entries.append((i - 1, j - 1, complex(*parts) if parts else 1 + 0j))
    if sparse:
        check(len(entries) == int(size[2]), "another number of entries")
    else:
        below = {b"general": None, b"skew-symmetric": 1}.get(symmetry, 0)
        count = n_rows * n_cols if below is None else n_rows * (n_rows + 1 - 2 * below) // 2
        check(len(entries) == count, "another number of entries")
        first = [0] * n_cols if below is None else [j + below for j in range(n_cols)]
        places = [(i, j) for j in range(n_cols) for i in range(first[j], n_rows)] if count else []
        entries = [(*place, value) for place, (_, _, value) in zip(places, entries, strict=True)]
    if symmetry == b"general":
        return (n_rows, n_cols), entries
    stored = {(i, j) for i, j, _ in entries if i != j}
    check(not any((j, i) in stored for i, j in stored), "both triangles")
    diagonal = [value for i, j, value in entries if i == j]
    check(symmetry != b"skew-symmetric" or all(value == 0 for value in diagonal), "a diagonal")
    check(symmetry != b"hermitian" or all(value.imag == 0 for value in diagonal), "a diagonal that is not real")
    mirrored = {b"skew-symmetric": lambda v: -v, b"hermitian": lambda v: v.conjugate()}.get(symmetry, lambda v: v)
    return (n_rows, n_cols), entries + [(j, i, mirrored(value)) for i, j, value in entries if i != j]


def assert_same_csr(got: sp.csr_array, want: sp.csr_array) -> None:
    """In shape and every array, the order of entries and stored zeros too."""
    assert got.shape == want.shape
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name))


def sorted_entries(entries: list[tuple[int, int, complex]]) -> np.ndarray:
    """[entries, 4] float64: row, column, real and imaginary part; in order, so that NaNs compare by place."""
    table = np.array([(i, j, v.real, v.imag) for i, j, v in entries], np.float64).reshape(-1, 4)
    return table[np.lexsort(table.T[::-1])]


FILES = tuple(
    text.encode()
    for text in (
        "%%MatrixMarket matrix coordinate real general\n3 4 3\n1 2 -1.5\n3 4 2e-3\n2 1 .5\n",
        "%%MatrixMarket matrix coordinate real general\n% note\n\n2 2 2\r\n1 1 1.2345678901234567\r\n2 2 +9.5D1 %\r\n",
        "%%MatrixMarket matrix coordinate integer general\n3 3 2\n1 1 5\n3 3 -12345678901234567890\n",
        "%%MatrixMarket matrix coordinate real symmetric\n3 3 3\n1 1 4\n2 1 -1\n3 2 1e300\n",
        "%%MatrixMarket matrix coordinate real skew-symmetric\n3 3 2\n2 1 7\n3 1 .25\n",
        "%%MatrixMarket matrix coordinate pattern general\n3 3 3\n1 1\n2 3\n3 1\n",
        "%%MatrixMarket matrix coordinate pattern symmetric\n3 3 2\n1 1\n3 1\n",
        "%%MatrixMarket matrix coordinate complex general\n2 2 2\n1 1 1 -2\n2 1 3e1 4.\n",
        "%%MatrixMarket matrix coordinate complex symmetric\n2 2 1\n2 1 3 -4\n",
        "%%MatrixMarket matrix coordinate complex hermitian\n2 2 2\n1 1 1 0\n2 1 3 4\n",
        "%%MatrixMarket matrix array real general\n2 2\n1\n2\n-3\n4.5e-1\n",
        "%%MatrixMarket matrix array real symmetric\n2 2\n1\n2\n3\n",
        "%%MatrixMarket matrix array complex hermitian\n2 2\n1 0\n2 -1\n3 0\n",
        "%%MatrixMarket matrix array real skew-symmetric\n3 3\n1\n2\n3",
        "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 nan\n2 2 -inf",
    )
)
BYTES = b"0123456789+-.eEdD%,/ \t\v\f\r\n\0_xXnN\x1c\x85\xa0\xff"
SNIPPETS = (
    *(b"+-5", b"1/2", b"1e", b"-1.5.e55", b"+9.5", b"1e5", b"1D2", b"1.", b".5", b".", b"-", b"e5", b"0x10", b"1_0"),
    *(b"1e310", b"1e-400", b"4.9e-324", b"inf", b"-Infinity", b"NaN", b"nan(1)", b"1j", b"00000000000000000000002"),
    *(b"9007199254740993", b"179769313486231580793e289", b"2.2250738585072011e-308", b"0.3000000000000000166533453694"),
    *b"\n|\n\n| |  1| % note|%|\r\n|1 1 1\n|2 2\n|0|3|99999999999999999999".split(b"|"),
    *(b"symmetric", b"general", b"complex", b"array", b"pattern", b"hermitian", b"skew-symmetric", b"\xef\xbb\xbf"),
)


def mutated(rng: random.Random) -> bytes:
    """One of `FILES` after a few random changes: of bytes, words, snippets, lines, or its end."""
    data = rng.choice(FILES)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        # Changes behind the banner are the rule: most in it are refused for the same reason.
        low = 0 if rng.random() < 0.1 else data.find(b"\n") + 1
        at, other = (rng.randrange(min(low, len(data)), len(data) + 1) for _ in range(2))
        start, stop = min(at, other), max(at, other)
        spans = [found.span() for found in re.finditer(rb"\S+", data[low:])] or [(0, 0)]
        word, byte, snippet = rng.choice(spans), bytes([rng.choice(BYTES)]), rng.choice(SNIPPETS)
        data = rng.choice(
            (
                *(data[:at] + byte + data[at + 1 :], data[:at] + byte + data[at:], data[:at]),
                *(data[:at] + data[at + rng.choice((1, 1, 1, 2, 5)) :], data[:at] + snippet + data[at:]),
                data[: low + word[0]] + snippet + data[low + word[1] :],
                data[:at] + data[start:stop] + data[at:],
            )
        )
    return data
