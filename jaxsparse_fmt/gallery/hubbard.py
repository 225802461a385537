"""The Holstein–Hubbard Hamiltonian: electrons on a ring of sites, coupled to its vibrations."""

import math

import numpy as np
import scipy.sparse as sp

from jaxsparse_fmt._arguments import whole_number


def holstein_hubbard(
    sites: int,
    electrons: int | tuple[int, int],
    phonons: int,
    *,
    t: float = 1.0,
    U: float = 4.0,
    omega: float = 1.0,
    g: float = 1.0,
) -> sp.csr_array:
    """The Hamiltonian of the Holstein–Hubbard model on a ring of sites, as a real symmetric matrix.

        H = -t Σ (c†ᵢσ cⱼσ + c†ⱼσ cᵢσ) + U Σ nᵢ↑ nᵢ↓ + ω Σ b†ᵢ bᵢ - g ω Σ (b†ᵢ + bᵢ) (nᵢ↑ + nᵢ↓)
              neighbours i, j; σ = ↑ ↓; ħ = 1

    The phonons are those of the chain's normal modes, bᵢ = Σ_q Q_iq b_q with Q_iq = (cos θ + sin θ)/√sites and
    θ = 2π·i·q/sites, at most `phonons` in all. Mode q = 0 is left out: it couples only to the number of electrons, a
    displaced oscillator (Jeckelmann and Fehske, arXiv:cond-mat/0510637).

    The rows are electrons ⊗ phonons, and the electrons ↑ ⊗ ↓, the last running fastest: electron states by the number
    whose bit i is site i's occupation, phonon states in lexicographic order. So a hop gives diagonals as long as the
    phonon basis. Entries that vanish are not stored.

    `holstein_hubbard(6, 6, 15)` has the 6 201 600 rows of HMEp (Kreutzer et al. 2012, §I-C), with 14.2 entries in each
    where the paper has "approximately 15", in 1.1 GB. The paper does not print its parameters or its phonon modes.

    Args:
        sites: of the ring, 1 to 62; two are a chain.
        electrons: (up, down), or their sum; of an odd sum one more is up.
        phonons: largest total number of phonons, at least 0.
        t, U, omega: energies of a hop, of a site that is occupied twice, of a phonon.
        g: electron-phonon coupling, a pure number; g²ω is the polaron's binding energy.

    Raises:
        ValueError: an argument out of range or not finite, or 2³¹ rows and more.

    Examples:
      >>> js.gallery.holstein_hubbard(2, 1, 1).shape
      (4, 4)
    """
    sites, phonons = whole_number("sites", sites, None), whole_number("phonons", phonons, None)
    if isinstance(electrons, tuple):
        up, down = (whole_number("electrons", e, None) for e in electrons)
    else:
        down, odd = divmod(whole_number("electrons", electrons, None), 2)
        up = down + odd
    if not 1 <= sites <= 62:
        raise ValueError(f"sites must be 1 to 62, got {sites}")
    if not (0 <= up <= sites and 0 <= down <= sites):
        raise ValueError(f"{sites} sites hold 0 to {sites} electrons of either spin, got {up} up and {down} down")
    if phonons < 0:
        raise ValueError(f"phonons must be at least 0, got {phonons}")
    if not np.all(np.isfinite([t, U, omega, g])):
        raise ValueError(f"t, U, omega and g must be finite, got t={t}, U={U}, omega={omega}, g={g}")
    rows = math.comb(sites, up) * math.comb(sites, down) * math.comb(phonons + sites - 1, phonons)
    if rows >= 2**31:
        raise ValueError(f"H would have {rows} rows, 2**31 or more; use fewer phonons or sites")

    spins = [_electron_states(sites, up), _electron_states(sites, down)]
    hop_up, hop_down = (_hopping(states, sites) for states in spins)
    hopping = sp.kron(hop_up, sp.eye_array(len(spins[1]))) + sp.kron(sp.eye_array(len(spins[0])), hop_down)
    occupied_up, occupied_down = (states[:, None] >> np.arange(sites) & 1 for states in spins)
    density = (occupied_up[:, None] + occupied_down).reshape(-1, sites)
    twice = (occupied_up @ occupied_down.T).ravel()

    angle = 2 * np.pi / sites * np.outer(np.arange(sites), np.arange(1, sites))
    shape = density @ (np.cos(angle) + np.sin(angle)) / math.sqrt(sites)
    shape[abs(shape) < 1e-12] = 0

    counts = _phonon_states(sites - 1, phonons)
    diagonal = np.add.outer(U * twice, omega * counts.sum(axis=1)).ravel()
    H = sp.kron(-t * hopping, sp.eye_array(len(counts)), format="csr") + sp.diags_array(diagonal, format="csr")
    for mode in range(sites - 1):
        H += sp.kron(sp.diags_array(-g * omega * shape[:, mode]), _displacement(counts, mode, phonons), format="csr")
    return H


