"""Declare a configuration value: default, description and bounds in one place. Pure."""

from dataclasses import field
from typing import Any

KIB = 1024
MIB = 1024 * KIB


def setting(
    default: Any,
    doc: str,
    *,
    minimum: int | None = None,
    maximum: int | None = None,
    choices: tuple[str, ...] | None = None,
    form: tuple[str, str] | None = None,
    memory_divisor: int | None = None,
    bytes_each: int = 1,
) -> Any:
    """Return a dataclass field for one documented configuration value.

    `holdfast.config` reads `doc` and the bounds from the field's metadata, to check values and to
    write the configuration reference. `form` is a pair: a regular expression that the whole text
    must match, and its description in words. With `memory_divisor` the default is lower on a
    machine with little memory: value * `bytes_each` is at most memory / `memory_divisor`.
    """
    return field(
        default=default,
        metadata={
            "doc": doc,
            "minimum": minimum,
            "maximum": maximum,
            "choices": choices,
            "form": form,
            "memory_divisor": memory_divisor,
            "bytes_each": bytes_each,
        },
    )
