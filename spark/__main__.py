"""`python -m holdfast.spark FILE.zip` writes the package for `spark-submit --py-files FILE.zip`."""

import sys
from pathlib import Path

from holdfast.spark.shipping import build_archive


def main(arguments: list[str]) -> None:
    """Write the archive to the given path. Exit with a usage message for any other arguments."""
    if len(arguments) != 1 or not arguments[0].endswith(".zip"):
        sys.exit("usage: python -m holdfast.spark FILE.zip")
    Path(arguments[0]).write_bytes(build_archive())


if __name__ == "__main__":
    main(sys.argv[1:])