def _electron_states(sites: int, electrons: int) -> np.ndarray:  # [C(sites, electrons)] int64
    """The numbers with `electrons` of `sites` bits set, ascending."""
    states = np.zeros(1, np.int64)
    for site in range(sites):
        states = np.concatenate([states, states | 1 << site])
        missing = electrons - np.bitwise_count(states).astype(int)
        states = states[(missing >= 0) & (missing < sites - site)]
    return states


def _hopping(states: np.ndarray, sites: int) -> sp.csr_array:
    """Σ c†ᵢ cⱼ + c†ⱼ cᵢ over the bonds, with a sign for every electron between the two sites."""
    left = np.arange(sites - 1)
    right = left + 1
    if sites > 2:
        left, right = np.append(left, 0), np.append(right, sites - 1)
    both = (1 << left | 1 << right)[:, None]
    passed = ((1 << right) - (2 << left))[:, None]
    bond, start = np.nonzero(np.bitwise_count(states & both) == 1)
    end = np.searchsorted(states, states[start] ^ both[bond, 0])
    sign = 1.0 - 2.0 * (np.bitwise_count(states[start] & passed[bond, 0]) % 2)
    return _square(sign, end, start, len(states))


def _phonon_states(modes: int, phonons: int) -> np.ndarray:  # [C(phonons + modes, modes), modes] int64
    """Every way to put at most `phonons` phonons into the modes, in lexicographic order."""
    counts, left = np.zeros((1, 0), np.int64), np.array([phonons])
    for _ in range(modes):
        choices = left + 1
        count = np.arange(choices.sum()) - np.repeat(np.cumsum(choices) - choices, choices)
        counts = np.column_stack([np.repeat(counts, choices, axis=0), count])
        left = np.repeat(left, choices) - count
    return counts


def _rank(counts: np.ndarray, phonons: int) -> np.ndarray:
    """The index of each state in `_phonon_states`.

    C(left + d, d) states of d modes hold at most `left` phonons, and C(left - c + d, d) of them have
    c or more in the first: the difference comes before the states with c there.
    """
    modes = counts.shape[1]
    states = np.ones((phonons + 1, modes + 1), np.int64)  # [left, d]
    for d in range(1, modes + 1):
        states[:, d] = np.cumsum(states[:, d - 1])
    after = phonons - np.cumsum(counts, axis=1)
    d = modes - np.arange(modes)
    return (states[after + counts, d] - states[after, d]).sum(axis=1)


def _displacement(counts: np.ndarray, mode: int, phonons: int) -> sp.csr_array:
    """b† + b of one mode."""
    start = np.flatnonzero(counts.sum(axis=1) < phonons)
    raised = counts[start]
    raised[:, mode] += 1
    end = _rank(raised, phonons)
    create = _square(np.sqrt(raised[:, mode]), end, start, len(counts))
    return create + create.T.tocsr()


def _square(values: np.ndarray, row: np.ndarray, col: np.ndarray, n: int) -> sp.csr_array:
    places = row.astype(np.int32), col.astype(np.int32)
    return sp.coo_array((values, places), shape=(n, n)).tocsr()
