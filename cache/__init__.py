"""SQLite files that are kept between runs: cached answers and measured costs. Their failure fails no request."""

from penstock.cache.cost_tables import CostKey, CostTables
from penstock.cache.key import KEY_BYTES, KeySpace
from penstock.cache.store import CacheStats, ResponseCache

__all__ = ["KEY_BYTES", "CacheStats", "CostKey", "CostTables", "KeySpace", "ResponseCache"]
