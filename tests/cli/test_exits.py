"""Every named failure becomes one line and a stable exit code."""

import errno
import re
from importlib import import_module
from pathlib import Path

import pytest

from holdfast.cli.exits import MEANINGS, REFUSALS, ExitCode, failure_of
from holdfast.client.errors import (
    BadReply,
    ConnectionFailed,
    HoldfastError,
    PublishFailed,
    api_error,
)
from holdfast.commitlog.disk.data_dir import NotADataDir
from holdfast.commitlog.errors import CorruptBatch, DiskFull
from holdfast.config import InvalidValue

UNREACHABLE = ConnectionFailed("http://h:1", "refused", maybe_executed=False)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UNREACHABLE, ExitCode.UNREACHABLE),
        (api_error(404, {"type": "/problems/unknown-topic"}), ExitCode.NOT_FOUND),
        (api_error(410, {"type": "/problems/offset-trimmed"}), ExitCode.NOT_FOUND),
        (api_error(416, {"type": "/problems/offset-beyond-end"}), ExitCode.NOT_FOUND),
        (api_error(409, {"type": "/problems/topic-conflict"}), ExitCode.CONFLICT),
        (api_error(412, {"type": "/problems/offsets-changed"}), ExitCode.CONFLICT),
        (api_error(400, {"type": "/problems/invalid-filter"}), ExitCode.USAGE),
        (api_error(413, {"type": "/problems/message-too-large"}), ExitCode.USAGE),
        (api_error(429, {"type": "/problems/too-many-held"}), ExitCode.REFUSED),
        (api_error(503, {"type": "/problems/recovering"}), ExitCode.REFUSED),
        (api_error(507, {"type": "/problems/disk-full"}), ExitCode.REFUSED),
        (api_error(500, {"type": "/problems/corrupt-record"}), ExitCode.FAILED),
        (PublishFailed("t", 3, UNREACHABLE), ExitCode.UNREACHABLE),
        (PublishFailed("t", 3, api_error(507, {})), ExitCode.REFUSED),
        (PublishFailed("t", 3, CorruptBatch("bad-magic")), ExitCode.FAILED),
        (BadReply("http://h:1", "no JSON"), ExitCode.FAILED),
        (HoldfastError("x"), ExitCode.FAILED),
        (InvalidValue("http_api.port", "x", "a whole number", "flag --port"), ExitCode.USAGE),
        (DiskFull(1), ExitCode.FAILED),
        (OSError(errno.ENOSPC, "No space left on device", "/d"), ExitCode.FAILED),
    ],
)
def test_each_failure_has_its_code(error: Exception, code: ExitCode) -> None:
    failure = failure_of(error)
    assert failure is not None
    assert failure.code == code


@pytest.mark.parametrize("module", REFUSALS)
def test_each_refusal_is_a_class_of_its_module(module: str) -> None:
    for name in REFUSALS[module]:
        assert issubclass(getattr(import_module(module), name), Exception)


def test_a_refused_data_directory_has_its_code() -> None:
    failure = failure_of(NotADataDir(Path("/d"), "it is a file"))
    assert failure is not None
    assert failure.code == ExitCode.REFUSED


def test_the_sentence_names_the_fix() -> None:
    failure = failure_of(UNREACHABLE)
    assert failure is not None
    assert failure.sentence == (
        "no broker answers at http://h:1 (refused); start one with 'holdfast serve', "
        "or give its address with --url or HOLDFAST_URL"
    )


def test_a_bug_keeps_its_traceback() -> None:
    assert failure_of(KeyError("x")) is None


def test_the_codes_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE))
    assert rows == {str(int(code)): meaning for code, meaning in MEANINGS.items()}
    assert set(MEANINGS) == set(ExitCode)
