"""Stencils with corners in boxes: few rounds, since devices forward; the answers of one device; what need not wait."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jaxsparse_fmt as jsf
from benchmarks import plans
from jaxsparse_fmt.distributed import halo
from jaxsparse_fmt.models import traffic
from solvers import cg


def with_corners(shape):
    """A stencil that reads all neighbours of a point, with values of no symmetry."""
    along = [sp.diags_array([1.0, 1.0, 1.0], offsets=[-1, 0, 1], shape=(n, n)) for n in shape]
    S = sp.csr_array(functools.reduce(sp.kron, along))
    S.data = np.random.default_rng(0).standard_normal(S.nnz)
    S.sort_indices()
    return S


@jax.jit
def all_faces(A, data, x, Y):
    y, back = jax.vjp(lambda data, x: A.with_data(data) @ x, data, x)
    return y, A.T @ x, A @ Y, back(y)


@pytest.mark.parametrize(
    ("shape", "boxes", "mesh", "rounds"),
    [
        ((6, 7, 5), (2, 2, 2), (8,), [1, 1, 1]),
        ((8, 7), (4, 2), (4, 2), [2, 1]),
        ((9, 7), (3, 2), (6,), [2, 1]),
        ((35,), (7,), (7,), [2]),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["overlap", "vector"])
def test_forwarded_unknowns_give_the_answers_of_one_device(shape, boxes, mesh, rounds, mode):
    """On one axis, or over an odd number of devices along it, too; seven devices form no grid and forward nothing."""
    S, names = with_corners(shape), ("rows", "more")[: len(mesh)]
    over = jax.make_mesh(mesh, names, devices=jax.devices("cpu")[: math.prod(mesh)])
    A = jsf.shard(S, over, names, "csr", mode, by=jsf.boxes(shape, boxes), exchange="forward")
    assert [len(stage) for stage in A.shards.halo.stages] == rounds
    x, *Y = np.random.default_rng(1).standard_normal((3, S.shape[0]))
    Y = np.stack(Y, axis=1)
    y, transposed, columns, (by_data, by_x) = all_faces(A, S.data, x, Y)
    row, col = S.tocoo().coords
    wanted = (S @ x, S.T @ x, S @ Y, (S @ x)[row] * x[col], S.T @ (S @ x))
    for got, expected in zip((y, transposed, columns, by_data, by_x), wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    assert abs(A.to_scipy() - S).max() == 0


def test_a_solve_with_forwarded_unknowns_takes_the_steps_of_direct_messages():
    S, boxes = jsf.gallery.hpcg(6), jsf.boxes((6, 6, 6), 8)
    b = np.random.default_rng(0).standard_normal(216)
    mesh = jax.make_mesh((8,), ("rows",), devices=jax.devices("cpu")[:8])
    found = [cg(jsf.shard(S, mesh, format="csr", by=boxes, exchange=kind), b) for kind in ("forward", "permute")]
    np.testing.assert_array_equal(*(np.asarray(sol.x) for sol in found))  # the same unknowns arrive at the same places
    assert all(sol.success for sol in found)


def neighbours(grid, edge, corners):
    """Boxes of edge³ points in a grid, with eight to a host, whose points read across corners or faces alone."""
    return halo.neighbours(plans.Boxes(grid, (edge,) * 3, shuffled=False, corners=corners).told())


def test_512_boxes_reach_26_neighbours_in_six_rounds_and_the_model_prefers_these():
    between = neighbours((8, 8, 8), 100, corners=True)
    loads = halo.exchanges(between, 10**6)
    kind, seconds = traffic.cheapest(loads, halo.machine_of(between))
    assert loads["permute"].collectives == 26 and loads["forward"].collectives == 6 and kind == "forward"
    lists = 6 * 102**2  # a face with the edges and corners that pass, which travel as often as they have axes to cross
    assert np.max(loads["forward"].near + loads["forward"].far) == lists
    assert seconds["forward"] == pytest.approx(6 * 58e-6, rel=0.05) and seconds["permute"] > 4 * seconds["forward"]


@pytest.mark.parametrize("grid", [(2, 2, 2), (4, 4, 4), (8, 8, 8), (5, 6, 7)], ids=str)
def test_boxes_that_read_across_faces_alone_forward_nothing(grid):
    assert list(halo.exchanges(neighbours(grid, 10, corners=False), 1000)) == ["permute", "all_to_all"]


def without_waiting(text: str) -> set[int]:
    """How long the results are that read the values of the first block and depend on no collective."""
    waiting, local, lengths = set(), set(), set()
    for line in text[text.index("ENTRY") :].splitlines()[1:]:
        result, *read = re.findall(r"%([\w.\-]+)", line.split(", metadata")[0]) or [""]
        if re.search(r" (collective-permute|all-to-all)(-start|-done)?\(", line) or not waiting.isdisjoint(read):
            waiting.add(result)
        elif not local.isdisjoint(read):
            local.add(result)
            lengths |= {math.prod(map(int, re.findall(r"\d+", re.findall(r"\[([\d,]*)\]", line)[0])))}
        elif "parameter(" in line and "blocks[0].values" in line:
            local.add(result)
    assert waiting and local
    return lengths


@pytest.mark.parametrize("kind", ["forward", "permute", "all_to_all"])
def test_the_product_with_its_own_columns_waits_for_no_message(kind):
    """XLA on CPUs has no collectives that start and end; what can run between is what depends on none."""
    S, mesh = jsf.gallery.hpcg(4), jax.make_mesh((8,), ("rows",), devices=jax.devices("cpu")[:8])
    S = sp.csr_array(sp.kron(S, jnp.ones((3, 3))))  # 24 rows a device, of up to 81 entries
    boxes = np.repeat(jsf.boxes((4, 4, 4), 8), 3)
    for mode, waits in (("overlap", False), ("vector", True)):
        A = jsf.shard(S, mesh, format="ell", mode=mode, by=boxes, exchange=kind)
        x = A.basis.enter(np.ones(192))
        text = str(jax.jit(lambda A, x: A.in_basis @ x).lower(A, x).compile().as_text())
        assert "is_scheduled=true" in text
        assert (24 not in without_waiting(text)) == waits
