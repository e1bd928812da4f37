"""Pauses of a broker's collector, from the lines that OpenJDK 17 writes."""

from datetime import UTC, datetime
from pathlib import Path

from penstock.ops.bench.pipeline.broker_pauses import LOG_PAUSES, broker_pauses
from penstock.ops.kafka import FULL_SPEED, KafkaBroker

LINES = """\
2026-11-23T16:26:30.001 [main] INFO kafka.server.KafkaRaftServer - started
[2026-11-23T16:26:29.999+0000] GC(0) Pause Young (Normal) (G1 Evacuation Pause) 25M->5M(512M) 4.211ms
[2026-11-23T16:26:31.250+0000] GC(1) Pause Young (Concurrent Start) (Metadata GC Threshold) 60M->9M(512M) 12.5ms
[2026-11-23T16:26:31.260+0000] GC(2) Concurrent Mark Cycle 10.008ms
[2026-11-23T16:26:33.500+0000] GC(2) Pause Remark 30M->30M(512M) 1.750ms
[2026-11-23T16:26:40.000+0000] GC(3) Pause Young (Normal) (G1 Evacuation Pause) 300M->50M(512M) 31.0ms
"""


def test_pauses_of_a_load_have_its_clock(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    log.write_text(LINES)
    begun = datetime(2026, 11, 23, 16, 26, 30, tzinfo=UTC).timestamp()
    assert broker_pauses(log, begun, begun + 10) == [{"at_s": 1.25, "ms": 12.5}, {"at_s": 3.5, "ms": 1.75}]


def test_a_broker_with_the_option_logs_them() -> None:
    with KafkaBroker(num_partitions=1, jvm_flags=(*FULL_SPEED, LOG_PAUSES)) as broker:
        assert broker_pauses(broker.log_path, 0.0, float("inf"))  # its start collects garbage
