"""The load generator of all suites: client processes that offer closed and open loops together, and what they saw."""
