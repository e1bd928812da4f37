"""Routes as data: their settings, where a record has its text and its result, and the formats of records."""
