"""Sequences packed into the batch of an engine."""

import numpy as np

from penstock.engine.types import PackedBatch
from penstock.worker.batching.batch import pack
from tests.worker.conftest import MakeSequences


def test_packing_lays_sequences_end_to_end(make_sequences: MakeSequences) -> None:
    batch = pack(make_sequences([1, 2, 3], [4], [5, 6]))
    assert batch.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert (batch.max_seqlen, batch.token_type_ids, len(batch.options)) == (3, None, 3)


def test_packing_fills_in_token_types_where_only_some_have_them(make_sequences: MakeSequences) -> None:
    sequences = make_sequences([1, 2], [3, 4])
    sequences[1].token_type_ids = np.array([0, 1], np.int32)
    types = pack(sequences).token_type_ids
    assert types is not None
    assert types.tolist() == [0, 0, 0, 1]


def test_the_probe_is_one_token(make_sequences: MakeSequences) -> None:
    probe = PackedBatch.probe(make_sequences([1])[0].options)
    assert (probe.token_ids.tolist(), probe.cu_seqlens.tolist(), probe.max_seqlen) == ([0], [0, 1], 1)
