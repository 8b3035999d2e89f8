"""Every example in docs/client.md runs, in the page's order, against one broker."""

import re
from pathlib import Path
from typing import Any

from holdfast.testing import RunningBroker

PAGE = Path(__file__).resolve().parents[3] / "docs" / "client.md"
DEFAULT_URL = "http://127.0.0.1:8711"


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_every_example_runs(holdfast_broker: RunningBroker) -> None:
    assert len(examples()) >= 9
    names: dict[str, Any] = {}
    for example in examples():
        code = example.replace(DEFAULT_URL, holdfast_broker.url)
        exec(compile(code, str(PAGE), "exec"), names)
    names["test_orders_are_published"](holdfast_broker)
    names["test_payments_are_published"](holdfast_broker)
    assert sorted(names["paid"]) == [b"1 coffee", b"2 teas"]
    assert sorted(names["table_8"]) == ["paid", "served"]
