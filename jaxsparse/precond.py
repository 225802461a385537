"""The module `solvers.precond` under the one name."""

import sys
from typing import TYPE_CHECKING

import jaxsparse

if TYPE_CHECKING:
    from solvers.precond import *

sys.modules[__name__] = jaxsparse.precond
