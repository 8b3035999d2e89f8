"""Starts without the system's certificate authorities."""

import os
import ssl
import subprocess
import sys

import pytest

from holdfast.cli.process.no_authorities import no_authorities

_NAMES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def test_a_context_that_is_created_in_the_block_has_no_authorities() -> None:
    with no_authorities():
        assert ssl.create_default_context().cert_store_stats()["x509"] == 0


@pytest.mark.parametrize("value", [None, "/somewhere/else"])
def test_the_environment_is_as_before_after_an_error(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    for name in _NAMES:
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    with pytest.raises(KeyError), no_authorities():
        raise KeyError
    assert [os.environ.get(name) for name in _NAMES] == [value, value]


def test_a_broker_is_imported_without_reading_authorities() -> None:
    program = (
        "import ssl\n"
        "from holdfast.cli.commands import serve\n"
        "made = []\n"
        "create = ssl.create_default_context\n"
        "def noted(*args, **more):\n"
        "    made.append(create(*args, **more))\n"
        "    return made[-1]\n"
        "ssl.create_default_context = noted\n"
        "serve.import_broker()\n"
        "print([context.cert_store_stats()['x509'] for context in made])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[0]"
