"""Runs a decoder on mutated samples, and says on which it breaks its contract."""

import random
import resource
import time
from dataclasses import dataclass

from tests.fuzz.decoder import Decoder

_MOST_S = 2.0  # of processor time for one input, which has at most 100 kB
_MOST_BYTES = 256 << 20  # by which the process may grow over a run


@dataclass(frozen=True)
class Fault:
    """An input that a decoder did not take as it should."""

    decoder: str
    value: bytes
    what: str

    def __str__(self) -> str:
        return f"{self.decoder}: {self.what} for {self.value[:200]!r} ({len(self.value)} bytes)"


def fuzz(decoder: Decoder, num_inputs: int, seed: int) -> list[Fault]:
    """The first faults in so many inputs, ten at most."""
    rng, faults = random.Random(f"{decoder.name} {seed}"), list[Fault]()
    for sample in decoder.samples:  # what is compiled at the first call is not timed
        _try(decoder, sample)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(num_inputs):
        value = rng.choice(decoder.mutations)(rng, decoder.samples)
        what = _try(decoder, value)
        if what:
            faults.append(Fault(decoder.name, value, what))
            if len(faults) == 10:
                break
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    if grown > _MOST_BYTES:
        faults.append(Fault(decoder.name, b"", f"{grown >> 20} MiB more memory"))
    return faults


def _try(decoder: Decoder, value: bytes) -> str:
    """The fault; empty if nothing is."""
    started = time.thread_time()
    try:
        decoder.decode(value)
    except decoder.errors:
        pass
    except Exception as error:
        return repr(error)
    took_s = time.thread_time() - started
    return f"{took_s:.1f} s" if took_s > _MOST_S else ""
