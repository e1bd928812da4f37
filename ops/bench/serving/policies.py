"""The batching policies that are compared, as arguments of `penstock worker`. A new one is a row."""

from collections.abc import Mapping, Sequence

DEFAULT, TEI = "penstock default", "TEI's rule"
_PLAIN = ("--order", "arrival", "--admission", "accept")

POLICIES: Mapping[str, Sequence[str]] = {
    "packed, none": ("--trigger", "hungry", "--partition", "none", "--max-batch-sequences", "1", *_PLAIN),
    # text-embeddings-inference: first come first served up to a token budget, at once, whatever the deadlines.
    TEI: ("--trigger", "hungry", "--partition", "fifo", *_PLAIN),
    "packed, DP": ("--trigger", "lazy", "--partition", "dp", "--order", "cost-first", "--admission", "accept"),
    DEFAULT: (),
}
KEEPS_DEADLINES = frozenset({DEFAULT})  # the calls of the others have no deadline, so that they refuse none
