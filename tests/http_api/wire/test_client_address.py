"""The addresses that count as one client."""

import pytest

from holdfast.http_api.wire.request import client_of


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("a-unix-socket", "a-unix-socket"),
    ],
)
def test_an_ipv6_network_is_one_client_and_an_ipv4_address_is(host: str, client: str) -> None:
    assert client_of(host) == client
