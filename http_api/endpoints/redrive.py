"""Redrive: publish a group's dead letters again to the topics from which they came."""

from functools import partial

from holdfast.consumequeue.topics import check_name
from holdfast.groups.errors import NoDeadLetters
from holdfast.groups.service_types import MayPublish, RedriveOptions, RedriveResult
from holdfast.http_api.access.grants import ANONYMOUS, GROUP_VERBS
from holdfast.http_api.endpoints.group_access import (
    check_named,
    check_publishing,
    check_subscribed,
    leased_group,
)
from holdfast.http_api.routing.call import Call, NoParams
from holdfast.http_api.routing.params import (
    check_at_most,
    check_count_at_most,
    invalid,
    whole_number,
)
from holdfast.http_api.schemas.leases import RedriveReply, RedriveRequest
from holdfast.http_api.wire.problems import Problem, problem_for
from holdfast.http_api.wire.reply import Reply


async def redrive(call: Call[NoParams]) -> Reply:
    """Put a group's dead letters back into the topics that they came from.

    Each letter is published unchanged and durably, and then acknowledged for the group
    `GROUP.redrive` (GROUP is the group's name), so no letter is put back twice. A letter from a
    topic that does not belong to the group is not published, and counts as `stuck`. The token must
    grant `publish` on each of the group's topics and `consume` on the dead-letter topic. The
    redrive ends at the first letter that cannot be stored, with a problem that has the
    number of letters that were put back before it. With `discard`, the letters are acknowledged
    without being published, so no redrive puts them back; the token then needs no `publish`.
    """
    context, group = call.context, call.group()
    asked = await call.body(RedriveRequest)
    state = leased_group(context, group)
    dead = asked.dead_letter_topic or state.record.dead_letter_topic
    if dead is None:
        raise NoDeadLetters(group)
    check_subscribed(call, GROUP_VERBS, state.topics)
    if not asked.discard:
        check_publishing(call, state.topics)
    check_named(call, ("consume",), [check_name("topic", dead)])
    most = context.groups_config.max_redrive_letters
    check_at_most("limit", asked.limit, most, "max_redrive_letters")
    if not (asked.dry_run or asked.discard):
        context.publish_limiter.admit(call.client_name, call.principal)
    ask = RedriveOptions(
        most if asked.limit is None else asked.limit,
        dead,
        _offsets(asked, most),
        asked.dry_run,
        asked.discard,
        _may_publish(call, group),
        partial(_published, call),
    )
    done = await context.run_shielded(context.groups.redrive(group, ask))
    if done.failure is not None:
        raise _failure_of(done, done.failure, dead)
    put_back = done.total - done.discarded
    reply = RedriveReply(group, dead, asked.dry_run, put_back, done.topics, done.stuck, done.more)
    if asked.discard:
        reply.discarded = done.discarded
    answer = call.reply(reply)
    answer.note = {
        "dead_letter_topic": dead,
        "dry_run": asked.dry_run,
        **({"discarded": done.discarded} if asked.discard else {}),
        "topics": done.topics,
        "stuck": done.stuck,
    }
    return answer


def _failure_of(done: RedriveResult, failure: Exception, dead_letter_topic: str) -> Problem:
    """Return the problem of a redrive that ended at a letter which could not be stored."""
    problem = problem_for(failure)
    problem.detail = (
        f"the dead letter {done.failed_id} cannot be put back; {done.total} before it were: "
        f"{problem.detail}"
    )
    problem.members |= {
        "message_id": done.failed_id,
        "dead_letter_topic": dead_letter_topic,
        "redriven": done.total,
        "topics": done.topics,
    }
    return problem


def _may_publish(call: Call[NoParams], group: str) -> MayPublish | None:
    """Return a check for the topics that may get letters; None if no topic needs a check."""
    principal = call.principal
    if principal is ANONYMOUS:
        return None
    return lambda topic: (
        principal.may(("publish",), topic) and principal.may(GROUP_VERBS, topic, group)
    )


def _published(call: Call[NoParams], messages: int, size: int) -> bool:
    """Charge the client's publish rate for letters that were put back.

    Return False if the client must not publish more now.
    """
    limiter = call.context.publish_limiter
    limiter.published(call.client_name, call.principal, messages, size)
    try:
        limiter.admit(call.client_name, call.principal)
    except Problem:
        return False
    return True


def _offsets(asked: RedriveRequest, most: int) -> dict[int, list[int]] | None:
    if asked.offsets is None:
        return None
    check_count_at_most(
        "offsets",
        "letters",
        sum(max(len(given), 1) for given in asked.offsets.values()),
        most,
        "max_redrive_letters",
    )
    offsets: dict[int, list[int]] = {}
    for name, given in asked.offsets.items():
        queue = whole_number(name)
        if queue is None:
            raise invalid(f"offsets.{name[:40]}", name, "queue numbers as text, such as 0")
        offsets[queue] = given
    return offsets
