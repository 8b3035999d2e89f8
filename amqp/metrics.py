"""The counters of AMQP, in the form of Prometheus metrics. They belong to the event loop."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from holdfast.amqp.wire.conditions import AmqpError
from holdfast.amqp.wire.performatives import Error

_PREFIX = "holdfast_amqp_"


@dataclass(slots=True)
class AmqpCounters:
    """Counts since the broker started. Connections increment them directly."""

    links_in: int = 0
    """Links, attached now, on which clients send."""
    links_out: int = 0
    """Links, attached now, on which clients receive."""
    messages_in: int = 0
    messages_out: int = 0
    """Messages sent in sessions that have ended."""
    bytes_in: int = 0
    bytes_out: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    """How many deliveries had this outcome, which a client gave."""
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(what ended: link, session or connection; condition) -> how often the broker ended it."""
    sasl_failures: int = 0
    credit_grants: int = 0
    """How often a publisher's link got credit."""
    window_closures: int = 0
    turns: int = 0
    turn_seconds: float = 0.0

    def count_grant(self) -> None:
        """Count a grant of credit to a link on which a client publishes."""
        self.credit_grants += 1

    def count_error(self, what: str, error: AmqpError | Error | None) -> None:
        """Count an end with an error. `what` is "link", "session" or "connection"."""
        if error is not None:
            self.errors[what, error.condition] += 1


class AmqpFigures(msgspec.Struct, frozen=True):
    """The values that a scrape reads from the connections."""

    counters: AmqpCounters
    connections: int
    sessions: int
    messages_out: int
    unsettled_in: int
    unsettled_out: int
    closed_early: Counter[str]
    refused: Counter[str]
    modified_bytes: int
    modified_dropped: int


class AmqpCollector:
    """A collector for Prometheus. `figures` is called at each scrape, on the event loop."""

    def __init__(self, figures: Callable[[], AmqpFigures]) -> None:
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the names are known without a first scrape."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        figures = self._figures()
        counters = figures.counters
        yield _gauge("connections", "AMQP connections that are open.", figures.connections)
        yield _gauge("sessions", "AMQP sessions of these connections.", figures.sessions)
        yield _gauge(
            "modified_bytes",
            "Memory for the annotations of outcomes modified.",
            figures.modified_bytes,
        )
        for name, text, sends, receives in (
            ("links", "AMQP links that are attached", counters.links_in, counters.links_out),
            (
                "unsettled",
                "Deliveries that are not settled",
                figures.unsettled_in,
                figures.unsettled_out,
            ),
        ):
            family = GaugeMetricFamily(
                _PREFIX + name, text + ", by what the client does.", labels=["client"]
            )
            family.add_metric(["sends"], sends)
            family.add_metric(["receives"], receives)
            yield family
        for name, text, value in (
            ("messages_in", "Messages that clients sent.", counters.messages_in),
            ("messages_out", "Messages sent to clients.", figures.messages_out),
            ("bytes_in", "Bytes that clients sent.", counters.bytes_in),
            ("bytes_out", "Bytes sent to clients.", counters.bytes_out),
            (
                "modified_dropped",
                "Annotations of outcomes modified that a limit dropped.",
                figures.modified_dropped,
            ),
            ("sasl_failures", "Failed authentications.", counters.sasl_failures),
            (
                "credit_grants",
                "Grants of credit to links on which clients send.",
                counters.credit_grants,
            ),
            (
                "window_closures",
                "Sessions whose incoming window was closed for an alarm.",
                counters.window_closures,
            ),
        ):
            yield CounterMetricFamily(_PREFIX + name, text, value=value)
        yield _by_label(
            "outcomes", "Deliveries by the outcome that clients gave.", "outcome", counters.outcomes
        )
        yield _by_label(
            "closed_early", "Connections that were closed early.", "reason", figures.closed_early
        )
        yield _by_label(
            "refused", "Connections that were refused, by problem.", "problem", figures.refused
        )
        errors = CounterMetricFamily(
            _PREFIX + "errors", "What the broker ended with an error.", labels=["what", "condition"]
        )
        for key, count in counters.errors.items():
            errors.add_metric(key, count)
        yield errors
        yield SummaryMetricFamily(
            _PREFIX + "turn_seconds",
            "Time to process the bytes of one connection in one event loop iteration.",
            count_value=counters.turns,
            sum_value=counters.turn_seconds,
        )


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, text, value=value)


def _by_label(name: str, text: str, label: str, counts: Counter[str]) -> CounterMetricFamily:
    family = CounterMetricFamily(_PREFIX + name, text, labels=[label])
    for key, count in counts.items():
        family.add_metric([key], count)
    return family
