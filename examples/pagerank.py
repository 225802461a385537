"""PageRank of a power-law graph: the ranks by two methods, and their derivative by the damping.

The rank r solves (I − d·P)·r = (1 − d)/n, where P moves a visitor along a random link. The power method needs one
product with P a step, here in the format that `format="auto"` chooses for such graphs. `gmres` solves the same equation,
and its derivative by d is one more solve.

    python examples/pagerank.py [PICTURE.png]
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jaxsparse as js

jax.config.update("jax_enable_x64", True)

n = 20_000  # pages
links = js.gallery.power_law(n).tocsr()
links.data[:] = 1.0
P = js.from_scipy(links.T.tocsr())  # P[j, i]: page i links to page j
P = P.scale_cols(1 / np.maximum(np.asarray(links.sum(axis=1)).ravel(), 1))


@jax.jit
def by_power_method(P, d, tol=1e-12):
    def step(state):
        r, _, count = state
        moved = d * (P @ r)
        new = (
            moved + (1 - moved.sum()) / n
        )  # from a page without links a visitor goes anywhere
        return new, jnp.abs(new - r).sum(), count + 1

    start = jnp.full(n, 1 / n), 1.0, 0
    return jax.lax.while_loop(lambda state: state[1] > tol, step, start)


@jax.jit
def by_solve(P, d):
    r = js.gmres(lambda r: r - d * (P @ r), jnp.full(n, 1 / n), rtol=1e-12).x
    return r / r.sum()


def main():
    print(P)
    ranks, _, steps = by_power_method(P, 0.85)
    solved, slope = jax.jvp(functools.partial(by_solve, P), (0.85,), (1.0,))
    print(
        f"power method: {int(steps)} steps; it differs from the solve by "
        f"{float(jnp.abs(solved - ranks).sum()):.1e}"
    )
    print(
        f"{'page':>8}{'links to it':>13}{'rank':>12}{'rank · n':>10}"
        f"{'d rank / d damping':>21}"
    )
    for page in np.argsort(-np.asarray(ranks))[:8]:
        print(
            f"{page:8}{links[:, [page]].nnz:13}{ranks[page]:12.3e}"
            f"{n * ranks[page]:10.1f}{slope[page]:21.3e}"
        )
    assert float(jnp.abs(solved - ranks).sum()) < 1e-9

    if len(sys.argv) > 1:
        from matplotlib import pyplot

        to_it = np.asarray(links.sum(axis=0)).ravel()
        figure, axes = pyplot.subplots(
            1, 2, figsize=(10, 3.8), layout="constrained"
        )
        axes[0].loglog(np.sort(ranks)[::-1] * n)
        axes[0].set(
            title="ranks follow a power law",
            xlabel="pages, best first",
            ylabel="rank · n",
        )
        axes[1].loglog(to_it + 1, ranks * n, ".", ms=2, rasterized=True)
        axes[1].set(
            title="many links are not all",
            xlabel="links to a page, plus 1",
            ylabel="rank · n",
        )
        figure.savefig(sys.argv[1])


if __name__ == "__main__":
    main()
