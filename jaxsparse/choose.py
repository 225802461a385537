"""The module `jaxsparse_fmt.choose` under the one name."""

import sys
from typing import TYPE_CHECKING

import jaxsparse

if TYPE_CHECKING:
    from jaxsparse_fmt.choose import *

sys.modules[__name__] = jaxsparse.choose
