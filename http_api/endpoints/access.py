"""Who the caller is; which tokens there are, without their secrets; the audit log."""

import asyncio
from dataclasses import dataclass
from time import time
from typing import Any

import msgspec

from holdfast.http_api.access.authorization import missing_grant
from holdfast.http_api.access.tokens import Token
from holdfast.http_api.routing.call import Call, NoParams
from holdfast.http_api.routing.params import whole
from holdfast.http_api.schemas.inspection import AccessReply, AuditReply, TokenReply, TokensReply
from holdfast.http_api.wire.reply import Reply


@dataclass(frozen=True, slots=True)
class AuditParams:
    """The query of a request for the audit log."""

    limit: int = whole(
        "Most events to return.", minimum=1, maximum="max_page_size", default="page_size"
    )


async def get_access(call: Call[NoParams]) -> Reply:
    """Return who the caller is, and what its token grants."""
    principal = call.principal
    reply = AccessReply(
        principal.name,
        call.http.access.is_required,
        [str(each) for each in principal.grants],
        call.http.access.expires_ms(principal),
    )
    return call.reply(reply)


async def list_tokens(call: Call[NoParams]) -> Reply:
    """List the tokens, newest first, without their secrets.

    The caller needs `operate`, and `admin` on all topics and groups.
    """
    _check_sees_everything(call)
    now_ms = time() * 1000
    tokens = sorted(call.http.access.tokens.all, key=lambda token: -token.created_ms)
    return call.reply(TokensReply([_token(token, now_ms) for token in tokens]))


async def list_audit(call: Call[AuditParams]) -> Reply:
    """Return the newest events of the audit log, newest first: at most about 256 KiB of them.

    The caller needs `operate`, and `admin` on all topics and groups. If the audit log is off, there
    are no events.
    """
    _check_sees_everything(call)
    audit = call.http.audit
    events: list[dict[str, Any]] = []
    if audit is not None:
        lines = await asyncio.to_thread(audit.tail, call.params.limit)
        events = await asyncio.to_thread(lambda: [msgspec.json.decode(line) for line in lines])
    return call.reply(AuditReply(events))


def _check_sees_everything(call: Call[Any]) -> None:
    """Raise Denied unless the caller may administer everything that tokens and events name."""
    # No topic and no group has an empty name, so only a grant for all of them covers it.
    if not call.principal.may(("admin",), "", ""):
        raise missing_grant(call.principal, ("admin",), what="all topics and groups")


def _token(token: Token, now_ms: float) -> TokenReply:
    return TokenReply(
        token.token_id,
        token.name,
        [str(each) for each in token.grants],
        token.created_ms,
        token.expires_ms,
        token.is_expired(now_ms),
        token.certificate or None,
    )
