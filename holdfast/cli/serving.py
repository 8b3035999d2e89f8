"""A broker's process from start to end: logging, signals, the ready line, why it ends."""

import asyncio
import errno
import gc
import logging
import os
import resource
import signal
import socket
import threading
from dataclasses import replace
from typing import Any

import click
import uvloop

from holdfast.broker import Broker
from holdfast.cli.exits import ExitCode, Failure
from holdfast.cli.logs import start_logging
from holdfast.config import Config

_logger = logging.getLogger(__name__)

STOP_DEADLINE_S = 5.0
#: How often a start that takes long is told of in the log.
PROGRESS_S = 5.0
#: Files kept for segments, indexes and threads: every segment of a terabyte may be open at once.
MAX_STORAGE_FILES = 1024

_CANNOT_LISTEN = {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def run(config: Config) -> ExitCode:
    """Run a broker until a signal stops it (OK) or it fails beyond mending (FAILED).

    Raises Failure, or an error that `exits` knows, when it cannot start.
    """
    start_logging(config.log_format, config.log_level)
    config = _within_open_files(config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config))


def _within_open_files(config: Config) -> Config:
    """Raise the soft limit of open files, which is small for history's sake, to the hard one;
    return the configuration with as many connections as that leaves room for.

    A broker that ran out of files could neither accept a connection, to refuse it, nor open a
    segment: the storage's share is kept for it.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted, possible = config.http_api.max_connections, hard - storage_files(hard)
    if wanted <= possible:
        return config
    _logger.info(
        "up to %d connections: this process may open %d files (ulimit -Hn, LimitNOFILE), too few "
        "for http_api.max_connections (%d)",
        possible,
        hard,
        wanted,
    )
    return replace(config, http_api=replace(config.http_api, max_connections=possible))


def storage_files(limit: int) -> int:
    """Return how many of so many open files are kept for what is not a connection."""
    return min(MAX_STORAGE_FILES, limit // 2)


async def _serve(config: Config) -> ExitCode:
    loop = asyncio.get_running_loop()
    told_to_stop = asyncio.Event()
    # A timer in a thread, since what keeps a stop from ending may keep the event loop too.
    deadline = threading.Timer(STOP_DEADLINE_S, _end_by_force)
    deadline.daemon = True

    def stop() -> None:
        if not told_to_stop.is_set():
            told_to_stop.set()
            deadline.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    stopping = asyncio.create_task(told_to_stop.wait())
    broker = Broker(config)
    code = ExitCode.OK
    if await _started(broker, config, stopping):
        # What has been recovered stays: no later look for garbage goes through it. Answered
        # requests leave no circles (tests/http_api/test_garbage.py), so there are few looks.
        gc.freeze()
        click.echo(f"holdfast: serving on {broker.url}")
        _logger.info("serving", extra={"url": broker.url, "data_dir": str(config.data_dir)})
        assert broker.failed is not None
        await _first_of(stopping, broker.failed)
        if broker.failed.done():
            _logger.critical("stopping: %s", broker.failed.result())
            code = ExitCode.FAILED
        stop()
        read_only = broker.status.read_only
        await broker.stop()
        if read_only is not None:
            _logger.critical("it was read-only: %s", read_only)
            code = ExitCode.FAILED
    stopping.cancel()
    deadline.cancel()
    return code


async def _started(broker: Broker, config: Config, stopping: "asyncio.Task[bool]") -> bool:
    """Start the broker; False when it was told to stop before it served."""
    starting = asyncio.create_task(broker.start())
    telling = asyncio.create_task(_tell_progress(broker))
    await _first_of(starting, stopping)
    telling.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return False
    try:
        starting.result()
    except OSError as error:
        raise _refusal(error, config) from error
    return True


async def _tell_progress(broker: Broker) -> None:
    """Log how far a start is, now and then while it moves; until cancelled."""
    told: object = None
    while True:
        await asyncio.sleep(PROGRESS_S)
        progress = dict(broker.status.progress)
        if progress != told:
            _logger.info("starting", extra=progress)
            told = progress


async def _first_of(*futures: "asyncio.Future[Any]") -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _end_by_force() -> None:
    """A thread that is stuck on a disk waits for nobody; nothing acknowledged is lost by this."""
    _logger.critical("not stopped within %g s: ending by force", STOP_DEADLINE_S)
    logging.shutdown()
    os._exit(ExitCode.FAILED)


def _refusal(error: OSError, config: Config) -> Failure:
    """Return why a broker cannot start here, and what would help."""
    reason = error.strerror or str(error)
    listen = config.http_api
    if error.errno == errno.EADDRINUSE:
        sentence = (
            f"port {listen.port} on {listen.host} is in use; stop what listens there, or give "
            "another --port (0 picks a free one)"
        )
    elif error.errno in _CANNOT_LISTEN or isinstance(error, socket.gaierror):
        sentence = (
            f"cannot listen on {listen.host}: {reason}; give an address of this machine by --host"
        )
    elif error.filename is None and error.errno == errno.EACCES:
        sentence = f"may not listen on port {listen.port}; give a --port from 1024 on"
    else:
        where = error.filename or config.data_dir
        sentence = (
            f"cannot use the data directory {config.data_dir}: {where}: {reason}; make it "
            "writable and see that there is room, or give another --data-dir"
        )
    return Failure(sentence, ExitCode.REFUSED)
