"""Every example in docs/tables.md runs, in the page's order, against one broker."""

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import RunningBroker

pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'holdfast[arrow]')")
pytest.importorskip("pandas", reason="no pandas here (pip install pandas)")

PAGE = Path(__file__).resolve().parents[4] / "docs" / "tables.md"


def test_every_example_runs(holdfast_broker: RunningBroker) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) >= 4
    names: dict[str, Any] = {}
    for example in examples:
        code = example.replace("http://127.0.0.1:8711", holdfast_broker.url)
        exec(compile(code, str(PAGE), "exec"), names)
    assert len(names["last_hour"]) == len(names["until_now"]) == len(names["bar"]) == 1000
    assert len(names["one_queue"]) == 10
    assert sum(names["prices"].to_pylist()) == 2500
    assert names["total_bytes"] == sum(len(f'{{"id": {n}, "price": 2.5}}') for n in range(1000))
