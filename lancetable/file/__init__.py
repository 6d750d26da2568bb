"""Single .lance files: the names of pylance's `lance.file`."""

from lancetable.file.api import (
    LanceBufferDescriptor,
    LanceColumnMetadata,
    LanceFileMetadata,
    LanceFileReader,
    LanceFileSession,
    LanceFileStatistics,
    LanceFileWriter,
    LancePageMetadata,
    ListResult,
    ReaderResults,
    stable_version,
)
from lancetable.file.custom import PageEncoding
from lancetable.file.registry import register_encoding, unregister_encoding

__all__ = [
    "LanceBufferDescriptor",
    "LanceColumnMetadata",
    "LanceFileMetadata",
    "LanceFileReader",
    "LanceFileSession",
    "LanceFileStatistics",
    "LanceFileWriter",
    "LancePageMetadata",
    "ListResult",
    "PageEncoding",
    "ReaderResults",
    "register_encoding",
    "stable_version",
    "unregister_encoding",
]
