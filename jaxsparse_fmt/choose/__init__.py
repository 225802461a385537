"""format="auto", by bytes and a few rules (`ranking.py`), and format="tune", by timing (`tune.py`)."""

from jaxsparse_fmt.choose.ranking import Choice, best_layouts, fitting, rank

__all__ = ["Choice", "best_layouts", "fitting", "rank"]
