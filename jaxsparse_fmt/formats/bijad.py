"""BiJAD (Zheng, Gu, Gu and Liu 2014; Wang and Gu, §2.3.5): BiELL with all rows sorted, not only those of a warp.

The arrays are those of BiELL (`biell.py` has the picture). Warps hold rows of like length and hardly any padding; sums
go to rows far apart. Bytes: n_stored·(value + 4) + 24·⌈n_rows / 32⌉ + 4 + 8·n_rows.
"""

from __future__ import annotations

import dataclasses

from jaxsparse_fmt.formats.biell import BisectedGroups
from jaxsparse_fmt.formats.by_rule import register


@register
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BIJAD(BisectedGroups):
    name = "bijad"
