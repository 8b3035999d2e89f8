"""The overview of the broker: disk, rates, groups, and how late it is."""

from holdfast.http_api.routing.call import Call, NoParams
from holdfast.http_api.schemas.inspection import DiskReply, GroupFiguresReply, OverviewReply
from holdfast.http_api.wire.reply import Reply

#: The overview names at most this many groups that are at a limit.
MOST_NAMED = 10


async def get_overview(call: Call[NoParams]) -> Reply:
    """Return the figures that tell how the broker is. Faults and alarms are in `/readyz`."""
    context, http = call.context, call.http
    groups = await context.groups.stats_in_slices()
    figures = await http.figures()
    totals = http.metrics.totals()
    reply = OverviewReply(
        version=http.version,
        phase="ready",
        uptime_seconds=round(http.uptime_s(), 1),
        disk=DiskReply(
            figures.free_bytes,
            figures.total_bytes,
            figures.min_free_bytes,
            figures.log_bytes,
            figures.bytes_per_day,
        ),
        topics=len(context.store.table.all()),
        groups=GroupFiguresReply(
            count=groups.groups,
            in_flight=groups.in_flight,
            waiting=groups.waiting,
            dead_letters=groups.dead_letters_total,
            letters_not_kept=sum(groups.letters_not_kept_total.values()),
            expired_leases=groups.expired_leases_total,
            at_limit=sorted(groups.at_limit)[:MOST_NAMED],
            at_limit_count=len(groups.at_limit),
        ),
        messages_in_total=totals.messages_in,
        bytes_in_total=totals.bytes_in,
        messages_out_total=totals.messages_out,
        bytes_out_total=totals.bytes_out,
        held_pulls=context.hold.stats().held,
        connections=http.connections.limits.count,
        amqp_connections=figures.amqp_connections,
        event_loop_lag_seconds=round(http.metrics.last_lag_s, 6),
        sync_p99_seconds=figures.sync_p99_s,
    )
    return call.reply(reply)
