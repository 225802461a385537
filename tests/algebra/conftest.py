import jax
import pytest

from jaxsparse_fmt.algebra import by_scipy, on_device, patterns
from jaxsparse_fmt.formats import building


@pytest.fixture(params=["host", "device"])
def where(request, monkeypatch):
    """Where patterns are found: as for matrices on a CPU, or by the programs for those on an accelerator, run here."""
    if request.param == "device":
        monkeypatch.setattr(building, "FEW", 0)
        for module in (on_device, by_scipy):
            monkeypatch.setattr(module, "is_on_cpu", lambda a: not isinstance(a, jax.Array))
        monkeypatch.setattr(building, "puts_on_cpu", lambda: False)
        for kept in (patterns._kept, patterns._digests):
            monkeypatch.setattr(kept, "table", {})
        monkeypatch.setattr(patterns, "times_asked", lambda sizes: 1)  # as if of sizes met before
    return request.param
