"""Arrays of image URIs, encoded images and tensors, compared with pylance call by call."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lancetable.arrow as ours
from lancetable.arrow import (
    EncodedImageArray,
    EncodedImageType,
    FixedShapeImageTensorArray,
    FixedShapeImageTensorType,
    ImageArray,
    ImageScalar,
    ImageURIArray,
    ImageURIType,
)
from lancetable.errors import InvalidInputError

PIXELS = np.arange(48, dtype=np.uint8).reshape(2, 2, 3, 4)
LISTS = pa.list_(pa.int8(), 2)
TENSORS = pa.FixedShapeTensorArray.from_numpy_ndarray(PIXELS)


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    image = pytest.importorskip("PIL.Image").fromarray(pixels)
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()


def summary(result: Any) -> Any:
    """Return the properties to compare; for an array its class, type and values."""
    if isinstance(result, pa.ExtensionArray):
        return type(result).__name__, str(result.type), result.storage.type, result.to_pylist()
    if isinstance(result, pa.BaseExtensionType):
        return str(result), result.extension_name, result.storage_type, result.__arrow_ext_serialize__()
    if isinstance(result, np.ndarray):
        return result.dtype, result.tolist()
    return result


CALLS: list[Callable[[Any], Any]] = [
    lambda arrow: arrow.ImageURIType(),
    lambda arrow: arrow.ImageURIType(pa.large_string()),
    lambda arrow: arrow.ImageURIType(storage_type=pa.binary()),
    lambda arrow: arrow.EncodedImageType(),
    lambda arrow: arrow.EncodedImageType(pa.large_binary()),
    lambda arrow: arrow.EncodedImageType(pa.string()),
    lambda arrow: arrow.FixedShapeImageTensorType(pa.uint8(), (2, 3, 4)),
    lambda arrow: arrow.FixedShapeImageTensorType(arrow_type=pa.float32(), shape=[2, 2]),
    lambda arrow: arrow.FixedShapeImageTensorType(pa.uint8(), (2, 3, 4)).shape,
    lambda arrow: arrow.FixedShapeImageTensorType(pa.uint8(), 5),
    lambda arrow: arrow.FixedShapeImageTensorType("uint8", (5,)),
    lambda arrow: arrow.FixedShapeImageTensorType.__arrow_ext_deserialize__(
        pa.list_(pa.int8(), 2), b'{"shape": [1, 2]}'
    ),
    lambda arrow: arrow.FixedShapeImageTensorType.__arrow_ext_deserialize__(LISTS, b"{"),
    lambda arrow: arrow.ImageURIArray.from_uris(["a", "b"]),
    lambda arrow: arrow.ImageURIArray.from_uris([]),
    lambda arrow: arrow.ImageURIArray.from_uris(iter(["a", Path("b")])),
    lambda arrow: arrow.ImageURIArray.from_uris(np.array(["a", "b"])),
    lambda arrow: arrow.ImageURIArray.from_uris(pa.array(["a"], pa.large_string())),
    lambda arrow: arrow.ImageURIArray.from_uris(pa.array(["a"], pa.string_view())),
    lambda arrow: arrow.ImageURIArray.from_uris(pa.chunked_array([["a"], ["b"]])),
    lambda arrow: arrow.ImageURIArray.from_uris(arrow.ImageURIArray.from_uris(["a"])),
    lambda arrow: arrow.ImageURIArray.from_uris(None),
    lambda arrow: arrow.ImageArray.from_array(["a"]),
    lambda arrow: arrow.ImageArray.from_array(pa.array(["a"])),
    lambda arrow: arrow.ImageArray.from_array(pa.array([b"a", b"b"])),
    lambda arrow: arrow.ImageArray.from_array(pa.array([b"a"], pa.large_binary())),
    lambda arrow: arrow.ImageArray.from_array(TENSORS),
    lambda arrow: arrow.ImageArray.from_array(arrow.ImageArray.from_array(TENSORS)),
    lambda arrow: arrow.ImageArray.from_array([1]),
    lambda arrow: arrow.ImageArray.from_array(5),
    lambda arrow: arrow.ImageArray.from_array(TENSORS).to_numpy(),
    lambda arrow: arrow.ImageArray.from_array(TENSORS)[1:].to_numpy(),
    lambda arrow: arrow.ImageArray.from_array(TENSORS)[0].as_py(),
    lambda arrow: arrow.ImageArray.from_array(TENSORS).to_encoded(lambda pixels: pa.array([b"x"] * len(pixels))),
    lambda arrow: arrow.ImageArray.from_array(TENSORS).to_encoded(5),
    lambda arrow: arrow.ImageArray.from_array(TENSORS).to_encoded(storage_type=pa.string()),
    lambda arrow: arrow.ImageArray.from_array(pa.array([b"x"])).to_tensor(lambda images: np.ones((1, 2), np.float32)),
    lambda arrow: arrow.ImageArray.from_array(pa.array([b"x"])).to_tensor(decoder=lambda images: np.ones(1)),
    lambda arrow: arrow.ImageURIArray.from_uris(["no/scheme"]).read_uris(),
    lambda arrow: arrow.ImageURIArray.from_uris(["/no/such/file"]).read_uris(),
    lambda arrow: arrow.ImageURIArray.from_uris(["nosuch://a"]).read_uris(),
]


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_a_call_has_the_result_of_pylance(theirs: Any, call: Callable[[Any], Any]) -> None:
    try:
        expected = call(theirs)
    except Exception as error:
        builtin = next(base for base in type(error).__mro__ if base.__module__ == "builtins")
        with pytest.raises(builtin):
            call(ours)
    else:
        assert summary(call(ours)) == summary(expected)


@pytest.mark.parametrize("pixels", [PIXELS, PIXELS[..., :3], PIXELS[..., 0]], ids=["rgba", "rgb", "gray"])
def test_pillow_decodes_and_encodes_as_in_pylance(theirs: Any, pixels: np.ndarray[Any, Any]) -> None:
    encoded = pa.array([png(np.ascontiguousarray(image)) for image in pixels])
    decoded = [arrow.ImageArray.from_array(encoded).to_tensor() for arrow in (ours, theirs)]
    assert summary(decoded[0]) == summary(decoded[1])
    assert decoded[0].to_numpy().tolist() == pixels.tolist()
    assert summary(decoded[0].to_encoded()) == summary(decoded[1].to_encoded())
    assert summary(decoded[0].to_encoded(storage_type=pa.large_binary()).to_tensor()) == summary(decoded[0])


@pytest.mark.parametrize("images", [[], [b"no image"]], ids=["none", "damaged"])
def test_images_that_pillow_cannot_decode_raise_as_in_pylance(theirs: Any, images: list[bytes]) -> None:
    pytest.importorskip("PIL")
    for arrow in (ours, theirs):
        with pytest.raises((ValueError, OSError)):
            arrow.ImageArray.from_array(pa.array(images, pa.binary())).to_tensor()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    handler.log_message = lambda *args: None  # type: ignore[attr-defined]
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def test_images_are_read_from_paths_uris_and_the_web(theirs: Any, tmp_path: Path, server: str) -> None:
    (tmp_path / "a b.png").write_bytes(b"content")
    uris = [str(tmp_path / "a b.png"), (tmp_path / "a b.png").as_uri(), f"{server}/a%20b.png"]
    for arrow in (ours, theirs):
        images = arrow.ImageURIArray.from_uris(uris).read_uris(pa.large_binary())
        assert images.storage.equals(pa.array([b"content"] * 3, pa.large_binary()))
    with pytest.raises(OSError, match="404"):
        ImageURIArray.from_uris([f"{server}/missing"]).read_uris()


def test_nulls_stay_null_until_pixels_are_needed() -> None:
    uris = ImageURIArray.from_uris([None])
    assert uris.to_pylist() == uris.read_uris().to_pylist() == [None]
    tensors = pa.ExtensionArray.from_storage(
        FixedShapeImageTensorType(pa.uint8(), (2,)), pa.array([[1, 2], None], pa.list_(pa.uint8(), 2))
    )
    assert tensors[1].as_py() is None and tensors[0].as_py() == [1, 2] and isinstance(tensors[0], ImageScalar)
    for call in (uris.read_uris().to_tensor, tensors.to_numpy, tensors.to_encoded):
        with pytest.raises(InvalidInputError, match="null"):
            call()


def test_decoders_may_return_tensors_and_encoders_lists() -> None:
    images = ImageArray.from_array(pa.array([b"x", b"y"]))
    tensors = images.to_tensor(lambda stored: TENSORS)
    assert isinstance(tensors, FixedShapeImageTensorArray) and tensors.to_numpy().tolist() == PIXELS.tolist()
    assert isinstance(tensors.to_encoded(lambda pixels: [b"x", b"y"]), EncodedImageArray)
    transposed = images.to_tensor(lambda stored: PIXELS.transpose(0, 2, 1, 3))
    assert (
        transposed.type.shape == [3, 2, 4] and transposed.to_numpy().tolist() == PIXELS.transpose(0, 2, 1, 3).tolist()
    )


def test_repr_of_an_array_is_limited() -> None:
    assert repr(ImageURIArray.from_uris(["a"])).splitlines()[1:] == ["['a']"]
    assert repr(ImageArray.from_array(TENSORS)).startswith("<lance.arrow.FixedShapeImageTensorArray object at 0x")
    big = np.zeros((300, 100, 100), np.uint8)
    assert len(repr(ImageArray.from_array(pa.FixedShapeTensorArray.from_numpy_ndarray(big)))) < 50_000


@pytest.mark.parametrize("shape", [(), (-1,), (2, -2)])
def test_a_shape_without_dimensions_or_with_negative_ones_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"shape|list_size"):
        FixedShapeImageTensorType(pa.uint8(), shape)


def test_types_and_arrays_can_be_pickled() -> None:
    types = [ImageURIType(pa.large_string()), EncodedImageType(), FixedShapeImageTensorType(pa.uint8(), (2, 2))]
    arrays = [ImageURIArray.from_uris(["a"]), ImageArray.from_array(pa.array([b"a"])), ImageArray.from_array(TENSORS)]
    for value in (*types, *arrays):
        assert pickle.loads(pickle.dumps(value)) == value
    assert pickle.loads(pickle.dumps(types[2])).shape == [2, 2]
