"""Show a progress bar on standard error if it is a terminal; otherwise show nothing."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_INTERVAL_S = 0.1

Show = Callable[[int, int | None, int], None]
"""The function is called with three numbers: the bytes done, the total bytes (None if they are
unknown), and the number of things done (0 if they are not counted). If progress is not in bytes,
the first two numbers are things."""


@contextmanager
def progress(things: str, *, in_bytes: bool = True) -> Iterator[Show]:
    """Yield the function that shows progress, in bytes or in things. It is fast enough to be called
    for every message."""
    if not sys.stderr.isatty():
        yield lambda done, total, count: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    amount = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(things, total=None)
        latest: tuple[int, int | None, int] = (0, None, 0)
        drawn_at = time.monotonic()

        def draw() -> None:
            done, total, count = latest
            description = f"{count:,} {things}" if count else things
            bar.update(task, completed=done, total=total, description=description)

        def show(done: int, total: int | None, count: int) -> None:
            nonlocal latest, drawn_at
            latest = (done, total, count)
            if time.monotonic() - drawn_at > _INTERVAL_S:
                drawn_at = time.monotonic()
                draw()

        yield show
        draw()
