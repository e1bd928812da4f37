"""Where the host's time goes: seconds of a generator's calls of its device, by what they do."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from penstock.engine.gpu.generation.seq2seq import GpuSeq2Seq


class Phases:
    """Times calls of one device from its creation on. What is neither launch, opening nor wait is the host's alone."""

    def __init__(self, device: GpuSeq2Seq) -> None:
        self.seconds = {"encode_launch": 0.0, "encode_open": 0.0, "decode_launch": 0.0, "decode_wait": 0.0}
        search: Any = device.search
        for owner, method, name in (
            (device, "encode", "encode_launch"),
            (search, "open", "encode_open"),
            (search, "launch", "decode_launch"),
            (search, "wait", "decode_wait"),
        ):
            setattr(owner, method, self._timed(getattr(owner, method), name))

    def since(self, before: Mapping[str, float], elapsed: float) -> dict[str, float]:
        """Shares of a time that has passed since `seconds` was `before`."""
        return {f"{name}_share": (seconds - before[name]) / elapsed for name, seconds in self.seconds.items()}

    def _timed(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self.seconds[name] += time.perf_counter() - began

        return timed
