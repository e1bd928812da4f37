"""Lines of a broker's server.properties: a KRaft node that is broker and controller."""

from collections.abc import Mapping

# Few partitions: each costs files and start-up time. A cluster of several nodes overrides the replication.
ONE_NODE: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "auto.create.topics.enable": "true",
    "message.max.bytes": str(8 << 20),
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    # Groups form at once; a test can let a dead member or transaction expire within two seconds.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # A killed broker stays registered for this long, and the controller rejects a restarted one meanwhile.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "log.cleaner.dedupe.buffer.size": str(8 << 20),  # the default takes a quarter of the heap
}


def listener_properties(ports: Mapping[str, int], protocols: Mapping[str, str], controller_port: int) -> dict[str, str]:
    """Listeners on 127.0.0.1, by name. `protocols`: of those beside PLAINTEXT."""
    advertised = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    by_name = {"CONTROLLER": "PLAINTEXT", "PLAINTEXT": "PLAINTEXT", **protocols}
    return {
        "listeners": f"{advertised},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": advertised,
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in by_name.items()),
    }
