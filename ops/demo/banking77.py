"""The demo's data: 3,080 customer messages with their intents, and the head that tells the 77 intents apart."""

import csv
from dataclasses import dataclass
from pathlib import Path

TEST_CSV = Path(__file__).with_name("banking77_test.csv")
HEAD = Path(__file__).with_name("banking77_head.safetensors")


@dataclass(frozen=True, slots=True)
class Message:
    """One customer message and the intent that people gave it."""

    text: str
    category: str


def read_messages(path: Path = TEST_CSV) -> list[Message]:
    """The messages of a Banking77 CSV file, in its order.

    Raises:
        ValueError: the file lacks the columns `text` and `category`, or holds no message.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if not {"text", "category"} <= set(rows.fieldnames or ()):
            raise ValueError(f"{path} must have the columns text and category. Found: {rows.fieldnames}")
        messages = [Message(row["text"], row["category"]) for row in rows]
    if not messages:
        raise ValueError(f"{path} holds no message.")
    return messages
