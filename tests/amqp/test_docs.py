"""The Python example in docs/amqp.md runs."""

import re
from pathlib import Path

import pytest

from holdfast.free_port import free_port
from holdfast.testing import TEST_ARGUMENTS, RunningBroker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "amqp.md"


def test_the_example_in_python_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    port = free_port()
    arguments = (*TEST_ARGUMENTS, "--amqp-port", str(port))
    with RunningBroker(tmp_path / "data", arguments) as broker:
        code = code.replace("http://127.0.0.1:8711", broker.url)
        code = code.replace("amqp://127.0.0.1:5672", f"amqp://127.0.0.1:{port}")
        exec(compile(code, str(PAGE), "exec"), {})
    assert capsys.readouterr().out == "two coffees\n"
