"""What tests of solvers count: the programs that XLA compiles."""

import jax
import pytest


@pytest.fixture
def compiled():
    """Programs compiled by XLA so far."""
    count = []

    def listen(event, *_, **__):
        if event.endswith("backend_compile_duration"):
            count.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield lambda: len(count)
    jax.monitoring.unregister_event_duration_listener(listen)
