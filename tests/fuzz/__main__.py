"""Fuzz one target with atheris: `python -m tests.fuzz TARGET [--seconds N] [--seed N] [FILE...]`.

The code under test is instrumented, so that the fuzzer explores it by itself. Inputs that reach new
code are kept in the corpus folder. An input that fails is written to the folder `findings`, and the
output names it. With files, only these are tried.
"""

import argparse
import ctypes
import importlib
import json
import os
import resource
import sys
import tempfile
from pathlib import Path

TARGETS = (
    *("amqp_frames", "amqp_messages", "batches", "filters", "recovery", "requests", "records"),
    "websockets",
)

#: An input that takes longer than this is a hang.
TIMEOUT_S = 10
#: The kernel enforces this limit. libFuzzer's own limit uses the process's peak, which on Linux
#: starts at the peak of the parent process.
MAX_DATA_BYTES = 2 << 30
#: From Linux's <sys/personality.h>: the same memory addresses in each run.
_ADDR_NO_RANDOMIZE = 0x0040000


def _start_again_without_randomness() -> None:
    """Restart this program with fixed hashes, and fixed addresses where the system permits it."""
    ctypes.CDLL(None).personality(_ADDR_NO_RANDOMIZE)
    os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--runs", type=int, default=-1, help="so many inputs at most; -1: no bound")
    parser.add_argument("--seed", type=int, default=0, help="the same inputs; 0: always others")
    parser.add_argument("--max-bytes", type=int, default=4096)
    parser.add_argument("--corpus", type=Path, help="kept from run to run; else made anew")
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    if options.files:
        target = importlib.import_module(f"tests.fuzz.{options.target}")
        for file in options.files:
            target.check(file.read_bytes())
        return

    if options.seed and os.environ.get("PYTHONHASHSEED") != "0":
        _start_again_without_randomness()

    import atheris

    with atheris.instrument_imports(include=["holdfast", "lark", "tests.fuzz"]):
        target = importlib.import_module(f"tests.fuzz.{options.target}")
    with tempfile.TemporaryDirectory(prefix="holdfast-fuzz-") as folder:
        here = Path(folder)
        seeds = here / "seeds"
        seeds.mkdir()
        for number, seed in enumerate(target.seeds()):
            (seeds / f"{number:03}").write_bytes(seed)
        words = here / "words"
        # A libFuzzer dictionary uses JSON's quoting.
        words.write_text("\n".join(map(json.dumps, getattr(target, "DICTIONARY", ()))) + "\n")
        corpus = options.corpus or here / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        options.findings.mkdir(parents=True, exist_ok=True)
        arguments = [
            sys.argv[0],
            str(corpus),
            str(seeds),
            f"-dict={words}",
            f"-max_total_time={options.seconds}",
            f"-runs={options.runs}",
            f"-seed={options.seed}",
            f"-timeout={TIMEOUT_S}",
            "-rss_limit_mb=0",
            f"-max_len={options.max_bytes}",
            f"-artifact_prefix={options.findings}/{options.target}-",
            "-print_final_stats=1",
        ]
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_DATA_BYTES, MAX_DATA_BYTES))
        atheris.Setup(arguments, target.check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
