"""Rows in, rows out for bulk jobs: .csv, .jsonl and .parquet, streamed in bounded memory, order kept.

    with open_reader("in.csv", "text") as reader, open_writer("out.csv", reader, "classify") as writer:
        for block in reader:
            writer.write(block, results_of(block.texts))

The output has the input's columns as they were read, then the results':

    embed      embedding (list of float32; JSON text in CSV), error
    classify   label, score, and with top_k other than 1 also labels, scores (lists); error

A broken row (bytes that are not UTF-8, broken quotes, a wrong number of fields, no JSON object, no text) takes part
with its error in place of a text, and ends nothing. Where the input has a column of a result's name already, the
result's is called `penstock_<name>`; in JSONL, whose lines have no common columns, each line decides for itself. For
the same reason JSONL is written as JSONL only; CSV and Parquet can be written as any of the three.

The output appears under its name when it is whole: until then it is a `.partial` file beside it, which is removed when
the job fails.
"""

from penstock.producer.files.table_reader import Block, Reader, TableError, count_rows, open_reader
from penstock.producer.files.table_writer import Writer, open_writer

__all__ = ["Block", "Reader", "TableError", "Writer", "count_rows", "open_reader", "open_writer"]
