"""The base of the formats that only declare themselves: options, the order of their rows, rule and places."""

import dataclasses
from typing import Any, ClassVar, Self

import numpy as np

from jaxsparse_fmt._types import Csr, Target
from jaxsparse_fmt.formats import building
from jaxsparse_fmt.formats.base import ByRule, ColumnIndex, array_fields
from jaxsparse_fmt.kernels.layout.address import Address

ALIGNMENT = 32  # rows: 128 bytes of the 4-byte column indices


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Padded(ByRule):
    """A format with a column index at every place, and an `option` for each layout option."""

    col_idx: ColumnIndex

    _window: ClassVar[int | None] = 1  # rows that are sorted together, by falling length; None: all rows

    @staticmethod
    def _places(rows: building.Rows, address: Address, **layout: Any) -> int | np.ndarray:
        """Stored places, in all or of each slice or jagged column: here all rows are as long as the longest."""
        del layout
        return rows.longest * address.lanes

    @classmethod
    def from_csr(cls, csr: Csr, target: Target, **layout: Any) -> Self:
        """Builds the storage; `layout` has some of the options."""
        n_rows = csr.shape[0]
        for f in dataclasses.fields(cls):
            if f.metadata:
                layout[f.name] = f.metadata["check"](layout.get(f.name, f.metadata["default"]), n_rows)
        rows, address = building.rows_of(csr, cls._window), cls._rule_of_rows(n_rows, **layout)
        places = cls._places(rows, address, **layout)
        building.check_memory(cls.name, int(np.sum(places)), csr, target)
        falling = getattr(address, "falling", None)  # of so many rows that are sorted the first is the longest
        arrays = {"row_lengths": rows.lengths[::falling], "perm": rows.perm}
        arrays = {name: a for name, a in arrays.items() if name in array_fields(cls)}
        return building.made(cls, csr, target, **arrays | cls._filled(csr, target, rows, address, places) | layout)


def pitch_of(n_rows: int) -> int:
    """n_rows rounded up to whole 128-byte lines of indices, at least one."""
    return max(-(-n_rows // ALIGNMENT), 1) * ALIGNMENT
