"""A worker and clients against a broker with TLS, SASL and ACLs, and the errors of wrong credentials."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported without saying so
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from structlog.testing import capture_logs
from typer.testing import CliRunner

from penstock.ops.cli.checks import kafka_probe
from penstock.ops.cli.main import app
from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client, InvalidRequest
from penstock.producer.settings import KafkaSettings
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.wire.codec import encode_request
from penstock.producer.wire.messages import Request, join_tokens
from penstock.producer.wire.topics import bulk_topic, dead_letter_topic, request_topic
from penstock.worker.kafka.fetching.group import evict
from tests.integration.conftest import PENSTOCK, StartWorker, Unique

PASSWORD = "s3cret-Passw0rd"
LISTENERS = {"SASL": "SASL_SSL", "MUTUAL": "SSL", "CLEAR": "SASL_PLAINTEXT"}
_LOGIN = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Keys:
    """PEM files of a throw-away authority, and of a broker and a client that it has signed."""

    folder: Path

    def path(self, name: str) -> Path:
        return self.folder / name

    def sign(self, name: str) -> None:
        self._openssl("req", "-newkey", *_KEY, "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", *_named(name))
        self.path("names").write_text("subjectAltName=IP:127.0.0.1")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        self._openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
        self.path(f"{name}.both").write_bytes(
            self.path(f"{name}.key").read_bytes() + self.path(f"{name}.pem").read_bytes()
        )

    def make_authority(self, name: str) -> None:
        made = ("-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2")
        self._openssl("req", "-x509", "-newkey", *_KEY, *made, *_named(name))

    def encrypt(self, name: str) -> None:
        self._openssl("pkcs8", "-topk8", "-in", f"{name}.key", "-out", f"{name}.locked", "-passout", f"pass:{PASSWORD}")

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)


_KEY = ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def _named(name: str) -> tuple[str, str]:
    return "-subj", f"/CN={name}"


def unsigned_token(user: str) -> str:
    """A token as a broker without an identity provider takes it."""
    parts = {"alg": "none"}, {"sub": user, "iat": 1_760_000_000, "exp": 4_100_000_000}
    encoded = [urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, ""])


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    keys = Keys(tmp_path_factory.mktemp("keys"))
    keys.make_authority("ca")
    keys.make_authority("other")
    keys.sign("broker")
    keys.sign("client")
    keys.encrypt("client")
    for user in ("worker", "client"):
        keys.path(f"{user}.token").write_text(unsigned_token(user) + "\n")
    return keys


@pytest.fixture(scope="module")
def secured(keys: Keys) -> Iterator[KafkaBroker]:
    """A broker with a listener for each way of authentication. Its plain listener is for the administrator alone."""
    users = " ".join(f'user_{name}="{PASSWORD}"' for name in ("worker", "client", "new"))
    plain = f"{_LOGIN}.plain.PlainLoginModule required {users};"
    config = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keys.path("broker.both")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(keys.path("ca.pem")),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl.plain.sasl.jaas.config": plain,
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;",
        "listener.name.sasl.scram-sha-512.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;",
        "listener.name.sasl.oauthbearer.sasl.jaas.config": f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule required;",
        "listener.name.clear.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.clear.plain.sasl.jaas.config": plain,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "broker.session.timeout.ms": "60000",  # as of the shared broker
    }
    with KafkaBroker(num_partitions=4, config=config, listeners=LISTENERS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 4096)
            for user in ("worker", "client"):
                upsert = UserScramCredentialUpsertion(user, info, PASSWORD.encode())
                admin.alter_user_scram_credentials([upsert])[user].result(60)
        yield broker


@pytest.fixture
def model(secured: KafkaBroker, unique: Unique) -> str:
    """A model whose worker and clients have the least privileges that the manual names."""
    name = unique("secured")
    topic = request_topic(name)
    topics = [topic, bulk_topic(topic)]
    allow(secured, "worker", "TOPIC", "READ", *topics)
    allow(secured, "worker", "TOPIC", "WRITE", *map(dead_letter_topic, topics), "penstock.replies")
    allow(secured, "worker", "TOPIC", "CREATE", *topics, *map(dead_letter_topic, topics))
    allow(secured, "worker", "GROUP", "READ", f"penstock.{name}")
    allow(secured, "client", "TOPIC", "WRITE", *topics)
    allow(secured, "client", "TOPIC", "READ", "penstock.replies")
    allow(secured, "client", "TOPIC", "CREATE", *topics, "penstock.replies")
    return name


def pattern_of(kind: str) -> ResourcePatternType:
    """As the manual names the resource."""
    return ResourcePatternType.PREFIXED if kind == "TRANSACTIONAL_ID" else ResourcePatternType.LITERAL


def deny(broker: KafkaBroker, user: str, kind: str, operation: str, name: str) -> None:
    """Revoke a privilege."""
    what, may, allowed = ResourceType[kind], AclOperation[operation], AclPermissionType.ALLOW
    match = AclBindingFilter(what, name, pattern_of(kind), f"User:{user}", "*", may, allowed)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for done in admin.delete_acls([match]).values():
        assert len(done.result(60)) == 1


def allow(broker: KafkaBroker, user: str, kind: str, operation: str, *names: str) -> None:
    what, may = ResourceType[kind], AclOperation[operation]
    bindings = [
        AclBinding(what, name, pattern_of(kind), f"User:{user}", "*", may, AclPermissionType.ALLOW) for name in names
    ]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for done in admin.create_acls(bindings).values():
        done.result(60)


def credentials(broker: KafkaBroker, keys: Keys, mechanism: str, user: str) -> dict[str, Any]:
    """Settings of one way to authenticate."""
    tls = {"ssl_ca_location": keys.path("ca.pem")}
    if mechanism == "certificate":
        pair = {"ssl_certificate_location": keys.path("client.pem"), "ssl_key_location": keys.path("client.locked")}
        protected = {"security_protocol": "ssl", "ssl_key_password": PASSWORD}
        return {"bootstrap_servers": broker.address("MUTUAL"), **tls, **pair, **protected}
    if mechanism == "clear":
        own = {"bootstrap_servers": broker.address("CLEAR"), "security_protocol": "SASL_PLAINTEXT"}
        return {**own, "sasl_mechanism": "PLAIN", "sasl_username": user, "sasl_password": PASSWORD}
    own = {"bootstrap_servers": broker.address("SASL"), "security_protocol": "SASL_SSL"}
    if mechanism.startswith("token"):
        path, oauth = keys.path(f"{user}.token"), {**own, **tls, "sasl_mechanism": "OAUTHBEARER"}
        if mechanism == "token command":
            return {**oauth, "sasl_oauthbearer_token_command": shlex.join(["cat", str(path)])}
        return {**oauth, "sasl_oauthbearer_token_file": path}
    return {**own, **tls, "sasl_mechanism": mechanism, "sasl_username": user, "sasl_password": PASSWORD}


@pytest.mark.parametrize(
    ("of_worker", "of_client"),
    [("SCRAM-SHA-512", "PLAIN"), ("token command", "token file"), ("PLAIN", "certificate"), ("clear", "clear")],
)
async def test_a_worker_answers_with_the_least_privileges(
    secured: KafkaBroker, keys: Keys, model: str, start_worker: StartWorker, of_worker: str, of_client: str
) -> None:
    worker = start_worker(secured, served_name=model, **credentials(secured, keys, of_worker, "worker"))
    async with Client(model=model, timeout_s=300, **credentials(secured, keys, of_client, "client")) as client:
        await worker.ready()
        assert (await client.embed(ids=[[4, 5]])).tolist() == [[2, 4, 5, 9]]
    assert bool(worker.events("sasl_unencrypted")) == (of_worker == "clear")
    assert not worker.events("poll_failed")
    await worker.stop()
    assert not worker.events("commit_failed")
    assert PASSWORD not in worker.log_path.read_text()


async def test_members_of_a_supervisor_get_the_password_and_nobody_logs_it(
    secured: KafkaBroker, keys: Keys, model: str, start_worker: StartWorker
) -> None:
    settings = credentials(secured, keys, "SCRAM-SHA-256", "worker")
    worker = start_worker(secured, PENSTOCK, served_name=model, processes=2, log_level="debug", **settings)
    await worker.until(
        lambda: {} if len({event["worker"] for event in worker.events("partitions_assigned")}) == 2 else None, "two", 60
    )
    first = worker.events("partitions_assigned")[0]
    (settings_given,) = worker.events("worker_starting")
    assert settings_given["sasl_password"] == "**********"
    started = next(e for e in worker.events("member_started") if e["worker"] == first["worker"])
    os.kill(started["member_pid"], signal.SIGKILL)
    await worker.event("member_evicted")
    worker.process.terminate()
    await worker.exit_code()
    assert PASSWORD not in worker.log_path.read_text()


REFUSED = [
    ({"sasl_password": "wrong"}, "refuses the credentials: Authentication failed"),
    ({"ssl_ca_location": "other.pem"}, "certificate that cannot be verified"),
    ({"ssl_ca_location": None}, "Set ssl_ca_location to the certificates of its authority."),
]


@pytest.mark.parametrize(("wrong", "sentence"), REFUSED)
async def test_refused_credentials_end_workers_and_clients_with_a_sentence(
    secured: KafkaBroker, keys: Keys, model: str, start_worker: StartWorker, wrong: dict[str, Any], sentence: str
) -> None:
    settings = changed(credentials(secured, keys, "SCRAM-SHA-512", "worker"), keys, wrong)
    worker = start_worker(secured, PENSTOCK, served_name=model, **settings)
    members = start_worker(secured, PENSTOCK, served_name=model, processes=2, **settings)
    with pytest.raises(InvalidRequest, match=sentence):
        async with Client(model=model, **settings):
            pass
    assert await worker.exit_code() == 3
    assert sentence in worker.tail().replace("\n", " ")
    assert await members.exit_code() == 3
    (reason,) = [event["reason"] for event in members.events("could_not_start")]
    assert sentence in reason


def changed(settings: dict[str, Any], keys: Keys, wrong: dict[str, Any]) -> dict[str, Any]:
    found = {name: keys.path(v) if name.endswith("location") and v else v for name, v in wrong.items()}
    return {name: value for name, value in (settings | found).items() if value is not None}


@pytest.mark.parametrize(
    ("mechanism", "wrong", "sentence"),
    [
        (
            "certificate",
            {"ssl_certificate_location": None, "ssl_key_location": None, "ssl_key_password": None},
            "Check ssl_certificate_location",
        ),
        ("clear", {"sasl_mechanism": "SCRAM-SHA-512"}, "does not enable SCRAM-SHA-512. Check sasl_mechanism."),
        (
            "token file",
            {"sasl_oauthbearer_token_file": "/missing/token"},
            "no token could be read from /missing/token",
        ),
        (
            "token command",
            {"sasl_oauthbearer_token_command": "false"},
            "needs a token. sasl_oauthbearer_token_command: false ended with exit status 1.",
        ),
    ],
)
async def test_other_refusals_name_the_setting(
    secured: KafkaBroker, keys: Keys, mechanism: str, wrong: dict[str, Any], sentence: str
) -> None:
    settings = changed(credentials(secured, keys, mechanism, "client"), keys, wrong)
    async with asyncio.timeout(300):
        with pytest.raises(InvalidRequest) as raised:
            async with Client(model="m", **settings):
                pass
    assert sentence in str(raised.value)


async def test_a_certificate_must_name_the_host_unless_any_host_is_allowed(
    secured: KafkaBroker, keys: Keys, model: str
) -> None:
    settings = credentials(secured, keys, "PLAIN", "client")
    settings["bootstrap_servers"] = settings["bootstrap_servers"].replace("127.0.0.1", "localhost")
    with pytest.raises(InvalidRequest, match=r"not valid for 'localhost'\. Connect by a name in the certificate"):
        async with Client(model=model, **settings):
            pass
    async with Client(model=model, **settings, ssl_endpoint_identification_algorithm="none"):
        pass


async def test_sasl_at_a_listener_without_it_is_named(secured: KafkaBroker, keys: Keys) -> None:
    settings = credentials(secured, keys, "clear", "client") | {"bootstrap_servers": secured.bootstrap_servers}
    with pytest.raises(InvalidRequest, match=r"has no SASL at this port. Check security_protocol and the port."):
        async with Client(model="m", **settings):
            pass


async def test_denied_topics_and_groups_end_a_worker_with_a_sentence(
    secured: KafkaBroker, keys: Keys, unique: Unique, start_worker: StartWorker
) -> None:
    name = unique("denied")
    topics = [request_topic(name), bulk_topic(request_topic(name))]
    settings = credentials(secured, keys, "PLAIN", "new")
    worker = start_worker(secured, PENSTOCK, served_name=name, **settings)
    assert await worker.exit_code() == 3
    assert "Its user needs the ACL WRITE on a topic" in worker.tail()
    allow(secured, "new", "TOPIC", "WRITE", "penstock.replies")
    worker = start_worker(secured, PENSTOCK, served_name=name, **settings)
    assert await worker.exit_code() == 3
    assert f"Kafka denies {topics[0]}" in worker.tail()
    allow(secured, "new", "TOPIC", "READ", *topics)
    allow(secured, "new", "TOPIC", "CREATE", *topics)
    worker = start_worker(secured, PENSTOCK, served_name=name, **settings)
    assert await worker.exit_code() == 3
    assert f"Kafka denies the group penstock.{name}" in worker.tail()


@pytest.mark.parametrize("kind", ["GROUP", "TOPIC"])
async def test_a_running_worker_goes_on_when_revoked_privileges_are_back(
    secured: KafkaBroker, keys: Keys, model: str, start_worker: StartWorker, kind: str
) -> None:
    name = f"penstock.{model}" if kind == "GROUP" else request_topic(model)
    worker = start_worker(secured, served_name=model, **credentials(secured, keys, "PLAIN", "worker"))
    async with Client(model=model, timeout_s=300, **credentials(secured, keys, "PLAIN", "client")) as client:
        assert (await client.embed(ids=[[4]])).tolist() == [[1, 4, 4, 4]]  # its offsets are fetched, and it polls
        deny(secured, "worker", kind, "READ", name)
        await worker.event("poll_failed")
        allow(secured, "worker", kind, "READ", name)
        assert (await client.embed(ids=[[4, 5]])).tolist() == [[2, 4, 5, 9]]


async def test_a_running_worker_waits_for_revoked_transactional_ids(
    secured: KafkaBroker, keys: Keys, model: str, start_worker: StartWorker
) -> None:
    group = f"penstock.{model}"
    allow(secured, "worker", "TRANSACTIONAL_ID", "WRITE", f"{group}:")
    exactly_once: dict[str, Any] = {"delivery": "exactly_once", **credentials(secured, keys, "PLAIN", "worker")}
    worker = start_worker(secured, served_name=model, partitions=1, **exactly_once)
    async with Client(model=model, timeout_s=300, **credentials(secured, keys, "PLAIN", "client")) as client:
        assert (await client.embed(ids=[[4]])).tolist() == [[1, 4, 4, 4]]
        deny(secured, "worker", "TRANSACTIONAL_ID", "WRITE", f"{group}:")
        admin = AdminClient({"bootstrap.servers": secured.bootstrap_servers})
        while not worker.events("transactions_not_opened"):  # the broker applies it when it has read the metadata log
            for member in admin.describe_consumer_groups([group])[group].result(60).members:
                await evict(KafkaCluster(secured.bootstrap_servers), group, member.member_id)  # assigned them again
            await asyncio.sleep(2.0)
        event = await worker.event("transactions_not_opened")
        assert f"ACL WRITE on transactional ids with the prefix {group}:" in event["hint"]
        allow(secured, "worker", "TRANSACTIONAL_ID", "WRITE", f"{group}:")
        assert (await client.embed(ids=[[4, 5]])).tolist() == [[2, 4, 5, 9]]


LETTERS = [("READ", ".dead-letter"), ("READ", ".bulk.dead-letter")]
OPERATORS = [
    (["dlq", "ls"], LETTERS, "1 dead letter:"),
    (["dlq", "replay", "--execute"], [("WRITE", ""), *LETTERS], "Sent 1 record to"),
    (["dlq", "answer", "--model", "null", "--execute"], [("WRITE", ".replies"), *LETTERS], "Sent 1 reply to"),
    (["replay", "--partition", "0", "--from", "0", "--execute"], [("READ", ""), ("WRITE", "")], "Sent 1 record to"),
]


@pytest.mark.parametrize(("command", "privileges", "outcome"), OPERATORS, ids=["ls", "dlq replay", "answer", "replay"])
def test_an_operator_needs_the_privileges_that_the_manual_names(
    secured: KafkaBroker,
    keys: Keys,
    unique: Unique,
    command: list[str],
    privileges: list[tuple[str, str]],
    outcome: str,
) -> None:
    """And what is missing is named."""
    user, topic = unique("operator"), unique("penstock.replies.operated")
    make_letter(secured, topic)
    keys.path(f"{user}.token").write_text(unsigned_token(user))
    settings = credentials(secured, keys, "token file", user)
    options = [part for name, value in settings.items() for part in ("--" + name.replace("_", "-"), str(value))]

    def ends(code: int, sentence: str) -> None:
        """Run the command again until the broker, which applies ACLs a moment later, has it end so."""
        until = time.monotonic() + 300
        while True:
            done = CliRunner().invoke(app, [*command, "--topic", topic, *options], env={"COLUMNS": "300"})
            if (done.exit_code, sentence in done.output) == (code, True):
                return
            assert time.monotonic() < until, done.output

    for operation, suffix in privileges:
        ends(1, f"ACL {operation} on")
        allow(secured, user, "TOPIC", operation, topic + suffix)
    ends(0, outcome)


def make_letter(broker: KafkaBroker, topic: str) -> None:
    """A request in its topic, and its letter, which `dlq answer` can answer."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    suffixes = ("", ".replies", ".bulk", ".dead-letter", ".bulk.dead-letter")
    for made in admin.create_topics([NewTopic(topic + suffix, 1, 1) for suffix in suffixes]).values():
        made.result(60)
    value = encode_request(Request("null", "embed", join_tokens([np.array([5, 6], np.uint32)])))
    address: list[tuple[str, str | bytes | None]] = [
        ("kafka_correlationId", b"c"),
        ("kafka_replyTopic", f"{topic}.replies".encode()),
    ]
    origin = [("__dlq.errors.topic", topic.encode()), ("__dlq.errors.partition", b"0"), ("__dlq.errors.offset", b"0")]
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, value, headers=address)
    producer.produce(f"{topic}.dead-letter", value, headers=[*address, *origin])
    assert producer.flush(30) == 0


