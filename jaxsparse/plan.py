"""The module `jaxsparse_fmt.plan` under the one name."""

import sys
from typing import TYPE_CHECKING

import jaxsparse

if TYPE_CHECKING:
    from jaxsparse_fmt.algebra.plan import *

sys.modules[__name__] = jaxsparse.plan
