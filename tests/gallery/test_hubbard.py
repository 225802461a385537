"""The Holstein–Hubbard Hamiltonian against dense operators on the whole Fock space, and against what physics knows."""

import functools
import itertools
import math

import numpy as np
import pytest

from jaxsparse_fmt.gallery import holstein_hubbard


def kron(*factors: np.ndarray) -> np.ndarray:
    return functools.reduce(np.kron, factors, np.ones((1, 1)))


def annihilators(modes: int) -> list[np.ndarray]:
    """Jordan and Wigner: c_k = Z ⊗ … ⊗ Z ⊗ a ⊗ 1 ⊗ … ⊗ 1."""
    lower, flip = np.array([[0.0, 1.0], [0.0, 0.0]]), np.diag([1.0, -1.0])
    return [kron(*[flip] * k, lower, *[np.eye(2)] * (modes - 1 - k)) for k in range(modes)]


def by_operators(
    sites: int, up: int, down: int, phonons: int, t: float, U: float, omega: float, g: float, bonds, modes: np.ndarray
) -> np.ndarray:
    """H from products of operators on every occupation, then restricted to the sector. modes: [site, q ≠ 0]."""
    c = annihilators(2 * sites)  # all up, then all down
    n = [a.T @ a for a in c]
    electronic = np.zeros_like(n[0])
    for i, j in bonds:
        for a, b in ((c[i], c[j]), (c[sites + i], c[sites + j])):
            electronic -= t * (a.T @ b + b.T @ a)
    for i in range(sites):
        electronic += U * n[i] @ n[sites + i]

    # The sector, in the documented order: bit i of a spin's number is site i's occupation.
    numbers = [[m for m in range(2**sites) if m.bit_count() == k] for k in (up, down)]
    occupied = [[m >> i & 1 for i in range(sites)] for m in range(2**sites)]
    kept = [int("".join(map(str, occupied[u] + occupied[d])), 2) for u in numbers[0] for d in numbers[1]]
    electronic = electronic[np.ix_(kept, kept)]
    density = [(n[i] + n[sites + i])[np.ix_(kept, kept)] for i in range(sites)]

    few = [m for m in itertools.product(range(phonons + 1), repeat=sites - 1) if sum(m) <= phonons]
    few = [sum(m * (phonons + 1) ** (sites - 2 - q) for q, m in enumerate(state)) for state in few]
    lower = np.diag(np.sqrt(np.arange(1.0, phonons + 1)), 1)
    H = np.kron(electronic, np.eye(len(few)))
    for q in range(sites - 1):
        b = kron(*[lower if p == q else np.eye(phonons + 1) for p in range(sites - 1)])
        number, displacement = (m[np.ix_(few, few)] for m in (b.T @ b, b + b.T))
        shape = sum(modes[i, q] * density[i] for i in range(sites))
        H += omega * np.kron(np.eye(len(kept)), number) - g * omega * np.kron(shape, displacement)
    return H


def ring(sites: int) -> list[tuple[int, int]]:
    closing = [(sites - 1, 0)] if sites > 2 else []
    return [(i, i + 1) for i in range(sites - 1)] + closing


SECTORS = [(1, 1, 0, 2), (2, 1, 1, 4), (3, 2, 1, 2), (4, 2, 2, 1), (4, 0, 2, 3)]


@pytest.mark.parametrize(("sites", "up", "down", "phonons"), SECTORS)
def test_every_entry_is_that_of_the_operators(sites, up, down, phonons):
    t, U, omega, g = 0.7, 3.1, 1.3, 0.9
    angle = 2 * np.pi * np.outer(np.arange(sites), np.arange(1, sites)) / sites
    modes = np.sqrt(2 / sites) * np.sin(angle + np.pi / 4)
    expected = by_operators(sites, up, down, phonons, t, U, omega, g, ring(sites), modes)
    found = holstein_hubbard(sites, (up, down), phonons, t=t, U=U, omega=omega, g=g)
    np.testing.assert_allclose(found.toarray(), expected, atol=1e-13)
    assert np.all(abs(found.data) > 1e-10)


@pytest.mark.parametrize(("electrons", "spins"), [(4, (2, 2)), (3, (2, 1)), (0, (0, 0))])
def test_a_number_of_electrons_is_halved_and_an_odd_one_has_more_up(electrons, spins):
    one, other = holstein_hubbard(4, electrons, 2), holstein_hubbard(4, spins, 2)
    assert one.shape == other.shape and (one != other).nnz == 0


def test_fewer_phonons_of_the_papers_matrix_have_its_electrons_and_its_diagonals():
    phonons = 4
    H = holstein_hubbard(6, 6, phonons)
    states = math.comb(phonons + 5, 5)
    assert H.shape[0] == 20 * 20 * states
    row = np.repeat(np.arange(H.shape[0]), np.diff(H.indptr))
    hops = row // states != H.indices // states
    assert np.all((row - H.indices)[hops] % states == 0)  # whole diagonals as long as the phonon basis
    # A bond of the ring can be hopped if one end is taken: C(4, 2)·2 of 20 states, either spin.
    assert np.count_nonzero(hops) == 2 * 6 * 12 * 20 * states
