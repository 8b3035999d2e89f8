"""`holdfast` on a slow disk: each sync of the log takes half a second longer.

python -m bench.slow_sync_broker serve ...
"""

from bench.amqp_local import slow_down_syncs
from holdfast.cli.main import main

_SYNC_S = 0.5

if __name__ == "__main__":
    slow_down_syncs(_SYNC_S)
    main(prog_name="holdfast")
