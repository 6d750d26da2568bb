"""Commands for secondary indexes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from lancetable.cli.table_command import TableCommand, parse_names, run_option, shows_progress, version_option
from lancetable.errors import InvalidInputError

if TYPE_CHECKING:
    from lancetable import LanceDataset
    from lancetable.cli.output import Output
    from lancetable.index_metadata import IndexDescription

LIST_COLUMNS = ("name", "type", "columns", "segments", "indexed_rows", "unindexed_rows", "bytes")
PARTITION_COLUMNS = ("segment", "rows", "partitions", "empty", "smallest", "median", "largest")
SEGMENT_COLUMNS = ("uuid", "version", "index_version", "created", "fragments", "bytes")


def parse_parameters(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """Return `key=value` pairs as a dict; values are JSON, or strings otherwise. Raises click.BadParameter."""
    parameters = {}
    for pair in values:
        key, separator, text = pair.partition("=")
        if not key or not separator:
            raise click.BadParameter("expected key=value")
        try:
            parameters[key] = json.loads(text)
        except ValueError:
            parameters[key] = text
    return parameters


@click.group("index")
def index_group() -> None:
    """List, build, extend and drop secondary indexes."""


@index_group.command("list", cls=TableCommand)
@version_option
def list_indexes(dataset: LanceDataset, output: Output) -> None:
    """List the indexes with the numbers of rows that they contain."""
    output.table([_summary(index) for index in dataset.describe_indices()], LIST_COLUMNS)


def _summary(index: IndexDescription) -> dict[str, Any]:
    return {
        "name": index.name,
        "type": index.index_type,
        "columns": index.field_names,
        "segments": len(index.segments),
        "indexed_rows": index.num_rows_indexed,
        "unindexed_rows": index.num_rows_unindexed,
        "bytes": index.total_size_bytes,
    }


@index_group.command(cls=TableCommand)
@click.argument("name")
@version_option
def describe(dataset: LanceDataset, output: Output, name: str) -> None:
    """Show the segments, settings and row counts of index NAME."""
    index = _description(dataset, name)
    segments = [
        {
            "uuid": segment.uuid,
            "version": segment.dataset_version,
            "index_version": segment.index_version,
            "created": segment.created_at,
            "fragments": sorted(segment.fragment_ids),
            "bytes": segment.size_bytes,
        }
        for segment in index.segments
    ]
    if output.as_json:
        output.properties({**_summary(index), "settings": index.details, "segments": segments})
        return
    output.properties({**_summary(index), **_flat(index.details)})
    output.table(segments, SEGMENT_COLUMNS)


def _description(dataset: LanceDataset, name: str) -> IndexDescription:
    """Return the description of an index. Raises IndexNotFoundError if it does not exist."""
    from lancetable.ops.index.targets import existing_entries

    existing_entries(dataset.table_version, name)
    return next(index for index in dataset.describe_indices() if index.name == name)


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings with those of parts, such as the quantizer, but without hints, which do not affect the index."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict) and name != "runtime_hints":
            flat |= {"quantizer" if inner == "type" else inner: each for inner, each in value.items()}
        elif not isinstance(value, dict):
            flat[name] = value
    return flat


@index_group.command(cls=TableCommand)
@click.argument("column")
@click.argument("kind")
@click.option("--name", help="Name of the index; default: the column and _idx.")
@click.option(
    "--param",
    "-p",
    "parameters",
    multiple=True,
    callback=parse_parameters,
    help="Parameter as key=value; may be repeated.",
)
@click.option("--keep", is_flag=True, help="Fail if an index with this name exists, instead of replacing it.")
@click.option("--empty", is_flag=True, help="Index no rows now; optimize adds them.")
def create(
    dataset: LanceDataset,
    output: Output,
    column: str,
    kind: str,
    name: str | None,
    parameters: dict[str, Any],
    keep: bool,
    empty: bool,
) -> None:
    """Build an index of KIND on COLUMN.

    KIND is btree, bitmap, label_list, ngram, zonemap, bloomfilter or json. Parameters are zone_size of btree,
    rows_per_zone of zonemap, number_of_items and probability of bloomfilter, path and target_index_type of json.
    For vectors, KIND is ivf_flat, ivf_pq, ivf_sq, ivf_hnsw_flat, ivf_hnsw_sq or ivf_hnsw_pq, with parameters such as
    metric, num_partitions and num_sub_vectors.
    """
    from lancetable.indices import IndexConfig
    from lancetable.vector_index_arguments import is_vector_type, vector_options

    before = {segment.uuid for index in dataset.describe_indices() for segment in index.segments}
    if is_vector_type(kind):
        try:
            vector_options(kind, parameters)
        except TypeError as error:
            raise click.BadParameter(str(error), param_hint="--param") from error
        dataset.create_index(column, kind, name, replace=not keep, train=not empty, **parameters)
    else:
        dataset.create_scalar_index(column, IndexConfig(kind, parameters), name, replace=not keep, train=not empty)
    created = [
        index for index in dataset.describe_indices() if not before.issuperset(part.uuid for part in index.segments)
    ]
    output.properties({"uri": dataset.uri, "version": dataset.version, **_summary(created[0])})


@index_group.command(cls=TableCommand)
@click.argument("name")
@click.option("--queries", type=click.IntRange(min=0), default=100, show_default=True, help="Number of sampled rows.")
@click.option("-k", type=click.IntRange(min=1), default=10, show_default=True, help="Number of nearest rows.")
@click.option("--nprobes", type=click.IntRange(min=1), default=20, show_default=True, help="Partitions to search.")
@click.option("--refine", type=click.IntRange(min=1), help="Multiple of k of which distances are computed exactly.")
@click.option("--partitions", "lists_partitions", is_flag=True, help="Also list the partitions with their rows.")
def check(
    dataset: LanceDataset,
    output: Output,
    name: str,
    queries: int,
    k: int,
    nprobes: int,
    refine: int | None,
    lists_partitions: bool,
) -> None:
    """Show the partitions and unindexed rows of vector index NAME, and estimate its recall.

    The nearest rows of sampled rows are searched with the index and exactly. The recall is the part of them that the
    index finds. `--queries 0` reads no vectors.
    """
    from lancetable.cli.index_recall import Recall, estimate_recall

    index = _description(dataset, name)
    if index.type_url.rpartition(".")[2] != "VectorIndexDetails":
        raise InvalidInputError(f"index {name!r} is a {index.index_type} index; check is for vector indexes")
    segments = [part for part in dataset.stats.index_stats(name)["segments"] if part]
    properties = {**_summary(index), "metric": segments[0]["metric_type"] if segments else None}
    found = Recall(None, 0)
    if queries and index.num_rows_indexed:
        metric = properties["metric"]
        found = estimate_recall(dataset, index, metric, queries, k=k, nprobes=nprobes, refine_factor=refine)
    if output.as_json:
        options = {"queries": found.num_queries, "k": k, "nprobes": nprobes, "refine_factor": refine}
        parts = [{**_sizes(part), "sizes": [each["size"] for each in part["partitions"]]} for part in segments]
        output.properties({**properties, "recall": found.recall, **options, "segments": parts})
        return
    if found.recall is not None:
        refined = "" if refine is None else f", refine factor {refine}"
        properties["recall"] = f"{found.recall:.4f} of {k} rows, {found.num_queries} queries, {nprobes} probes{refined}"
    output.properties(properties)
    if segments:
        output.table([_sizes(part) for part in segments], PARTITION_COLUMNS)
    if lists_partitions:
        columns = [[each["size"] for each in part["partitions"]] for part in segments]
        rows = [_rows_of(columns, number) for number in range(max(map(len, columns), default=0))]
        output.table(rows, _rows_of(columns, 0))


def _sizes(segment: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of rows of the partitions of a segment: entries of deleted rows are included."""
    sizes = sorted(each["size"] for each in segment["partitions"])
    return {
        "segment": segment["uuid"],
        "rows": sum(sizes),
        "partitions": len(sizes),
        "empty": sizes.count(0),
        "smallest": min(sizes, default=None),
        "median": sizes[len(sizes) // 2] if sizes else None,
        "largest": max(sizes, default=None),
    }


def _rows_of(columns: list[list[int]], partition: int) -> dict[str, int | None]:
    """Return the number of rows of a partition in each segment, of which `columns` are the sizes of all partitions."""
    names = ["rows"] if len(columns) == 1 else [f"rows of segment {number}" for number in range(1, len(columns) + 1)]
    rows = {name: sizes[partition] if partition < len(sizes) else None for name, sizes in zip(names, columns)}
    return {"partition": partition, **rows}


@index_group.command(cls=TableCommand)
@click.argument("name")
@run_option
def drop(dataset: LanceDataset, output: Output, name: str, run: bool) -> None:
    """Remove index NAME. Prints its segments; --run removes it."""
    segments = [part.uuid for index in dataset.describe_indices() if index.name == name for part in index.segments]
    if run or not segments:
        dataset.drop_index(name)
    output.properties({"uri": dataset.uri, "version": dataset.version, "segments": segments})


@index_group.command(cls=TableCommand)
@click.option(
    "--name", "-n", "names", callback=parse_names, help="Names of indexes, separated by commas; default: all."
)
@click.option("--merge", type=click.IntRange(min=0), help="Number of segments to merge; 0 adds a segment.")
@click.option("--retrain", is_flag=True, help="Build one segment from the data.")
@run_option
def optimize(
    dataset: LanceDataset, output: Output, names: list[str] | None, merge: int | None, retrain: bool, run: bool
) -> None:
    """Add rows to indexes that do not contain them. Prints the plan; --run executes it."""
    from lancetable.ops.index.optimize import plan_extensions
    from lancetable.ops.index.targets import existing_entries

    for name in names or ():
        existing_entries(dataset.table_version, name)  # raises an error if there are none
    plan = plan_extensions(dataset.table_version, names, num_to_merge=merge, retrain=retrain)
    if run:
        dataset.optimize.optimize_indices(
            index_names=names, num_indices_to_merge=merge, retrain=retrain, progress=shows_progress()
        )
        changed = {"changed_indexes": list(dict.fromkeys(each.target.name for each in plan))}
        output.properties({"uri": dataset.uri, "version": dataset.version, **changed})
        return
    rows = [
        {
            "name": each.target.name,
            "merged_segments": [str(source.files.metadata.uuid) for source in each.sources],
            "read_fragments": list(each.read_fragments),
        }
        for each in plan
    ]
    output.table(rows, ["name", "merged_segments", "read_fragments"])
