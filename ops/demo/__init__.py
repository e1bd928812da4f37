"""The demo: Banking77 messages through broker, worker and client on one machine."""


def run() -> int:
    """Run the demo on the terminal; returns the exit code. See `penstock.ops.demo.demo`."""
    from penstock.ops.demo.demo import run as run_demo  # heavy: rich, the client and the mock broker

    return run_demo()
