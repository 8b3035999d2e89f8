"""A real broker refuses names with a meaning for file systems, terminals or careless decoders."""

from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from holdfast.testing import TEST_ARGUMENTS, RunningBroker

#: Percent-encoded as they are sent; each with a description.
NAMES = {
    "..%2fescape": "a path out of the directory",
    "..%2f..%2f..%2f..%2fetc%2fpasswd": "a longer one",
    "%2fetc%2fpasswd": "an absolute path",
    "..%5cescape": "a path of another system",
    "%2e%2e": "the directory above",
    "%2e": "the directory itself",
    "a%00b": "a NUL",
    "a%0d%0ab": "a line end",
    "%1b%5b2J": "an order to a terminal",
    "x" * 128: "one character too many",
    "x" * 256: "a file name too long",
    "%e2%80%aegnp.exe": "right to left",
    "caf%c3%a9": "not ASCII, composed",
    "cafe%cc%81": "not ASCII, decomposed",
    "%ef%bd%81": "a wide letter",
    "%ff": "no UTF-8",
    "%c0%ae%c0%ae": "dots, too long in UTF-8",
    "%zz": "an escape that is none",
    "a%2": "half an escape",
    "a%252fb": "an escape of an escape",
    "a+b": "a plus",
    "a%20b": "a space",
    "a:b": "a stream of NTFS",
    "a*": "a pattern",
    "~root": "a home",
    "$HOME": "a variable",
    "__state": "the broker's own",
    "%20": "nothing but a space",
}
BODY = b'{"messages":[{"body":"x"}]}'


def files(directory: Path) -> set[str]:
    """Return every path below a directory, except segments, which are prepared ahead."""
    found = {path.relative_to(directory) for path in directory.rglob("*")}
    return {str(path) for path in found if path.parent.name != "commitlog"}


@pytest.mark.timeout(120)
async def test_odd_names_reach_no_storage(tmp_path: Path) -> None:
    # The broker's log is next to its data directory, in a folder that the test also checks.
    home = tmp_path / "home"
    with RunningBroker(home / "data", TEST_ARGUMENTS) as broker:
        async with aiohttp.ClientSession() as session:

            async def ask(method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
                headers = {"Content-Type": "application/json"}
                url = URL(broker.url + path, encoded=True)
                async with session.request(method, url, data=body, headers=headers) as response:
                    return response.status, await response.read()

            assert (await ask("PUT", "/v1/topics/Orders", b"{}"))[0] == 201
            before = files(tmp_path)
            for name in NAMES:
                for method, path, body in (
                    ("PUT", f"/v1/topics/{name}", b"{}"),
                    ("POST", f"/v1/topics/{name}/messages", BODY),
                    ("GET", f"/v1/topics/{name}/queues/0/messages?offset=0", None),
                    ("DELETE", f"/v1/topics/{name}?confirm={name}", None),
                    ("PUT", f"/v1/groups/{name}/topics/Orders/offsets", b'{"offsets":{"0":0}}'),
                    ("GET", f"/v1/groups/{name}", None),
                ):
                    status, reply = await ask(method, path, body)
                    assert status == 400, (method, path, reply)
                status, reply = await ask("GET", f"/v1/messages/{name}")
                assert status in (400, 404), (name, reply)
            # Names are case-sensitive: no files are named after topics, so none can collide.
            assert (await ask("PUT", "/v1/topics/orders", b'{"queues":1}'))[0] == 201
            status, reply = await ask("GET", "/v1/topics")
            assert reply.count(b'"topic":') == 2
            assert files(tmp_path) == before
