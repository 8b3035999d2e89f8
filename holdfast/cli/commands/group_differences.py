"""Compare an existing group with the requested settings. Pure."""

from collections.abc import Mapping
from typing import Any

#: Settings that the broker reports under `fairness`.
_OF_FAIRNESS = ("engine", "cost")


def group_differences(
    config: Mapping[str, Any],
    topics: Mapping[str, Mapping[str, Any]] | None,
    settings: Mapping[str, Any],
) -> list[str]:
    """Return each difference as a phrase, such as "--mode keyed, not competing" (the existing value
    comes first). Return an empty list if there is no difference.

    `config` has the settings of the existing group, as the broker reports them. `topics` and
    `settings` are the requested values. A value that is None was not requested, and is not
    compared.
    """
    found = []
    if topics is not None:
        own = {name: (each["weight"], each["filter"]) for name, each in config["topics"].items()}
        asked = {name: (each["weight"], each["filter"]) for name, each in topics.items()}
        if own != asked:
            found.append(f"the topics {_format_topics(own)}, not {_format_topics(asked)}")
    for name, value in settings.items():
        if value is None:
            continue
        has = (config["fairness"] if name in _OF_FAIRNESS else config).get(name)
        if has != (value or None if name == "dead_letter_topic" else value):
            found.append(f"--{name.replace('_', '-')} {_plain(has)}, not {_plain(value)}")
    return found


def _format_topics(topics: Mapping[str, tuple[int, str | None]]) -> str:
    shown = []
    for name, (weight, expression) in sorted(topics.items()):
        text = name if weight == 1 else f"{name}={weight}"
        shown.append(text if expression is None else f"{text} ({expression})")
    return ", ".join(shown) or "none"


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "none" if value in (None, "") else str(value)
