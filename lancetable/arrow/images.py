"""Images in three forms: URIs, encoded bytes (PNG, JPEG and others), and tensors of pixels of one shape.

ImageURIArray  --read_uris-->  EncodedImageArray  --to_tensor-->  FixedShapeImageTensorArray
                                                  <--to_encoded--
"""

from __future__ import annotations

import io
import json
import math
import os
import reprlib
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow.fs import FileSystem

from lancetable.arrow.optional_imports import load
from lancetable.errors import InvalidInputError
from lancetable.format.arrow_extensions import Extension

_BINARY = pa.binary()
_short = reprlib.Repr()
_short.maxlist, _short.maxother, _short.maxstring = 100, 1000, 1000


class ImageScalar(pa.ExtensionScalar):  # type: ignore[misc]  # pyarrow comes without types
    """One value of an `ImageArray`."""


class ImageURIScalar(ImageScalar):
    """One URI of an image."""


class EncodedImageScalar(ImageScalar):
    """The bytes of one image."""


class FixedShapeImageTensorScalar(ImageScalar):
    """The pixels of one image, as a flat list."""


class ImageArray(pa.ExtensionArray):  # type: ignore[misc]  # pyarrow comes without types
    """Base class of the arrays of images."""

    @classmethod
    def from_array(cls, images: Any) -> Any:
        """Return images as the array that fits their type.

        Parameters
        ----------
        images
            An array of images is returned unchanged. Binary arrays become encoded images, arrays of fixed-shape tensors
            become tensors, and any other sequence becomes URIs; see `ImageURIArray.from_uris`.

        Examples
        --------
        >>> from lancetable.arrow import ImageArray
        >>> type(ImageArray.from_array(pa.array([b"..."]))).__name__
        'EncodedImageArray'
        """
        given = getattr(images, "type", None)
        if isinstance(given, pa.FixedShapeTensorType):
            return FixedShapeImageTensorType(given.value_type, given.shape).wrap(images.storage)
        if given in EncodedImageType.storage_types:
            return EncodedImageType(given).wrap(images)
        is_image = getattr(given, "extension_name", "").startswith("lance.arrow.")
        return images if is_image else ImageURIArray.from_uris(images)

    def __repr__(self) -> str:
        content = _short.repr(self[: _short.maxlist + 1].to_pylist())
        return f"<lance.arrow.{type(self).__name__} object at {id(self):#018x}>\n{content}"


class ImageURIArray(ImageArray):
    """URIs of images: absolute local paths, `file:`, `http:`, `https:`, and schemes of `pyarrow.fs` such as `s3:`."""

    @classmethod
    def from_uris(cls, uris: pa.Array | Iterable[str | os.PathLike[str] | None]) -> ImageURIArray:
        """Return URIs, as strings or paths, as an array of images; None becomes a null.

        Raises
        ------
        TypeError
            If a value is not a string or a path.

        Examples
        --------
        >>> from lancetable.arrow import ImageURIArray
        >>> ImageURIArray.from_uris(["file:///tmp/1.png"])
        <lance.arrow.ImageURIArray object at 0x...>
        ['file:///tmp/1.png']
        """
        if not isinstance(uris, pa.Array):
            uris = pa.array([os.fspath(uri) if isinstance(uri, os.PathLike) else uri for uri in uris], pa.string())
        storage = getattr(uris, "storage", uris)
        storage = storage if storage.type in ImageURIType.storage_types else storage.cast(pa.string())
        return ImageURIType(storage.type).wrap(storage)  # type: ignore[no-any-return]

    def read_uris(self, storage_type: pa.DataType = _BINARY) -> EncodedImageArray:
        """Read the images.

        Parameters
        ----------
        storage_type
            `pa.large_binary()` for more than 2 GiB.

        Raises
        ------
        OSError
            If an image cannot be read.
        ArrowInvalid
            If a URI is not a local path and its scheme is unknown.

        Examples
        --------
        >>> from pathlib import Path
        >>> from lancetable.arrow import ImageURIArray
        >>> Path("1.png").write_bytes(b"content")
        7
        >>> ImageURIArray.from_uris([Path("1.png").absolute()]).read_uris()
        <lance.arrow.EncodedImageArray object at 0x...>
        [b'content']
        """
        own = EncodedImageType(storage_type)
        images = [None if uri is None else _read(uri) for uri in self.storage.to_pylist()]
        return own.wrap(pa.array(images, storage_type))  # type: ignore[no-any-return]


class EncodedImageArray(ImageArray):
    """Images as the contents of files, in any format."""

    def to_tensor(self, decoder: Callable[[pa.Array], Any] | None = None) -> FixedShapeImageTensorArray:
        """Decode the images, which must have the same shape.

        Parameters
        ----------
        decoder
            Function that takes the binary array of images and returns their pixels, as a NumPy array whose first
            dimension is the image, or as an array of fixed-shape tensors. Pillow by default.

        Raises
        ------
        InvalidInputError
            If an image is null, unless a decoder is given.
        MissingPackageError
            If no decoder is given and Pillow is not installed.

        Examples
        --------
        >>> import numpy as np
        >>> from lancetable.arrow import ImageArray
        >>> images = ImageArray.from_array(pa.array([b"abcd", b"efgh"]))
        >>> def decode(images):  # each of 2 x 2 pixels, without a header
        ...     return np.stack([np.frombuffer(image.as_py(), np.uint8).reshape(2, 2) for image in images])
        >>> images.to_tensor(decode)
        <lance.arrow.FixedShapeImageTensorArray object at 0x...>
        [[97, 98, 99, 100], [101, 102, 103, 104]]
        """
        pixels = (decoder or _decode)(self.storage)
        if not isinstance(pixels, pa.Array):
            pixels = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(pixels))
        return self.from_array(pixels)  # type: ignore[no-any-return]


