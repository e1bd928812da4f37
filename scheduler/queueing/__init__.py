"""The queue of jobs, and estimates of the work in it."""
