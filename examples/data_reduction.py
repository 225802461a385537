"""Storage that pJDS saves against ELLPACK: Table I of Kreutzer et al. (2012), on problems like its matrices.

ELLPACK pads every row to the longest of all, pJDS to the longest of its block of 32 after sorting by length, so the
saving depends on the row lengths alone. The paper's matrices are not public. HMEp's Hamiltonian is the paper's with
fewer phonons; the other three have row lengths like the paper's, and other equations.

    python examples/data_reduction.py [PICTURE.png]
"""

import sys

import jax
import numpy as np

import jaxsparse as js
from jaxsparse_fmt import gallery

jax.config.update("jax_enable_x64", True)

# The paper's matrix: how to make one like it, and the paper's reduction in %.
PROBLEMS = {
    "DLR1": (
        "cfd(20, 6, 23, spread=0)",
        lambda: gallery.cfd(20, 6, 23, spread=0),
        17.5,
    ),
    "DLR2": ("cfd(16)", lambda: gallery.cfd(16), 48.0),
    "HMEp": (
        "holstein_hubbard(6, 6, 8)",
        lambda: gallery.holstein_hubbard(6, 6, 8),
        36.0,
    ),
    "sAMG": (
        "adaptive_poisson(10)",
        lambda: gallery.adaptive_poisson(10),
        68.4,
    ),
}


def reductions():
    """For each problem: names, rows, mean and longest row, places in ELLPACK
    and pJDS, % saved here and there."""
    table = []
    for name, (call, make, paper) in PROBLEMS.items():
        S = make()
        longest = int(np.diff(S.indptr).max())
        ellpack = js.from_scipy(S, "ell").n_stored
        pjds = js.from_scipy(S, "pjds", block_size=32).n_stored
        here = 100 * (1 - pjds / ellpack)
        table.append(
            (
                name,
                call,
                S.shape[0],
                S.nnz / S.shape[0],
                longest,
                ellpack,
                pjds,
                here,
                paper,
            )
        )
    return table


def main():
    print(
        f"{'like':6}{'gallery problem':27}{'rows':>8}{'mean':>7}{'longest':>9}",
        end="",
    )
    print(
        f"{'ELLPACK places':>16}{'pJDS places':>13}{'saved %':>9}{'paper %':>9}"
    )
    table = reductions()
    for name, call, rows, mean, longest, ellpack, pjds, here, paper in table:
        print(
            f"{name:6}{call:27}{rows:8}{mean:7.1f}{longest:9}{ellpack:16}"
            f"{pjds:13}{here:9.1f}{paper:9.1f}"
        )

    if len(sys.argv) > 1:
        from matplotlib import pyplot

        figure, ax = pyplot.subplots(figsize=(7, 4), layout="constrained")
        place = np.arange(len(table))
        ax.bar(place - 0.2, [row[-2] for row in table], 0.4, label="here")
        ax.bar(
            place + 0.2, [row[-1] for row in table], 0.4, label="in the paper"
        )
        ax.set_xticks(place, [f"like {row[0]}" for row in table])
        ax.set_title("storage that pJDS saves against ELLPACK, %")
        ax.legend()
        figure.savefig(sys.argv[1])


if __name__ == "__main__":
    main()
