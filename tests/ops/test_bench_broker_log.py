"""A broker's log tells of pauses and segments, by lines that OpenJDK 17 and Kafka 4.1 write; its stalls are seen."""

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import Producer

from penstock.ops.bench.pipeline.broker_log import LOG_PAUSES, broker_pauses, segment_changes
from penstock.ops.bench.pipeline.stall_watch import StallWatch
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


SEGMENTS = """\
2026-11-24T05:33:25.898 [data-plane-kafka-request-handler-4] INFO org.apache.kafka.storage.internals.log.LocalLog - \
[LocalLog partition=bulk-3, dir=/data/bulk-3] Rolled new log segment at offset 5593 in 1 ms.
2026-11-24T05:33:25.911 [data-plane-kafka-request-handler-3] INFO org.apache.kafka.storage.internals.log.LocalLog - \
[LocalLog partition=bulk-0, dir=/data/bulk-0] Rolled new log segment at offset 5593 in 2 ms.
2026-11-24T05:33:46.425 [kafka-scheduler-8] INFO org.apache.kafka.storage.internals.log.UnifiedLog - \
[UnifiedLog partition=bulk-0, dir=/data] Deleting segment LogSegment(baseOffset=0
2026-11-24T05:33:47.426 [kafka-scheduler-6] INFO org.apache.kafka.storage.internals.log.LocalLog - \
[LocalLog partition=bulk-0, dir=/data/bulk-0] Deleting segment files LogSegment(baseOffset=0
"""


def test_segments_that_end_or_go_are_counted_together(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    log.write_text(SEGMENTS)
    begun = datetime(2026, 11, 24, 5, 33, 25).timestamp()  # the broker logs local time
    both, last = {"at_s": 0.9, "full": 2, "removed": 0}, {"at_s": 22.4, "full": 0, "removed": 1}
    assert segment_changes(log, begun, begun + 30) == [both, last]
    assert segment_changes(log, begun, begun + 10) == [both]


def test_the_segments_of_a_broker_are_seen() -> None:
    small = {"log.segment.bytes": str(1 << 20)}
    with KafkaBroker(num_partitions=1, config=small) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for _ in range(3):
            producer.produce("some", os.urandom(700_000))
            producer.flush(60)
        assert sum(one["full"] for one in segment_changes(broker.log_path, 0.0, float("inf"))) >= 2


def test_a_broker_that_stands_still_is_seen() -> None:
    with KafkaBroker(num_partitions=1) as broker, StallWatch(broker.bootstrap_servers) as watch:
        start = time.perf_counter()
        broker.suspend()
        time.sleep(0.3)
        broker.resume()
        while not any(stall["ms"] > 200 for stall in watch.stalls_between(start, float("inf"))["broker_stalls"]):
            time.sleep(0.01)


WATCHING = """
import time
from penstock.ops.bench.pipeline.stall_watch import StallWatch
with StallWatch("127.0.0.1:1") as watch:
    start = time.perf_counter()
    print("watching", flush=True)
    input()
    while not any(stall["ms"] > 200 for stall in watch.stalls_between(start, float("inf"))["machine_stalls"]):
        time.sleep(0.01)
print("seen")
"""


def test_a_machine_that_stands_still_is_seen() -> None:
    command = [sys.executable, "-c", WATCHING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "watching\n"
        os.kill(watching.pid, signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(watching.pid, signal.SIGCONT)
        assert watching.communicate("\n", timeout=300)[0] == "seen\n"
