"""Commands for secondary indexes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from lancetable.cli.table_command import TableCommand, parse_names, run_option, shows_progress, version_option
from lancetable.errors import IndexNotFoundError, InvalidInputError

if TYPE_CHECKING:
    from lancetable import LanceDataset
    from lancetable.cli.output import Output
    from lancetable.index_metadata import IndexDescription

LIST_COLUMNS = ("name", "type", "columns", "segments", "indexed_rows", "unindexed_rows", "bytes")
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
    rows = dataset.count_rows()
    output.table([_summary(index, rows) for index in dataset.describe_indices()], LIST_COLUMNS)


def _summary(index: IndexDescription, num_rows: int) -> dict[str, Any]:
    return {
        "name": index.name,
        "type": index.index_type,
        "columns": index.field_names,
        "segments": len(index.segments),
        "indexed_rows": index.num_rows_indexed,
        "unindexed_rows": num_rows - index.num_rows_indexed,
        "bytes": index.total_size_bytes,
    }


@index_group.command(cls=TableCommand)
@click.argument("name")
@version_option
def describe(dataset: LanceDataset, output: Output, name: str) -> None:
    """Show the segments, settings and statistics of index NAME."""
    index = next((index for index in dataset.describe_indices() if index.name == name), None)
    if index is None:
        raise IndexNotFoundError(f"Index {name!r} not found in {dataset.uri}", index=name)
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
    properties = {**_summary(index, dataset.count_rows()), "settings": index.details}
    if output.as_json:
        output.properties({**properties, "segments": segments})
        return
    output.properties(properties)
    output.table(segments, SEGMENT_COLUMNS)


@index_group.command(cls=TableCommand)
@click.argument("column")
@click.argument("kind")
@click.option("--name", help="Name of the index; default: the column and _idx.")
@click.option("--param", "-p", "parameters", multiple=True, callback=parse_parameters, help="Parameter as key=value.")
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

    KIND is btree, bitmap, label_list, ngram, zonemap, bloomfilter or json; for vectors ivf_flat, ivf_pq, ivf_sq,
    ivf_hnsw_flat, ivf_hnsw_sq or ivf_hnsw_pq, with parameters such as metric, num_partitions and num_sub_vectors.
    """
    from lancetable.indices import IndexConfig
    from lancetable.vector_index_arguments import is_vector_type

    before = {segment.uuid for index in dataset.describe_indices() for segment in index.segments}
    if is_vector_type(kind):
        dataset.create_index(column, kind, name, replace=not keep, train=not empty, **parameters)
    else:
        dataset.create_scalar_index(column, IndexConfig(kind, parameters), name, replace=not keep, train=not empty)
    created = [
        index for index in dataset.describe_indices() if not before.issuperset(part.uuid for part in index.segments)
    ]
    summaries = [_summary(index, dataset.count_rows()) for index in created]
    output.properties({"uri": dataset.uri, "version": dataset.version, **summaries[0]})


@index_group.command(cls=TableCommand)
@click.argument("name")
@click.option("--queries", type=click.IntRange(min=0), default=100, show_default=True, help="Number of sampled rows.")
@click.option("-k", type=click.IntRange(min=1), default=10, show_default=True, help="Number of nearest rows.")
@click.option("--nprobes", type=click.IntRange(min=1), default=20, show_default=True, help="Partitions to search.")
@click.option("--refine", type=click.IntRange(min=1), help="Factor of rows whose distances are computed exactly.")
def check(
    dataset: LanceDataset, output: Output, name: str, queries: int, k: int, nprobes: int, refine: int | None
) -> None:
    """Show the partitions and unindexed rows of vector index NAME, and estimate its recall.

    Sampled rows are searched with the index and exactly. The recall is the part of the nearest rows that is found.
    """
    from lancetable.cli.index_recall import estimate_recall

    index = next((index for index in dataset.describe_indices() if index.name == name), None)
    if index is None:
        raise IndexNotFoundError(f"Index {name!r} not found in {dataset.uri}", index=name)
    if not index.index_type.startswith("IVF_"):
        raise InvalidInputError(f"index {name!r} is a {index.index_type} index; check is for vector indexes")
    statistics = dataset.stats.index_stats(name)
    segments = [part for part in statistics["indices"] if part]
    sizes = sorted(each["size"] for part in segments for each in part.get("partitions", []))
    properties: dict[str, Any] = {
        "name": name,
        "type": statistics["index_type"],
        "segments": statistics["num_segments"],
        "indexed_rows": statistics["num_indexed_rows"],
        "unindexed_rows": statistics["num_unindexed_rows"],
        "partitions": len(sizes),
        "empty_partitions": sizes.count(0),
    }
    if sizes:
        properties |= {"least_rows": sizes[0], "median_rows": sizes[len(sizes) // 2], "most_rows": sizes[-1]}
    if segments and queries:
        column = index.field_names[0]
        found = estimate_recall(dataset, column, queries, k=k, nprobes=nprobes, refine_factor=refine)
        properties |= {"queries": found.num_queries, f"recall@{k}": round(found.recall, 4)}
    output.properties(properties)


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

    plan = plan_extensions(dataset.table_version, names, num_to_merge=merge, retrain=retrain)
    if run:
        dataset.optimize.optimize_indices(
            index_names=names, num_indices_to_merge=merge, retrain=retrain, progress=shows_progress()
        )
        changed = {"changed_indexes": [each.target.name for each in plan]}
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
