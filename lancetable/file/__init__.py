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
    "ReaderResults",
    "stable_version",
]
