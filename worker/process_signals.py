"""Signals of one worker process: those that drain it, and those of a supervisor, which it ignores."""

import asyncio
import signal
from collections.abc import Callable

import structlog

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_RESIZE_SIGNALS = (signal.SIGTTIN, signal.SIGTTOU)  # of a supervisor

log = structlog.get_logger("penstock.worker")


def ignore_resize_signals() -> None:
    """Keep the signals by which members are added and removed from suspending the process, before it has a loop."""
    for number in _RESIZE_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def handle_stop_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None], *, is_member: bool) -> None:
    """Drain on SIGTERM and SIGINT. A process that `is_member` of none drains on SIGHUP too, and a second signal kills.

    A member's supervisor and the sender of a signal to the whole control group may send it one each.
    """
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, _stop, loop, stop, not is_member)
    if is_member:
        return
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        loop.add_signal_handler(signal.SIGHUP, _stop, loop, stop, False)
    for number in _RESIZE_SIGNALS:
        loop.add_signal_handler(number, _ignore, number)


def _stop(loop: asyncio.AbstractEventLoop, stop: Callable[[], None], second_kills: bool) -> None:
    for number in _STOP_SIGNALS if second_kills else ():
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)
    stop()


def _ignore(number: signal.Signals) -> None:
    log.warning("signal_ignored", signal=number.name, reason="one process has no members to add or to remove")
