"""The response cache: aiosqlite, batched look-ups, strong keys, never in the way of an answer."""
