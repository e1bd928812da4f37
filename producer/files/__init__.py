"""Bulk jobs over CSV, JSONL and Parquet files."""
