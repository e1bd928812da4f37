"""The demo: Banking77 messages through broker, worker and client on one machine."""
