"""RocketMQ: a name server and a broker."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.system import PEERS, Server, Unavailable, is_free, started
from holdfast.free_port import free_port

_PLACE = PEERS / "rocketmq"
_CLASS_PATH = f"{_PLACE}/jars/*"
_FLUSH = {"written": "ASYNC_FLUSH", "fsync": "SYNC_FLUSH"}
_HEAP = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=2g")
_OPENS = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
)


class RocketMQ:
    """A name server and one master broker, loaded with RocketMQ's Java client."""

    name = "rocketmq"

    def check(self) -> None:
        """Raise Unavailable without Java, its jars or its load."""
        if not shutil.which("java"):
            raise Unavailable("java is not installed: run bench/peers/install")
        if not (_PLACE / "classes" / "RocketMQLoad.class").exists():
            raise Unavailable("its jars or its load are not there: run bench/peers/install")

    def version(self) -> str:
        """Return the version in the name of its jar."""
        (jar,) = (_PLACE / "jars").glob("rocketmq-broker-*.jar")
        found = re.search(r"-([\d.]+)\.jar", jar.name)
        return found[1] if found else "unknown"

    @contextmanager
    def run(self, durability: str, directory: Path) -> Iterator[Server]:
        """Run the name server and the broker."""
        names, port = free_port(), _broker_port()
        (directory / "names.conf").write_text(f"listenPort={names}\n")
        flush = _FLUSH[durability]
        (directory / "broker.conf").write_text(
            f"""brokerClusterName=bench
brokerName=bench
brokerId=0
brokerIP1=127.0.0.1
listenPort={port}
haListenPort={free_port()}
namesrvAddr=127.0.0.1:{names}
flushDiskType={flush}
storePathRootDir={directory}/store
storePathCommitLog={directory}/store/commitlog
"""
        )
        environment = {"ROCKETMQ_HOME": str(directory)}
        java = ["java", f"-Duser.home={directory}", *_OPENS]
        name_server = [*java, "-Xmx512m", "-cp", _CLASS_PATH]
        name_server += ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", "names.conf"]
        broker = [*java, *_HEAP, "-cp", _CLASS_PATH]
        broker += ["org.apache.rocketmq.broker.BrokerStartup", "-c", "broker.conf"]
        with (
            started(name_server, directory, port=names, environment=environment),
            started(broker, directory, port=port, environment=environment) as process,
        ):
            yield Server(
                f"127.0.0.1:{names}",
                f"flushDiskType={flush}; {' '.join(_HEAP)}; one queue; its Java client",
                [process],
                ["java", *_OPENS, "-cp", f"{_PLACE}/classes:{_CLASS_PATH}", "RocketMQLoad"],
            )


def _broker_port() -> int:
    """Return a free port whose port minus 2 is free too: the broker uses both."""
    while True:
        port = free_port()
        if is_free(port - 2):
            return port
