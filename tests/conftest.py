"""How hypothesis looks for inputs, and what is left of the environment, in all tests.

`make test` tries the same inputs each time: it fails because of a change, not by luck. `make
test-inputs` looks for new ones. How long an input takes fails nothing: a machine may be slow.
"""

import os
import signal
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

#: What would make the output of tests, and of what they start, another than on a bare machine.
_TERMINALS = {"FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"}

for name in list(os.environ):
    if name in _TERMINALS or name.startswith("HOLDFAST_"):  # a broker's or a client's settings
        del os.environ[name]

# What runs in the background of a script starts deaf to Ctrl-C, and so would all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
