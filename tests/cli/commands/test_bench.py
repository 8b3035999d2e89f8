"""holdfast bench, against a broker."""

from tests.cli.conftest import Run, lines


def test_it_reports_the_durability_and_deletes_its_topic(holdfast: Run) -> None:
    done = holdfast("bench", "--messages", "2000", "--size", "10")
    assert done.exit_code == 0, done.stderr
    rows = lines(done.stdout)
    assert {row["durability"] for row in rows} == {"fsync", "written"}
    assert len(rows) == 8
    assert all(row["per_second"] > 0 for row in rows if "mb_per_second" in row)
    assert holdfast("topic", "list").stdout == ""
