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


def audit_denial(audit: AuditLog, request: "Request", problem: Denied) -> None:
    """Note a request that was not let through, whatever it asked for."""
    audit.denied(
        f"{request.method[:20]} {request.url.raw_path[:200]}",
        principal=problem.principal,
        client=request.remote,
        details={"status": problem.kind.status, "reason": problem.detail},
    )


class Auditing:
    """The way into the audit log of one request that may do the act that it asks for."""

    __slots__ = ("_about", "_act", "_audit", "_principal", "_request")

    def __init__(
        self,
        audit: AuditLog,
        request: "Request",
        route: "Route",
        path: Mapping[str, str],
        principal: Principal,
    ) -> None:
        self._audit = audit
        self._request = request
        self._act = route.act
        self._about = "/".join(path[name] for name in ("group", "topic") if name in path)
        self._principal = principal.name

    def answered(self, reply: "Reply") -> None:
        """It was done."""
        self._record("done", {"status": reply.status, **reply.note})

    def refused(self, problem: Problem) -> None:
        """It was not done, or not all of it."""
        status = problem.kind.status
        outcome = "failed" if status >= 500 else "refused"
        self._record(outcome, {"status": status, "problem": problem.slug})

    def abandoned(self) -> None:
        """Its client went away. What was begun comes to its end, but nobody is told how."""
        self._record("begun, but its client went away", {})

    def _record(self, outcome: str, details: Mapping[str, object]) -> None:
        self._audit.record(
            self._act,
            self._about[:300],
            outcome=outcome,
            principal=self._principal,
            client=self._request.remote,
            details=details,
        )
