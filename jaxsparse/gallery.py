"""The module `jaxsparse_fmt.gallery` under the one name."""

import sys
from typing import TYPE_CHECKING

import jaxsparse

if TYPE_CHECKING:
    from jaxsparse_fmt.gallery import *

sys.modules[__name__] = jaxsparse.gallery
