"""Fragments: horizontal slices of a table, each stored in data files with the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyroaring

from lancetable import ops, udf
from lancetable.argument_validation import DEFAULT_MAX_BYTES_PER_FILE, check_count, check_filter
from lancetable.errors import InvalidInputError, InvalidOperationError
from lancetable.format.fragment import Fragment
from lancetable.fragment_metadata import (
    DataFile,
    DeletionFile,
    FragmentMetadata,
    RowDatasetVersionMeta,
    RowIdMeta,
    RowIdSequence,
)
from lancetable.ops.write.add_files import adopt_fragment
from lancetable.progress import FragmentWriteProgress, NumberedProgress, ProgressLike, split_progress
from lancetable.scanner import ColumnOrdering, LanceScanner, ScannerBuilder, scan_arguments
from lancetable.schema import LanceSchema
from lancetable.table.row_counts import num_live_rows, physical_rows
from lancetable.table.version import TableVersion
from lancetable.tabular_input import read_table
from lancetable.writes import write_fragments

if TYPE_CHECKING:
    import pandas as pd

    from lancetable.dataset import LanceDataset
    from lancetable.session import Session
    from lancetable.types import Columns, Filter, ReaderLike, Uri
    from lancetable.udf import BatchUDF

__all__ = [
    "DEFAULT_MAX_BYTES_PER_FILE",
    "DataFile",
    "DeletionFile",
    "FragmentMetadata",
    "FragmentSession",
    "LanceFragment",
    "RowDatasetVersionMeta",
    "RowIdMeta",
    "RowIdSequence",
    "write_fragments",
]

BlobHandling = Literal["all_binary", "blobs_descriptions", "all_descriptions"]


class LanceFragment(pads.Fragment):  # type: ignore[misc]  # pyarrow comes without types
    """One fragment of a dataset, at the version of the dataset.

    Created by `LanceDataset.get_fragment` or `get_fragments`.
    """

    def __init__(self, dataset: LanceDataset, fragment_id: int | None, *, fragment: Fragment | None = None) -> None:
        self._dataset = dataset
        self._version: TableVersion = dataset.table_version
        if fragment is None:
            if fragment_id is None:
                raise InvalidInputError("missing argument: fragment_id")
            fragment = self._version.manifest.fragments.by_id(check_count("fragment_id", fragment_id))
            if fragment is None:
                raise InvalidInputError(f"version {self._version.version} has no fragment {fragment_id}")
        self._fragment = fragment

    def __reduce__(self) -> tuple[Any, ...]:
        return LanceFragment, (self._dataset.checkout_version(self._version.version), self._fragment.id)

    def __repr__(self) -> str:
        files = [file.path for file in self._fragment.files]
        deletions = "" if self._fragment.deletion_file is None else f", deletion_file={self.deletion_file()!r}"
        return f"LanceFragment(id={self._fragment.id}, data_files={files}{deletions})"

    @property
    def fragment_id(self) -> int:
        """The id of the fragment, unique in the history of its table."""
        return self._fragment.id

    @property
    def metadata(self) -> FragmentMetadata:
        """The fragment as listed in the manifest."""
        return FragmentMetadata.from_format(self._fragment)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the table."""
        return self._version.schema.to_arrow()

    @property
    def physical_schema(self) -> pa.Schema:
        """The schema of the columns stored in the fragment's files; other columns read as null."""
        present = {field_id for file in self._fragment.files for field_id in file.fields}
        absent = {field.id for field in self._version.schema.walk() if not field.children and field.id not in present}
        return self._version.schema.without(absent).to_arrow()

    @property
    def partition_expression(self) -> pc.Expression:
        """Always true, because a Lance table has no partitions."""
        return pc.scalar(True)

    @property
    def physical_rows(self) -> int:
        """The number of rows in the files, including deleted ones."""
        return physical_rows(self._version, self._fragment)

    @property
    def num_deletions(self) -> int:
        """The number of deleted rows."""
        return self.physical_rows - num_live_rows(self._version, self._fragment)

    def data_files(self) -> list[DataFile]:
        """Return the data files, each with some of the columns."""
        return [DataFile.from_format(file) for file in self._fragment.files]

    def deletion_file(self) -> str | None:
        """Return the path of the deletion file relative to the table's root, or None."""
        file = self._fragment.deletion_file
        return None if file is None else DeletionFile.from_format(file).path(self._fragment.id)

    # ------------------------------------------------------------------------------------------------------ reads

    def scanner(
        self,
        *,
        columns: Columns | None = None,
        batch_size: int | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        offset: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
        batch_readahead: int = 16,
        blob_handling: BlobHandling | None = None,
        order_by: list[ColumnOrdering | str] | None = None,
        use_scalar_index: bool | None = None,
        io_buffer_size: int | None = None,
        late_materialization: bool | list[str] | None = None,
        include_deleted_rows: bool | None = None,
        batch_size_bytes: int | None = None,
        strict_batch_size: bool | None = None,
        progress: ProgressLike = None,
    ) -> LanceScanner:
        """Return a scanner of this fragment. Arguments and errors are those of `LanceDataset.scanner`."""
        # The default False must not override a default scan option of the dataset.
        with_row_id, with_row_address = with_row_id or None, with_row_address or None  # type: ignore[assignment]
        builder = ScannerBuilder(self._dataset).with_fragments([self])
        return builder.apply_defaults(scan_arguments(locals())).to_scanner(self._version)

    def to_table(
        self,
        columns: Columns | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        offset: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
        blob_handling: BlobHandling | None = None,
        order_by: list[ColumnOrdering | str] | None = None,
        use_scalar_index: bool | None = None,
        io_buffer_size: int | None = None,
        late_materialization: bool | list[str] | None = None,
        include_deleted_rows: bool | None = None,
        batch_size_bytes: int | None = None,
        strict_batch_size: bool | None = None,
    ) -> pa.Table:
        """Read rows into an Arrow table. Arguments and errors are those of `LanceDataset.to_table`."""
        return self.scanner(**scan_arguments(locals())).to_table()

    def to_batches(
        self,
        *,
        columns: Columns | None = None,
        batch_size: int | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        offset: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
        batch_readahead: int = 16,
        blob_handling: BlobHandling | None = None,
        order_by: list[ColumnOrdering | str] | None = None,
        use_scalar_index: bool | None = None,
        io_buffer_size: int | None = None,
        late_materialization: bool | list[str] | None = None,
        include_deleted_rows: bool | None = None,
        batch_size_bytes: int | None = None,
        strict_batch_size: bool | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Stream rows as record batches. Arguments and errors are those of `LanceDataset.to_batches`."""
        return self.scanner(**scan_arguments(locals())).to_batches()

    def to_pandas(
        self,
        columns: Columns | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        offset: int | None = None,
        batch_size: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
        blob_mode: str = "lazy",
        order_by: list[ColumnOrdering | str] | None = None,
        **kwargs: Any,
    ) -> pd.DataFrame:
        """Read rows into a pandas DataFrame; `kwargs` are passed to `pyarrow.Table.to_pandas`.

        Raises the errors of `to_table`.
        """
        return self.scanner(**scan_arguments(locals())).to_pandas(blob_mode=blob_mode, **kwargs)

    def count_rows(self, filter: Filter | None = None) -> int:
        """Count the live rows, or those that match `filter`. Raises the errors of `LanceDataset.count_rows`."""
        check_filter("filter", filter)
        if filter is None:
            return num_live_rows(self._version, self._fragment)
        return ops.matching_rows.count_rows(self._version, filter, fragments=[self._fragment.id])

    def head(self, num_rows: int) -> pa.Table:
        """Return the first `num_rows` live rows. Raises the errors of `to_table`."""
        return self.to_table(limit=num_rows)

    def take(self, indices: Any, columns: Columns | None = None) -> pa.Table:
        """Read rows by position among the live rows of this fragment, from 0, in the given order.

        Blobs are returned as bytes.

        Raises
        ------
        OutOfRangeError
            If a position is out of range.
        ColumnNotFoundError, InvalidSqlError
            If a column or an expression is invalid.
        TypeError
            If `indices` are not integers.
        """
        return ops.take.take_offsets(self._version, indices, columns, fragment=self._fragment.id, blobs_as_bytes=True)

    def open_session(self, columns: Columns | None = None, with_row_address: bool | None = None) -> FragmentSession:
        """Return a session for repeated calls of `take` with the same columns."""
        return FragmentSession(self, columns, bool(with_row_address))

    # ---------------------------------------------------------------------------------------------------- changes

    def delete(self, predicate: str) -> FragmentMetadata | None:
        """Write a deletion file for the matching rows without committing it.

        Returns the new metadata for `LanceOperation.Delete`, or None if no row is left and the fragment must be
        removed.

        Raises
        ------
        InvalidSqlError, ColumnNotFoundError, TypeError
            If the predicate is invalid.
        """
        check_filter("predicate", predicate, required=True)
        remaining = ops.delete.delete_from_fragment(self._version, self._fragment, predicate)
        return None if remaining is None else FragmentMetadata.from_format(remaining)

    def delete_rows(self, offsets: Iterable[int]) -> FragmentMetadata | None:
        """Write a deletion file like `delete`, for rows given by physical offset, which counts deleted rows too.

        Raises
        ------
        OutOfRangeError
            If an offset is negative or not in the fragment.
        TypeError
            If `offsets` are not integers.
        """
        listed: Any = list(offsets) if isinstance(offsets, (Iterator, Set)) else offsets
        numbers = ops.take.integers(listed, "offsets", unsigned=True)
        remaining = ops.delete.delete_offsets(self._version, self._fragment, numbers)
        return None if remaining is None else FragmentMetadata.from_format(remaining)

    def merge_columns(
        self,
        value_func: dict[str, str] | BatchUDF | Callable[[pa.RecordBatch], Any] | ReaderLike,
        columns: list[str] | None = None,
        batch_size: int | None = None,
        reader_schema: pa.Schema | None = None,
    ) -> tuple[FragmentMetadata, LanceSchema]:
        """Write new columns for the rows of this fragment without committing them.

        Parameters
        ----------
        value_func
            SQL expressions, a function of batches of `columns`, or rows, as in `LanceDataset.add_columns`.
        columns
            Input columns of a function; all by default.
        batch_size
            Number of rows passed to a function at a time.
        reader_schema
            The schema of `value_func` if it is an iterable of batches.

        Returns
        -------
        tuple[FragmentMetadata, LanceSchema]
            The new metadata and the new schema. Once every fragment has the new columns, commit them with
            `LanceOperation.Merge`.

        Raises
        ------
        AlreadyExistsError
            If a column exists.
        InvalidSqlError, ColumnNotFoundError
            If an expression is invalid.
        InvalidInputError
            If there are too few or too many rows, or the function uses a checkpoint file.
        TypeError
            If `value_func` has another type, or adds null columns.
        """
        if isinstance(value_func, udf.BatchUDF) and value_func.cache is not None:
            raise InvalidInputError(
                "A checkpoint file cannot be used for a single fragment, since it is not committed here"
            )
        new = udf.new_columns(value_func, self, columns, reader_schema)
        if isinstance(new, pa.Schema):
            raise TypeError("null columns require no data files; add them with LanceDataset.add_columns")
        computed = udf.computed_columns(new, self._version, columns, batch_size)
        written, stored = ops.new_columns.add_to_fragment(self._version, self._fragment, computed)
        return FragmentMetadata.from_format(written), LanceSchema(stored)

    def merge(
        self, data_obj: ReaderLike, left_on: str, right_on: str | None = None, schema: pa.Schema | None = None
    ) -> tuple[FragmentMetadata, LanceSchema]:
        """Write the columns of another table by key without committing them; see `LanceDataset.merge`.

        Returns the new metadata and the new schema for `LanceOperation.Merge`. Raises the errors of
        `LanceDataset.merge`, except those of the commit.
        """
        right = read_table(data_obj, schema)
        on = left_on if right_on is None else right_on
        result = ops.merge_columns.merge_fragment(self._version, self._fragment, right, left_on, on)
        return FragmentMetadata.from_format(result[0]), LanceSchema(result[1])

    def update_columns(
        self,
        data_obj: ReaderLike,
        left_on: str = "_rowid",
        right_on: str | None = None,
        schema: pa.Schema | None = None,
        *,
        with_offsets: bool = False,
    ) -> tuple[FragmentMetadata, list[int]] | tuple[FragmentMetadata, list[int], bytes]:
        """Write new values of columns for rows whose key is in `data_obj`, without committing them.

        Rows without a match keep their values. If several rows of `data_obj` share a key, the last one is used.

        Parameters
        ----------
        data_obj
            The new values and their key.
        left_on
            Key in this table: a column, `_rowid` or `_rowaddr`.
        right_on
            Key column of `data_obj`; `left_on` by default.
        schema
            Schema of `data_obj`.
        with_offsets
            Also return the offsets of the matched rows.

        Returns
        -------
        tuple
            The new metadata and the ids of the written fields, for `LanceOperation.Update`; with `with_offsets` also a
            roaring bitmap of the matched offsets, for its `updated_fragment_offsets`.

        Raises
        ------
        ColumnNotFoundError
            If a column does not exist.
        SchemaMismatchError
            If a type does not fit.
        InvalidInputError
            If `data_obj` has only its key.
        """
        right = read_table(data_obj, schema)
        on = left_on if right_on is None else right_on
        result, fields, offsets = ops.merge_columns.update_columns(self._version, self._fragment, right, left_on, on)
        metadata = FragmentMetadata.from_format(result)
        if not with_offsets:
            return metadata, list(fields)
        return metadata, list(fields), pyroaring.BitMap(offsets).serialize()

    def validate(self) -> None:
        """Check that the files exist and match the manifest. Raises CorruptFileError or NotFoundError."""
        ops.validate.validate_fragment(self._version, self._fragment)

    @staticmethod
    def create_from_file(filename: str, dataset: LanceDataset, fragment_id: int) -> FragmentMetadata:
        """Return the metadata of a fragment with one finished file below the data directory; nothing is committed.

        Raises
        ------
        NotFoundError, CorruptFileError
            If the file does not exist or is damaged.
        SchemaMismatchError
            If the dataset lacks a column of the file.
        """
        return FragmentMetadata.from_format(adopt_fragment(dataset.table_version, filename, fragment_id))

    @staticmethod
    def create(
        dataset_uri: Uri,
        data: ReaderLike,
        fragment_id: int | None = None,
        schema: pa.Schema | None = None,
        max_rows_per_group: int | None = 1024,
        progress: FragmentWriteProgress | ProgressLike = None,
        mode: str = "append",
        *,
        data_storage_version: str | None = None,
        use_legacy_format: bool | None = None,
        storage_options: dict[str, str] | None = None,
        namespace_client: Any = None,
        table_id: list[str] | None = None,
        session: Session | None = None,
    ) -> FragmentMetadata:
        """Write all rows of `data` as one fragment without committing it; see `write_fragments`.

        The fragment gets the id `fragment_id`, 0 by default.

        Raises
        ------
        InvalidOperationError
            If the data has no rows, or more rows than a file can have.
        """
        number = check_count("fragment_id", fragment_id or 0)
        files, _ = split_progress(progress)
        if files is not None and fragment_id:
            progress = NumberedProgress(files, number)
        written = write_fragments(
            data,
            dataset_uri,
            schema,
            mode=mode,
            max_rows_per_file=2**31,
            max_rows_per_group=max_rows_per_group,
            progress=progress,
            data_storage_version=data_storage_version,
            use_legacy_format=use_legacy_format,
            storage_options=storage_options,
            namespace_client=namespace_client,
            table_id=table_id,
            session=session,
        )
        if len(written) != 1:
            raise InvalidOperationError(f"expected data for one fragment, got {len(written)} fragments")
        written[0].id = number
        return written[0]

    # ----------------------------------------------------------------- other methods of pyarrow.dataset.Fragment

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the live rows as an Arrow C stream."""
        return self.scanner().to_reader().__arrow_c_stream__(requested_schema)


class FragmentSession:
    """Session for repeated takes from one fragment with fixed columns."""

    def __init__(self, session: LanceFragment, columns: Columns | None = None, with_row_address: bool = False) -> None:
        self._fragment = session
        self._columns = columns
        if with_row_address and isinstance(columns, dict):
            self._columns = {**columns, "_rowaddr": "_rowaddr"}
        elif with_row_address:
            self._columns = [*(session.schema.names if columns is None else columns), "_rowaddr"]

    def take(self, indices: Any) -> pa.Table:
        """Read rows by position; see `LanceFragment.take`."""
        return self._fragment.take(indices, self._columns)
