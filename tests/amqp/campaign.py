"""A long random test of the engine, started by hand: python -m tests.amqp.campaign OPERATIONS
[SEED]."""

import sys
import time
from collections import Counter
from random import Random

from tests.amqp.engine.world import CREDITS, LINKS, PIECES, SIZES, STATES, WINDOWS, EngineWorld

#: How many operations one connection lasts.
LIFE = 1_000


def step(world: EngineWorld, random: Random) -> None:
    """Do one random act, and check both ends."""
    index, side = random.randrange(LINKS), random.randrange(2)
    match random.choices(range(7), (4, 6, 1, 3, 2, 1, 10))[0]:
        case 0:
            drain = random.random() < 0.3
            world.grant(index, random.choice(CREDITS), drain, random.random() < 0.3)
        case 1:
            sizes = random.choices(SIZES, k=random.randint(1, 4))
            world.send(index, sizes, random.random() < 0.5)
        case 2:
            world.give_back(index)
        case 3:
            world.settle(index, random.randint(1, 4), random.choice(STATES))
        case 4:
            world.change_window(side == 0, random.choice(WINDOWS))
        case 5:
            world.stall(side, random.random() < 0.3)
        case _:
            world.deliver(side, random.choice(PIECES))
    world.check()


def run(operations: int, seed: int) -> None:
    """Run connections with consecutive seeds, and print the totals."""
    began, done, totals = time.monotonic(), 0, Counter[str]()
    print(f"from seed {seed} on", flush=True)
    while done < operations:
        random, world = Random(seed), EngineWorld()
        try:
            for _ in range(min(LIFE, operations - done)):
                step(world, random)
                done += 1
            world.finish()
        except BaseException:
            print(f"seed {seed}, operation {done % LIFE}", flush=True)
            raise
        for wire in world.wires:
            totals.update(wire.counts)
        totals["delivered"] += sum(len(link.arrived) for link in world.links)
        totals["counts past 2**32"] += sum(link.sender_end.count >= 2**32 for link in world.links)
        seed += 1
        if done >= operations or done % (100 * LIFE) == 0:
            counts = ", ".join(f"{count} {name}" for name, count in sorted(totals.items()))
            seconds = time.monotonic() - began
            print(f"{done} operations, seeds to {seed - 1}: {counts}; {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
