"""Access tokens: from a file, a command, a token endpoint or AWS's signer; new ones in time, and in no text."""

import asyncio
import json
import shlex
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from aiokafka.errors import AuthenticationFailedError
from pydantic import ValidationError

from penstock.producer.settings import KafkaSettings
from penstock.producer.transport import token_command
from penstock.producer.transport.access_token import AccessToken, NoToken, read_answer, read_token
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.token_source import TokenSource

OAUTH = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
MSK = {"security_protocol": "SASL_SSL", "sasl_mechanism": "aws_msk_iam"}
HIDDEN = "hunter2-hidden"
CLIENT = {"sasl_oauthbearer_client_id": "me", "sasl_oauthbearer_client_secret": HIDDEN}


def source(given: dict[str, Any]) -> TokenSource:
    """As a worker, a client or a command gets it, given its settings."""
    arguments = KafkaCluster.of(KafkaSettings(**given)).arguments
    assert arguments["sasl_mechanism"] == "OAUTHBEARER"
    provider = arguments["sasl_oauth_token_provider"]
    assert isinstance(provider, TokenSource)
    return provider


async def test_a_token_is_given_to_new_connections_until_it_is_to_be_replaced() -> None:
    now, made = 0.0, 0

    async def request() -> AccessToken:
        nonlocal made
        made += 1
        return AccessToken(f"token-{made}", 80.0)

    tokens = TokenSource(request, lambda: now)
    assert [await tokens.token(), await tokens.token()] == ["token-1", "token-1"]
    now += 79
    assert await tokens.token() == "token-1"
    now += 2
    assert await tokens.token() == "token-2"


class TestFile:
    async def test_it_is_read_for_each_connection(self, tmp_path: Path) -> None:
        path = tmp_path / "a token"
        tokens = source({**OAUTH, "sasl_oauthbearer_token_file": path})
        with pytest.raises(AuthenticationFailedError, match=r"sasl_oauthbearer_token_file: no .* \(No such file"):
            await tokens.token()
        for token in ("one", "two"):
            path.write_text(f"{token}\n")
            assert await tokens.token() == token

    async def test_a_fault_names_the_file_and_quotes_nothing_of_it(self, tmp_path: Path) -> None:
        path = tmp_path / "token"
        path.write_text(f"{HIDDEN} {HIDDEN}")
        with pytest.raises(AuthenticationFailedError, match="characters that no token has") as raised:
            await source({**OAUTH, "sasl_oauthbearer_token_file": path}).token()
        assert HIDDEN not in str(raised.value)
        assert str(path) in str(raised.value)


def command(code: str, *arguments: str) -> TokenSource:
    line = shlex.join([sys.executable, "-c", code, *arguments])
    return source({**OAUTH, "sasl_oauthbearer_token_command": line})


