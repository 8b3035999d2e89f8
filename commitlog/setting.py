"""How a configuration value is declared: default, sentence and bounds in one place. Pure."""

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
) -> Any:
    """Return a dataclass field for one documented configuration value.

    `holdfast.config` reads doc and bounds from the field's metadata, to check values and to
    write the reference.
    """
    return field(
        default=default,
        metadata={"doc": doc, "minimum": minimum, "maximum": maximum, "choices": choices},
    )