async def test_denied_topics_fail_a_client_with_a_sentence(secured: KafkaBroker, keys: Keys, unique: Unique) -> None:
    mine, foreign = unique("mine"), unique("foreign")
    settings = credentials(secured, keys, "PLAIN", "new")
    allow(secured, "new", "TOPIC", "WRITE", "penstock.replies")
    allow(secured, "new", "TOPIC", "DESCRIBE", request_topic(mine))
    allow(secured, "new", "TOPIC", "CREATE", request_topic(mine), "penstock.replies")
    with pytest.raises(InvalidRequest, match=rf"{request_topic(foreign)} and .*TopicAuthorizationFailedError"):
        async with Client(model=foreign, **settings):
            pass
    async with Client(model=mine, **settings) as client:
        with pytest.raises(InvalidRequest, match=r"was not sent: .*TopicAuthorizationFailedError"):
            await client.embed(ids=[[4, 5]])


def test_check_reports_a_refusal(secured: KafkaBroker, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_probe, "_ANSWER_S", 60.0)
    settings = credentials(secured, keys, "PLAIN", "worker")
    options = [part for name, value in settings.items() for part in ("--" + name.replace("_", "-"), str(value))]
    done = CliRunner().invoke(app, ["check", *options], env={"COLUMNS": "200"})
    assert (done.exit_code, "answers" in done.output, PASSWORD in done.output) == (0, True, False)
    done = CliRunner().invoke(app, ["check", *options, "--sasl-password", "wrong"], env={"COLUMNS": "200"})
    assert (done.exit_code, "refuses the credentials" in done.output) == (1, True)


