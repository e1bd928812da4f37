"""Counts of a client's replies."""

from penstock.producer.wire.messages import REQUEST_TOKENS, Reply


class ReplyTally:
    """Rows and tokens of the replies that a client has received."""

    def __init__(self) -> None:
        self.rows = 0
        self.cached = 0  # rows that came from the workers' cache
        self.tokens = 0  # of the rows; of those from the cache as well

    def add(self, reply: Reply, num_rows: int) -> None:
        """Count a reply."""
        self.rows += num_rows
        self.cached += reply.cached
        tokens = reply.batch.get(REQUEST_TOKENS, 0)
        self.tokens += tokens if isinstance(tokens, int) else 0
