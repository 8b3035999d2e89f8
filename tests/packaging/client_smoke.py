"""Check an installed holdfast-client: python client_smoke.py [URL]

Imports every module of the distribution. Then messages go to the broker at URL and back; without
a URL, no broker is asked, and a refused connection must raise the client's error.
"""

import importlib
import sys
from importlib.metadata import files
from importlib.util import find_spec
from itertools import islice

#: The packages of the extras.
EXTRAS = ("opentelemetry", "pyarrow")


def import_all() -> int:
    """Import every module and return their number. Modules of an extra may lack its package."""
    paths = [path for path in files("holdfast-client") or [] if path.suffix == ".py"]
    for path in paths:
        parts = path.with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        try:
            importlib.import_module(name)
        except ImportError as error:
            cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
            package = (cause.name or "").partition(".")[0]
            if package not in EXTRAS or find_spec(package) is not None:
                raise
    return len(paths)


def use_broker(url: str) -> None:
    """Publish, pull and consume, with both ways of publishing."""
    import holdfast

    with holdfast.Client(url) as client:
        client.create_topic("smoke", queues=1)
        client.create_group("testers", ["smoke"])
        placed = client.publish("smoke", "one", key="a")
        with client.producer("smoke") as producer:
            producer.send("two", key="b")
        read = [each.text for each in islice(client.pull("smoke", placed.queue, placed.offset), 2)]
        assert read == ["one", "two"], read
        with client.consume("smoke", group="testers") as deliveries:
            leased = sorted(each.text for each in islice(deliveries, 2))
        assert leased == ["one", "two"], leased


def use_no_broker() -> None:
    """Ask a port on which nothing listens."""
    import socket

    import holdfast

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with holdfast.Client(url, timeout_ms=1000) as client:
            try:
                client.info()
            except holdfast.errors.ConnectionFailed:
                return
    raise AssertionError("no error was raised")


if __name__ == "__main__":
    count = import_all()
    if len(sys.argv) > 1:
        use_broker(sys.argv[1])
    else:
        use_no_broker()
    print(f"{count} modules imported, and the client works")
