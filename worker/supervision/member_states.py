"""States of a supervisor's members, for metrics and probes. Called from other threads than its event loop's."""

from collections import Counter
from collections.abc import Mapping, Sequence

from penstock.worker.supervision.member_slot import STATES, MemberSlot


def ports(slots: Sequence[MemberSlot]) -> Mapping[int, int]:
    """The metrics ports of the members that run."""
    members = [slot.member for slot in slots if slot.member is not None]
    return {m.placement.worker: m.report.metrics_port for m in members if m.report.metrics_port and m.is_running}


def states(slots: Sequence[MemberSlot], num_standbys: int, given_up: Counter[str]) -> Mapping[str, int]:
    """Number of members in each state; `given_up` is by device."""
    counts = Counter(slot.state for slot in slots)
    return dict.fromkeys(STATES, 0) | counts | {"standby": num_standbys, "given_up": given_up.total()}


def not_serving(slots: Sequence[MemberSlot], given_up: Counter[str]) -> str:
    """Why members that should serve do not; empty if all do."""
    wanted = sorted((slot for slot in slots if not slot.is_dropped), key=lambda slot: slot.placement.worker)
    idle = [f"worker {slot.placement.worker} is {slot.state}" for slot in wanted if slot.state != "serving"]
    denied = sorted({slot.member.report.denied for slot in wanted if slot.member is not None} - {""})
    reasons = [f"{device} is given up" for device in sorted(given_up)] + idle + denied
    return "; ".join(reasons) if wanted else "no member is left"
