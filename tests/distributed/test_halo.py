"""The halo plan: what each device has in its buffer, by each kind of exchange, and which kind is cheapest."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from jaxsparse_fmt.distributed import halo, halo_exchange
from jaxsparse_fmt.gallery import poisson
from jaxsparse_fmt.models import traffic
from tests.distributed.problems import DEVICES, MESH, irregular

STARTS = np.array([0, 11, 11, 30, 41, 52, 80, 84, 90])  # one piece is empty


def needs_of(S, starts):
    ptr = S.indptr[starts]
    return {k: halo.needed(S.indices[ptr[k] : ptr[k + 1]], starts[k], starts[k + 1]) for k in range(len(starts) - 1)}


def pieces(x, starts):
    size = np.diff(starts).max()
    return np.stack([np.pad(x[a:b], (0, size - (b - a))) for a, b in itertools.pairwise(starts)])


@pytest.mark.parametrize("kind", [*halo_exchange.KINDS, "strips"])
def test_every_needed_unknown_arrives_where_the_plan_says_and_goes_home(kind):
    S, starts = (poisson(90, dim=1), np.arange(9) * 90 // 8) if kind == "strips" else (irregular(), STARTS)
    needs = needs_of(S, starts)
    plan = halo.plan(lambda: needs, starts, MESH, kind="permute" if kind == "strips" else kind)
    assert ("order" in plan.lists) == (kind in ("permute", "forward"))  # there neighbours come in an order of their own
    assert ("forward" in plan.lists) == (kind == "forward")
    spec, size = PartitionSpec("rows"), int(np.diff(starts).max())
    how = plan.placed(lambda of: np.stack([of(k) for k in range(DEVICES)]))
    x = pieces(np.arange(90) + 100, starts)

    @jax.jit
    @functools.partial(jax.shard_map, mesh=Mesh(MESH.devices, MESH.axis_names), in_specs=(spec, spec), out_specs=spec)
    def travel(x, how):
        how = jax.tree.map(lambda a: a[0], how)
        h = halo_exchange.exchange(x[0], how, "rows")
        transposed = jax.linear_transpose(lambda x: halo_exchange.exchange(x, how, "rows"), x[0] * 1.0)
        kept = jnp.where(h >= 100, h, 0)
        return h[None], halo_exchange.returned(kept, how, "rows", size)[None], transposed(kept * 1.0)[0][None]

    buffers, home, transposed = map(np.asarray, travel(x, how))
    assert buffers.shape[1] == plan.how.width
    on_host = halo_exchange.exchange_on_host(dict(enumerate(x)), how, MESH)
    for k in range(DEVICES):
        np.testing.assert_array_equal(buffers[k, plan.slots[k]], needs[k] + 100)
        np.testing.assert_array_equal(on_host[k][plan.slots[k]], needs[k] + 100)
        assert np.all(np.diff(plan.slots[k]) > 0)
        np.testing.assert_array_equal(plan.slots[k] < plan.lists["before"][k], needs[k] < starts[k])
    np.testing.assert_array_equal(home, transposed)


def test_neighbours_of_a_slab_are_served_by_two_permutes_of_their_own_size():
    starts = np.arange(9) * 100
    needs = [np.r_[a - 10 : a, b : b + 7] for a, b in itertools.pairwise(starts)]
    needs = {k: n[(n >= 0) & (n < 800)] for k, n in enumerate(needs)}
    how = halo.plan(lambda: needs, starts, MESH, kind="permute").how
    assert how.sizes == (10, 7) and how.stages[0][0][1] == tuple((k, k + 1) for k in range(7))


def price(count, size, per_host=8):
    """Seconds of each kind for a chain of 8 devices that exchange `count` unknowns with each neighbour."""
    ends = [(k, k + d) for k in range(8) for d in (-1, 1) if 0 <= k + d < 8]
    source, target = np.array(ends).T
    between = halo.Neighbours(source, target, np.full(len(ends), count), np.arange(8) // per_host)
    machine = halo.machine_of(between)
    return traffic.cheapest(halo.exchanges(between, size), machine)[1]


def test_large_halos_of_few_neighbours_travel_by_permute_and_small_ones_by_one_collective():
    """By the arithmetic of the model: two collectives against one, two lists against seven."""
    large, small = price(10_000_000, 10**9), price(40_000, 10**9)
    assert min(large, key=large.get) == "permute" and min(small, key=small.get) == "all_to_all"
    assert large["permute"] == pytest.approx(2 * 48e-6 + 8 * 20e6 / 300e9)
    assert small["all_to_all"] == pytest.approx(48e-6 + 8 * 7 * 40_000 / 300e9)


def test_a_network_between_the_devices_counts():
    """Four devices a host: one of the two lists of a device at the border comes over the network."""
    assert price(40_000, 10**9, per_host=4)["permute"] == pytest.approx(2 * 58e-6 + 8 * 40_000 * (1 / 300e9 + 1 / 50e9))
    assert price(40_000, 10**9, per_host=4)["all_to_all"] == pytest.approx(58e-6 + 8 * 40_000 * (3 / 300e9 + 4 / 50e9))


def test_no_halo_needs_no_exchange():
    plan = halo.plan(lambda: dict.fromkeys(range(3), np.zeros(0, int)), np.array([0, 4, 8, 9]), MESH)
    assert plan.how.sizes == () and plan.how.width == 0
