"""Jobs of one sequence, of which most tests are."""

from penstock.scheduler import Job


def one_job(number: int, num_tokens: int, arrival: float, deadline: float | None = None, bulk: bool = False) -> Job:
    return Job((number,), (num_tokens,), arrival, deadline, bulk)
