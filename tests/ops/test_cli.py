"""The command line: help, errors of one sentence, exit codes."""

import asyncio
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pytest
import structlog
from aiokafka import AIOKafkaProducer
from typer.testing import CliRunner

from penstock.ops.cli import terminal
from penstock.ops.cli.command_settings import settings_by_command
from penstock.ops.cli.development.broker import default_port
from penstock.ops.cli.jobs import task_commands
from penstock.ops.cli.jobs.job_settings import FileJobSettings
from penstock.ops.cli.main import COMMANDS, EPILOG, app
from penstock.ops.cli.option_panels import panel_of
from penstock.ops.cli.setting_options import option_name
from penstock.ops.kafka import MockBroker
from penstock.ops.kafka.ports import ReservedPorts
from penstock.producer import Client
from penstock.producer.errors import Overloaded
from penstock.producer.settings_sources import LISTS
from penstock.producer.wire.messages import Options
from penstock.worker.routes.settings import RouteFields
from tests.ops.command_line import penstock

NO_BROKER = {"PENSTOCK_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
IMPATIENT = """
from penstock.ops.cli.jobs import progress
from penstock.ops.cli.main import main
progress.STALLED_AFTER_S = 0.2
main()
"""
REPLAY = ["replay", "--topic", "t", "--partition", "0", "--from", "5"]


class TestHelp:
    def test_overview_names_every_command(self) -> None:
        code, text = penstock("--help")
        assert code == 0
        assert all(f"{name} {line}" in text for name, line in COMMANDS.items())

    def test_nothing_given_shows_the_overview(self) -> None:
        assert "Usage: penstock" in penstock()[1]

    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_command_explains_itself(self, command: str) -> None:
        code, text = penstock(command, "--help")
        assert code == 0
        assert f"Usage: penstock {command}" in text
        assert (EPILOG in text) == (command in settings_by_command())

    def test_choices_of_a_setting_without_a_default_are_listed(self) -> None:
        text = penstock("embed", "--help")[1]
        assert "of standard input and output and of .jsonl files; for penstock embed. (csv, jsonl, openai)" in text
        assert "(cls, mean, max, last)" in text

    def test_the_demo_says_where_its_model_comes_from(self) -> None:
        assert "the model comes with the `demo` extra" in penstock("demo", "--help")[1]

    def test_a_setting_of_several_kinds_names_them(self) -> None:
        assert "--processes N|auto" in penstock("worker", "--help")[1]

    def test_overview_loads_nothing_heavy(self) -> None:
        code = (
            "import sys; from penstock.ops.cli.main import app; app(['--help'], standalone_mode=False);"
            "heavy = {'torch', 'numpy', 'aiokafka', 'pydantic', 'pyarrow', 'structlog'} & set(sys.modules);"
            "sys.exit(f'loaded: {heavy}' if heavy else 0)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr

    @pytest.mark.slow
    def test_a_wrong_model_is_told_before_torch_is_imported(self) -> None:
        """Which takes seconds."""
        commands = [
            ("worker", "--model", "./nope"),
            ("calibrate", "--model", "./nope"),
            ("parity", "./nope"),
            ("dlq", "answer", "--model", "./nope"),
            ("classify", "--local", "--model", "./nope", "--text", "a text"),
        ]
        code = (
            "import sys; from penstock.ops.cli.main import app\n"
            f"for args in {commands!r}:\n"
            "    print(app(args, standalone_mode=False), 'torch' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
        assert done.stderr.count("'./nope' is not a directory") == len(commands)
        assert "Starting" not in done.stderr
        outcomes = [line.split() for line in done.stdout.splitlines()]
        assert [(int(code) > 0, loaded) for code, loaded in outcomes] == [(True, "False")] * len(commands)

    def test_version(self) -> None:
        code, text = penstock("--version")
        assert (code, text) == (0, "penstock 0.1.0")


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[FileJobSettings, str, Options]]:
    """Arguments of the calls of `run_job`, which runs nothing here."""
    called: list[tuple[FileJobSettings, str, Options]] = []

    def run_job(task: str, settings: FileJobSettings, options: Options, *rest: object) -> int:
        called.append((settings, task, options))
        return 0

    monkeypatch.setattr(task_commands, "run_job", run_job)
    return called


@pytest.mark.parametrize(
    ("args", "options"),
    [
        (("embed",), Options()),
        (("embed", "--prompt-name", "q", "--dimensions", "256"), Options(prompt_name="q", dimensions=256)),
        (("embed", "--prompt", "q: "), Options(prompt="q: ")),
        (("embed", "--prompt", ""), Options(prompt="")),
        (("embed", "--embedding", "sparse", "--prompt-name", "q", "--top-k", "9"), Options(top_k=9, prompt_name="q")),
        (("embed", "--embedding", "tokens"), Options()),
        (("embed", "--embedding", "all", "--truncate"), Options(truncate=True)),
        (("generate",), Options(generation=())),
        (
            ("generate", "--seed", "0", "--do-sample"),  # 0 and off are sent
            Options(generation=(("do_sample", True), ("seed", 0))),
        ),
        (
            ("generate", "--length-penalty", "0", "--num-beams", "4"),
            Options(generation=(("length_penalty", 0.0), ("num_beams", 4))),
        ),
        (("generate", "--top-k", "0"), Options(generation=(("top_k", 0),))),
        (("generate", "--no-do-sample"), Options(generation=(("do_sample", False),))),
    ],
)
def test_options_of_the_request_are_those_of_the_command_line(
    jobs: list[tuple[FileJobSettings, str, Options]], args: tuple[str, ...], options: Options
) -> None:
    assert penstock(*args, "--model", "m", "--text", "x")[0] == 0
    task = f"embed_{args[2]}" if "--embedding" in args else args[0]
    assert [(asked, given) for _, asked, given in jobs] == [(task, options)]


def test_an_instruction_is_a_prompt_of_rerank(jobs: list[tuple[FileJobSettings, str, Options]]) -> None:
    assert penstock("rerank", "--model", "m", "in.csv", "out.csv", "--prompt", "find")[0] == 0
    assert [(task, given) for _, task, given in jobs] == [("rerank", Options(prompt="find"))]


@pytest.mark.parametrize("model", ["/models/org/nobody/", "org/nobody", "nobody"])
def test_the_variable_that_names_a_workers_checkpoint_names_its_model(
    jobs: list[tuple[FileJobSettings, str, Options]], model: str
) -> None:
    assert penstock("embed", "--text", "x", env={"PENSTOCK_MODEL": model})[0] == 0
    assert [settings.served_name for settings, _, _ in jobs] == ["nobody"]


class TestBadUsage:
    @pytest.mark.parametrize(
        ("args", "env", "says"),
        [
            (["nope"], {}, "No such command 'nope'"),
            (["worker"], {}, "Missing option '--model' (env var: 'PENSTOCK_MODEL')"),
            (["worker", "--nope"], {}, "No such option: --nope"),
            (
                ["worker", "--model", "m", "--lanes", "0"],
                {},
                "--lanes (or PENSTOCK_LANES): Input should be greater than or equal to 1. Given: '0'",
            ),
            (["worker"], {"PENSTOCK_MODEL": "m", "PENSTOCK_SLO_MS": "fast"}, "--slo-ms (or PENSTOCK_SLO_MS)"),
            (
                ["worker", "--model", "m", "--dtype", "int4"],
                {},
                "'auto', 'auto-int8', 'float32', 'bfloat16', 'float16' or 'int8'. Given: 'int4'",
            ),
            (
                ["worker", "--model", "m", "--reply-topics", "("],
                {},
                "--reply-topics (or PENSTOCK_REPLY_TOPICS): must be a regular expression: missing ), unterminated "
                "subpattern at position 0. Given: '('",
            ),
            (
                ["check", "--topic", "a b"],
                {},
                "--topic (or PENSTOCK_TOPIC): must be 1 to 232 letters, digits, dots, underscores and dashes. "
                "Given: 'a b'",
            ),
            (["embed", "--model", "m", "--reply-topic", "..", "--text", "x"], {}, "--reply-topic (or PENSTOCK_REPLY"),
            (["embed", "--model", "", "--text", "x"], {}, "--model (or PENSTOCK_MODEL): must be 1 to 214 characters"),
            (["embed", "--model", "m", "--no-batch-calls", "--text", ""], {}, "Error: empty: Text 0 is empty."),
            (["embed", "--text", "x"], {"PENSTOCK_MODEL": ""}, "Missing option '--model'"),
            (["broker", "--kind", "rabbit"], {}, "--kind (or PENSTOCK_KIND)"),
            (["classify", "--model", "m"], {}, "Give a file to read and a file to write, or one --text."),
            (["classify", "--model", "m", "in.csv"], {}, "Give a file to read and a file to write"),
            (["embed", "--model", "m", "in.csv", "out.csv", "--text", "x"], {}, "Give a file to read and a file"),
            (["embed", "--model", "m", "--pooling", "median", "--text", "x"], {}, "--pooling (or PENSTOCK_POOLING)"),
            (["embed", "--model", "m", "--dimensions", "0", "--text", "x"], {}, "--dimensions (or PENSTOCK_DIM"),
            (["embed", "--model", "m", "--top-k", "9", "--text", "x"], {}, "--top-k needs --embedding sparse or"),
            (
                ["embed", "--model", "m", "--embedding", "tokens", "--pooling", "cls", "--text", "x"],
                {},
                "`pooling` is an option of `embed`, not of `embed_tokens`",
            ),
            (
                ["embed", "--model", "m", "--embedding", "sparse", "--vectors", "binary", "--text", "x"],
                {},
                "`dtype` 'binary' is for the vectors of `embed`",
            ),
            (
                ["embed", "--model", "m", "--prompt", "q: ", "--prompt-name", "query", "--text", "x"],
                {},
                "give at most one of --prompt-name and --prompt",
            ),
            (
                ["rerank", "--model", "m", "--prompt", "q: ", "--prompt-name", "query", "in.csv", "out.csv"],
                {},
                "give at most one of --prompt-name and --prompt",
            ),
            (
                ["dlq", "replay", "--model", "m", "--to-reply-topic", "a b"],
                NO_BROKER,
                "Error: --to-reply-topic must be 1 to 249 letters, digits, dots, underscores and dashes. Given: 'a b'",
            ),
            ([*REPLAY, "--to-reply-topic", "a/b"], NO_BROKER, "--to-reply-topic must be 1 to 249 letters"),
            ([*REPLAY, "--to-reply-partition", "1"], NO_BROKER, "Give --to-reply-topic with --to-reply-partition."),
            ([*REPLAY, "--to", "4"], NO_BROKER, "--to must not be before --from, which is 5. Given: 4"),
            (
                ["dlq", "replay", "--model", "m", "--from", "5", "--to", "4"],
                NO_BROKER,
                "--to must not be before --from",
            ),
            (["dlq", "ls", "--model", "m", "--from", "5", "--to", "4"], NO_BROKER, "--to must not be before --from"),
            (["dlq", "show", "--model", "m", "seven"], NO_BROKER, "An id is PARTITION:OFFSET"),
            (
                ["replay", "--topic", "t.dead-letter", "--partition", "0", "--from", "0"],
                NO_BROKER,
                "t.dead-letter holds dead letters, which `penstock dlq replay` sends again.",
            ),
            (["dlq", "ls"], NO_BROKER, "Give --model or --topic."),
            (["dlq", "answer"], NO_BROKER, "Missing option '--model'"),
            (
                ["dlq", "answer", "--model", "null", "--to-reply-partition", "1"],
                NO_BROKER,
                "Give --to-reply-topic with --to-reply-partition.",
            ),
        ],
    )
    def test_one_sentence_and_exit_code_2(self, args: list[str], env: Mapping[str, str], says: str) -> None:
        code, text = penstock(*args, env=env)
        assert says in text
        assert code == 2
        assert "Traceback" not in text

    def test_every_bad_option_is_named_at_once(self) -> None:
        _, text = penstock("worker", "--model", "m", "--lanes", "x", "--slo-ms", "-1")
        assert "--lanes" in text
        assert "--slo-ms" in text


def raising(error: BaseException) -> int:
    raise error


class TestExitCodes:
    @pytest.mark.parametrize(
        ("body", "sentence"),
        [
            (lambda: raising(Overloaded("Try later.")), "Try later."),
            (lambda: len(Path("/nowhere/gone").read_text()), "/nowhere/gone: No such file or directory"),
            (
                lambda: Path("/dev/full").write_text("text"),
                "The output cannot be written: No space left on device.",
            ),
            (
                lambda: raising(ModuleNotFoundError("No module named 'torch'", name="torch")),
                "This needs torch, which is not installed: pip install 'penstock[worker]'",
            ),
        ],
    )
    def test_our_errors_files_and_missing_libraries_are_a_sentence(
        self, capsys: pytest.CaptureFixture[str], body: Callable[[], int], sentence: str
    ) -> None:
        assert terminal.exit_code_of(body) == terminal.EXIT_PROBLEM
        assert capsys.readouterr().err == f"Error: {sentence}\n"

    def test_ctrl_c(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert terminal.exit_code_of(lambda: raising(KeyboardInterrupt())) == 130
        assert capsys.readouterr().err == "Stopped.\n"

    def test_a_bug_keeps_its_traceback(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert terminal.exit_code_of(lambda: 1 // 0) == terminal.EXIT_BUG
        err = capsys.readouterr().err
        assert "ZeroDivisionError" in err
        assert "This is a bug." in err


@pytest.fixture
def log() -> Iterator[Any]:
    """A logger whose events a command narrates."""
    before = structlog.get_config()
    terminal.narrate_logs("kafka:9092")
    yield structlog.get_logger()
    structlog.configure(**before)


def test_topics_that_a_command_creates_are_printed(capsys: pytest.CaptureFixture[str], log: Any) -> None:
    log.info("topics_not_created", topics=["elsewhere"], reason="no controller")
    log.info("topics_created", topics=[], refused={"denied": 29})
    log.info("topics_created", topics=["here", "there"], refused={})
    assert capsys.readouterr().err == "Created topics: here, there.\n"


def test_a_lost_broker_and_its_return_are_printed_once_each(capsys: pytest.CaptureFixture[str], log: Any) -> None:
    log.warning("kafka_unreachable", error="no answer in 5 s")
    log.warning("kafka_unreachable", error="refused")
    log.info("kafka_back")
    assert capsys.readouterr().err.splitlines() == [
        "Kafka at kafka:9092 does not answer yet. Trying again; Ctrl-C ends.",
        "Kafka at kafka:9092 is back.",
    ]


def test_a_closed_stderr_does_not_change_the_exit_code() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = "from penstock.ops.cli.main import main; main()"
    command = [sys.executable, "-c", code, "classify", "--model", "m", "missing.csv", "out.csv"]
    done = subprocess.run(command, stderr=writer)
    os.close(writer)
    assert done.returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_whose_metrics_port_is_taken_says_so_before_any_member_starts(processes: str) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-c", "from penstock.ops.cli.main import main; main()", "worker", "--model", "null"]
        done = subprocess.run(
            [*command, "--bootstrap-servers", "127.0.0.1:1", "--metrics-port", str(port), "--processes", processes],
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 3
    assert (
        done.stderr.splitlines()[-1] == f"Error: --metrics-host 127.0.0.1 --metrics-port {port}: Address already in use"
    )
    assert "Traceback" not in done.stderr
    assert "member_started" not in done.stderr


class Process:
    """`penstock` as a process of its own, to be interrupted. A job is stalled when it has no answer for 0.2 s."""

    def __init__(self, *args: str) -> None:
        # As a script's `penstock … &`: there a shell has SIGINT ignored, which a child inherits.
        in_background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
        self.process = subprocess.Popen(
            [*in_background, sys.executable, "-c", IMPATIENT, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said = ""

    @property
    def _stdin(self) -> IO[str]:
        if self.process.stdin is None:
            raise RuntimeError("No pipe. This is a bug.")
        return self.process.stdin

    def give(self, text: str) -> None:
        """Write to its standard input, which stays open."""
        self._stdin.write(text)
        self._stdin.flush()

    def wait_until_it_has_read(self) -> None:
        while fcntl.ioctl(self._stdin, termios.FIONREAD, b"\0" * 4) != b"\0" * 4:
            time.sleep(0.05)

    def wait_for(self, words: str) -> None:
        if self.process.stdout is None:
            raise RuntimeError("No pipe. This is a bug.")
        for line in self.process.stdout:
            self.said += line
            if words in line:
                return
        raise AssertionError(f"never said {words!r}:\n{self.said}")

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        returncode = self.process.wait(timeout=300)
        rest, _ = self.process.communicate()
        self.said += rest
        return returncode


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for running in started:
        running.process.kill()
        running.process.communicate()


def test_a_broker_has_the_port_of_a_client_without_settings_if_it_is_free() -> None:
    client = Client(model="m")
    assert client._settings.bootstrap_servers == f"localhost:{default_port(lambda port: True)}"
    assert default_port(lambda port: False) is None


def test_a_broker_at_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, text = penstock("broker", "--port", str(port))
    assert (code, text) == (1, f"Error: Port {port} of 127.0.0.1 is taken. Give another --port, or none.")


def test_broker_until_ctrl_c(processes: list[Process]) -> None:
    ports = ReservedPorts(1)
    (port,) = ports.numbers
    processes.append(running := Process("broker", "--port", str(port)))
    running.wait_for(f"Kafka is at 127.0.0.1:{port}")
    ports.release()
    running.wait_for("for development only")
    running.wait_for(f"export PENSTOCK_BOOTSTRAP_SERVERS=127.0.0.1:{port}")
    running.wait_for("export PENSTOCK_FETCH_MAX_WAIT_MS=5")
    running.wait_for("Ctrl-C stops it.")
    assert running.interrupt() == 130
    assert "Traceback" not in running.said


def test_waits_for_a_broker_that_is_down_and_ends_on_ctrl_c(processes: list[Process]) -> None:
    processes.append(running := Process("embed", "--model", "m", "--text", "x", "--bootstrap-servers", "127.0.0.1:1"))
    running.wait_for("Kafka at 127.0.0.1:1 does not answer yet. Trying again; Ctrl-C ends.")
    assert running.interrupt() == 130
    assert "Traceback" not in running.said
    assert running.said.count("does not answer") == 1


def test_records_of_a_bulk_topic_are_replayed_to_it() -> None:
    with MockBroker() as broker:
        asyncio.run(send_one("t.bulk", broker.bootstrap_servers))
        args = ("--topic", "t.bulk", "--partition", "0", "--from", "0", "--to-bulk")
        code, text = penstock("replay", *args, "--bootstrap-servers", broker.bootstrap_servers)
    assert "Would send 1 record to t.bulk. This was a dry run." in text
    assert code == 0


async def send_one(topic: str, servers: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        await producer.send_and_wait(topic, b"value", partition=0)


@pytest.mark.slow
def test_a_job_that_is_terminated_says_so_and_leaves_nothing(processes: list[Process], tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\nhello\n")
    with MockBroker() as broker:
        files = str(tmp_path / "in.csv"), str(tmp_path / "out.csv")
        args = ("embed", "--model", "m", *files, "--wait", "--bootstrap-servers", broker.bootstrap_servers)
        processes.append(running := Process(*args))
        running.wait_for("No answer for a while.")  # by then it is in the midst of it
        assert len(list(tmp_path.iterdir())) == 2
        assert running.interrupt(signal.SIGTERM) == 143
    assert running.said.endswith(f"{tmp_path}/out.csv was not written.\nStopped.\n")
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_waits_for_standard_input_can_be_ended(
    processes: list[Process], tmp_path: Path, number: signal.Signals
) -> None:
    with MockBroker() as broker:
        args = ("embed", "--model", "m", "-", str(tmp_path / "out.csv"), "--format", "csv", "--wait")
        processes.append(running := Process(*args, "--bootstrap-servers", broker.bootstrap_servers))
        running.give("text\n" + "hello\n" * 600)  # more than a block: the next one is awaited
        running.wait_for("No answer for a while.")
        running.wait_until_it_has_read()
        assert running.interrupt(number) == 128 + number
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_look_at_logs_that_waits_for_standard_input_can_be_ended(
    processes: list[Process], number: signal.Signals
) -> None:
    processes.append(running := Process("logs", "summary", "-"))
    running.give('{"event": "stopped"}\n')
    running.wait_until_it_has_read()
    assert running.interrupt(number) == 128 + number


@pytest.mark.integration
def test_a_real_broker_that_is_terminated_leaves_no_data(
    processes: list[Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    processes.append(running := Process("broker", "--kind", "kafka"))
    running.wait_for("Ctrl-C stops it.")
    assert [path.name[:15] for path in tmp_path.glob("penstock-*")] == ["penstock-kafka-"]
    assert running.interrupt(signal.SIGTERM) == 143
    assert not list(tmp_path.glob("penstock-*"))


@pytest.mark.integration
def test_a_real_broker_that_is_killed_ends_its_command(processes: list[Process]) -> None:
    processes.append(running := Process("broker", "--kind", "kafka"))
    running.wait_for("Ctrl-C stops it.")
    pid = running.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    (java,) = [int(child) for child in children if Path(f"/proc/{child}/comm").read_text("utf-8") == "java\n"]
    os.kill(java, signal.SIGKILL)
    running.wait_for("Kafka has ended by itself")
    assert running.process.wait(timeout=300) == 1


@pytest.mark.slow
def test_no_answer_to_one_text_asks_for_a_worker() -> None:
    with MockBroker() as broker:
        code, text = penstock(
            *("embed", "--model", "nobody", "--text", "x", "--timeout-s", "3"),
            *("--bootstrap-servers", broker.bootstrap_servers),
        )
    assert code == 1
    assert "expired" in text
    assert "Is a worker for 'nobody' running?" in text


def help_of(*command: str) -> str:
    return CliRunner().invoke(app, [*command, "--help"], color=False).output


def helps(*command: str) -> Iterator[str]:
    """The help of a command and those under it."""
    text = help_of(*command)
    yield text
    for name in re.findall(r"^│ (\S+)", text.partition("─ Commands ─")[2], re.MULTILINE):
        yield from helps(*command, name)


class TestTerminal:
    """The look of `--help` on a terminal of 80 columns, and the words that a shell completes."""

    @pytest.fixture(autouse=True)
    def narrow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")

    def test_settings_of_one_purpose_stand_together(self) -> None:
        titles = re.findall(r"^╭─ (.+?) ─", help_of("worker"), re.MULTILINE)
        assert titles == [
            *(
                "Options",
                "Model",
                "Members",
                "Batching and deadlines",
                "Route",
                "Schema registry",
                "Kafka",
                "Delivery",
                "Cache",
                "Logs and metrics",
            ),
            "Security",
        ]
        assert {panel_of(setting) for setting in RouteFields.model_fields} == {"Route"}

    @pytest.mark.parametrize("command", COMMANDS)
    def test_help_cuts_nothing_and_leaves_room_for_descriptions(self, command: str) -> None:
        for text in [help_of(), *helps(command)]:
            assert "…" not in text
            for panel in text.split("╭")[1:]:
                before = max(len(edge) for edge in re.findall(r"^│ +", panel, re.MULTILINE))
                assert 80 - before - len(" │") >= 25, panel

    @pytest.mark.slow
    def test_a_command_without_settings_has_the_same_tables(self) -> None:
        command = [sys.executable, "-m", "penstock", "logs", "slow", "--help"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert re.search(r"^│ --count  .+\n│ -n ", shown, re.MULTILINE), shown

    @pytest.mark.parametrize("command", settings_by_command())
    def test_names_and_words_of_settings_are_whole(self, command: str) -> None:
        text = help_of(*command.split())
        for name, field in settings_by_command()[command].model_fields.items():
            if name in LISTS:  # of tables, which a file alone has
                continue
            names = [option_name(name)] + [f"--no-{option_name(name)[2:]}"] * (field.annotation is bool)
            for one in names:
                assert re.search(rf"^│[ *]+{one} ", text, re.MULTILINE), one
            assert field.description, f"{name} has no description"
            assert set(field.description.split()) <= set(text.split()), name

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("words", "wanted"),
        [("penstock cl", "classify"), ("penstock worker --mo", "--model"), ("penstock dlq re", "replay")],
    )
    def test_a_shell_completes_commands_and_their_options(self, words: str, wanted: str) -> None:
        completing = {"_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        code = "from penstock.ops.cli.main import main; main()"
        environment = os.environ | completing
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert wanted in done.stdout.split()
