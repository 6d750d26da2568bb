"""External manifest store in a DynamoDB table, compatible with the reference implementation.

    base_uri   S, hash key    path of the table in its bucket: `dir/my.lance`; tables with the same path in two buckets
                              must not share a DynamoDB table
    version    N, range key
    path       S              `dir/my.lance/_versions/18446744073709551614.manifest`, while staged with `-{uuid}`
    committer  S              `lancedb`: the protocol of the row, not its writer
    size       N              size of the manifest in bytes

Needs boto3 (extra: dynamodb). Requests are retried here and not by botocore, because a failed condition after an
internal retry would not reveal whether the existing row is our own.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from lancetable.errors import InvalidInputError, LanceError, StoreError, UnsupportedFeatureError
from lancetable.format.manifest_naming import DETACHED_BIT
from lancetable.handlers.external_manifest import ManifestRow
from lancetable.store.base import ObjectStore, PutOutcome
from lancetable.store.clouds.options import CloudOptions
from lancetable.store.fork_safety import PerProcess

_ATTEMPTS = 6
_THROTTLED = frozenset(
    ("ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded", "LimitExceededException")
)
_REPEATABLE = frozenset(("InternalServerError", "ServiceUnavailable", "InternalError", "SlowDown", "RequestTimeout"))
_CREATE = "attribute_not_exists(base_uri) AND attribute_not_exists(version)"
_REPLACE = "attribute_exists(base_uri) AND attribute_exists(version)"

_checked: set[tuple[str, str]] = set()


class _AmbiguousReplyError(Exception):
    """A write that may have been applied. Internal to this module."""


class DynamoManifestStore:
    """External manifest store in one DynamoDB table.

    The constructor sends no request. Credentials and region are those of the object store; the option
    `dynamodb_endpoint` sets another endpoint.
    """

    def __init__(
        self,
        table_name: str,
        storage_options: Mapping[str, Any] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.table_name = table_name
        self._storage_options = dict(storage_options or {})
        self._options = CloudOptions.parse("s3", self._storage_options)
        self._sleep = sleep
        self._client = PerProcess(self._make_client)

    def __reduce__(self) -> tuple[Any, ...]:
        return DynamoManifestStore, (self.table_name, self._storage_options)

    def __repr__(self) -> str:
        return f"DynamoManifestStore({self.table_name!r})"

    def key(self, store: ObjectStore, base: str) -> str:
        """Return the path in the bucket, as other implementations write it."""
        return base.strip("/")

    # ---- rows -------------------------------------------------------------------------------------------------

    def latest(self, table: str) -> ManifestRow | None:
        """See ExternalManifestStore."""
        rows = self._query(table, ascending=False, limit=1)
        return rows[0] if rows else None

    def get(self, table: str, version: int) -> ManifestRow | None:
        """See ExternalManifestStore."""
        reply = self._send("get_item", Key=_key(table, version), ConsistentRead=True)
        return _row(reply["Item"]) if reply.get("Item") else None

    def put_new(self, table: str, row: ManifestRow) -> PutOutcome:
        """See ExternalManifestStore."""
        return self._put(table, row, _CREATE)

    def put_final(self, table: str, row: ManifestRow) -> None:
        """See ExternalManifestStore."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._sleep(_wait(attempt))
            outcome = self._put(table, row, _REPLACE)  # writing the same row again is safe
            if outcome is PutOutcome.WON:
                return
            if outcome is PutOutcome.LOST:
                raise StoreError(f"{self._describe(table)}: version {row.version} has no row to replace", path=table)
        raise StoreError(f"{self._describe(table)}: the row of version {row.version} could not be replaced", path=table)

    def delete_table(self, table: str) -> None:
        """See ExternalManifestStore."""
        for row in self._query(table, ascending=True, limit=None):
            self._send("delete_item", Key=_key(table, row.version))

    def delete(self, table: str, row: ManifestRow) -> None:
        """See ExternalManifestStore."""
        with contextlib.suppress(_TakenError):
            self._send(
                "delete_item",
                Key=_key(table, row.version),
                ConditionExpression="#path = :path",
                ExpressionAttributeNames={"#path": "path"},
                ExpressionAttributeValues={":path": {"S": row.path}},
            )

    def _query(self, table: str, *, ascending: bool, limit: int | None) -> list[ManifestRow]:
        arguments: dict[str, Any] = {
            "KeyConditionExpression": "base_uri = :base_uri AND version BETWEEN :first AND :last",
            "ExpressionAttributeValues": {
                ":base_uri": {"S": table},
                ":first": {"N": "0"},
                ":last": {"N": str(DETACHED_BIT - 1)},
            },
            "ConsistentRead": True,
            "ScanIndexForward": ascending,
        }
        if limit is not None:
            arguments["Limit"] = limit
        rows: list[ManifestRow] = []
        while True:
            reply = self._send("query", **arguments)
            rows += [_row(item) for item in reply.get("Items", ())]
            if "LastEvaluatedKey" not in reply or (limit is not None and len(rows) >= limit):
                return rows
            arguments["ExclusiveStartKey"] = reply["LastEvaluatedKey"]

    def _put(self, table: str, row: ManifestRow, condition: str) -> PutOutcome:
        """Write a row. Returns LOST if the condition failed, UNKNOWN without a clear reply."""
        item = {**_key(table, row.version), "path": {"S": row.path}, "committer": {"S": "lancedb"}}
        if row.size_bytes is not None:
            item["size"] = {"N": str(row.size_bytes)}
        try:
            self._send("put_item", writes=True, Item=item, ConditionExpression=condition)
        except _TakenError:
            return PutOutcome.LOST
        except _AmbiguousReplyError:
            return PutOutcome.UNKNOWN
        return PutOutcome.WON

    # ---- requests ---------------------------------------------------------------------------------------------

    def _send(self, operation: str, *, writes: bool = False, **arguments: Any) -> Any:
        """Send one request. Throttled requests and reads with an ambiguous reply are retried.

        Raises StoreError, _TakenError if the condition failed, and _AmbiguousReplyError for a write with an unclear
        reply.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        client = self._client.get()
        cause: Exception | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._sleep(_wait(attempt))
            try:
                return getattr(client, operation)(TableName=self.table_name, **arguments)
            except ClientError as error:
                code = error.response.get("Error", {}).get("Code", "")
                status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
                cause = error
                if code == "ConditionalCheckFailedException":
                    raise _TakenError from None
                if code in _THROTTLED:
                    continue  # rejected before it had an effect
                if code not in _REPEATABLE and status < 500:
                    raise self._failure(error, arguments) from None
            except BotoCoreError as error:
                cause = error
                if type(error).__name__ in ("NoCredentialsError", "ParamValidationError", "NoRegionError"):
                    raise self._failure(error, arguments) from None
            if writes:
                raise _AmbiguousReplyError
        assert cause is not None
        raise self._failure(cause, arguments) from None

    def _make_client(self) -> Any:
        """Return a client, after checking the keys of the table."""
        try:
            import boto3
            from botocore.config import Config
        except ImportError as error:
            raise UnsupportedFeatureError(
                "s3+ddb:// requires a package that is not installed; run: pip install 'lancetable[dynamodb]'",
                feature="external manifest store",
            ) from error
        options = self._options.with_environment()
        config = options.config
        endpoint = self._storage_options.get("dynamodb_endpoint") or os.environ.get("DYNAMODB_ENDPOINT")
        try:
            client = boto3.session.Session().client(
                "dynamodb",
                endpoint_url=str(endpoint) if endpoint else None,
                region_name=config.get("region"),
                aws_access_key_id=config.get("access_key_id"),
                aws_secret_access_key=config.get("secret_access_key"),
                aws_session_token=config.get("session_token"),
                config=Config(
                    retries={"total_max_attempts": 1},
                    connect_timeout=options.seconds("connect_timeout", 5.0),
                    read_timeout=options.seconds("timeout", 30.0),
                    max_pool_connections=32,
                ),
            )
        except Exception as error:
            raise StoreError(
                f"{self.table_name}: DynamoDB cannot be reached: {type(error).__name__}: {error}"
            ) from None
        self._check_keys(client)
        return client

    def _check_keys(self, client: Any) -> None:
        """Raise InvalidInputError unless the DynamoDB table has the keys of the protocol."""
        identity = (self.table_name, str(client.meta.endpoint_url))
        if identity in _checked:
            return
        try:
            table = client.describe_table(TableName=self.table_name)["Table"]
        except Exception as error:
            raise StoreError(f"DynamoDB table {self.table_name}: {type(error).__name__}: {error}") from None
        keys = {(key["AttributeName"], key["KeyType"]) for key in table["KeySchema"]}
        types = {(item["AttributeName"], item["AttributeType"]) for item in table["AttributeDefinitions"]}
        expected = {("base_uri", "HASH"), ("version", "RANGE")}
        if keys != expected or not {("base_uri", "S"), ("version", "N")} <= types:
            raise InvalidInputError(
                f"DynamoDB table {self.table_name} has the keys {sorted(keys)}; create it with hash key base_uri (S) "
                "and range key version (N)"
            )
        _checked.add(identity)

    def _failure(self, error: Exception, arguments: Mapping[str, Any]) -> LanceError:
        message = f"{type(error).__name__}: {error}"
        for secret in self._options.with_environment().secrets:
            message = message.replace(secret, "***")
        return StoreError(f"DynamoDB table {self.table_name}: {message}", path=self.table_name)

    def _describe(self, table: str) -> str:
        return f"DynamoDB table {self.table_name}, {table}"


class _TakenError(Exception):
    """A write whose condition failed. Internal to this module."""


def _key(table: str, version: int) -> dict[str, dict[str, str]]:
    return {"base_uri": {"S": table}, "version": {"N": str(version)}}


def _row(item: Mapping[str, Any]) -> ManifestRow:
    """Parse a DynamoDB item. Raises StoreError if it does not follow the protocol."""
    try:
        size = item.get("size")
        return ManifestRow(int(item["version"]["N"]), str(item["path"]["S"]), None if size is None else int(size["N"]))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"invalid manifest row in the DynamoDB table, with attributes {sorted(item)}; remove it"
        ) from error


def _wait(attempt: int) -> float:
    longest: float = min(0.05 * 2.0**attempt, 2.0)
    return random.uniform(longest / 2, longest)
