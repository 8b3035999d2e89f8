"""Holdfast as a Spark data source: topics read in ranges, followed as streams, and written to.

    from holdfast.spark import bind, local_session, register
    spark.read.format("holdfast").option("url", ...).option("topic", ...).load()

Importing this needs neither pyspark nor Java; `register` and `local_session` do.
"""

from holdfast.spark.bound import Bound, bind
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
from holdfast.spark.reason import reason
from holdfast.spark.session import local_session, register, require_java, ship

__all__ = [
    "register",
    "bind",
    "Bound",
    "local_session",
    "require_java",
    "ship",
    "reason",
    "SparkError",
    "InvalidOption",
    "JavaMissing",
    "BrokerRefused",
    "BrokerUnavailable",
    "DataLost",
    "CertificateNotTrusted",
    "CheckpointUnreadable",
    "FilesUnreadable",
    "GoneFromStream",
    "ReplyMismatch",
    "UnknownTopic",
    "TopicRecreated",
    "OffsetsMoved",
    "UnwritableColumn",
    "UnwritableRow",
    "WriteRefused",
    "ReplayDiffers",
    "IdentityMissing",
]
