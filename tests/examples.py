"""Numbers of hypothesis examples, which `make quick` bounds also for tests with numbers of their own."""

from hypothesis import settings

QUICK = "quick"
QUICK_EXAMPLES = 20


def examples(count: int) -> int:
    """For `@settings(max_examples=…)`, which would else override the profile of `make quick`."""
    return min(count, QUICK_EXAMPLES) if settings.get_current_profile_name() == QUICK else count
