"""What is counted of a partition that is not built, against one that is, and against hand counts."""

import numpy as np
import pytest

import jaxsparse_fmt as jsf
from benchmarks import scaling
from jaxsparse_fmt.distributed import estimate
from jaxsparse_fmt.distributed.halo_exchange import KINDS
from jaxsparse_fmt.models import traffic
from tests.distributed.problems import DEVICES, MESH, irregular


@pytest.mark.parametrize("kind", KINDS)
def test_counts_are_those_of_the_matrix_that_is_built(kind):
    S = irregular()
    B = jsf.shard(S, MESH, format="csr", exchange=kind)
    load = estimate.loads(S, DEVICES, per_host=3)[kind]
    told = B.record.imbalance
    np.testing.assert_array_equal(load.rows, told.rows)
    np.testing.assert_array_equal(load.nnz, told.nnz)
    beyond = [np.count_nonzero(np.asarray(b) < B.range.over.size) for b in B.shards.boundary]
    np.testing.assert_array_equal(load.boundary, beyond)
    assert load.collectives == len(B.shards.halo.sizes)
    width = B.shards.halo.width
    if kind != "all_to_all":  # a piece of the buffer that nobody sends is not received
        assert np.all(load.near + load.far <= sum(B.shards.halo.sizes)) and np.all(load.near + load.far >= told.halo)
    else:  # its own piece comes from itself
        np.testing.assert_array_equal(load.near + load.far, width - width // DEVICES)


@pytest.mark.parametrize("kind", ["permute", "all_to_all"])
def test_a_matrix_that_is_built_tells_the_same_load(kind):
    S = jsf.gallery.poisson(64, dim=1)
    counted = estimate.loads(S, DEVICES, "rows")[kind]
    told = scaling.load_of(jsf.shard(S, MESH, format="ell", exchange=kind, by="rows"))
    assert (told.parts, told.collectives, told.among_all) == (8, counted.collectives, counted.among_all)
    for name in ("rows", "nnz", "boundary"):
        np.testing.assert_array_equal(getattr(told, name), getattr(counted, name))
    assert told.near == np.max(counted.near + counted.far)
    # 8 rows of 3 places and halo rows of 1 place, 12 bytes each, for at most 24 entries
    assert told.entry_bytes == pytest.approx((8 * 3 + 2) * 12 / 24)
    one = scaling.load_of(jsf.from_scipy(S, "ell"))
    assert (one.parts, one.rows, one.nnz, one.entry_bytes) == (1, 64, 190, pytest.approx(64 * 3 * 12 / 190))


def test_a_chain_over_four_hosts_receives_one_unknown_from_each_side():
    load = estimate.loads(jsf.gallery.poisson(64, dim=1), 8, per_host=2)["permute"]
    assert load.collectives == 2 and load.boundary.tolist() == [1, 2, 2, 2, 2, 2, 2, 1]
    assert load.near.tolist() == [1] * 8
    assert load.far.tolist() == [0, 1, 1, 1, 1, 1, 1, 0]


def test_a_thousand_devices_of_a_plane_cost_what_a_hand_count_says():
    """256² points, 64 a device, a quarter of a grid line: neighbours lie at distances ±1 and ±4."""
    loads = estimate.loads(jsf.gallery.poisson(256, dim=2), 1024, by="rows")
    load = loads["permute"]
    assert load.collectives == 4 and load.entry_bytes == 12
    assert load.near[512:514].tolist() == [1 + 64, 2 + 64]  # 512 begins a host
    machine = traffic.Machine()
    times = {kind: traffic.cg_step(load, machine).exchange for kind, load in loads.items()}
    assert times["permute"] == pytest.approx(4 * 58e-6 + 8 * (64 / machine.link + 66 / machine.network), rel=1e-3)
    assert times["all_to_all"] == pytest.approx(48e-6 + 70e-6 + 8 * 64 * (7 / machine.link + 1016 / machine.network))
    assert traffic.cheapest(loads, machine)[0] == "permute"  # the other kind brings 1023 times what a device has


def test_a_graph_in_which_all_devices_are_neighbours_takes_one_collective():
    """15 rounds bring about as much; both bring more than a device has."""
    loads = estimate.loads(jsf.gallery.power_law(20_000), 16)
    kind, seconds = traffic.cheapest(loads, traffic.Machine())
    assert loads["permute"].collectives == 15 and loads["all_to_all"].near.max() > loads["permute"].rows.max()
    assert kind == "all_to_all" and seconds[kind] < 0.2 * seconds["permute"]


def test_without_a_halo_nothing_travels():
    loads = estimate.loads(jsf.gallery.poisson(20, dim=1)[:1, :1], 4)
    assert list(loads) == ["none"] and loads["none"].collectives == 0
