"""The storage schemes, one a file; this is their registry."""

from jaxsparse_fmt.formats.biell import BIELL
from jaxsparse_fmt.formats.bijad import BIJAD
from jaxsparse_fmt.formats.bsr import BSR
from jaxsparse_fmt.formats.coo import COO
from jaxsparse_fmt.formats.csc import CSC
from jaxsparse_fmt.formats.csr import CSR
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
from jaxsparse_fmt.matrix import FORMATS

FORMATS["coo"] = COO
FORMATS["csr"] = CSR
FORMATS["csc"] = CSC
FORMATS["dia"] = DIA
FORMATS["hdia"] = HDIA
FORMATS["ell"] = ELL
FORMATS["ellr"] = ELLR
FORMATS["ellrt"] = ELLRT
FORMATS["hll"] = HLL
FORMATS["jds"] = JDS
FORMATS["pjds"] = PJDS
FORMATS["pellr"] = PELLR
FORMATS["biell"] = BIELL
FORMATS["bijad"] = BIJAD
FORMATS["hyb"] = HYB
FORMATS["bsr"] = BSR
FORMATS["sell"] = SELL

__all__ = [
    "BIELL",
    "BIJAD",
    "BSR",
    "COO",
    "CSC",
    "CSR",
    "DIA",
    "ELL",
    "ELLR",
    "ELLRT",
    "FORMATS",
    "HDIA",
    "HLL",
    "HYB",
    "JDS",
    "PELLR",
    "PJDS",
    "SELL",
]
