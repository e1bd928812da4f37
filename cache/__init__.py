"""The response cache: aiosqlite, batched look-ups, strong keys, never in the way of an answer."""

from penstock.cache.key import KEY_BYTES, KeySpace
from penstock.cache.single_flight import SingleFlight
from penstock.cache.store import CacheStats, ResponseCache

__all__ = ["KEY_BYTES", "CacheStats", "KeySpace", "ResponseCache", "SingleFlight"]