class TestCommand:
    async def test_what_it_prints_is_the_token_and_no_shell_reads_its_arguments(self) -> None:
        assert await command("import sys; print('a' + sys.argv[1].replace('$', 'b'))", "$HOME").token() == "abHOME"

    async def test_connections_that_are_made_together_share_one_run(self, tmp_path: Path) -> None:
        runs = tmp_path / "runs"
        tokens = command("import sys; open(sys.argv[1], 'a').write('.'); print('t')", str(runs))
        assert [await tokens.token() for _ in range(3)] == ["t"] * 3
        assert runs.read_text() == "."

    @pytest.mark.parametrize(
        ("code", "sentence"),
        [
            (f"import sys; print('{HIDDEN}'); sys.exit('{HIDDEN}')", "ended with exit status 1"),
            (f"print('{HIDDEN} {HIDDEN}')", "printed characters that no token has"),
            ("pass", "printed nothing"),
            (f"print('{HIDDEN}' * 100_000)", "printed more than 65,536 bytes"),
        ],
    )
    async def test_a_fault_names_the_program_and_quotes_nothing_that_it_printed(self, code: str, sentence: str) -> None:
        with pytest.raises(AuthenticationFailedError, match=sentence) as raised:
            await command(code).token()
        assert str(raised.value.args[0]).startswith(f"sasl_oauthbearer_token_command: {sys.executable} ")
        assert HIDDEN not in str(raised.value)

    async def test_a_program_that_is_missing_is_named(self) -> None:
        tokens = source({**OAUTH, "sasl_oauthbearer_token_command": "/missing/program --flag"})
        with pytest.raises(AuthenticationFailedError, match="/missing/program cannot be run: No such file"):
            await tokens.token()

    async def test_a_program_that_does_not_end_is_killed_with_its_children(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(token_command, "_MOST_S", 0.5)
        with pytest.raises(AuthenticationFailedError, match=r"has not ended after 0\.5 s"):
            async with asyncio.timeout(300):
                await source({**OAUTH, "sasl_oauthbearer_token_command": "sh -c 'sleep 1000 & sleep 1000'"}).token()


class Provider(HTTPServer):
    """An identity provider that answers with its tokens in turn, and with the status when there are no more."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        self.tokens = ["first", "second"]
        self.status = 401
        self.redirect = ""


class Answer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        provider: Any = self.server
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        provider.asked.append((self.headers["Authorization"], form))
        if provider.redirect:
            self.send_response(302)
            self.send_header("Location", provider.redirect)
            self.end_headers()
            return
        answer = {"access_token": provider.tokens.pop(0), "expires_in": 100} if provider.tokens else {}
        self.send_response(200 if answer else provider.status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def do_GET(self) -> None:  # as urllib follows a redirect
        provider: Any = self.server
        provider.asked.append((self.headers["Authorization"], {}))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"access_token": "foreign"}')

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def provider() -> Iterator[Provider]:
    with serving(Provider()) as server:
        yield server


@contextmanager
def serving(server: Provider) -> Iterator[Provider]:
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class TestEndpoint:
    def tokens(self, provider: Provider) -> TokenSource:
        url = f"http://127.0.0.1:{provider.server_port}/token"
        scope = {"sasl_oauthbearer_scope": "kafka"}
        return source({**OAUTH, "sasl_oauthbearer_token_endpoint_url": url, **CLIENT, **scope})

    async def test_client_credentials_are_exchanged_for_a_token_which_is_used_again(self, provider: Provider) -> None:
        tokens = self.tokens(provider)
        assert [await tokens.token(), await tokens.token()] == ["first", "first"]
        ((authorization, form),) = provider.asked
        assert authorization == "Basic bWU6aHVudGVyMi1oaWRkZW4="
        assert form == {"grant_type": ["client_credentials"], "scope": ["kafka"]}

    async def test_only_a_clear_refusal_is_final(self, provider: Provider) -> None:
        provider.tokens = []
        with pytest.raises(AuthenticationFailedError, match=r"sasl_oauthbearer_token_endpoint_url: .* answers 401"):
            await self.tokens(provider).token()
        provider.status = 503
        with pytest.raises(OSError, match="503"):
            await self.tokens(provider).token()
        provider.status = 200
        with pytest.raises(AuthenticationFailedError, match="gives no access_token"):
            await self.tokens(provider).token()

    async def test_a_redirect_gets_no_secret_and_gives_no_token(self, provider: Provider) -> None:
        with serving(Provider()) as stranger:
            provider.redirect = f"http://127.0.0.1:{stranger.server_port}/token"
            with pytest.raises(AuthenticationFailedError, match=r"token_endpoint_url: .*/token answers 302"):
                await self.tokens(provider).token()
        assert stranger.asked == []

    async def test_a_certificate_that_cannot_be_verified_is_final(self, provider: Provider, tmp_path: Path) -> None:
        key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=127.0.0.1"]
        made = ["openssl", "req", "-x509", *kind, "-keyout", key, "-out", certificate]
        await asyncio.to_thread(subprocess.run, made, check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        provider.socket = context.wrap_socket(provider.socket, server_side=True)
        url = f"https://127.0.0.1:{provider.server_port}/token"
        tokens = source({**OAUTH, **CLIENT, "sasl_oauthbearer_token_endpoint_url": url})
        sentence = f"{url} has a certificate that cannot be verified: .*system's authorities"
        with pytest.raises(AuthenticationFailedError, match=sentence):
            await tokens.token()

    @pytest.mark.parametrize(
        ("url", "is_refused"),
        [
            ("http://idp.example/token", True),
            ("http://10.0.0.7/token", True),
            ("http://localhost:8080/token", False),
            ("http://[::1]:8080/token", False),
            ("https://idp.example/token", False),
        ],
    )
    def test_a_secret_leaves_this_machine_encrypted(self, url: str, is_refused: bool) -> None:
        given: dict[str, Any] = {**OAUTH, **CLIENT, "sasl_oauthbearer_token_endpoint_url": url}
        refused = pytest.raises(ValidationError, match="http: does not encrypt the secret")
        with refused if is_refused else nullcontext():
            KafkaSettings(**given)


Signer = Callable[[str], Path]


@pytest.fixture
def signer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Signer]:
    """`signer(body)` installs a package with the door of AWS's, whose function has this body."""

    def install(body: str) -> Path:
        package = tmp_path / "aws_msk_iam_sasl_signer"
        package.mkdir()
        package.joinpath("__init__.py").touch()
        code = f"import threading, time\ndef generate_auth_token(region):\n    {body}\n"
        package.joinpath("MSKAuthTokenProvider.py").write_text(code)
        return package

    monkeypatch.syspath_prepend(tmp_path)
    yield install
    for name in [name for name in sys.modules if name.startswith("aws_msk_iam_sasl_signer")]:
        del sys.modules[name]


class TestAws:
    @pytest.fixture(autouse=True)
    def no_region(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_REGION", raising=False)
        monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)

    async def test_the_signer_makes_a_token_for_the_region_off_the_event_loop_and_for_its_lifetime(
        self, signer: Signer
    ) -> None:
        signer(
            "generate_auth_token.made = getattr(generate_auth_token, 'made', 0) + 1\n"
            "    assert threading.current_thread() is not threading.main_thread()\n"
            "    return f'{region}.{generate_auth_token.made}', (time.time() + 900) * 1000"
        )
        tokens = source({**MSK, "sasl_aws_region": "eu-central-1"})
        assert [await tokens.token(), await tokens.token()] == ["eu-central-1.1"] * 2
        made = await tokens._request()
        assert 0.8 * 890 < made.reuse_s <= 0.8 * 900

    async def test_an_expired_token_is_not_used_again(self, signer: Signer) -> None:
        signer(
            "generate_auth_token.made = getattr(generate_auth_token, 'made', 0) + 1\n"
            "    return f't{generate_auth_token.made}', 0"
        )
        tokens = source({**MSK, "sasl_aws_region": "eu-central-1"})
        assert [await tokens.token(), await tokens.token()] == ["t1", "t2"]

    async def test_the_region_may_come_from_awss_variables(
        self, signer: Signer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        signer("return region, 0")
        monkeypatch.setenv("AWS_REGION", "us-east-2")
        assert await source(MSK).token() == "us-east-2"
        monkeypatch.delenv("AWS_REGION")
        with pytest.raises(ValidationError, match="sasl_aws_region: needed with sasl_mechanism AWS_MSK_IAM"):
            source(MSK)

    async def test_a_fault_is_named_and_quotes_nothing(self, signer: Signer) -> None:
        signer(f"raise LookupError('{HIDDEN}')")
        with pytest.raises(
            AuthenticationFailedError, match=r"AWS_MSK_IAM: no token can be signed \(LookupError\)"
        ) as raised:
            await source({**MSK, "sasl_aws_region": "eu-central-1"}).token()
        assert HIDDEN not in str(raised.value)

    def test_without_the_extra_the_settings_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("penstock.producer.settings.MSK_SIGNER", "no_such_signer")
        with pytest.raises(ValidationError, match=r"its signer is not installed: pip install 'penstock\[msk\]'"):
            source({**MSK, "sasl_aws_region": "eu-central-1"})


@pytest.mark.parametrize("raw", [b"", b" \n", b"a b", b"a\nb", b"a\x01auth=", "ä".encode(), b"x" * 70_000])
def test_what_would_break_kafkas_message_is_no_token(raw: bytes) -> None:
    with pytest.raises(NoToken):
        read_token(raw)


@pytest.mark.parametrize("lifetime", ["NaN", "Infinity", "-Infinity", "-5", "0"])
def test_a_token_without_a_lifetime_is_used_once(lifetime: str) -> None:
    assert read_answer(b'{"access_token": "t", "expires_in": %s}' % lifetime.encode()) == AccessToken("t", 0.0)


NO_ANSWERS = [
    *(b"{}", b"[]", b"null", b'"t"', b"[" * 50_000, b'{"access_token": null}', b'{"access_token": "\xed\xa0\x80"}'),
    *(b'{"access_token": "t", "expires_in": {}}', b'{"access_token": "t", "expires_in": 1%s}' % (b"0" * 400)),
]


@pytest.mark.parametrize("answer", NO_ANSWERS)
def test_an_answer_without_a_token_is_refused(answer: bytes) -> None:
    with pytest.raises(NoToken):
        read_answer(answer)


def test_a_token_is_in_no_text() -> None:
    assert HIDDEN not in repr(AccessToken(HIDDEN))
