"""The broker's process: logging, signals, the line that it prints when it serves, exit code."""

import asyncio
import errno
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import click
import uvloop

from holdfast import __version__
from holdfast.broker import Broker, StorageUnusable
from holdfast.cli.exits import ExitCode, Failure
from holdfast.cli.output.logs import start_logging
from holdfast.cli.process.acting_user import act_as_owner
from holdfast.cli.process.allocator import keep_freed_memory
from holdfast.cli.process.garbage_freezer import GarbageFreezer
from holdfast.cli.process.service_manager import ServiceManager
from holdfast.commitlog.disk.owned_files import UnsafeFile
from holdfast.config import Config, changed_keys, unused_variables
from holdfast.storage.machine_memory import machine_bytes

_logger = logging.getLogger(__name__)

STOP_DEADLINE_S = 5.0
PROGRESS_S = 5.0  # between two lines about the progress of a long start
#: At most this many file descriptors are reserved for segments, indexes and threads. This is enough
#: to have all segments of a log of 1 TB open.
MAX_STORAGE_FILES = 1024

#: The signals that stop the broker cleanly. SIGQUIT is one of them, because its default action
#: would be a core dump.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
#: Signals that other programs use to reopen logs or print statistics. Their default action would
#: kill the broker, so they are ignored.
IGNORED_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
#: A limit of connections below this number is logged as a warning.
FEW_CONNECTIONS = 1000

_CANNOT_LISTEN = {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def run(config: Config) -> ExitCode:
    """Run a broker until it ends. Return OK if a signal stopped it, and FAILED if a part of it
    failed or it became read-only. If the broker cannot start, raises Failure or another error that
    exits.py converts."""
    start_logging(config.log_format, config.log_level)
    about = {"data_dir": str(config.data_dir.resolve()), "pid": os.getpid()}
    _logger.info("holdfast %s starts", __version__, extra=about)
    for name, value in changed_keys(config).items():
        _logger.debug("configuration: %s is %s", name, value)
    for variable in unused_variables(os.environ):
        _logger.warning("the environment variable %s is not used: it is not a setting", variable)
    act_as_owner(config.data_dir)
    keep_freed_memory(machine_bytes())
    config = limit_connections(config)
    # SIGHUP must not end the process before the event loop handles it.
    for number in (signal.SIGHUP, *IGNORED_SIGNALS):
        signal.signal(number, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config))


def limit_connections(config: Config) -> Config:
    """Raise the soft limit of open files to the hard limit. Return the configuration with no more
    connections than this limit allows. Some file descriptors are reserved for the storage; without
    them a broker could not open a segment, or accept a connection in order to refuse it. If the
    broker has ports for AMQP, AMQP gets a third of the others, and what HTTP does not want."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted, possible = config.http_api.max_connections, hard - storage_files(hard)
    has_ports = config.amqp.port or config.amqp.tls_port
    of_amqp = config.amqp.max_connections if has_ports else 0
    if wanted + of_amqp <= possible:
        return config
    if of_amqp:
        of_amqp = min(of_amqp, max(possible // 3, possible - wanted))
        possible -= of_amqp
        _logger.debug("up to %d connections of AMQP: they share the %d files", of_amqp, hard)
        config = replace(config, amqp=replace(config.amqp, max_connections=of_amqp))
        if wanted <= possible:
            return config
    # On most systems the default of max_connections is above what the limit allows. The lower
    # number is enough there, so this is no warning.
    matters = possible < FEW_CONNECTIONS or wanted != Config().http_api.max_connections
    text = (
        "up to %d connections: this process may open %d files (ulimit -Hn, LimitNOFILE), too few "
        "for http_api.max_connections (%d)"
    )
    _logger.log(logging.WARNING if matters else logging.DEBUG, text, possible, hard, wanted)
    return replace(config, http_api=replace(config.http_api, max_connections=possible))


def storage_files(limit: int) -> int:
    """Return how many of `limit` file descriptors are reserved for the storage."""
    return min(MAX_STORAGE_FILES, limit // 2)


async def _serve(config: Config) -> ExitCode:
    with closing(ServiceManager(os.environ)) as service:
        service.start_watchdog()
        return await _serve_until_stopped(config, service)


async def _serve_until_stopped(config: Config, service: ServiceManager) -> ExitCode:
    loop = asyncio.get_running_loop()
    stop_requested = asyncio.Event()
    # A separate thread enforces the deadline: a stop that hangs may also block the event loop.
    deadline = threading.Timer(STOP_DEADLINE_S, end_by_force)
    deadline.daemon = True

    def stop(reason: str) -> None:
        if not stop_requested.is_set():
            _logger.info("stopping: %s", reason)
            service.stopping(reason)
            stop_requested.set()
            deadline.start()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop, number.name)
    broker = Broker(config)
    reloads = _Reloads(broker)
    if sys.stdin is not None and sys.stdin.isatty():
        # SIGHUP here means that the terminal was closed. A broker that was started by hand in a
        # terminal then stops.
        loop.add_signal_handler(signal.SIGHUP, stop, signal.SIGHUP.name)
    else:
        loop.add_signal_handler(signal.SIGHUP, reloads.begin)
    stopping = asyncio.create_task(stop_requested.wait())
    code = ExitCode.OK
    started_s = time.monotonic()
    if await _start_broker(broker, config, stopping, service):
        # Finished requests leave no reference cycles (tests/http_api/test_garbage.py), so the
        # garbage collector can run rarely.
        freezing = GarbageFreezer(broker.gone_count)
        freezing.start()
        click.echo(f"holdfast: serving on {broker.url}")
        _logger.info("serving", extra={"url": broker.url, "data_dir": str(config.data_dir)})
        service.ready(f"serving on {broker.url}")
        assert broker.failed is not None
        await _first_of(stopping, broker.failed)
        if broker.failed.done():
            _logger.critical("stopping: %s", broker.failed.result())
            code = ExitCode.FAILED
        stop("a part of the broker failed")
        read_only = broker.status.read_only
        await reloads.end()
        await broker.stop()
        freezing.stop()
        if read_only is not None:
            _logger.critical("it was read-only: %s", read_only)
            code = ExitCode.FAILED
    stopping.cancel()
    deadline.cancel()
    _logger.info("stopped", extra={"code": int(code), "up_s": round(time.monotonic() - started_s)})
    return code


class _Reloads:
    """Runs reloads of a broker in the background, one at a time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start a reload, unless one is in progress."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._reload(), name="reload")

    async def end(self) -> None:
        """Wait until the current reload has ended, if there is one."""
        if self._task is not None:
            await self._task

    async def _reload(self) -> None:
        try:
            await self._broker.reload()
        except Exception:
            _logger.exception("the reload failed: nothing was changed")


