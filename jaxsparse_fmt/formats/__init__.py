"""The registry of the storage schemes, one a file."""

from jaxsparse_fmt.core.matrix import FORMATS
from jaxsparse_fmt.formats.biell import BIELL
from jaxsparse_fmt.formats.bijad import BIJAD
from jaxsparse_fmt.formats.bsr import BSR
from jaxsparse_fmt.formats.coo import COO
from jaxsparse_fmt.formats.csc import CSC
from jaxsparse_fmt.formats.csr import CSR
from jaxsparse_fmt.formats.csr5 import CSR5
from jaxsparse_fmt.formats.dia import DIA
from jaxsparse_fmt.formats.ell import ELL
from jaxsparse_fmt.formats.ellr import ELLR
from jaxsparse_fmt.formats.ellrt import ELLRT
from jaxsparse_fmt.formats.hdia import HDIA
from jaxsparse_fmt.formats.hll import HLL
from jaxsparse_fmt.formats.hyb import HYB
from jaxsparse_fmt.formats.jds import JDS
from jaxsparse_fmt.formats.pellr import PELLR
from jaxsparse_fmt.formats.pjds import PJDS
from jaxsparse_fmt.formats.sell import SELL

# Every list of formats uses this order. "auto" weighs those with `_footprints`. COO and CSC serve exchange; ELLR,
# ELLRT, JDS, PJDS, PELLR, BIELL, BIJAD and HYB reproduce their papers, and are taken only by name.
_FORMATS = (COO, CSR, CSR5, CSC, DIA, HDIA, ELL, ELLR, ELLRT, HLL, JDS, PJDS, PELLR, BIELL, BIJAD, HYB, BSR, SELL)
FORMATS.update((cls.name, cls) for cls in _FORMATS)
