"""`penstock demo`: the whole path on one machine."""

from penstock.ops.cli.terminal import ends_with_code


@ends_with_code()
def demo() -> int:
    """Run a broker, a worker and a client on this machine on real texts, and show throughput and latency.

    Needs no running service: the broker is a mock within this process, the model comes with the `demo` extra.
    """
    from penstock.ops.demo.demo import run

    return run()
