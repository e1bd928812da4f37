"""Requests: published and stated distributions of sentences and parse trees, and requests as the policies take them."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from penstock.engine.cells.graph import InputValues, Unfolded
from penstock.ops.bench.cellular.policies import padded
from penstock.worker.requests.sequence_work import SequenceWork

Lengths = npt.NDArray[np.int64]
Merge = tuple[int, int]

MEAN_LENGTH, MAX_LENGTH = 24.0, 330
_SIGMA = 0.65  # the longest of 100,000 is then about 330, as of WMT-15's sentences

_MEAN_WORDS, _WORDS_DEVIATION, _MAX_WORDS = 19.1, 9.3, 56


def wmt_like_lengths(count: int, seed: int) -> Lengths:
    """Tokens of sentences: lognormal, sigma 0.65, mean 24, rounded up, at most 330.

    The parameters are ours: of WMT-15 the paper states the mean 24 and the maximum 330.
    """
    location = np.log(MEAN_LENGTH - 0.5) - _SIGMA**2 / 2  # rounding up adds a half on average
    drawn = np.random.default_rng(seed).lognormal(location, _SIGMA, count)
    return np.clip(np.ceil(drawn), 1, MAX_LENGTH).astype(np.int64)


def parse_trees(count: int, seed: int) -> list[list[Merge]]:
    """Merges of binary trees over words: 19 words on average, deviation 9.3, 2 to 56; a span splits anywhere.

    The numbers are those of Stanford's Sentiment Treebank, from a normal distribution that is cut off; that each span
    of words splits at a uniform place is ours. Nodes are numbered as `binary_tree_classifier` takes them.
    """
    random = np.random.default_rng(seed)
    sizes = np.clip(np.rint(random.normal(_MEAN_WORDS, _WORDS_DEVIATION, count)), 2, _MAX_WORDS).astype(int)
    return [_parse_tree(size, random) for size in sizes.tolist()]


def _parse_tree(num_words: int, random: np.random.Generator) -> list[Merge]:
    merges: list[Merge] = []

    def parse(first: int, last: int) -> int:
        """The node over the words in [first, last)."""
        if last - first == 1:
            return first
        middle = int(random.integers(first + 1, last))
        merges.append((parse(first, middle), parse(middle, last)))
        return num_words + len(merges) - 1

    parse(0, num_words)
    return merges


def work_of(unfolded: Unfolded) -> SequenceWork:
    """A request as a worker's runner takes it. Its graph is made here, before anything is timed."""
    work = SequenceWork(unfolded, int(unfolded.steps.sum()), 0)
    _ = work.cell_graph
    return work


def padded_work(work: SequenceWork, width: int) -> SequenceWork:
    """A chain over tokens, padded to a multiple of `width` by its last token."""
    steps = padded(work.graph.steps, width)
    values = work.graph.inputs["token"].values
    longer = np.pad(values, (0, int(steps[0]) - len(values)), "edge")
    inputs = {"token": InputValues(longer, np.array([0, len(longer)], np.int32))}
    return work_of(replace(work.graph, steps=steps, inputs=inputs))
