"""A member of a group over HTTP, which prints each message when it arrives and when it is settled.

    python -m tests.interop.amqp.http_member URL GROUP MEMBER

It prints the same lines as the verb `consume` of go/main.go. It reconnects when the broker
restarts, and runs until it is killed.
"""

import json
import sys
import time
from http.client import HTTPException

from tests.support.clients.broker_calls import Calls


def main() -> None:
    url, group, member = sys.argv[1:]
    calls = Calls(url)
    while True:
        try:
            work(calls, f"/v1/groups/{group}", member)
        except (OSError, HTTPException):
            time.sleep(0.1)  # the broker restarts


def work(calls: Calls, path: str, member: str) -> None:
    asked = {"member": member, "max_messages": 10, "wait_ms": 1000}
    answer = calls("POST", f"{path}/receive", asked)
    if answer.status != 200:
        time.sleep(0.1)
        return
    messages = answer.json["messages"]
    for each in messages:
        report("arrived", each["body"])
    if not messages:
        return
    receipts = [each["receipt"] for each in messages]
    results = calls("POST", f"{path}/ack", {"receipts": receipts})
    if results.status != 200:
        return
    for each, result in zip(messages, results.json["results"], strict=True):
        if result["status"] == "done":
            report("settled", each["body"])


def report(what: str, body: str) -> None:
    print(json.dumps({what: body, "at": time.time_ns()}), flush=True)


if __name__ == "__main__":
    main()
