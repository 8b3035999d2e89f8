"""The broker's refusals, as the command line words them."""

import re

import pytest

from holdfast.cli.advice import explain_refusal
from holdfast.client.errors import api_error
from tests.cli.conftest import Run

# O6: the command line advised "change it with PATCH".
_HTTP = re.compile(r"\b(GET|PUT|PATCH|POST|DELETE)\b|/v1/|\b[a-z]+_(ms|bytes)\b|Authorization")


def test_no_refusal_that_a_command_meets_speaks_http(holdfast: Run) -> None:
    holdfast("topic", "create", "t", "--queues", "2", "--priority-levels", "2")
    holdfast("publish", "t", "--body", "x")
    holdfast("group", "create", "g", "t")
    refused = {
        ("topic", "create", "t", "--queues", "3"): "holdfast topic change t --queues",
        ("topic", "create", "t", "--retention-ms", "8d"): "topic change t --retention-ms",
        ("topic", "create", "t", "--priority-levels", "3"): "create another topic",
        ("topic", "change", "t", "--queues", "1"): "never removed",
        ("topic", "describe", "none"): "holdfast topic create none",
        ("topic", "create", "u", "--max-message-bytes", "900GiB"): "--max-message-bytes",
        ("pull", "t", "--queue", "0", "--from", "9"): "--from latest",
        ("pull", "t", "--queue", "9"): "queues are 0 to 3",
        ("publish", "t", "--body", "x", "--queue", "9"): "queues are 0 to 3",
        ("group", "describe", "none"): "holdfast group create none TOPIC",
        ("group", "create", "h"): "at least one topic",
        ("group", "create", "h", "t", "--lease-ms", "100d"): "--lease-ms",
        ("group", "create", "h", "t", "--dead-letter-topic", "t"): "--dead-letter-topic",
        ("group", "seek", "g", "--offset", "t:9:0"): "queues are 0 to 3",
        ("group", "seek", "g", "--offset", "none:0:0"): "holdfast topic list",
        ("message", "get", "0" * 32): "there is no message",
    }
    for arguments, said in refused.items():
        done = holdfast(*arguments)
        assert done.exit_code in {2, 4, 5}, (arguments, done.output)
        assert not _HTTP.search(done.stderr), done.stderr
        assert said in done.stderr, done.stderr


def test_a_member_that_is_missing_leaves_the_brokers_own_sentence() -> None:
    error = api_error(409, {"type": "/problems/topic-conflict", "detail": "it exists"})
    assert explain_refusal(error) == "it exists (topic-conflict)"


def test_a_token_is_asked_for_by_its_options() -> None:
    detail = "this broker asks for a token; send it as 'Authorization: Bearer TOKEN'"
    said = explain_refusal(api_error(401, {"type": "/problems/unauthenticated", "detail": detail}))
    assert said == (
        "this broker asks for a token; use --token-file, HOLDFAST_TOKEN or --token "
        "(unauthenticated)"
    )


@pytest.mark.parametrize("status", [400, 500])
def test_a_refusal_without_words_has_its_title(status: int) -> None:
    assert explain_refusal(api_error(status, {"title": "Odd"})) == "Odd (about:blank)"