class FixedShapeImageTensorArray(ImageArray):
    """Images as tensors of pixels of one shape, such as height, width and channels."""

    def to_numpy(self, zero_copy_only: bool = False) -> np.ndarray[Any, Any]:
        """Return the pixels as a NumPy array whose first dimension is the image.

        Raises
        ------
        InvalidInputError
            If an image is null.
        """
        _check_no_nulls(self)
        return self.storage.flatten().to_numpy(zero_copy_only=False).reshape(len(self), *self.type.shape)  # type: ignore[no-any-return]

    def to_encoded(
        self, encoder: Callable[[np.ndarray[Any, Any]], Any] | None = None, storage_type: pa.DataType = _BINARY
    ) -> EncodedImageArray:
        """Encode the images.

        Parameters
        ----------
        encoder
            Function that takes the NumPy array of `to_numpy` and returns the images as bytes. By default, Pillow
            encodes them as PNG.
        storage_type
            `pa.large_binary()` for more than 2 GiB.

        Raises
        ------
        InvalidInputError
            If an image is null.
        MissingPackageError
            If no encoder is given and Pillow is not installed.

        Examples
        --------
        >>> import numpy as np
        >>> from lancetable.arrow import ImageArray
        >>> pixels = np.full((2, 1, 3), 65, np.uint8)
        >>> images = ImageArray.from_array(pa.FixedShapeTensorArray.from_numpy_ndarray(pixels))
        >>> images.to_encoded(lambda pixels: [image.tobytes() for image in pixels]).to_pylist()
        [b'AAA', b'AAA']
        """
        encoded = (encoder or _encode)(self.to_numpy())
        return EncodedImageType(storage_type).wrap(pa.array(encoded, storage_type))  # type: ignore[no-any-return]


class ImageURIType(Extension):
    """The Arrow type of URIs of images, the extension `lance.arrow.image_uri`, over strings or large strings."""

    name, array, scalar = "lance.arrow.image_uri", ImageURIArray, ImageURIScalar
    storage_types = (pa.string(), pa.large_string())


class EncodedImageType(Extension):
    """The Arrow type of encoded images, the extension `lance.arrow.encoded_image`, over binary or large binary."""

    name, array, scalar = "lance.arrow.encoded_image", EncodedImageArray, EncodedImageScalar
    storage_types = (pa.binary(), pa.large_binary())


class FixedShapeImageTensorType(Extension):
    """The Arrow type of images as tensors, the extension `lance.arrow.fixed_shape_image_tensor`.

    `arrow_type` is the type of one value, `shape` the dimensions of an image.
    """

    name, array, scalar = (
        "lance.arrow.fixed_shape_image_tensor",
        FixedShapeImageTensorArray,
        FixedShapeImageTensorScalar,
    )

    def __init__(self, arrow_type: pa.DataType, shape: Sequence[int]) -> None:
        self.arrow_type, self.shape = arrow_type, shape
        super().__init__(pa.list_(arrow_type, math.prod(shape)))
        if not shape or min(shape) < 0:
            raise InvalidInputError(f"image shape must have non-negative dimensions, got {shape}")

    def __arrow_ext_serialize__(self) -> bytes:
        return json.dumps({"shape": list(self.shape)}).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> FixedShapeImageTensorType:
        result = cls(storage_type.value_type, json.loads(serialized)["shape"])
        if result.storage_type != storage_type:
            raise InvalidInputError(f"images of shape {result.shape} cannot be stored as {storage_type}")
        return result


def _read(uri: str) -> bytes:
    if uri.startswith(("http://", "https://")):
        with urllib.request.urlopen(uri) as response:
            return bytes(response.read())
    filesystem, path = FileSystem.from_uri(uri)
    with filesystem.open_input_file(path) as file:
        return bytes(file.read())


def _check_no_nulls(images: pa.Array) -> None:
    if images.null_count:
        raise InvalidInputError(f"{images.null_count} of {len(images)} images are null; drop them first")


def _decode(images: pa.Array) -> np.ndarray[Any, Any]:
    _check_no_nulls(images)
    pillow = load("PIL.Image", "images without a decoder", ", or pass a decoder")
    return np.stack([np.asarray(pillow.open(io.BytesIO(image))) for image in images.to_pylist()])


def _encode(pixels: np.ndarray[Any, Any]) -> list[bytes]:
    pillow = load("PIL.Image", "images without an encoder", ", or pass an encoder")
    files = [io.BytesIO() for _ in pixels]
    for image, file in zip(pixels, files, strict=True):
        pillow.fromarray(image).save(file, format="PNG")
    return [file.getvalue() for file in files]
