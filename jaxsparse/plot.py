"""The module `jaxsparse_fmt.plot` under the one name."""

import sys
from typing import TYPE_CHECKING

import jaxsparse

if TYPE_CHECKING:
    from jaxsparse_fmt.plot import *

sys.modules[__name__] = jaxsparse.plot
