"""Settings of access control."""

from dataclasses import dataclass

from holdfast.commitlog.setting import MIB, setting


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """Section [access] of the configuration."""

    authentication: bool = setting(
        False, "Whether every request must have a token made by `holdfast token create`."
    )
    insecure_remote: bool = setting(
        False,
        "Allow the broker to listen on an address that other machines can reach while "
        "authentication is off. Anyone who can reach the address may then do everything.",
    )
    allowed_hosts: str = setting(
        "",
        "Host names that requests may use, in addition to the names of this machine, separated by "
        "commas: broker.example, .example (the domain and its subdomains), or * for any. Only "
        "checked while authentication and TLS are both off.",
        form=(
            r"(\*|\.?[A-Za-z0-9_.:-]+)?(\s*,\s*(\*|\.?[A-Za-z0-9_.:-]+))*",
            "host names or "
            "addresses without a port, .example for its subdomains too, or *, separated by commas",
        ),
    )
    token_check_ms: int = setting(
        500, "How often the broker checks the token file for changes.", minimum=10, maximum=60_000
    )
    audit: bool = setting(
        True,
        "Whether administrative actions are written to access/audit.log in the data directory.",
    )
    audit_bytes: int = setting(64 * MIB, "Size at which the audit log is rotated.", minimum=4096)
    audit_files: int = setting(
        8,
        "Rotated audit logs that are kept. Above this number, the oldest one is deleted.",
        minimum=1,
        maximum=1000,
    )
    max_denied_per_second: int = setting(
        20,
        "Denied requests per second that the audit log records one by one. Others are only "
        "counted.",
        minimum=0,
    )
