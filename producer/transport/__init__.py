"""Transport: acknowledged sends, correlation of replies, batching of calls into records."""
