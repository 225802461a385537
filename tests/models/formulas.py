"""The papers' formulas that no code of the package needs; equation numbers are those of

Wang and Gu, PELLR: a permuted ELLPACK-R format for SpMV on GPUs, 2020, §3
Kreutzer et al., Sparse matrix-vector multiplication on GPGPU clusters, 2012, §II.B
"""

import numpy as np

from jaxsparse_fmt.models import traffic


def by_falling_length(row_lengths):
    """Row lengths in the order of PELLR, JDS and pJDS: the longest first."""
    return np.sort(row_lengths)[::-1]


def warp_iterations(row_lengths, warp=32):
    """N_iter: loop iterations of warps of `warp` threads, one row each; a warp waits for its longest row."""
    return int(traffic.longest_by_slice(row_lengths, warp).sum())  # Wang, eq. (1)


def code_balance(row_length, alpha, value_bytes=8, index_bytes=4):
    """B_W: bytes moved a flop with ELLPACK or pJDS; alpha is the fraction of loads of x from memory."""
    return (value_bytes + index_bytes + value_bytes * alpha + 2 * value_bytes / row_length) / 2  # Kreutzer, eq. (1)


def row_length_at(products, bandwidth_ratio, alpha=None, value_bytes=8, index_bytes=4):
    """N_nzr at which T_MVM = products·T_PCI; alpha None: 1 / N_nzr, each element of x loaded once."""
    per_entry = 1 + index_bytes / value_bytes
    if alpha is None:  # then alpha·N_nzr = 1, and the equation is explicit
        return (2 * products * bandwidth_ratio - 3) / per_entry
    return (2 * products * bandwidth_ratio - 2) / (alpha + per_entry)  # Kreutzer, eqs. (3) and (4)


def ell_places(row_lengths):
    """Barbieri et al., §2.4."""
    return int(np.max(row_lengths, initial=0)) * len(row_lengths)
