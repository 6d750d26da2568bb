"""Transactions and operations: round trips, older forms and invalid messages."""

from __future__ import annotations

import pickle
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.argument_validation import COMMIT_MESSAGE_KEY
from lancetable.errors import CorruptFileError
from lancetable.format import transaction as tx
from lancetable.format.fragment import DataFile, Fragment
from lancetable.format.schema import Schema
from lancetable.format.transaction import OPERATIONS, Transaction, UnknownOperation, UpdateConfig, UpdateMap
from lancetable.proto import table_pb2, transaction_pb2
from lancetable.testing.strategies import operations, transactions


def test_every_oneof_case_has_a_class():
    oneof = transaction_pb2.Transaction.DESCRIPTOR.oneofs_by_name["operation"]
    assert OPERATIONS.keys() == {arm.name for arm in oneof.fields}
    assert all(OPERATIONS[arm.name].message_class.DESCRIPTOR is arm.message_type for arm in oneof.fields)


@pytest.mark.parametrize("arm", sorted(OPERATIONS))
@given(data=st.data())
def test_operations_round_trip(arm, data):
    operation = data.draw(operations(arm))
    assert type(operation) is OPERATIONS[arm]
    again = Transaction.from_bytes(Transaction(7, "u", operation).to_bytes())
    assert again == Transaction(7, "u", operation)


@given(transactions())
def test_transactions_round_trip(transaction):
    assert Transaction.from_bytes(transaction.to_bytes()) == transaction
    assert pickle.loads(pickle.dumps(transaction)) == transaction


def test_transactions_of_the_corpus_round_trip(corpus):
    seen: Counter[type] = Counter()
    for path in sorted(corpus.glob("tables/**/_transactions/*.txn")):
        message = transaction_pb2.Transaction.FromString(path.read_bytes())
        transaction = Transaction.from_proto(message)
        assert transaction.to_proto() == message, path
        seen[type(transaction.operation)] += 1
    assert seen.keys() >= {tx.Append, tx.Overwrite, tx.Delete, tx.Merge, tx.Rewrite}
    assert UnknownOperation not in seen


def test_pylance_reads_serialized_transactions(write_with_pylance):
    """Transactions of pylance are read, written again, and read by pylance."""
    from pathlib import Path

    dataset, _ = write_with_pylance(pa.table({"a": [1, 2]}))
    dataset.delete("a = 1")
    for version, kind in ((1, tx.Overwrite), (2, tx.Delete)):
        theirs = dataset.read_transaction(version)
        path = next((Path(dataset.uri) / "_transactions").glob(f"{version - 1}-*.txn"))
        ours = Transaction.from_bytes(path.read_bytes())
        assert isinstance(ours.operation, kind)
        assert (ours.uuid, ours.read_version) == (theirs.uuid, theirs.read_version)
        path.write_bytes(ours.to_bytes())
    assert dataset.checkout_version(2).read_transaction(2).operation.predicate == "a = 1"


def test_empty_operations_keep_their_type():
    for operation in (tx.Append(), tx.Delete(), tx.UpdateConfig(), tx.UpdateMemWalState(), tx.Rewrite()):
        assert Transaction.from_bytes(Transaction(0, "u", operation).to_bytes()).operation == operation


def test_unknown_operations_are_preserved():
    # Field 116, an unknown message.
    data = Transaction(5, "u", tx.Append(), properties={"a": "b"}).to_proto()
    data.ClearField("append")
    raw = data.SerializeToString() + bytes([0xA2, 0x07, 0x02, 0x08, 0x01])
    transaction = Transaction.from_bytes(raw)
    assert isinstance(transaction.operation, UnknownOperation)
    assert (transaction.read_version, transaction.properties) == (5, {"a": "b"})
    assert transaction_pb2.Transaction.FromString(transaction.to_bytes()) == transaction_pb2.Transaction.FromString(raw)
    assert raw[-5:] in transaction.to_bytes()


def test_presence_of_optional_fields_is_preserved():
    file = DataFile("a", (0,), (0,), base_id=0)
    replacement = tx.DataReplacement((tx.DataReplacementGroup(0, file),))
    message = Transaction(0, "u", replacement).to_proto()
    assert message.data_replacement.replacements[0].new_file.HasField("base_id")
    clone = tx.Clone(True, 3, "/p", "", "")
    assert Transaction.from_proto(Transaction(0, "u", clone).to_proto()).operation == clone
    nothing = tx.Clone(True, 3, "/p")
    assert not Transaction(0, "u", nothing).to_proto().clone.HasField("branch_name")


def test_older_form_of_a_rewrite_is_read():
    message = transaction_pb2.Transaction.Rewrite(
        old_fragments=[table_pb2.DataFragment(id=1)], new_fragments=[table_pb2.DataFragment(id=2)]
    )
    assert tx.Rewrite.from_proto(message).groups == (tx.RewriteGroup((Fragment(1),), (Fragment(2),)),)


def test_older_form_of_a_config_update_is_read():
    message = transaction_pb2.Transaction.UpdateConfig(
        upsert_values={"a": "1"}, delete_keys=["b"], schema_metadata={"c": "2"}
    )
    message.field_metadata[4].metadata["d"] = "3"
    assert UpdateConfig.from_proto(message) == UpdateConfig(
        config=UpdateMap({"a": "1", "b": None}),
        schema_metadata=UpdateMap({"c": "2"}, replace=True),
        field_metadata={4: UpdateMap({"d": "3"}, replace=True)},
    )


def test_create_assigns_a_new_uuid():
    first, second = (Transaction.create(3, tx.Append(), properties={COMMIT_MESSAGE_KEY: "why"}) for _ in range(2))
    assert first.uuid != second.uuid and len(first.uuid) == 36
    assert first.properties[COMMIT_MESSAGE_KEY] == "why"
    assert not Transaction.create(3, tx.Append()).properties


@pytest.mark.parametrize("data", [b"\xff", b"\xa2\x06\xff", Transaction(0, "u", tx.Append()).to_bytes()[:-1]])
def test_malformed_bytes_raise(data):
    with pytest.raises(CorruptFileError, match="some/path"):
        Transaction.from_bytes(data, "some/path")


def test_invalid_values_raise():
    update = transaction_pb2.Transaction.Update()
    update.ParseFromString(bytes([7 << 3, 9]))
    with pytest.raises(CorruptFileError, match="update mode 9"):
        tx.Update.from_proto(update)
    file = table_pb2.DataFragment(files=[table_pb2.DataFile(path="../../x")])
    with pytest.raises(CorruptFileError, match="segment"):
        tx.Append.from_proto(transaction_pb2.Transaction.Append(fragments=[file]))


def test_schema_metadata_round_trips():
    schema = Schema.from_arrow(pa.schema([("a", pa.int8())], metadata={"k": "v"}))
    for operation in (tx.Overwrite((), schema), tx.Merge((), schema)):
        again = Transaction.from_bytes(Transaction(0, "u", operation).to_bytes()).operation
        assert again.schema.metadata == {"k": b"v"}
