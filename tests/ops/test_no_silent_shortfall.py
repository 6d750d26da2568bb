"""Calls that would do less than requested raise an error, count the remainder, or log a record."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lancetable
from lancetable.errors import StoreError
from lancetable.optimize import Compaction
from lancetable.store.clouds.options import check_option
from lancetable.store.local import LocalStore
from lancetable.store.open import open_store

ROWS = pa.table({"id": range(10), "v": range(10)})


def made(path: Path, fragments: int = 3, **options: Any) -> lancetable.LanceDataset:
    whole = pa.concat_tables([ROWS] * fragments)
    return lancetable.write_dataset(whole, path, max_rows_per_file=ROWS.num_rows, **options)


# --- writes -----------------------------------------------------------------------------------------------------------


def test_rows_given_as_dicts_keep_the_keys_of_every_row(tmp_path: Path) -> None:
    ds = lancetable.write_dataset([{"a": 1}, {"a": 2, "b": 3}, {"c": "x"}], tmp_path / "t")
    assert ds.to_table().to_pydict() == {"a": [1, 2, None], "b": [None, 3, None], "c": [None, None, "x"]}
    ds.insert([{"b": 1}, {"a": 5}])
    assert ds.to_table(offset=3).to_pydict() == {"a": [None, 5], "b": [1, None], "c": [None, None]}
    with pytest.raises(lancetable.SchemaMismatchError, match=r"unexpected=\[d\]"):
        ds.insert([{"a": 1}, {"d": 5}])
    with pytest.raises(lancetable.SchemaMismatchError, match=r"unexpected=\[d\]"):
        ds.merge_insert("a").when_matched_update_all().execute([{"a": 1}, {"a": 2, "d": 5}])


@pytest.mark.parametrize(
    "data",
    [{"a": [1], "b": [2]}, [{"a": 1}, {"b": 2}], pd.DataFrame({"a": [1], "b": [2]}), pa.table({"a": [1], "b": [2]})],
    ids=["dict", "rows", "pandas", "table"],
)
def test_a_column_that_the_given_schema_lacks_is_refused(tmp_path: Path, data: Any) -> None:
    with pytest.raises(lancetable.SchemaMismatchError, match="'b'"):
        lancetable.write_dataset(data, tmp_path / "t", pa.schema([("a", pa.int64())]))
    assert not (tmp_path / "t").exists()


def test_a_frame_without_a_column_of_the_given_schema_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    with pytest.raises(lancetable.SchemaMismatchError, match=r"missing columns \['b'\]"):
        lancetable.write_dataset(pd.DataFrame({"a": [1]}), tmp_path / "t", schema)
    frame = pd.DataFrame({"a": [1]}, index=pd.Index([5], name="b"))
    assert lancetable.write_dataset(frame, tmp_path / "t", schema).to_table()["b"].to_pylist() == [5]


LOSSY = [
    (1.5, pa.int64()),
    (pd.Timestamp("2020-01-01 00:00:00.5").to_pydatetime(), pa.timestamp("s")),
    (timedelta(milliseconds=1500), pa.duration("s")),
    ([1, 2.5], pa.list_(pa.int32())),
    ({"x": 1.5}, pa.struct([("x", pa.int64())])),
    (2**40, pa.int32()),
]


@pytest.mark.parametrize(("value", "data_type"), LOSSY, ids=[str(each) for _, each in LOSSY])
def test_python_values_that_the_given_schema_would_cut_are_refused(
    tmp_path: Path, value: Any, data_type: pa.DataType
) -> None:
    schema = pa.schema([("a", data_type)])
    for data in ({"a": [None, value]}, [{"a": None}, {"a": value}]):
        with pytest.raises(ValueError, match=r"(?i)truncated|lose data|not in range|too large|does not fit"):
            lancetable.write_dataset(data, tmp_path / "t", schema)


def test_python_values_that_fit_the_given_schema_are_converted(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int32()), ("f", pa.float32()), ("t", pa.timestamp("s")), ("m", pa.list_(pa.uint8()))])
    moment = pd.Timestamp("2020-01-01").to_pydatetime()
    ds = lancetable.write_dataset([{"a": 2.0, "f": 1, "t": moment, "m": [1, 2]}, {"f": 0.1}], tmp_path / "t", schema)
    assert ds.schema == schema
    assert ds.to_table()["a"].to_pylist() == [2, None]


@pytest.mark.parametrize("narrow", [pa.float32(), pa.float16()], ids=str)
def test_floats_that_a_narrower_type_cannot_hold_are_refused(tmp_path: Path, narrow: pa.DataType) -> None:
    nested = pa.table({"a": [1e300, float("inf"), None], "l": [[1e300], [], None], "s": [{"x": 1e300}, None, None]})
    for name, kind in (("a", narrow), ("l", pa.list_(narrow)), ("s", pa.struct([("x", narrow)]))):
        with pytest.raises(lancetable.SchemaMismatchError, match=r"1e\+300 not in range of"):
            lancetable.write_dataset(nested.select([name]), tmp_path / "t", pa.schema([(name, kind)]))
    ds = lancetable.write_dataset(nested.select(["a", "l"]), tmp_path / "u")
    for path, kind in (("a", narrow), ("l", pa.list_(narrow))):
        with pytest.raises(lancetable.SchemaMismatchError, match=r"1e\+300 not in range of"):
            ds.alter_columns({"path": path, "data_type": kind})
    fits = lancetable.write_dataset(pa.table({"a": [float("inf"), float("nan"), 0.5]}), tmp_path / "v")
    fits.alter_columns({"path": "a", "data_type": narrow})
    assert fits.to_table()["a"].to_pylist()[::2] == [float("inf"), 0.5]


def test_a_commit_lock_given_with_a_dataset_is_used(tmp_path: Path) -> None:
    ds = made(tmp_path / "t")
    locked: list[int] = []

    @contextmanager
    def lock(version: int) -> Iterator[None]:
        locked.append(version)
        yield

    lancetable.write_dataset(ROWS, ds, mode="append", commit_lock=lock)
    operation = lancetable.LanceOperation.Append(lancetable.fragment.write_fragments(ROWS, ds))
    lancetable.LanceDataset.commit(ds, operation, read_version=2, commit_lock=lock)
    assert locked == [2, 3]


def test_storage_options_given_with_a_dataset_are_used(tmp_path: Path) -> None:
    ds = made(tmp_path / "t")
    options = {"fsync": "false"}
    written = lancetable.write_dataset(ROWS, ds, mode="append", storage_options=options)
    assert written.initial_storage_options == options
    assert written.count_rows() == 40
    with pytest.raises(lancetable.InvalidInputError, match="fsync"):
        lancetable.fragment.write_fragments(ROWS, ds, storage_options={"fsync": "perhaps"})


def test_settings_of_new_tables_are_logged_when_the_table_exists(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ds = made(tmp_path / "t")
    cleanup = lancetable.types.AutoCleanupConfig(interval=3, older_than_seconds=60)
    settings: dict[str, Any] = {"enable_stable_row_ids": True, "auto_cleanup_options": cleanup}
    ds.insert(ROWS, **settings)
    assert "enable_stable_row_ids has no effect" in caplog.text
    assert "auto_cleanup_options have no effect" in caplog.text
    caplog.clear()
    other = made(tmp_path / "u", **settings)
    other.insert(ROWS, **settings)
    assert not [each for each in caplog.records if each.levelno > logging.INFO]


def test_settings_of_automatic_cleanup_are_complete_and_known(tmp_path: Path) -> None:
    ds = made(tmp_path / "t")
    known: dict[str, Any] = {"interval": 1, "older_than_seconds": 5}
    for wrong in ({**known, "retain_versions": 3}, {"interval": 1}):
        with pytest.raises(lancetable.InvalidInputError, match="expected the keys"):
            ds.optimize.enable_auto_cleanup(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="retain_versions"):
        ds.optimize.enable_auto_cleanup(lancetable.types.AutoCleanupConfig(**known), retain_versions=3)


UNRELATED = "team_of_the_caller"


@pytest.mark.parametrize("uri", ["{}/t", "memory://options/t", "s3://b/t", "gs://b/t", "az://b/t"])
def test_a_mistyped_storage_option_is_refused_everywhere(uri: str, tmp_path: Path) -> None:
    if not uri.startswith(("{", "memory")):
        pytest.importorskip("obstore")
    for wrong, right in {"fsnc": "fsync", "timout": "timeout", "allow_htp": "allow_http"}.items():
        with pytest.raises(
            lancetable.InvalidInputError, match=f"unknown storage option '{wrong}'; did you mean {right}"
        ):
            open_store(uri.format(tmp_path), {wrong: "hidden"})


def test_a_mistyped_option_of_a_cloud_is_refused_there_and_for_local_tables(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    for uri in ("s3://b/t", str(tmp_path)):
        with pytest.raises(lancetable.InvalidInputError, match="did you mean aws_access_key_id") as caught:
            open_store(uri, {"aws_acess_key_id": "hidden", "anon": "true"})
        assert "hidden" not in str(caught.value)


def test_an_unrelated_storage_option_is_logged_once_without_its_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_option.cache_clear()
    for _ in range(2):
        made(tmp_path / "t", mode="overwrite", storage_options={UNRELATED: "hidden", "aws_access_key_id": "x"})
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        f"storage option '{UNRELATED}' is unknown and has no effect on local tables"
    ]
    caplog.clear()
    pytest.importorskip("obstore")
    open_store("s3://b/t", {UNRELATED: "hidden", "account_key": "hidden", "anon": "true"})
    assert [each.getMessage() for each in caplog.records] == [
        f"storage option '{name}' is unknown and has no effect on s3:// tables" for name in (UNRELATED, "account_key")
    ]


# Names that object_store and pylance accept. None may count as a mistyped form of another one.
ACCEPTED = """
    aws_access_key_id aws_secret_access_key aws_default_region aws_region aws_bucket aws_bucket_name bucket bucket_name
    aws_endpoint aws_endpoint_url endpoint_url aws_session_token aws_token aws_virtual_hosted_style_request
    aws_unsigned_payload aws_checksum_algorithm aws_metadata_endpoint aws_imdsv1_fallback
    aws_container_credentials_relative_uri aws_container_credentials_full_uri
    aws_container_authorization_token_file aws_web_identity_token_file aws_role_arn aws_role_session_name
    aws_endpoint_url_sts aws_skip_signature aws_copy_if_not_exists aws_conditional_put aws_disable_tagging
    aws_s3_express s3_express aws_request_payer request_payer aws_server_side_encryption aws_sse_kms_key_id
    aws_sse_bucket_key_enabled aws_sse_customer_key_base64
    google_service_account google_service_account_path google_service_account_key google_bucket google_bucket_name
    google_application_credentials google_skip_signature google_base_url google_storage_token
    azure_storage_account_name azure_storage_account_key azure_storage_access_key azure_storage_master_key
    azure_storage_client_id azure_client_id azure_storage_client_secret azure_client_secret azure_storage_tenant_id
    azure_storage_authority_id azure_storage_authority_host azure_storage_sas_key azure_storage_sas_token
    azure_storage_token azure_storage_use_emulator azure_storage_endpoint azure_endpoint azure_msi_endpoint
    azure_identity_endpoint azure_object_id azure_msi_resource_id azure_federated_token_file
    azure_use_fabric_endpoint azure_use_azure_cli azure_skip_signature azure_container_name azure_disable_tagging
    azure_fabric_token_service_url azure_fabric_workload_host azure_fabric_session_token azure_fabric_cluster_identifier
    azure_storage_encryption_key azure_encryption_key
    allow_http allow_invalid_certificates connect_timeout default_content_type http1_only http2_only
    http2_keep_alive_interval http2_keep_alive_timeout http2_keep_alive_while_idle http2_max_frame_size
    pool_idle_timeout pool_max_idle_per_host proxy_url proxy_ca_certificate proxy_excludes randomize_addresses
    read_timeout timeout user_agent
    client_max_retries client_retry_timeout download_retry_count expires_at_millis refresh_offset_millis
