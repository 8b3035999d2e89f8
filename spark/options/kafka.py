"""Options of Spark's Kafka connector that have no meaning here, and what to use instead. Pure.

A job written for Kafka needs only a new format and address, if all its options are supported. Other
options are refused with an explanation: a job with a silently ignored option may not do what its
author intended.
"""

from fnmatch import fnmatchcase

_ACCESS = (
    "sets up Kafka's security; here access is by the option token, and encryption by an address "
    "that begins https:// (caFile, certFile, keyFile); leave it out"
)
_NO_GROUP = (
    "reading takes part in no group here; leave it out (holdfast.spark.bind(group=...) and the "
    "groupId of a stream store how far a job is)"
)
_RETRIES = "a broker that is away or busy is asked again for up to a minute; leave it out"
_FORMAT = "keys and values are binary, as they were published: CAST them in Spark; leave it out"

#: Pattern of an option's name, in lower case -> the refusal. The first match counts.
_REFUSALS = (
    ("kafkaconsumer.polltimeoutms", _RETRIES),
    ("fetchoffset.*", _RETRIES),
    ("groupidprefix", _NO_GROUP),
    ("kafka.group.*", _NO_GROUP),
    (
        "maxrecordsperpartition",
        "tasks are cut by bytes here: maxBytesPerPartition says by how many",
    ),
    ("kafka.security.*", _ACCESS),
    ("kafka.sasl.*", _ACCESS),
    ("kafka.ssl.*", _ACCESS),
    ("kafka.auto.offset.reset", "startingOffsets says where to begin; leave it out"),
    ("kafka.*auto.commit*", "nothing is committed by reading; leave it out"),
    ("kafka.*deserializer*", _FORMAT),
    ("kafka.*serializer*", _FORMAT),
    ("kafka.isolation.level", "there are no transactions to look into; leave it out"),
    ("kafka.fetch.*", "fetchMaxBytes says how much is asked for at once; leave it out"),
    ("kafka.max.partition.fetch.bytes", "fetchMaxBytes says how much is asked for at once"),
    ("kafka.max.poll.records", "fetchMaxBytes says how much is asked for at once; leave it out"),
    ("kafka.*timeout.ms", _RETRIES),
    ("kafka.*backoff*", _RETRIES),
    ("kafka.retries", _RETRIES),
    ("kafka.*", "settings of Kafka's client have no meaning here; leave it out"),
)


def explain_refusal(name: str) -> str | None:
    """Return the refusal of an unsupported Kafka option, or None for any other name."""
    folded = name.lower()
    return next((why for pattern, why in _REFUSALS if fnmatchcase(folded, pattern)), None)