async def _start_broker(
    broker: Broker, config: Config, stopping: "asyncio.Task[bool]", service: ServiceManager
) -> bool:
    """Start the broker. Return False if a signal has stopped it during the start."""
    starting = asyncio.create_task(broker.start())
    logging_progress = asyncio.create_task(_report_progress(broker, service))
    await _first_of(starting, stopping)
    logging_progress.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return False
    try:
        starting.result()
    except OSError as error:
        raise _refusal(error, config) from error
    except StorageUnusable as error:
        sentence = (
            f"cannot use the data directory {config.data_dir}: {error}; check that its disk works "
            "and has room, then start again: nothing is lost"
        )
        raise Failure(sentence, ExitCode.REFUSED) from error
    return True


async def _report_progress(broker: Broker, service: ServiceManager) -> None:
    """Report every PROGRESS_S that the start goes on, until cancelled: to the service manager, and
    in the log if the progress has changed."""
    logged: object = None
    while True:
        await asyncio.sleep(PROGRESS_S)
        progress = dict(broker.status.progress)
        service.extend_start(str(progress.get("step", "starting")))
        if progress != logged:
            _logger.info("starting", extra=progress)
            logged = progress


async def _first_of(*futures: "asyncio.Future[Any]") -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def end_by_force() -> None:
    """End the process, even if a thread waits for a disk. Acknowledged messages are not lost."""
    _logger.critical("not stopped within %g s: the process is ended now", STOP_DEADLINE_S)
    logging.shutdown()
    os._exit(ExitCode.FAILED)


def _refusal(error: OSError, config: Config) -> Failure:
    """Return a Failure that says why the broker cannot start, and how to fix this."""
    reason = error.strerror or str(error)
    http = config.http_api
    cannot_use = f"cannot use the data directory {config.data_dir}"
    if isinstance(error, UnsafeFile):
        sentence = (
            f"{cannot_use}: {error}. Move this file away, put the broker's own file back if you "
            f"have it, and run 'holdfast check {config.data_dir}' before the next start, to see "
            "what is missing"
        )
    elif error.errno == errno.EADDRINUSE:
        sentence = (
            f"port {http.port} on {http.host} is in use; stop the process that listens there, or "
            "give another --port (0 chooses a free one)"
        )
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        sentence = (
            f"cannot open {error.filename or config.data_dir}: {reason}; this process may open "
            f"{soft} files: raise this limit with 'ulimit -n' (LimitNOFILE of a service)"
        )
    elif error.errno in _CANNOT_LISTEN or isinstance(error, socket.gaierror):
        sentence = (
            f"cannot listen on {http.host}: {reason}; give an address of this machine with --host"
        )
    elif error.filename is None and error.errno == errno.EACCES:
        sentence = f"may not listen on port {http.port}; give a --port from 1024 on"
    else:
        sentence = (
            f"{cannot_use}: {error.filename or config.data_dir}: {reason}; make it writable and "
            "check that the disk has room, or give another --data-dir"
        )
    return Failure(sentence, ExitCode.REFUSED)
