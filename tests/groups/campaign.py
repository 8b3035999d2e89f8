"""A long random test of worlds, started by hand: python -m tests.groups.campaign OPERATIONS
[SEED]."""

import sys
import time

from tests.groups.world import World

MODES = ("competing", "keyed", "single_active", "exclusive")


def run(operations: int, seed: int, share_compared: float = 0.2) -> None:
    """Run worlds of 2,000 operations with consecutive seeds, and print the totals."""
    began, done, totals = time.monotonic(), 0, [0] * 6
    print(f"from seed {seed} on", flush=True)
    while done < operations:
        mode = MODES[seed % 4]
        engine = ("sfq", "dwrr")[seed // 4 % 2]
        world = World(seed, mode=mode, engine=engine, strict=seed // 8 % 4 == 0)
        world.share_compared = share_compared
        try:
            for _ in range(min(2_000, operations - done)):
                world.step()
                done += 1
            world.drain()
        except BaseException:
            print(f"seed {seed}, {mode}, {engine}, operation {done}", flush=True)
            raise
        counts = (
            *(world.deliveries, world.checks, world.crashes, world.rescues),
            *(world.stops, world.repeated),
        )
        totals = [a + b for a, b in zip(totals, counts, strict=True)]
        seed += 1
        if done >= operations or seed % 10 == 0:
            seconds = time.monotonic() - began
            print(
                f"{done} operations, seeds up to {seed - 1}: {totals[0]} deliveries, {totals[1]} "
                f"comparisons, {totals[2]} crashes, {totals[4]} stops, {totals[5]} repeated "
                f"requests, {totals[3]} scan rescues; {seconds:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
