"""The halo plan: which kind of exchange is taken, how long buffers are, and what need not wait."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.spatial
from jax.sharding import Mesh

import jaxsparse_fmt as jsf
from jaxsparse_fmt.distributed import halo
from jaxsparse_fmt.distributed.delivery import needed
from jaxsparse_fmt.distributed.distribution import Distribution
from tests.distributed.problems import KINDS, MESH, take

PARTITIONS = [  # devices, steps to neighbours, unknowns; the kind, and its width in unknowns of a device
    (8, (-1, 1), 40, "all_to_all", 8),  # small pieces, of the coarse levels of multigrid too
    *((4, (-2, -1, 1), 600, "all_to_all", 4), (64, range(-20, 21), 2000, "all_to_all", 64)),
    (4, range(-3, 4), 600_000, "all_to_all", 4),  # as much over the links, whose own lists cross none
    *((8, (-1, 1), 512**2, "permute", 2), (64, range(-2, 3), 100_000, "permute", 4)),  # the faces of slabs
    (2, (-1, 1), 10, "permute", 1),  # two devices send each other all that they need in one permute
    (64, (-1, 1), 40, "permute", 2),  # few neighbours among many devices
]


@pytest.mark.parametrize(("devices", "steps", "size", "kind", "times"), PARTITIONS, ids=str)
def test_small_pieces_and_many_neighbours_take_one_collective_and_large_faces_permutes(
    devices, steps, size, kind, times
):
    """Lists of all devices bring at most 2 MiB more for each permute that they save, and at most 4 times the halo."""
    starts = np.arange(devices + 1) * size
    sources = {k: [k + d for d in steps if d and 0 <= k + d < devices] for k in range(devices)}
    needs = {k: np.concatenate([np.arange(starts[s], starts[s + 1]) for s in of]) for k, of in sources.items()}
    mesh = Mesh(np.resize(MESH.devices, devices), ("rows",))
    how = halo.plan(needs, Distribution.of(mesh, "rows", np.diff(starts))).how[0]
    assert (how.pairs is None, how.width) == (kind == "all_to_all", times * size)


@pytest.mark.parametrize("devices", [64, 512])
def test_is_the_buffer_of_an_irregular_partition_little_longer_than_the_largest_halo(devices):
    """Points in bisected boxes, numbered at random as METIS numbers its parts; each reads its nearest eight."""
    rng = np.random.default_rng(0)
    points, part = rng.random((40 * devices, 2)), np.zeros(40 * devices, int)
    for axis in range(devices.bit_length() - 1):
        order = np.lexsort((points[:, axis % 2], part))
        part[order] = 2 * part[order] + np.tile(np.repeat([0, 1], 20 * devices >> axis), 1 << axis)
    points = points[np.argsort(rng.permutation(devices)[part], kind="stable")]
    nearest = scipy.spatial.KDTree(points).query(points, 9)[1].reshape(devices, -1)
    needs = {k: needed(indices, 40 * k, 40 * (k + 1)) for k, indices in enumerate(nearest)}
    mesh = Mesh(np.resize(MESH.devices, devices), ("rows",))
    plan = halo.plan(needs, Distribution.of(mesh, "rows", np.full(devices, 40)))
    pairs = plan.how[0].pairs
    assert plan.width <= 1.7 * plan.halo.max() and len(pairs) <= 2 * plan.senders.max()
    for of_round in pairs:
        assert all(len({*ends}) == len(of_round) for ends in zip(*of_round, strict=True))


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


@pytest.mark.parametrize("kind", KINDS)
def test_the_product_with_its_own_columns_waits_for_no_message_and_comes_first(kind, monkeypatch):
    """XLA on CPUs has no collectives that start and end; what can run between is what depends on none."""
    take(kind, monkeypatch)
    S = sp.csr_array(sp.kron(jsf.gallery.hpcg(4), jnp.ones((3, 3))))  # 24 rows a device, of up to 81 entries
    boxes = np.repeat(jsf.boxes((4, 4, 4), 8), 3)
    for mode, waits in (("overlap", False), ("vector", True)):
        A = jsf.shard(S, MESH, format="ell", mode=mode, by=boxes)
        x = A.basis.enter(np.ones(192))
        lowered = jax.jit(lambda A, x: A.in_basis @ x).lower(A, x)
        assert (24 not in without_waiting(str(lowered.compile().as_text()))) == waits
        assert ("optimization_barrier" in lowered.as_text()) != waits
