"""Write the tables and pictures of docs/performance/ from the latest measurements.

    python -m bench.report

Reads bench/results/ours.json (`python -m bench`), bench/results/peers.json (`python -m
bench.peers`) and the profiles in docs/performance/profile/. Replaces the text between
`<!-- NAME -->` and `<!-- end of NAME -->`; a table without results stays unchanged. The pictures
are drawn in the virtual environment of the peers (bench/peers/install).
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.__main__ import RESULTS as OURS
from bench.peers.results import RESULTS as PEERS
from bench.peers.results import told_cells
from bench.peers.system import ROOT, Unavailable, peers_python
from bench.rows import COLUMNS, MISSED, Row, bar_text, cells, from_json, number

PAGES = ROOT / "docs" / "performance"
PROFILES = PAGES / "profile"
_PROFILED = ("W1", "W2", "W3", "W3-1k", "W4-1", "W4-16", "W4-64", "W5", "W8")
#: Areas with less than this share in both profiles are combined as "all else".
_LEAST_SHARE = 0.04
_PEERS_COLUMNS = ("", "", "system", "median", "least to most", "MB/s")
_MISSED_COLUMNS = ("", "what", "figure", "bar")
_PEERS_MORE = ("server us/message", "client us/message", "ours / theirs", "bar")


def main() -> None:
    """Write the pages."""
    missed: list[tuple[str, ...]] = []
    if OURS.exists():
        told = json.loads(OURS.read_text())
        rows = [from_json(row) for row in told["rows"]]
        write("ours", "ours", [*table(COLUMNS, map(cells, rows)), "", *conditions(told)])
        missed += missed_of_ours(rows)
    if PEERS.exists():
        told = json.loads(PEERS.read_text())
        write("peers", "peers", peers_tables(told))
        write("peers", "peers' settings", settings(told))
        missed += missed_beside_peers(told)
        try:
            command = [str(peers_python()), "-m", "bench.peers.plots", str(PEERS), str(PAGES)]
            subprocess.run(command, check=True, cwd=ROOT)
        except Unavailable as reason:
            print(f"no pictures: {reason}", file=sys.stderr)
    write("bars", "missed", table(_MISSED_COLUMNS, sorted(missed)))
    write("paths", "profiles", list(profiles()))


def write(page: str, name: str, lines: Iterable[str]) -> None:
    """Replace the text between the markers of `name` in a page."""
    path = PAGES / f"{page}.md"
    path.write_text(replaced(path.read_text(), name, lines))


def replaced(page: str, name: str, lines: Iterable[str]) -> str:
    """Return the page with new lines between the markers of `name`. Raise ValueError if the page
    does not have these markers."""
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, found, rest = page.partition(start)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"the page has no place for {name}")
    return "".join([before, start, *(f"{line}\n" for line in lines), end, after])


def table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return a Markdown table."""
    rule = "|".join("---" for _ in columns)
    return [f"| {' | '.join(columns)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]


def conditions(told: Mapping[str, Any]) -> list[str]:
    """Return lines that describe the machine of a run, and the benchmarks that the run left
    out."""
    left_out = told["left_out"].items()
    return [
        f"Measured on: {told['machine']}; 10 million additions in a plain Python loop take "
        f"{told['plain_loop_s']:.2f} s.",
        *(f"Left out: {name}: {reason}." for name, reason in left_out),
    ]


def peers_tables(told: Mapping[str, Any]) -> list[str]:
    """Return a table for each workload, with its picture."""
    lines: list[str] = []
    for name in dict.fromkeys(row["workload"] for row in told["rows"]):
        of_it = [row for row in told["rows"] if row["workload"] == name]
        lines += [f"### {name}", "", f"{of_it[0]['what']}.", ""]
        lines += [f"Durability: {of_it[0]['durability']}. Unit: {of_it[0]['unit']}.", ""]
        lines += table((*_PEERS_COLUMNS, *_PEERS_MORE), map(told_cells, of_it))
        lines += ["", f"![{name}](peers-{name}.svg)", ""]
    rounds = max(len(row["values"]) for row in told["rows"])
    return [*lines, f"Medians of {rounds} rounds.", *conditions(told)]


def missed_of_ours(rows: Iterable[Row]) -> Iterator[tuple[str, ...]]:
    """Yield the rows that miss their own bar."""
    for row in rows:
        if row.is_met is False:
            yield row.workload, row.case, f"{number(row.median)} {row.unit}", bar_text(row)


def missed_beside_peers(told: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the rows that miss a bar relative to a peer."""
    for row in told["rows"]:
        label, case, system, *_, ratio, bar = told_cells(row)
        if bar.endswith(MISSED):
            yield label, f"{row['workload']}, {case}, beside {system}", ratio, bar


def settings(told: Mapping[str, Any]) -> list[str]:
    """Return the settings of each system."""
    rows = [[*name.rsplit(", ", 1), text] for name, text in told["settings"].items()]
    return table(("system", "durability", "settings"), rows)


def profiles() -> Iterator[str]:
    """Yield a table for each workload: the processor time per message, in the profiles `before` and
    `after`."""
    for name in _PROFILED:
        before, after = (_profile(folder, name) for folder in ("before", "after"))
        for process in before or after:
            early, late = before.get(process, {}), after.get(process, {})
            yield from ("", f"**{name}, {process}**: microseconds of processor time a message", "")
            yield from table(
                ("where", "before", "after"), profile_rows(_amounts(early), _amounts(late))
            )


def _profile(folder: str, name: str) -> dict[str, Any]:
    file = PROFILES / folder / f"{name}.json"
    return {each["process"]: each for each in json.loads(file.read_text())} if file.exists() else {}


def _amounts(profile: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the processor times, divided in three ways: all, by thread, and by area."""
    if not profile:
        return {}
    spread = profile["spread"]
    return {
        "all": {"all": profile["us_per_message"], "the kernel": profile["kernel_us_per_message"]},
        "thread": {f"thread {name}": amount for name, amount in spread["thread"].items()},
        "area": spread["area"],
    }


def profile_rows(
    before: Mapping[str, Mapping[str, float]], after: Mapping[str, Mapping[str, float]]
) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of a profile's table. Areas that are small in both profiles are combined."""
    whole = max(side["all"]["all"] for side in (before, after) if side)
    for group in ("all", "thread", "area"):
        early, late = before.get(group, {}), after.get(group, {})
        shown = {
            name: max(early.get(name, 0.0), late.get(name, 0.0))
            for name in {**early, **late}
            if group == "all" or max(early.get(name, 0), late.get(name, 0)) >= _LEAST_SHARE * whole
        }
        for name in sorted(shown, key=lambda each: -shown[each]):
            is_file = re.fullmatch(r"[\w/]+\.py", name)
            yield (
                f"`{name}`" if is_file else name,
                _amount(early.get(name, 0.0) if early else None),
                _amount(late.get(name, 0.0) if late else None),
            )
        if group == "area":
            yield "all else", _rest(early, shown), _rest(late, shown)


def _rest(side: Mapping[str, float], shown: Iterable[str]) -> str:
    if not side:
        return ""
    return _amount(sum(side.values()) - sum(side.get(name, 0.0) for name in shown))


def _amount(us: float | None) -> str:
    return "" if us is None else f"{us:.2f}" if us < 10 else f"{us:.0f}"


if __name__ == "__main__":
    main()
