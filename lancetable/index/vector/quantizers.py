"""Registry of the quantizers, and reading of the quantizer of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.index.distances import Metric
from lancetable.index.vector.flat_quantizer import FlatQuantizer
from lancetable.index.vector.product_quantizer import ProductQuantizer
from lancetable.index.vector.quantizer import Quantizer, read_settings
from lancetable.index.vector.scalar_quantizer import ScalarQuantizer

if TYPE_CHECKING:
    from lancetable.index.index_files import IndexFileReader

QUANTIZERS: dict[str, type[FlatQuantizer | ProductQuantizer | ScalarQuantizer]] = {
    quantizer.kind: quantizer for quantizer in (FlatQuantizer, ProductQuantizer, ScalarQuantizer)
}


def read_quantizer(kind: str, metric: Metric, file: IndexFileReader) -> Quantizer:
    """Return the quantizer of `auxiliary.idx`. `kind` is its name in the type of the index, such as "PQ".

    Raises CorruptFileError if its settings or the column of codes are damaged, and UnsupportedFeatureError for an
    unknown kind.
    """
    if kind not in QUANTIZERS:
        raise UnsupportedFeatureError(f"{file.path}: unknown quantizer {kind!r}", feature=f"{kind} indexes")
    quantizer = QUANTIZERS[kind].parse(read_settings(file), metric, file)
    found = file.column_type(quantizer.column)
    if found != quantizer.code_type:
        raise CorruptFileError("wrong type of the codes of a vector index", quantizer.code_type, found, path=file.path)
    return quantizer
