"""How hypothesis looks for inputs, in all tests.

`make test` tries the same inputs each time: it fails because of a change, not by luck. `make
test-inputs` looks for new ones. How long an input takes fails nothing: a machine may be slow.
"""

from typing import Any

from hypothesis import HealthCheck, settings

_BOTH: dict[str, Any] = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow],
}

settings.register_profile("new-inputs", derandomize=False, **_BOTH)
settings.register_profile("same-inputs", derandomize=True, **_BOTH)
settings.load_profile("same-inputs")
