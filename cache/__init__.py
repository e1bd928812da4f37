"""What is kept between runs, in SQLite: answers under strong keys, measured costs. Never in the way of an answer."""

from penstock.cache.cost_tables import CostKey, CostTables
from penstock.cache.key import KEY_BYTES, KeySpace
from penstock.cache.store import CacheStats, ResponseCache

__all__ = ["KEY_BYTES", "CacheStats", "CostKey", "CostTables", "KeySpace", "ResponseCache"]
