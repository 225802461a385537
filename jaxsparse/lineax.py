"""The module `solvers.lineax` under the one name."""

import sys
from typing import TYPE_CHECKING

import jaxsparse

if TYPE_CHECKING:
    from solvers.lineax import *

sys.modules[__name__] = jaxsparse.lineax
