"""Options of `penstock replay` that do not go together are refused before a broker is asked."""

import pytest

from penstock.ops.cli.terminal import EXIT_USAGE
from tests.ops.command_line import penstock


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ([], "Give --topic, --partition and --from; or --route."),
        (["--topic", "t", "--from", "3"], "Give --topic, --partition and --from; or --route."),
        (
            ["--topic", "t", "--partition", "0", "--from", "3", "--to", "2"],
            "--to must not be before --from, which is 3.",
        ),
        (["--topic", "t", "--partition", "0", "--from", "3", "--resume"], "--group-id and --resume go with --route."),
        (["--topic", "t.dead-letter", "--partition", "0", "--from", "3"], "which `penstock dlq replay` sends again"),
        (["--route", "a/b", "--group-id", "g"], "--route must be 1 to"),
        (["--route", "orders"], "--route needs --group-id"),
        (["--route", "orders", "--group-id", "g", "--from", "3"], "give --partition"),
        (["--route", "orders", "--group-id", "g", "--topic", "orders"], "--route goes with"),
        (["--route", "orders", "--group-id", "g", "--to-bulk"], "--route goes with"),
        (["--route", "orders", "--group-id", "g", "--max-replays", "7"], "--route goes with"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str], fault: str) -> None:
    code, text = penstock("replay", *arguments, "--bootstrap-servers", "127.0.0.1:1")
    assert (code, fault in text) == (EXIT_USAGE, True), text
