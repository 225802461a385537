"""Numba kernels that factor and solve the systems of a tile side by side: what `core/lanes.py` says.

A member of a batch is a tile of LANES systems. All numbers of a place are loaded before any is stored, so that LLVM
makes vectors of them.
"""

import numba

from jaxsparse_fmt.kernels.cpu.abi import LANES
from jaxsparse_fmt.kernels.cpu.numba_kernels import U, compiled, inlined, quotient


@inlined
def _lanes(pointer, place, zero):
    """The numbers of a place in all lanes, loaded before anything is stored: so that they are vectors."""
    i, cast = place * U(LANES), type(zero)
    a, b, c, d = cast(pointer[i]), cast(pointer[i + U(1)]), cast(pointer[i + U(2)]), cast(pointer[i + U(3)])
    i += U(4)
    return a, b, c, d, cast(pointer[i]), cast(pointer[i + U(1)]), cast(pointer[i + U(2)]), cast(pointer[i + U(3)])


@inlined
def _put(pointer, place, v):
    i = place * U(LANES)
    for lane in numba.literal_unroll((0, 1, 2, 3, 4, 5, 6, 7)):
        pointer[i + U(lane)] = v[lane]


@inlined
def _times(a, b):
    return a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3], a[4] * b[4], a[5] * b[5], a[6] * b[6], a[7] * b[7]


@inlined
def _minus(a, b):
    return a[0] - b[0], a[1] - b[1], a[2] - b[2], a[3] - b[3], a[4] - b[4], a[5] - b[5], a[6] - b[6], a[7] - b[7]


@compiled
def factored_lanes(o, piece, pieces):
    """The factors of LANES matrices: `columns` has the place of each of their entries, then the target of each update.

    a: [LANES, n_places]; out: [n + 2·fill, LANES], 1/D, L and U.
    """
    F, n, fill, z = o.out, o.n_rows, U(o.ptr[o.n_rows]), o.zero
    one = type(z)(1)
    for i in range((n + U(2) * fill) * U(LANES)):
        F[i] = z
    for e in range(o.n_places):
        i = U(o.columns[e]) * U(LANES)
        for lane in range(U(LANES)):
            F[i + lane] += type(z)(o.a[lane * o.n_places + e])
    k = o.n_places
    for j in range(n):
        begin, end = n + U(o.ptr[j]), n + U(o.ptr[j + U(1)])
        for lane in range(U(LANES)):
            F[j * U(LANES) + lane] = quotient(one, F[j * U(LANES) + lane])
        d = _lanes(F, j, z)
        for p in range(begin, end):
            v = _times(_lanes(F, p, z), d)
            _put(F, p, v)
            for q in range(begin + fill, end + fill):
                t = U(o.columns[k])
                _put(F, t, _minus(_lanes(F, t, z), _times(v, _lanes(F, q, z))))
                k += U(1)


@compiled
def solved_lanes(o, piece, pieces):
    """x of LANES systems by their factors: `columns` has the unknown of each entry of L, then the order.

    a: [n + 2·n_places, LANES]; b, out: [n, p, LANES]; masked: whether the systems are transposed.
    """
    x, n, p, z, transposed = o.out, o.n_rows, o.p, o.zero, o.masked != U(0)
    lower = n + o.n_places if transposed else n
    upper = n if transposed else n + o.n_places
    for i in range(n * p * U(LANES)):
        x[i] = type(z)(o.b[i])
    for j in range(n):
        at, begin, end = U(o.columns[o.n_places + j]) * p, U(o.ptr[j]), U(o.ptr[j + U(1)])
        for c in range(p):
            v = _lanes(x, at + c, z)
            if transposed:
                v = _times(v, _lanes(o.a, j, z))
                _put(x, at + c, v)
            for k in range(begin, end):
                t = U(o.columns[k]) * p + c
                _put(x, t, _minus(_lanes(x, t, z), _times(_lanes(o.a, lower + k, z), v)))
    for i in range(n):
        j = n - U(1) - i
        at, begin, end = U(o.columns[o.n_places + j]) * p, U(o.ptr[j]), U(o.ptr[j + U(1)])
        for c in range(p):
            v = _lanes(x, at + c, z)
            for k in range(begin, end):
                v = _minus(v, _times(_lanes(o.a, upper + k, z), _lanes(x, U(o.columns[k]) * p + c, z)))
            _put(x, at + c, v if transposed else _times(v, _lanes(o.a, j, z)))
