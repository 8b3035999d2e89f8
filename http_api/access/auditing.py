"""What the audit log is told of one request: an act that its route names, or that it was denied."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.http_api.access.audit import AuditLog
from holdfast.http_api.access.door import Denied
from holdfast.http_api.access.grants import Principal
from holdfast.http_api.problems import Problem

if TYPE_CHECKING:
    from holdfast.http_api.reply import Reply
    from holdfast.http_api.request import Request
    from holdfast.http_api.route import Route


class Auditing:
    """One request's way into the audit log; without one it does nothing."""

    __slots__ = ("_about", "_act", "_audit", "_principal", "_request")

    def __init__(self, audit: AuditLog | None, request: "Request") -> None:
        self._audit = audit
        self._request = request
        self._act = ""

    def admitted(self, route: "Route", path: Mapping[str, str], principal: Principal) -> None:
        """The request may do what it asks; from now on it may be an act."""
        if route.act:
            self._act = route.act
            self._about = "/".join(path[name] for name in ("group", "topic") if name in path)
            self._principal = principal.name

    def answered(self, reply: "Reply") -> None:
        """It was done."""
        if self._act:
            self._record("done", {"status": reply.status, **reply.note})

    def refused(self, problem: Problem) -> None:
        """It was not done, or not all of it."""
        if self._audit is None:
            return
        status = problem.kind.status
        if isinstance(problem, Denied):
            self._audit.denied(
                f"{self._request.method[:20]} {self._request.url.raw_path[:200]}",
                principal=problem.principal,
                client=self._request.remote,
                details={"status": status, "reason": problem.detail},
            )
        elif self._act:
            outcome = "failed" if status >= 500 else "refused"
            self._record(outcome, {"status": status, "problem": problem.slug})

    def abandoned(self) -> None:
        """Its client went away. What was begun comes to its end, but nobody is told how."""
        if self._act:
            self._record("begun, but its client went away", {})

    def _record(self, outcome: str, details: Mapping[str, object]) -> None:
        if self._audit is not None:
            self._audit.record(
                self._act,
                self._about[:300],
                outcome=outcome,
                principal=self._principal,
                client=self._request.remote,
                details=details,
            )
