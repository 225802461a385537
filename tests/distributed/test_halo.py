"""The halo plan: what each device has in its buffer, by each kind of exchange, and which kind is cheapest."""

from __future__ import annotations

import functools
import itertools

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxsparse_fmt.distributed import halo, halo_exchange
from jaxsparse_fmt.distributed.basis import auto_mesh
from tests.distributed.problems import DEVICES, MESH, irregular

STARTS = np.array([0, 11, 11, 30, 41, 52, 80, 84, 90])  # one piece is empty


def needs_of(S, starts):
    ptr = S.indptr[starts]
    return [halo.needed(S.indices[ptr[k] : ptr[k + 1]], starts[k], starts[k + 1]) for k in range(len(starts) - 1)]


def pieces(x, starts):
    size = np.diff(starts).max()
    return np.stack([np.pad(x[a:b], (0, size - (b - a))) for a, b in itertools.pairwise(starts)])


@pytest.mark.parametrize("kind", halo_exchange.KINDS)
def test_every_needed_unknown_arrives_where_the_plan_says(kind):
    needs = needs_of(irregular(), STARTS)
    plan = halo.plan(needs, STARTS, kind=kind)
    x = pieces(np.arange(90.0) + 100, STARTS)
    spec = PartitionSpec("rows")

    @jax.jit
    @functools.partial(jax.shard_map, mesh=auto_mesh(MESH), in_specs=(spec, spec), out_specs=spec)
    def travel(x, send):
        return halo_exchange.exchange(x[0], None if send is None else send[0], plan.exchange, "rows")

    buffers = np.asarray(travel(x, plan.send)).reshape(DEVICES, -1)
    assert buffers.shape[1] == plan.exchange.width
    for k in range(DEVICES):
        np.testing.assert_array_equal(buffers[k, plan.slots[k]], needs[k] + 100)
        assert np.all(np.diff(plan.slots[k]) > 0)
        on_host = halo_exchange.exchange_on_host(x, plan.send, plan.exchange, k)
        np.testing.assert_array_equal(on_host[plan.slots[k]], needs[k] + 100)
        np.testing.assert_array_equal(plan.slots[k] < plan.exchange.before(k), needs[k] < STARTS[k])


def test_neighbours_of_a_slab_are_served_by_two_permutes_of_their_own_size():
    starts = np.arange(9) * 100
    needs = [np.r_[a - 10 : a, b : b + 7] for a, b in itertools.pairwise(starts)]
    needs = [n[(n >= 0) & (n < 800)] for n in needs]
    exchange = halo.plan(needs, starts, kind="permute").exchange
    assert exchange.distances == (-1, 1) and exchange.sizes == (10, 7)
    assert exchange.pairs[0] == tuple((k, k + 1) for k in range(7))


def test_large_halos_of_few_neighbours_travel_by_permute_and_small_ones_by_one_gather():
    """By the arithmetic of the model: two collectives against one, one halo against eight."""
    large, small = np.zeros((8, 8), int), np.zeros((8, 8), int)
    for k in range(7):
        large[k, k + 1] = large[k + 1, k] = 10_000_000
        small[k, k + 1] = small[k + 1, k] = 40_000
    price = halo.costs(large, 20_000_000, 10**9, 8)
    assert min(price, key=price.get) == "permute"
    price = halo.costs(small, 80_000, 10**9, 8)
    assert min(price, key=price.get) in ("gather", "all_to_all")


def test_a_halo_of_nearly_everything_is_gathered_whole_and_says_so():
    starts = np.arange(9) * 10
    needs = [np.setdiff1d(np.arange(80), np.arange(a, b)) for a, b in itertools.pairwise(starts)]
    plan = halo.plan(needs, starts, kind="gather")
    assert plan.exchange.whole and plan.send is None and "all of x" in plan.reason


def test_no_halo_needs_no_exchange():
    plan = halo.plan([np.zeros(0, int)] * 3, np.array([0, 4, 8, 9]))
    assert plan.exchange.kind == "none" and plan.exchange.width == 0


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="exchange must be 'auto' or one of permute, all_to_all, gather; got 'mail'"):
        halo.plan([np.array([1]), np.array([0])], np.array([0, 1, 2]), kind="mail")
