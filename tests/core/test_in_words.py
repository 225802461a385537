"""Arguments in words: the same for the same, others for others, by which processes compare what they were given."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

from jaxsparse_fmt.core import in_words

A = np.arange(6.0, dtype=np.float32)


def halved(r):
    return r / 2


@pytest.mark.parametrize("array", [np.array, jnp.array])
@pytest.mark.parametrize(
    "one, other",
    [
        (A, A[::-1]),  # the same numbers in another order
        (A, A.reshape(2, 3)),
        (A, A.astype(np.int32)),
        (A, -A),
        (np.array([True, False]), np.array([False, True])),
        (A + 1j, A + 2j),
        (A.astype(np.float16), A.astype(np.float16) + 1),
        (np.float32(1.0), np.float32(1.5)),
        (np.zeros(4, np.uint8), np.zeros(5, np.uint8)),
    ],
)
def test_do_arrays_that_differ_have_other_words(one, other, array):
    words = [in_words.in_words(array(a)) for a in (one, other, one)]
    assert words[0] == words[2] != words[1]


def test_does_one_bit_anywhere_change_the_sum_of_an_array_on_a_device():
    a = np.random.default_rng(0).integers(0, 2**32, 64, np.uint32)
    flipped = jnp.asarray(
        np.stack([a, *(a ^ (np.arange(64) == k) * (1 << k % 32) for k in range(64))]).astype(np.uint32)
    )
    sums = np.asarray(jax.jit(jax.vmap(in_words._checksum))(flipped))
    assert len({*map(bytes, sums)}) == 65 and sums.nbytes == 65 * 8


def test_are_functions_structures_and_matrices_told_apart_by_what_they_hold():
    bound = functools.partial(halved, r=2), functools.partial(halved, r=3)
    matrices = sp.eye_array(3, format="csc"), 2 * sp.eye_array(3, format="csc")
    values = [
        halved,
        *bound,
        *matrices,
        {"a": 1, "b": A},
        {"a": 1, "b": -A},
        (1, A),
        [1, A],
        None,
        "one",
        1,
        1.0,
        object(),
    ]
    words = [in_words.in_words(value) for value in values]
    assert len({*words}) == len(values) and not any("0x" in text for text in words)
    assert words == [in_words.in_words(value) for value in values]


def test_is_a_name_forgotten_with_its_array():
    a = jnp.asarray(A)
    count = len(in_words.names)
    words = in_words.in_words(a)
    assert len(in_words.names) == count + 1 and in_words.in_words(a) == words
    del a
    assert len(in_words.names) == count
