"""Settings of access control."""

from dataclasses import dataclass

from holdfast.commitlog.setting import MIB, setting


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """Section [access] of the configuration."""

    authentication: bool = setting(
        False, "Whether every request must show a token made by `holdfast token create`."
    )
    insecure_remote: bool = setting(
        False,
        "Serve on an address that other machines reach though nobody is asked for a token: "
        "whoever reaches it may do everything.",
    )
    token_check_ms: int = setting(
        500, "How often the token file is looked at for changes.", minimum=10, maximum=60_000
    )
    audit: bool = setting(
        True, "Whether administrative acts are written to access/audit.log in the data directory."
    )
    audit_bytes: int = setting(
        64 * MIB, "Size at which the audit log is put aside and a new one begun.", minimum=4096
    )
    audit_files: int = setting(
        8, "Audit logs that were put aside and are kept; the oldest goes.", minimum=1, maximum=1000
    )
    max_denied_per_second: int = setting(
        20, "Denied requests that the audit log names one by one; more are counted.", minimum=0
    )
