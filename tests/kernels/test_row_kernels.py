"""Several right-hand sides: how many of them a lane loads at once."""

import jax
import jax.numpy as jnp
import pytest

from jaxsparse_fmt.kernels.row_kernels import Pack
from tests.kernels.test_large_addresses import huge
from tests.kernels.test_spmv import TALL, kernels_in
from tests.lowering import equations, lowered
from tests.marks import deep
from tests.zoo import Layout


def packs_loaded(f, *args) -> set[int]:
    """How many numbers a lane loads at once inside the Pallas calls of a program, where they are several."""
    inside = (eqn for eqn, within in equations(jax.make_jaxpr(f)(*args).jaxpr) if within)
    shapes = (eqn.outvars[0].aval.shape for eqn in inside if eqn.primitive.name == "masked_load")
    return {shape[1] for shape in shapes if len(shape) == 2}


@pytest.mark.parametrize(
    "layout", [Layout("csr5"), deep(Layout("bsr")), deep(Layout("csr", (("threads_per_row", 4),)))], ids=str
)
@pytest.mark.parametrize(
    ("dtype", "p", "pack"),
    [
        (jnp.float32, 1, 1),
        (jnp.float32, 6, 2),
        (jnp.float32, 12, 4),
        (jnp.float64, 8, 2),
        (jnp.float64, 3, 1),
        (jnp.bfloat16, 16, 4),
    ],
    ids=str,
)
def test_a_lane_loads_neighbouring_right_hand_sides_at_once(layout, dtype, p, pack):
    A = layout.of(TALL.scipy(), dtype=dtype)
    x = huge(1, 3, p, dtype=dtype)
    product = lambda x: A._without_values._product_face(A.values[None], x, "triton")  # noqa: E731
    assert packs_loaded(product, x) == {pack} - {1} and kernels_in(lowered(product, x), "triton") == 1
    assert Pack.of("mosaic", p, dtype).length == 1
