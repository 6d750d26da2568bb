"""Single .lance files: the names of pylance's `lance.file`, imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancetable.lazy import lazy_names

if TYPE_CHECKING:
    from lancetable.file.api import LanceBufferDescriptor as LanceBufferDescriptor
    from lancetable.file.api import LanceColumnMetadata as LanceColumnMetadata
    from lancetable.file.api import LanceFileMetadata as LanceFileMetadata
    from lancetable.file.api import LanceFileReader as LanceFileReader
    from lancetable.file.api import LanceFileSession as LanceFileSession
    from lancetable.file.api import LanceFileStatistics as LanceFileStatistics
    from lancetable.file.api import LanceFileWriter as LanceFileWriter
    from lancetable.file.api import LancePageMetadata as LancePageMetadata
    from lancetable.file.api import ListResult as ListResult
    from lancetable.file.api import ReaderResults as ReaderResults
    from lancetable.file.api import stable_version as stable_version
    from lancetable.file.custom_encodings import PageEncoding as PageEncoding
    from lancetable.file.encoding_registry import register_encoding as register_encoding
    from lancetable.file.encoding_registry import unregister_encoding as unregister_encoding

_HOMES = {
    "lancetable.file.api": (
        "LanceBufferDescriptor LanceColumnMetadata LanceFileMetadata LanceFileReader LanceFileSession "
        "LanceFileStatistics LanceFileWriter LancePageMetadata ListResult ReaderResults stable_version"
    ),
    "lancetable.file.custom_encodings": "PageEncoding",
    "lancetable.file.encoding_registry": "register_encoding unregister_encoding",
}
__all__ = " ".join(_HOMES.values()).split()
__getattr__ = lazy_names(__name__, _HOMES)
