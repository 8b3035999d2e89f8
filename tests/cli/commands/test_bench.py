"""holdfast bench, against a broker."""

import json

from tests.cli.conftest import Run


def test_it_names_the_durability_and_leaves_nothing(holdfast: Run) -> None:
    done = holdfast("bench", "--messages", "2000", "--size", "10")
    assert done.exit_code == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["durability"] for row in rows} == {"fsync", "written"}
    assert len(rows) == 8
    assert all(row["per_second"] > 0 for row in rows if "mb_per_second" in row)
    assert holdfast("topic", "list").stdout == ""
