"""The storage schemes, one a file; this is their registry."""

from jaxsparse_fmt.formats.csr import CSR
from jaxsparse_fmt.formats.ell import ELL
from jaxsparse_fmt.formats.ellr import ELLR
from jaxsparse_fmt.formats.hll import HLL
from jaxsparse_fmt.matrix import FORMATS

FORMATS["csr"] = CSR
FORMATS["ell"] = ELL
FORMATS["ellr"] = ELLR
FORMATS["hll"] = HLL

__all__ = ["CSR", "ELL", "ELLR", "FORMATS", "HLL"]
