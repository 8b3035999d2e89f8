"""Holdfast as a Spark data source: batch reads, streaming reads, and writes.

    from holdfast.spark import bind, local_session, register
    spark.read.format("holdfast").option("url", ...).option("topic", ...).load()

Importing this package needs neither pyspark nor Java; `register` and `local_session` need both.
`read/` reads batches, `stream/` reads streams, and `write/` writes. `broker/` gets messages over
HTTP, and `files/` gets them from the log's segment files.
"""

from holdfast.spark.bound import Bound, bind
from holdfast.spark.error_text import reason
from holdfast.spark.errors import (
    BrokerRefused,
    BrokerUnavailable,
    CertificateNotTrusted,
    CheckpointUnreadable,
    DataLost,
    FilesUnreadable,
    GoneFromStream,
    IdentityMissing,
    InvalidOption,
    JavaMissing,
    OffsetsMoved,
    ReplayDiffers,
    ReplyMismatch,
    SparkError,
    TopicRecreated,
    UnknownTopic,
    UnwritableColumn,
    UnwritableRow,
    WriteRefused,
)
from holdfast.spark.session import local_session, register, require_java, ship

__all__ = ["register", "bind", "Bound", "local_session", "require_java", "ship", "reason"]
__all__ += ["SparkError", "InvalidOption", "JavaMissing", "BrokerRefused", "BrokerUnavailable"]
__all__ += ["DataLost", "CertificateNotTrusted", "CheckpointUnreadable", "FilesUnreadable"]
__all__ += ["GoneFromStream", "ReplyMismatch", "UnknownTopic", "TopicRecreated", "OffsetsMoved"]
__all__ += ["UnwritableColumn", "UnwritableRow", "WriteRefused", "ReplayDiffers"]
__all__ += ["IdentityMissing"]
