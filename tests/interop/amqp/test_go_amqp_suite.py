"""go-amqp's own integration tests, as its authors run them against a broker."""

import json
import re
from pathlib import Path

from tests.interop.amqp.builds import HERE
from tests.interop.toolchains import need, run

MODULE = "github.com/Azure/go-amqp"
TESTS = 17


def test_all_integration_tests_of_go_amqp_pass(amqp_url: str) -> None:
    need("go")
    folder = HERE / "go"
    source = Path(
        run(["go", "list", "-mod=readonly", "-f", "{{.Dir}}", MODULE], cwd=folder).strip()
    )
    names = re.findall(r"^func (Test\w+)\(", (source / "integration_test.go").read_text(), re.M)
    assert len(names) == TESTS
    command = [
        *("go", "test", "-mod=readonly", "-p", "1", "-count=1", "-json"),
        *("-run", f"^({'|'.join(names)})$", MODULE),
    ]
    printed = run(command, cwd=folder, timeout_s=420, AMQP_BROKER_ADDR=amqp_url)
    events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    ends = {
        each["Test"]: each["Action"]
        for each in events
        if each["Action"] in ("pass", "fail", "skip") and "Test" in each
    }
    assert {name: ends.get(name) for name in names} == dict.fromkeys(names, "pass")
    assert "skip" not in ends.values()
