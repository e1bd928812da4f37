"""Names of aiokafka that are relied on and not documented: a version that changes one of them fails here, by name."""

import ast
import inspect
import textwrap
from typing import Any

import pytest
from aiokafka import AIOKafkaClient, AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer import consumer, fetcher
from aiokafka.consumer.fetcher import Fetcher, FetchResult, PartitionRecords
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import TopicPartitionState
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.producer import message_accumulator, sender, transaction_manager
from aiokafka.protocol.api import Request, RequestStruct
from aiokafka.protocol.commit import OffsetFetchRequest, OffsetFetchResponse_v1, OffsetFetchResponse_v3
from aiokafka.protocol.fetch import FetchRequest, FetchResponse_v11
from aiokafka.protocol.group import JoinGroupRequest, LeaveGroupRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder, _DefaultRecordBatchPy
from aiokafka.record.memory_records import _MemoryRecordsPy

# Methods that are called or replaced, with their arguments behind `self`.
METHODS: list[tuple[type, str, str]] = [
    (AIOKafkaAdminClient, "_send_request", "request node_id"),
    (AIOKafkaAdminClient, "_send_request_to_node", "node_id request"),
    (AIOKafkaClient, "_get_conn", "node_id group no_hint"),
    (AIOKafkaClient, "bootstrap", ""),
    (AIOKafkaClient, "close", ""),
    (AIOKafkaClient, "coordinator_lookup", "coordinator_type coordinator_key"),
    (AIOKafkaClient, "force_metadata_update", ""),
    (AIOKafkaClient, "send", "node_id request group"),
    (AIOKafkaConnection, "close", "reason exc"),
    (AIOKafkaConnection, "connect", ""),
    (AIOKafkaConnection, "connected", ""),
    (DefaultRecordBatchBuilder, "append", "offset timestamp key value headers"),
    (Fetcher, "_create_fetch_waiter", ""),
    (Fetcher, "_get_actions_per_node", "assignment"),
    (Fetcher, "_notify", "future"),
    (Fetcher, "_proc_fetch_request", "assignment node_id request"),
    (Fetcher, "_update_fetch_positions", "assignment node_id tps"),
    (Fetcher, "fetched_records", "partitions timeout max_records"),
    (FetchRequest, "__init__", "max_wait_time min_bytes max_bytes isolation_level topics rack_id"),
    (FetchResult, "calculate_backoff", ""),
    (FetchResult, "getall", "max_records"),
    (FetchResult, "has_more", ""),
    (GroupCoordinator, "_do_heartbeat", ""),
    (GroupCoordinator, "_do_rejoin_group", "subscription"),
    (GroupCoordinator, "_send_req", "request"),
    (GroupCoordinator, "coordinator_dead", ""),
    (GroupCoordinator, "fetch_committed_offsets", "partitions"),
    (GroupCoordinator, "request_rejoin", ""),
    (LeaveGroupRequest, "__init__", "group member_id"),
    (MetadataRequest, "__init__", "topics allow_auto_topic_creation"),
    (Request, "build", "request_struct_class"),
    (Request, "prepare", "versions"),
    (RequestStruct, "build_request_header", "correlation_id client_id"),
    (RequestStruct, "parse_response_header", "read_buffer"),
    (RoundRobinPartitionAssignor, "assign", "cluster members"),
    (RoundRobinPartitionAssignor, "metadata", "topics"),
    (PartitionRecords, "_consumer_record", "tp record"),
    (_DefaultRecordBatchPy, "__init__", "buffer"),
    (_MemoryRecordsPy, "_cache_next", ""),
    (_MemoryRecordsPy, "next_batch", ""),
    (ProduceRequest, "__init__", "transactional_id required_acks timeout topics"),
    (message_accumulator.MessageAccumulator, "_wakeup", "fut"),
    (message_accumulator.MessageAccumulator, "drain_by_nodes", "ignore_nodes muted_partitions"),
    (message_accumulator.MessageAccumulator, "fail_all", "exception"),
    (message_accumulator.MessageAccumulator, "waiter", ""),
    (sender.SendProduceReqHandler, "create_request", ""),
    (sender.SendProduceReqHandler, "do", "node_id"),
    (sender.Sender, "_fail_all", "task"),
    (sender.Sender, "_maybe_wait_for_pid", ""),
    (sender.Sender, "_send_produce_req", "node_id batches"),
    (sender.Sender, "_sender_routine", ""),
    (sender.Sender, "close", ""),
    (sender.Sender, "start", ""),
    (transaction_manager.TransactionManager, "increment_sequence_number", "tp increment"),
    (transaction_manager.TransactionManager, "wait_for_transaction_end", ""),
]