"""


@pytest.mark.parametrize("uri", ["{}/t", "memory://options/t", "s3://b/t", "gs://b/t", "az://b/t"])
def test_every_option_that_pylance_accepts_is_accepted(uri: str, tmp_path: Path) -> None:
    if not uri.startswith(("{", "memory")):
        pytest.importorskip("obstore")
    for name in ACCEPTED.split():
        open_store(uri.format(tmp_path), {name: "1", name.upper(): "1"})


# --- reads ------------------------------------------------------------------------------------------------------------


def test_arguments_of_a_count_are_those_of_a_scan(tmp_path: Path) -> None:
    ds = made(tmp_path / "t")
    assert ds.count_rows(limit=2) == 2
    assert ds.count_rows("v > 4", fragments=ds.get_fragments()[:1]) == 5
    assert ds.count_rows(use_threads=True, batch_size=7) == 30
    with pytest.raises(TypeError, match="fliter"):
        ds.count_rows(fliter="v > 4")
    with pytest.raises(TypeError, match="colums"):
        ds.sample(2, colums=["id"])


def test_a_view_is_not_sampled_or_changed_beyond_its_filter(tmp_path: Path) -> None:
    ds = made(tmp_path / "t")
    view = ds.filter(pc.field("v") > 7)
    calls: list[Callable[[], Any]] = [
        lambda: view.sample(2),
        lambda: view.delete("id > 0"),
        lambda: view.update({"v": "0"}),
        lambda: view.truncate_table(),
    ]
    for call in calls:
        with pytest.raises(lancetable.InvalidOperationError, match="does not apply the filter of a view"):
            call()
    assert (view.count_rows(), lancetable.dataset(tmp_path / "t").count_rows()) == (6, 30)


def test_batches_with_their_fragments_have_one_limit_and_one_offset(tmp_path: Path) -> None:
    ds = made(tmp_path / "t")
    found = [(each.fragment.fragment_id, each.record_batch.num_rows) for each in ds.scanner(limit=3).scan_batches()]
    assert found == [(0, 3)]
    for arguments in ({"offset": 8}, {"offset": 8, "limit": 14}, {"filter": "v % 2 = 0", "offset": 6, "limit": 7}):
        scanner = ds.scanner(**arguments)
        ids = [value for each in scanner.scan_batches() for value in each.record_batch["id"].to_pylist()]
        assert ids == scanner.to_table()["id"].to_pylist()
    with pytest.raises(lancetable.InvalidOperationError, match="cannot sort"):
        next(ds.scanner(order_by=["id"]).scan_batches())


def test_fragments_of_another_table_are_refused(tmp_path: Path) -> None:
    ds, other = made(tmp_path / "t"), made(tmp_path / "u")
    with pytest.raises(lancetable.InvalidInputError, match="belongs to"):
        ds.scanner(fragments=other.get_fragments())
    older = ds.get_fragments()
    ds.delete("id = 0")
    assert ds.scanner(fragments=older).count_rows() == 27


def test_row_ids_of_fragments_that_are_gone_are_refused(tmp_path: Path) -> None:
    ds = made(tmp_path / "t")
    ids = ds.to_table(columns=["_rowid"])["_rowid"].to_pylist()
    ds.delete("id = 0")
    assert ds.take_row_ids(ids).num_rows == 27
    ds.optimize.compact_files()
    with pytest.raises(lancetable.OutOfRangeError, match="has no fragment"):
        ds.take_row_ids(ids)


def test_a_delta_without_lineage_is_refused(tmp_path: Path) -> None:
    ds = made(tmp_path / "t")
    ds.insert(ROWS)
    for read in ("get_inserted_rows", "get_updated_rows", "get_deleted_row_ids"):
        with pytest.raises(lancetable.InvalidOperationError, match="require stable row ids"):
            getattr(ds.delta(1), read)()


def test_delta_refuses_a_first_version_after_the_last(tmp_path: Path) -> None:
    ds = made(tmp_path / "t", enable_stable_row_ids=True)
    older = lancetable.dataset(tmp_path / "t")
    ds.insert(ROWS)
    with pytest.raises(lancetable.InvalidInputError, match="is after"):
        ds.delta(begin_version=2, end_version=1)
    with pytest.raises(lancetable.InvalidInputError, match="is after"):
        older.delta(compared_against=2)
    assert ds.delta(begin_version=2, end_version=2).get_inserted_rows().read_all().num_rows == 0


# --- changes ----------------------------------------------------------------------------------------------------------


def test_a_dictionary_column_is_set_to_a_constant(tmp_path: Path) -> None:
    column = pa.array(["a", "b", None]).dictionary_encode()
    ds = lancetable.write_dataset(pa.table({"id": [0, 1, 2], "c": column}), tmp_path / "t")
    assert ds.update({"c": "'z'"}, "id = 1") == {"num_rows_updated": 1}
    assert sorted(ds.to_table()["c"].to_pylist(), key=str) == [None, "a", "z"]


def test_the_rows_of_a_fragment_are_moved_once(tmp_path: Path) -> None:
    ds = made(tmp_path / "t", 4)
    plan = Compaction.plan(ds, {"target_rows_per_fragment": 20})
    results = [each.execute(ds) for each in plan] + [plan.tasks[0].execute(ds)]
    with pytest.raises(lancetable.InvalidOperationError, match=r"fragments \[0, 1\]"):
        Compaction.commit(ds, results)
    groups = [
        lancetable.LanceOperation.RewriteGroup(each.original_fragments, each.new_fragments)
        for each in (results[0], results[-1])
    ]
    with pytest.raises(lancetable.InvalidOperationError, match="more than once"):
        lancetable.LanceDataset.commit(ds, lancetable.LanceOperation.Rewrite(groups, []), read_version=1)
    assert lancetable.dataset(tmp_path / "t").version == 1
    Compaction.commit(ds, results[:-1])
    assert ds.count_rows() == 40


def test_a_compaction_that_its_limits_leave_nothing_to_do_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ds = made(tmp_path / "t")
    assert ds.optimize.compact_files(max_source_rows=15).fragments_removed == 0
    assert "1 of 1 tasks exceed max_source_fragments, max_source_rows" in caplog.text


# --- checkpoints ------------------------------------------------------------------------------------------------------


class Interrupted(Exception):
    """Exception that stops a run."""


def run(
    ds: lancetable.LanceDataset,
    checkpoint: Path,
    stop_at: int | None = None,
    name: str = "doubled",
    column: str = "w",
    batch_size: int = 4,
    read_columns: list[str] | None = None,
) -> list[list[int]]:
    """Add a column with a checkpoint, and return the batches that were computed."""
    calls: list[list[int]] = []

    def function(batch: pa.RecordBatch) -> pa.RecordBatch:
        if len(calls) == stop_at:
            raise Interrupted
        calls.append(batch["v"].to_pylist())
        return pa.record_batch({column: pc.multiply(batch["v"], 2)})

    function.__qualname__ = f"somewhere.<locals>.{name}"
    schema = pa.schema([(column, pa.int64())])
    ds.add_columns(lancetable.batch_udf(schema, checkpoint)(function), read_columns, batch_size=batch_size)
    return calls


@pytest.fixture
def interrupted(tmp_path: Path) -> lancetable.LanceDataset:
    """Return a table in which a run finished the first fragment and one batch of the second."""
    made(tmp_path / "t")
    with pytest.raises(Interrupted):
        run(lancetable.dataset(tmp_path / "t"), tmp_path / "c", stop_at=4)
    return lancetable.dataset(tmp_path / "t")


def test_a_run_continues_from_its_checkpoint(interrupted: lancetable.LanceDataset, tmp_path: Path) -> None:
    assert run(interrupted, tmp_path / "c") == [[4, 5, 6, 7], [8, 9], [0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"name": "tripled"}, "function was 'doubled' and is 'tripled'"),
        ({"column": "x"}, "new columns was 'w: int64' and is 'x: int64'"),
        ({"batch_size": 5}, "batch_size was 4 and is 5"),
        ({"read_columns": ["v"]}, "read_columns was None"),
    ],
)
def test_a_checkpoint_is_refused_to_another_job(
    interrupted: lancetable.LanceDataset, tmp_path: Path, changed: dict[str, Any], told: str
) -> None:
    with pytest.raises(lancetable.InvalidInputError, match=f"results of another job: {told}"):
        run(interrupted, tmp_path / "c", **changed)
    assert interrupted.schema.names == ["id", "v"]


def test_a_checkpoint_is_refused_to_another_table(interrupted: lancetable.LanceDataset, tmp_path: Path) -> None:
    with pytest.raises(lancetable.InvalidInputError, match="results of another job: table was"):
        run(made(tmp_path / "u"), tmp_path / "c")


def test_a_checkpoint_of_unknown_origin_is_refused(tmp_path: Path) -> None:
    kept = lancetable.udf.BatchUDFCheckpoint(tmp_path / "c")
    kept.insert_batch(kept.BatchInfo(0, 0), pa.record_batch({"w": [1, 2, 3, 4]}))
    with pytest.raises(lancetable.InvalidInputError, match="does not record"):
        run(made(tmp_path / "t"), tmp_path / "c")


def test_rows_deleted_between_two_runs_stay_deleted(interrupted: lancetable.LanceDataset, tmp_path: Path) -> None:
    interrupted.delete("id = 0")
    run(interrupted, tmp_path / "c")
    table = interrupted.to_table()
    assert table.num_rows == 27
    assert table["w"].to_pylist() == [2 * value for value in table["v"].to_pylist()]


def test_a_file_that_a_cleanup_removed_between_two_runs_is_written_again(
    interrupted: lancetable.LanceDataset, tmp_path: Path
) -> None:
    interrupted.cleanup_old_versions(timedelta(0), delete_unverified=True)
    run(interrupted, tmp_path / "c")
    assert interrupted.to_table()["w"].to_pylist() == [2 * value for value in range(10)] * 3


# --- cleanup ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def overwritten(tmp_path: Path) -> lancetable.LanceDataset:
    made(tmp_path / "t", 4)
    return lancetable.write_dataset(ROWS, tmp_path / "t", mode="overwrite")


def hold(monkeypatch: pytest.MonkeyPatch, held: Callable[[str], bool]) -> None:
    """Make the store refuse to remove some files; like a real store, it stops at the first of them."""
    real = LocalStore.delete

    def delete(self: LocalStore, paths: Any) -> None:
        for path in paths:
            if held(path):
                raise StoreError(f"{path}: the object is locked")
            real(self, [path])

    monkeypatch.setattr(LocalStore, "delete", delete)


def test_a_file_that_cannot_be_removed_keeps_no_other(
    overwritten: lancetable.LanceDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = lancetable.dataset(tmp_path / "t", version=1)
    locked = first.get_fragments()[1].data_files()[0].path
    size = (tmp_path / "t" / "data" / locked).stat().st_size
    told = overwritten.explain_cleanup_old_versions(timedelta(0)).stats
    hold(monkeypatch, lambda path: path.endswith(locked))
    done = overwritten.cleanup_old_versions(timedelta(0))
    assert done.failed_deletes == 1
    assert (done.data_files_removed, done.transaction_files_removed) == (3, told.transaction_files_removed)
    assert done.bytes_removed == told.bytes_removed - size
    assert len(list((tmp_path / "t" / "data").iterdir())) == 2
    assert "1 of 5 files could not be removed" in caplog.text and "the object is locked" in caplog.text


def test_manifest_that_cannot_be_removed_is_logged_with_the_consequence(
    overwritten: lancetable.LanceDataset, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    overwritten.insert(ROWS)
    oldest = overwritten.checkout_version(1).table_version.location.path
    hold(monkeypatch, lambda path: path == oldest)
    done = overwritten.cleanup_old_versions(timedelta(0))
    assert (done.failed_deletes, done.old_versions, done.data_files_removed) == (1, 1, 0)
    assert "so no other files were removed; run it again" in caplog.text


def test_a_cleanup_that_can_remove_nothing_raises_with_the_reason_of_the_system(
    overwritten: lancetable.LanceDataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = os.unlink

    def refused(path: str, **more: Any) -> None:
        if str(path).endswith(".manifest"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        real(path, **more)

    monkeypatch.setattr(os, "unlink", refused)
    before = sorted((tmp_path / "t").rglob("*"))
    with pytest.raises(StoreError, match=r"manifest: Permission denied") as caught:
        overwritten.cleanup_old_versions(timedelta(0))
    assert caught.value.errno == errno.EACCES
    assert sorted((tmp_path / "t").rglob("*")) == before


def test_a_failing_automatic_cleanup_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ds = made(tmp_path / "t")
    ds.update_config({"lance.auto_cleanup.interval": "1", "lance.auto_cleanup.older_than": "whenever"})
    caplog.clear()
    ds.insert(ROWS)
    (record,) = [each for each in caplog.records if each.levelno > logging.INFO]
    assert "automatic cleanup" in record.getMessage()


def test_the_cleanup_command_ends_with_2_if_files_are_left(
    overwritten: lancetable.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = pytest.importorskip("lancetable.cli.commands")
    testing = pytest.importorskip("click.testing")
    arguments = ["cleanup", overwritten.uri, "--older-than", "0s", "--run"]
    hold(monkeypatch, lambda path: path.endswith(".lance"))
    failed = testing.CliRunner().invoke(commands.cli, arguments)
    assert (failed.exit_code, "4 files could not be removed" in failed.output) == (2, True)
    monkeypatch.undo()
    assert testing.CliRunner().invoke(commands.cli, arguments).exit_code == 0
