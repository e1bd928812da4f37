"""The revision of the model that answers a call, a stream or a job."""

from penstock.producer.errors import MixedRevisions


class OneRevision:
    """Answers that must be of one revision. Use from one event loop."""

    def __init__(self, first: str | None = None, *, allow_mixed: bool = False) -> None:
        """`first`: the revision of earlier answers; None: the first answer decides. allow_mixed: refuse none."""
        self.first = first
        self._allow_mixed = allow_mixed

    def check(self, model: str, revision: str) -> None:
        """Called with each reply, before its rows are handed on. Raises MixedRevisions for another revision."""
        if self.first is None:
            self.first = revision
        if revision == self.first or self._allow_mixed:
            return
        raise MixedRevisions(
            f"Two revisions of the model {model!r} answered what must be of one: {self.first!r} and {revision!r}. Its "
            "workers have different weights, tokenizers or heads, or are being replaced. Ask again when all have one "
            "revision, or take several with allow_mixed_revisions."
        )