async def test_renewed_certificates_are_used_for_new_connections(
    secured: KafkaBroker, tmp_path: Path, keys: Keys
) -> None:
    files = {name: tmp_path / name for name in ("ca.pem", "client.pem", "client.key")}

    def install(**sources: str) -> None:
        """Replace files by others, as a process does that renews them."""
        for name, source in sources.items():
            new = tmp_path / "new"
            new.write_bytes(keys.path(source).read_bytes())
            new.replace(files[name.replace("_", ".")])

    install(ca_pem="ca.pem", client_pem="client.pem", client_key="client.key")
    settings: dict[str, Any] = {
        "bootstrap_servers": secured.address("MUTUAL"),
        "security_protocol": "SSL",
        "ssl_ca_location": files["ca.pem"],
        "ssl_certificate_location": files["client.pem"],
        "ssl_key_location": files["client.key"],
    }
    cluster = KafkaCluster.of(KafkaSettings(**settings))
    assert await cluster.refusal() is None
    with capture_logs() as logs:
        install(client_pem="other.pem", client_key="other.key")
        assert "refuses the client's certificate" in str(await cluster.refusal())
        install(client_pem="client.pem", client_key="client.key")
        assert await cluster.refusal() is None
        install(ca_pem="other.pem")
        assert "has a certificate that cannot be verified" in str(await cluster.refusal())
        install(ca_pem="ca.pem")
        assert await cluster.refusal() is None
    assert [log["event"] for log in logs] == ["certificates_reloaded"] * 4
    with capture_logs() as logs:
        keys.sign("renewed")
        install(client_pem="renewed.pem")  # its key comes later
        assert await cluster.refusal() is None
        assert await cluster.refusal() is None
        install(client_key="renewed.key")
        assert await cluster.refusal() is None
    assert [log["event"] for log in logs] == ["certificates_not_reloaded", "certificates_reloaded"]
    async with AIOKafkaProducer(**cluster.arguments) as producer:
        assert await producer.client.force_metadata_update()
