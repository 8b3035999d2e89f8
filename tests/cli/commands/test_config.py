"""holdfast config."""

import json
from pathlib import Path

from click.testing import CliRunner

from holdfast.cli.main import main
from holdfast.cli.output.config_reference import reference
from holdfast.config import keys


def test_show_names_every_key_and_its_source(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text('data_dir = "/d"\n[commitlog]\nsegment_bytes = "2MiB"\n')
    shown = CliRunner().invoke(
        main, ["config", "show", "--config", str(file)], env={"HOLDFAST_HTTP_API_PORT": "1234"}
    )
    assert shown.exit_code == 0
    rows = {row["key"]: row for row in map(json.loads, shown.stdout.splitlines())}
    assert list(rows) == [key.name for key in keys()]
    assert rows["data_dir"]["value"] == "/d"
    assert rows["commitlog.segment_bytes"]["value"] == 2 * 1024 * 1024
    assert rows["commitlog.segment_bytes"]["source"] == str(file)
    assert rows["http_api.port"]["source"] == "environment variable HOLDFAST_HTTP_API_PORT"
    assert rows["log_level"]["source"] == "default"


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text("[http_api]\nport = 1\n")
    shown = CliRunner().invoke(main, ["config", "show"], env={"HOLDFAST_CONFIG": str(file)})
    assert '{"key":"http_api.port","value":1,' in shown.stdout


def test_reference_is_the_page() -> None:
    assert CliRunner().invoke(main, ["config", "reference"]).stdout == reference()