# Attributes that are read or replaced.
ATTRIBUTES: list[tuple[type, str]] = [
    (AIOKafkaAdminClient, "_client"),
    (AIOKafkaClient, "_conns _get_conn_lock _request_timeout_ms _sync_task _topics"),
    (AIOKafkaConnection, "_requests"),
    (AIOKafkaConsumer, "_client _coordinator _fetcher"),
    (AIOKafkaProducer, "_closed _message_accumulator _metadata _sender _txn_manager client"),
    (ClusterMetadata, "_partitions"),
    (FetchRequest, "_isolation_level _max_bytes _max_wait_ms _min_bytes _rack_id _topics"),
    (FetchResult, "_assignment _backoff _partition_records _topic_partition"),
    (
        Fetcher,
        "_client _client_rack _fetch_max_bytes _fetch_max_wait_ms _fetch_min_bytes _fetch_task _fetch_waiters "
        "_fetcher_timeout _in_flight _isolation_level _loop _max_partition_fetch_bytes _pending_tasks _records "
        "_retry_backoff _subscriptions _wait_consume_future",
    ),
    (GroupCoordinator, "_commit_refresh_task _coordination_task generation member_id"),
    (OffsetFetchRequest, "_consumer_group"),
    (PartitionRecords, "_records"),
    (ProduceRequest, "_required_acks _timeout _topics"),
    (TopicPartitionState, "_paused _position has_valid_position paused position resume_fut"),
    (_DefaultRecordBatchPy, "_buffer"),
    (_MemoryRecordsPy, "_next_slice"),
    (message_accumulator.MessageAccumulator, "_batches _cluster"),
    (message_accumulator.MessageBatch, "retry_count"),
    (sender.SendProduceReqHandler, "_batches _sender"),
    (
        sender.Sender,
        "_acks _in_flight _message_accumulator _muted_partitions _request_timeout_ms _retry_backoff client sender_task",
    ),
    (transaction_manager.TransactionManager, "_transaction_waiter state"),
]


@pytest.mark.parametrize(("owner", "name", "arguments"), METHODS)
def test_a_method_has_these_arguments(owner: Any, name: str, arguments: str) -> None:
    """Others may follow that have defaults."""
    found = [one for one in inspect.signature(getattr(owner, name)).parameters.values() if one.name != "self"]
    wanted = arguments.split()
    assert [one.name for one in found[: len(wanted)]] == wanted
    assert all(one.default is not one.empty or one.kind is one.VAR_KEYWORD for one in found[len(wanted) :])


@pytest.mark.parametrize(("owner", "names"), ATTRIBUTES)
def test_an_instance_has_these_attributes(owner: type, names: str) -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    stored = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert set(names.split()) - stored - set(dir(owner)) == set()


def test_modules_have_the_classes_and_constants_that_are_replaced_or_compared_with() -> None:
    assert fetcher.MemoryRecords is not None  # which `lenient_records` replaces
    assert issubclass(consumer.Fetcher, Fetcher)
    assert JoinGroupRequest.UNKNOWN_MEMBER_ID == ""
    assert FetchResponse_v11.API_VERSION == 11
    assert "error_code" in OffsetFetchResponse_v3.SCHEMA.names
    assert "error_code" not in OffsetFetchResponse_v1.SCHEMA.names
    states = transaction_manager.TransactionState
    assert states.IN_TRANSACTION is not states.ABORTABLE_ERROR
