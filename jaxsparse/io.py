"""The module `jaxsparse_fmt.io` under the one name."""

import sys
from typing import TYPE_CHECKING

import jaxsparse

if TYPE_CHECKING:
    from jaxsparse_fmt.io import *

sys.modules[__name__] = jaxsparse.io
