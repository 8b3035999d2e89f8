"""Run the benchmarks one after another, each in a process of its own.

python -m bench [NAME ...]       all of them, or those named
"""

import argparse
import shutil
import subprocess
import sys

NAMES = (
    "publish",
    "consume",
    "http_requests",
    "cpu_floor",
    "growth",
    "restart",
    "hold_http",
    "hold_table",
    "spark_scan",
)


def main() -> int:
    """Run what was asked for; return 1 when any of it failed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run the benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(NAMES)}")
    names = parser.parse_args().names or NAMES
    if unknown := set(names) - set(NAMES):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    failed = []
    for name in names:
        print(f"\n=== bench.{name}", flush=True)
        if name == "spark_scan" and shutil.which("java") is None:
            print("left out: Spark needs Java (Debian: apt-get install openjdk-17-jre-headless)")
        elif subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
