"""What a client imports: the wire format, the error tree, the async Client, tokenization and bulk jobs."""
