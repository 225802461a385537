"""Programs are the same only if they compute the same, whatever their text leaves out."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from solvers.core import operators, structure

V = jnp.ones(2000)
TABLE = np.full(V.size, 2.0)
OTHER = np.where(np.arange(V.size) == 1000, 4.0, TABLE)
INSIDE = {
    "nothing": lambda f: f,
    "jit": jax.jit,
    "scan": lambda f: lambda v: lax.scan(lambda c, _: (f(c), None), v, None, 2)[0],
    "cond": lambda f: lambda v: lax.cond(v[0] > 0, f, lambda v: v, v),
    "while": lambda f: lambda v: lax.while_loop(lambda c: c[0] < 1, f, v),
    "scan of jit": lambda f: INSIDE["scan"](jax.jit(f)),
    "remat": jax.checkpoint,
}
PAIRS = {
    "floats": (0.1, 0.1 + 1e-10),
    "signs of zero": (0.0, -0.0),
    "arrays of NumPy": (TABLE, OTHER),
    "arrays of integers": (TABLE.astype(int), OTHER.astype(int)),
    "arrays of JAX": (jnp.asarray(TABLE), jnp.asarray(OTHER)),
}


@contextlib.contextmanager
def simplified_constants(value: bool):
    """In JAX's announced way, arrays that a function closes over are literals of its program."""
    name = "jax_use_simplified_jaxpr_constants"
    if not hasattr(jax.config, name):
        pytest.skip("this JAX has one way")
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


def read(f):
    """The key of f's program, and its constants."""
    closed = jax.make_jaxpr(lambda v: f(v))(V)
    program, consts = structure.hoisted(closed.jaxpr, closed.consts)
    return structure.key(program), [(np.asarray(a).dtype, np.asarray(a).tobytes()) for a in consts]


def share(f, g):
    """Whether two functions have one program."""
    one, other = read(f)[0], read(g)[0]
    assert one != other or hash(one) == hash(other)
    return one == other


@pytest.mark.parametrize("simplified", [False, True])
@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("pair", PAIRS)
def test_do_other_constants_show(pair, inside, simplified):
    def scaled(a):
        return INSIDE[inside](lambda v: a * v)

    with simplified_constants(simplified):
        first, second = PAIRS[pair]
        assert read(scaled(first)) == read(scaled(first)) != read(scaled(second))
        assert inside != "nothing" or share(scaled(first), scaled(second))  # whose constants are its inputs


def test_do_names_not_count():
    def twice(vector):
        doubled = 2 * vector
        return lax.scan(lambda c, _: (c * 3, None), doubled, None, 4)[0]

    def scaled(v):
        return lax.scan(lambda carry, _: (carry * 3, None), 2 * v, None, 4)[0]

    assert share(twice, scaled)
    assert share(lambda v: jax.jit(lambda v: v * jnp.nan)(v), lambda w: jax.jit(lambda v: v * jnp.nan)(w))


@pytest.mark.parametrize(
    ("f", "g"),
    [
        (lambda v: v + v * v, lambda v: v * v + v * v),
        (lambda v: lax.cumsum(v), lambda v: lax.cumsum(v, reverse=True)),
        (lambda v: lax.dot(v, v), lambda v: lax.dot(v, v, precision="highest")),
        (lambda v: v[::2], lambda v: v[1::2]),
        (lambda v: (2 * v, v)[0], lambda v: (2 * v, v)[1]),
    ],
)
def test_do_operations_and_their_parameters_count(f, g):
    assert share(f, f)
    assert share(g, g)
    assert not share(f, g)


def test_are_as_many_programs_kept_as_the_bound_says():
    for k in range(operators.FUNCTIONS + 9):
        operators.traced(lambda v: v[k:], V)  # noqa: B023
    assert operators._same.cache_info().currsize == operators.FUNCTIONS
    before = operators._same.cache_info().misses
    for k in range(500):
        operators.traced(lambda v: v * (k + 0.5), V)  # noqa: B023
    assert operators._same.cache_info().misses <= before + 1


# ------------------------------------------------------------------------------------------------ functions inside


def times(table, v):
    return table * np.asarray(v)


class Holder:
    def __init__(self, table):
        self.table = table

    def __call__(self, v):
        return times(self.table, v)


def called(callback):
    return lambda v: jax.pure_callback(callback, v, v)


def test_do_callbacks_with_other_arrays_differ_and_not_those_with_one_that_changes():
    table = TABLE.copy()
    before = read(called(functools.partial(times, table)))
    table[0] = 7.0  # the callback reads it when it runs
    assert before == read(called(functools.partial(times, table)))
    assert before != read(called(functools.partial(times, table.copy())))


def test_do_objects_that_may_change_count_by_identity():
    first, second = Holder(TABLE), Holder(TABLE)
    assert share(called(first), called(first))
    assert share(called(first.__call__), called(first.__call__))
    assert not share(called(first), called(second))
    assert not share(called(first.__call__), called(second.__call__))
    assert not share(called(functools.partial(times, [1.0])), called(functools.partial(times, [1.0])))


def test_does_a_callback_made_in_each_trace_count_by_what_it_reads():
    scale = 1.0

    def of_outside(v):
        return called(lambda u: scale * np.asarray(u))(v)

    def by_default(v):
        return called(lambda u, own=scale: own * np.asarray(u))(v)

    def of_this_trace(v):
        table = scale * TABLE
        return called(lambda u: table * np.asarray(u))(v)

    assert share(of_outside, of_outside)
    assert share(by_default, by_default)
    assert not share(of_this_trace, of_this_trace)  # nobody knows what else refers to its variable
    before = read(of_outside), read(by_default)
    scale = 1.0 + 1e-10
    assert before[0] == read(of_outside)
    assert before[1] != read(by_default)


def test_do_debug_callbacks_count_by_the_users_function():
    seen = []

    def watched(v):
        jax.debug.callback(lambda u: seen.append(u), v)
        jax.debug.print("{}", v)
        return 2 * v

    def otherwise(v):
        jax.debug.callback(lambda u: seen.clear(), v)
        jax.debug.print("{}", v)
        return 2 * v

    assert share(watched, watched)
    assert not share(watched, otherwise)


def test_do_rules_of_derivatives_count_where_a_derivative_may_follow():
    """A rule may close over what has changed since."""
    found = []
    assert share(jax.nn.relu, jax.nn.relu)
    jax.grad(lambda v: (found.append(share(jax.nn.relu, jax.nn.relu)), v.sum())[1])(V)
    assert found == [False]
