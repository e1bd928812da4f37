"""The demo: Banking77 messages through the whole path on one machine."""
