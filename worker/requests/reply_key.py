"""The key of the answers to a record."""

import hashlib

from penstock.producer.wire.headers import position
from penstock.worker.requests.record import PendingRecord


def reply_key(record: PendingRecord) -> bytes:
    """The key of every answer to one record, so that readers can drop duplicates: never that of another record.

    It is a hash of where the record is. The topic's id tells a topic from one of its name that was deleted before, and
    the timestamp tells records of one offset apart where a broker has no ids or has lost the end of its log. Nothing
    else that the sender chooses has a part in it, so nobody gets the key of another record by asking for it.
    """
    one = record.original
    place = b"%b-%d" % (position(one.topic, one.partition, one.offset), one.timestamp)
    return hashlib.blake2b(record.topic_id + place, digest_size=16).digest()
