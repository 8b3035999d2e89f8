"""Records requests in the audit log: administrative requests, and denied requests of any kind."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.http_api.access.audit import AuditLog
from holdfast.http_api.access.authorization import Denied
from holdfast.http_api.access.grants import Principal
from holdfast.http_api.access.tokens import redact_secrets
from holdfast.http_api.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.http_api.wire.reply import Reply
    from holdfast.http_api.wire.request import Request


def record_denial(audit: AuditLog, request: "Request", problem: Denied) -> None:
    """Record a denied request, whether it is administrative or not."""
    audit.denied(
        f"{request.method[:20]} {redact_secrets(request.url.raw_path)[:200]}",
        principal=problem.principal,
        client=request.peer.remote,
        details={"status": problem.kind.status, "reason": redact_secrets(problem.detail)},
    )


class AuditedRequest:
    """Records the outcome of one authorized administrative request in the audit log.

    `act` names the request in the log; `path` has the parameters in its path.
    """

    __slots__ = ("_about", "_act", "_audit", "_principal", "_request")

    def __init__(
        self,
        audit: AuditLog,
        request: "Request",
        act: str,
        path: Mapping[str, str],
        principal: Principal,
    ) -> None:
        self._audit = audit
        self._request = request
        self._act = act
        about = "/".join(path[name] for name in ("group", "topic") if name in path)
        self._about = redact_secrets(about)
        self._principal = principal.name

    def record_reply(self, reply: "Reply") -> None:
        """Record that the act was done."""
        self._record("done", {"status": reply.status, **reply.note})

    def record_problem(self, problem: Problem) -> None:
        """Record that the act was refused or failed; it may have been partly done."""
        status = problem.kind.status
        outcome = "failed" if status >= 500 else "refused"
        self._record(outcome, {"status": status, "problem": problem.slug})

    def record_disconnect(self) -> None:
        """Record that the client disconnected before the reply.

        The act that has begun still completes.
        """
        self._record("begun, but its client went away", {})

    def _record(self, outcome: str, details: Mapping[str, object]) -> None:
        self._audit.record(
            self._act,
            self._about[:300],
            outcome=outcome,
            principal=self._principal,
            client=self._request.peer.remote,
            details=details,
        )
