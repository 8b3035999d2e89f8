"""The token file is whole, with every reported change, whenever a program that changes it is
killed. TEST_KILLS sets the number of kills, TEST_SEED repeats a run."""

import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.http_api.access.token_file import TokenFile

KILLS = int(os.environ.get("TEST_KILLS", "10"))
SEED = int(os.environ.get("TEST_SEED", "1"))

#: Program: make two tokens, revoke the older one, and print a line after each change.
WRITER = """
import sys
from pathlib import Path
from holdfast.http_api.access.grants import EVERYTHING
from holdfast.http_api.access.token_file import create_token, revoke_tokens
from holdfast.http_api.access.token_file import TokenFile
file = TokenFile(Path(sys.argv[1]))
while True:
    made = [create_token(file, name="", grants=EVERYTHING, now_ms=1)[0].token_id for _ in "ab"]
    print("+", made[1], flush=True)
    revoke_tokens(file, made[:1])
    print("-", made[0], flush=True)
"""


@pytest.mark.fault
@pytest.mark.timeout(600)
def test_killing_a_writer_of_tokens_loses_no_reported_change(tmp_path: Path) -> None:
    print(f"TEST_SEED={SEED} TEST_KILLS={KILLS}")
    rng = random.Random(SEED)
    file = TokenFile(tmp_path / "data")
    there: set[str] = set()
    gone: set[str] = set()
    generation = 0
    is_over = threading.Event()

    def read_on() -> None:
        while not is_over.is_set():
            file.read()

    pool = ThreadPoolExecutor(1)
    reading = pool.submit(read_on)
    try:
        for _ in range(KILLS):
            with subprocess.Popen(
                [sys.executable, "-c", WRITER, str(tmp_path / "data")], stdout=subprocess.PIPE
            ) as writer:
                assert writer.stdout is not None
                said = [writer.stdout.readline()]
                time.sleep(rng.uniform(0, 0.1))
                writer.kill()
                said += writer.stdout.readlines()
            for sign, token_id in (line.decode().split() for line in said if b"\n" in line):
                (there if sign == "+" else gone).add(token_id)
            content = file.read().content
            found = {token.token_id for token in content.tokens}
            assert there <= found, "a token that was made is gone"
            assert not gone & found, "a token that was revoked is back"
            assert content.generation > generation
            generation = content.generation
    finally:
        is_over.set()
        pool.shutdown()
    print(f"{generation} changes, {len(there)} tokens made and {len(gone)} revoked for certain")
    assert reading.exception() is None
