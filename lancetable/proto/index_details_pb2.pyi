from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class BTreeIndexDetails(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BitmapIndexDetails(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LabelListIndexDetails(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NGramIndexDetails(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ZoneMapIndexDetails(_message.Message):
    __slots__ = ("rows_per_zone", "use_seeds", "has_null_bitmap")
    ROWS_PER_ZONE_FIELD_NUMBER: _ClassVar[int]
    USE_SEEDS_FIELD_NUMBER: _ClassVar[int]
    HAS_NULL_BITMAP_FIELD_NUMBER: _ClassVar[int]
    rows_per_zone: int
    use_seeds: bool
    has_null_bitmap: bool
    def __init__(self, rows_per_zone: _Optional[int] = ..., use_seeds: bool = ..., has_null_bitmap: bool = ...) -> None: ...
