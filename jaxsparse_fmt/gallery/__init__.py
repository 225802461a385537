"""Model problems: the matrices that tests, examples and benchmarks use.

Every function but `rigid_body_modes` returns a canonical `scipy.sparse.csr_array` of float64: columns
sorted within a row, no entry twice, indices int32 wherever they fit. Random matrices are the same for the same seed.
This package imports only NumPy and SciPy.
"""

from jaxsparse_fmt.gallery.hubbard import holstein_hubbard
from jaxsparse_fmt.gallery.meshes import adaptive_poisson, cfd
from jaxsparse_fmt.gallery.problems import (
    convection_diffusion,
    elasticity,
    hpcg,
    irregular,
    poisson,
    power_law,
    rigid_body_modes,
)

__all__ = ["adaptive_poisson", "cfd", "convection_diffusion", "elasticity", "holstein_hubbard", "hpcg", "irregular"]
__all__ += ["poisson", "power_law", "rigid_body_modes"]
