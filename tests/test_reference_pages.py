"""Pages of the manual that are made from the software name all of it."""

import penstock
from penstock.ops.cli.command_settings import settings_by_command
from penstock.ops.cli.setting_options import option_name
from penstock.ops.figures import reference_pages as reference
from penstock.producer.settings import ClientSettings
from penstock.producer.settings_sources import LISTS
from penstock.worker.settings import WorkerSettings


def test_the_command_line_with_every_option() -> None:
    sections = dict(part.split("\n", 1) for part in reference.command_line().replace("\n### ", "\n## ").split("\n## "))
    commands = settings_by_command()
    assert {"worker", "embed", "dlq answer"} <= commands.keys()
    for command, settings in commands.items():
        shown = sections[f"penstock {command}"]
        options = settings.model_fields.keys() - LISTS
        assert [name for name in options if option_name(name) not in shown] == []


def test_every_setting() -> None:
    page = reference.settings()
    for settings in (ClientSettings, WorkerSettings):
        assert [name for name in settings.model_fields if f"| `{name}` |" not in page] == ["config"]


def test_every_public_name_and_method() -> None:
    page = reference.python()
    assert [name for name in penstock.__all__ if name[0].isupper() and f"## {name}\n" not in page] == []
    of_client = page.partition("## Client\n")[2].partition("\n## ")[0]
    for method in (
        "embed",
        "embed_sparse",
        "embed_tokens",
        "embed_all",
        "classify",
        "rerank",
        "generate",
        "stream",
        "sequence",
        "token_classify",
        "map",
        "map_rows",
    ):
        assert f"async def {method}(" in of_client
