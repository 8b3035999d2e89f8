"""Generated requests, valid and invalid, get only responses that the OpenAPI document describes.
TEST_SECONDS sets the duration."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.running_broker import RunningBroker

ROOT = Path(__file__).parents[2]
CONFIG = Path(__file__).with_name("schemathesis.toml")

#: Without `positive_data_acceptance`: a document cannot state that a topic exists or that a
#: sequence number follows the previous one.
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance,negative_data_rejection,"
    "unsupported_method,allow_header_conformance"
)


@pytest.mark.fault
@pytest.mark.machine
@pytest.mark.timeout(0)
def test_every_answer_is_one_that_the_document_names(tmp_path: Path) -> None:
    pytest.importorskip("schemathesis", reason="schemathesis, of the extra `fuzz`, is missing")
    seconds = int(os.environ.get("TEST_SECONDS", "60"))
    seed = os.environ.get("TEST_SEED", "1")
    with RunningBroker(tmp_path / "data", ["--http-api-max-wait-ms", "100"]) as broker:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG)),
                *("run", f"{broker.url}/openapi.json"),
                *("--checks", CHECKS, "--mode", "all", "--seed", seed),
                *("--max-time", str(seconds), "--request-timeout", "30", "--no-color"),
                *("--suppress-health-check", "all", "--generation-database", "none"),
            ],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "SCHEMATHESIS_HOOKS": "tests.fuzz.schemathesis_hooks",
            },
            capture_output=True,
            timeout=seconds + 600,
            check=False,
        )
        said = done.stdout.decode(errors="replace")
        assert done.returncode == 0, said[-8000:]
        assert "Test cases:" in said
    log = broker.log_path.read_text(errors="replace")
    assert "Traceback" not in log, log[-4000:]
