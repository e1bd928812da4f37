"""The emulated device: the seconds of its table, batches in turn, two in flight."""

import numpy as np

from penstock.engine.types import PackedBatch, PipelinedEngine, TaskOptions
from penstock.ops.bench.serving.emulated_device import EmulatedEngine
from penstock.scheduler import CostTable, PackedCost


def test_batches_take_what_the_table_says_and_queue_behind_each_other() -> None:
    engine = EmulatedEngine(CostTable(PackedCost(0.0, 0.05, 0.0, 0.0)), stall_every=0)
    assert isinstance(engine, PipelinedEngine)
    options = (TaskOptions("embed"),) * 2
    batch = PackedBatch(np.zeros(5, np.int32), np.array([0, 2, 5], np.int32), 3, None, options)
    first, second = engine.start(batch), engine.start(batch)
    outputs = [first.result(), second.result()]
    assert [len(output.rows) for output in outputs] == [2, 2]
    assert all(output.device_s >= 0.0499 for output in outputs)
    assert second.started >= first.ended
