import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.http_api.endpoints.publish_request import has_more_messages

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='{}[]"\\,:a\u2028', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(alphabet='{}[]"\\a', max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), max_size=6))
def test_messages_with_any_content_are_counted(messages: list[dict[str, Any]]) -> None:
    body = json.dumps({"messages": messages}).encode()
    for limit in range(len(messages) + 2):
        assert has_more_messages(limit, body) == (len(messages) > limit)


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"messages":[{"', b'"' * 1001, b"]" * 100, b'{"a":"' + b"\\" * 1001]
)
def test_the_decoder_reports_invalid_json(body: bytes) -> None:
    assert not has_more_messages(3, body)


@pytest.mark.parametrize("escape", [b"\\\\", b"\\u0022", b"\\n{"])
def test_a_long_text_is_scanned_once(escape: bytes) -> None:
    text = escape * 200_000
    assert not has_more_messages(1, b'{"messages":[{"body":"' + text + b'"}]}' + b" " * 9)
    assert has_more_messages(1, b'{"messages":[{"body":"' + text + b'"},{},{}]}')
