"""Tables of bulk jobs: .csv, .jsonl and .parquet, streamed in order and in bounded memory. The job is in `file_job`.

    with open_reader("in.csv", "text") as reader, JobOutput(Path("out.csv"), "classify").open(reader) as writer:
        for block in reader:
            writer.write(block, results_of(block.texts))

The output has the input's columns, unchanged, and then the results':

    embed          embedding (list of float32, of fixed size if all have one length; JSON text in CSV), error
    embed_sparse   indices, values (lists of uint32 and float32), error
    embed_tokens   token_embeddings (list of lists of float32), error
    embed_all      the columns of the three
    classify       label, score, and with top_k other than 1 also labels, scores (lists); error
    rerank         score, error

A broken row has an error in place of a text and does not end the job. Such a row has bytes that are not UTF-8, broken
quotes, a wrong number of fields, no JSON object, or no text. If the input has a column of a result's name, the result's
column is named `penstock_<name>`; in JSONL, whose lines have no common columns, this is decided line by line. For the
same reason JSONL can be written as JSONL only. CSV and Parquet can be written as any of the three.

Files of OpenAI's batch API, JSON Lines as well, have a form of their own on both sides (`openai_reader`,
`openai_encoder`).

Rows are written in parts of about 8,192 to the directory OUT.parts beside the output (`part_writer`). The same job,
started again, continues after the last finished part. Parts and row groups have the same bounds in every run, so that
the output has the same bytes. At the end the parts are joined (`join_parts`) and removed. Inputs and outputs may be
objects (`object_path`), whose parts are objects as well (`object_parts`).
"""

from penstock.producer.files.job_output import JobOutput, StreamWriter
from penstock.producer.files.part_writer import PartWriter
from penstock.producer.files.row_blocks import Block, OutputError, TableError
from penstock.producer.files.table_reader import Reader, count_rows, open_reader

__all__ = [
    "Block",
    "JobOutput",
    "OutputError",
    "PartWriter",
    "Reader",
    "StreamWriter",
    "TableError",
    "count_rows",
    "open_reader",
]
