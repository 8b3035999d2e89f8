"""A long random test of worlds, started by hand: python -m tests.groups.campaign OPERATIONS
[SEED]."""

import sys
import time
from collections import Counter

from tests.groups.world import World

COUNTS = (
    "deliveries",
    "bound_deliveries",
    "adjacent_acks",
    "checks",
    "crashes",
    "stops",
    "repeated",
    "rescues",
)
MODES = ("competing", "keyed", "single_active", "exclusive")


def run(operations: int, seed: int, share_compared: float = 0.2, share_bound: float = 0.3) -> None:
    """Run worlds of 2,000 operations with consecutive seeds, and print the totals."""
    began, done, totals = time.monotonic(), 0, Counter[str]()
    print(f"from seed {seed} on", flush=True)
    while done < operations:
        mode = MODES[seed % 4]
        engine = ("sfq", "dwrr")[seed // 4 % 2]
        strict = seed // 8 % 4 == 0
        world = World(seed, mode=mode, engine=engine, strict=strict, share_bound=share_bound)
        world.share_compared = share_compared
        try:
            for _ in range(min(2_000, operations - done)):
                world.step()
                done += 1
            world.drain()
        except BaseException:
            print(f"seed {seed}, {mode}, {engine}, operation {done}", flush=True)
            raise
        totals.update({name: getattr(world, name) for name in COUNTS})
        seed += 1
        if done >= operations or seed % 10 == 0:
            counts = ", ".join(f"{totals[name]} {name}" for name in COUNTS)
            seconds = time.monotonic() - began
            print(f"{done} operations, seeds to {seed - 1}: {counts}; {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
