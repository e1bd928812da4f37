"""The demo's data: 3,080 customer messages with their intents, and a head that classifies the 77 intents."""

import csv
from dataclasses import dataclass
from pathlib import Path

TEST_CSV = Path(__file__).with_name("banking77_test.csv")
HEAD = Path(__file__).with_name("banking77_head.safetensors")


@dataclass(frozen=True, slots=True)
class Message:
    """One customer message and its annotated intent."""

    text: str
    category: str


def read_messages(path: Path = TEST_CSV) -> list[Message]:
    """Read the messages of a Banking77 CSV file, in file order.

    Raises ValueError if the columns `text` and `category` are missing, or the file holds no message.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if not {"text", "category"} <= set(rows.fieldnames or ()):
            raise ValueError(f"{path} must have the columns text and category. Found: {rows.fieldnames}")
        messages = [Message(row["text"], row["category"]) for row in rows]
    if not messages:
        raise ValueError(f"{path} holds no message.")
    return messages
