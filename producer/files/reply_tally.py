"""Counts of a client's replies."""

from penstock.producer.wire.messages import Reply


class ReplyTally:
    """Rows and revisions of the replies that a client has received."""

    def __init__(self) -> None:
        self.rows = 0
        self.cached = 0  # rows that came from the workers' cache
        self.revisions: set[str] = set()

    def add(self, reply: Reply, num_rows: int) -> None:
        """Count a reply."""
        self.rows += num_rows
        self.cached += reply.cached
        self.revisions.add(reply.revision)
