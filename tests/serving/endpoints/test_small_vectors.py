"""Embed with vectors as float16, int8 and bits, over gRPC and HTTP, and through the client."""

import base64
import dataclasses

import grpc
import numpy as np
import pytest

from bertline import Client, InvalidInput
from bertline.v1 import encoder_pb2 as pb
from tasks.small_vectors import calibrate
from tests.serving.conftest import serve
from tests.serving.http_api.requests import post
from tests.serving.models import WORDS, edit_manifest, write_model

TEXTS = [f"{first} {second}" for first in WORDS for second in WORDS]


@pytest.fixture(scope="module")
def unit(tmp_path_factory):
    """Server of a model with calibrated scales, of one without and of one whose vectors exceed float16, and the unit
    vectors of TEXTS."""
    models = tmp_path_factory.mktemp("models")
    reference = write_model(models, "embedder", hidden_size=12)
    write_model(models, "bare", hidden_size=12)
    write_model(models, "huge", edit=lambda weights: weights.embedding.__imul__(1e6))
    vectors = np.stack(reference.predict(TEXTS, normalize=True))
    edit_manifest(models / "embedder" / "1", small_vectors=dataclasses.asdict(calibrate(vectors)))
    with serve(models, http_port=0) as running:
        yield running, vectors


def embed(running, model="embedder", **options):
    return running.stub.Embed(pb.EmbedRequest(model=pb.ModelRef(name=model), texts=TEXTS, **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": 9}, "format: unknown: 9 (0 for float32, 1 for float16"),
        ({"format": pb.VECTOR_FORMAT_INT8}, "format: int8 needs vectors of length 1; set `normalize`"),
        ({"format": pb.VECTOR_FORMAT_INT8, "model": "bare", "normalize": True}, "bare/1 (embedding) has no scales"),
        ({"format": pb.VECTOR_FORMAT_FLOAT16, "model": "huge"}, "format: a vector exceeds float16; leave it out"),
    ],
)
def test_wrong_formats(unit, options, message):
    """Errors state what the format needs."""
    with pytest.raises(grpc.RpcError) as refused:
        embed(unit[0], **options)

    assert message in refused.value.details()


def test_client(unit):
    """The client returns arrays of the format: rounded, divided by the model's scales, or signs."""
    running, vectors = unit
    with Client(running.target, batch_size=7) as client:
        options = {"model": "embedder", "normalize": True}
        found = {kind: client.embed(TEXTS, format=kind, **options) for kind in ("float16", "int8", "binary")}
        scales = client.model("embedder").int8_scales()
        short = {kind: client.embed(TEXTS, format=kind, dimensions=5, **options) for kind in ("float32", "int8")}
        short_scales = client.model("embedder").int8_scales(5)
        with pytest.raises(ValueError, match="`bare/1` has no scales for int8"):
            client.model("bare").int8_scales()
        for dimensions, message in ((-1, "at least 1: `-1`"), (0, "at least 1: `0`"), (13, "at most 12, .*: `13`")):
            with pytest.raises(ValueError, match=f"`dimensions` must be {message}"):
                client.model("embedder").int8_scales(dimensions)
        with pytest.raises(InvalidInput, match="has no scales for int8"):
            client.embed(["the"], format="int8", model="bare", normalize=True)
        with pytest.raises(ValueError, match=r"unknown format: `uint8` \(one of: float32, float16, int8, binary\)"):
            client.embed(["the"], format="uint8")
        assert client.embed([], format="int8").dtype == np.int8

    assert {kind: array.dtype.name for kind, array in found.items()} == {
        "float16": "float16",
        "int8": "int8",
        "binary": "uint8",
    }
    np.testing.assert_allclose(found["float16"], vectors, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found["int8"] * np.array(scales), vectors, atol=max(scales))
    np.testing.assert_allclose(short["int8"] * np.array(short_scales), short["float32"], atol=max(short_scales))
    np.testing.assert_array_equal(found["binary"], np.packbits(vectors > 0, axis=1))


def test_http(unit):
    """OpenAI's route has the formats as `output_dtype`, as numbers or base64."""
    running, vectors = unit

    def ask(**fields):
        body = {"model": "embedder", "input": TEXTS[:3], **fields}
        return [item["embedding"] for item in post(running, "/v1/embeddings", body).json()["data"]]

    bits = ask(output_dtype="ubinary")
    packed = ask(output_dtype="ubinary", encoding_format="base64")
    halves = ask(output_dtype="float16", encoding_format="base64")
    unit_int8 = ask(output_dtype="int8")

    assert bits == np.packbits(vectors[:3] > 0, axis=1).tolist()
    assert np.abs(unit_int8).max() <= 127
    bare = post(running, "/v1/embeddings", {"model": "bare", "input": "the", "output_dtype": "int8"})
    assert (bare.status, bare.error["param"]) == (400, "output_dtype")
    assert [list(base64.b64decode(item)) for item in packed] == bits
    assert {len(base64.b64decode(item)) for item in halves} == {24}
    assert np.array(ask(input=[2, 8, 3], output_dtype="int8")).shape == (1, vectors.shape[1])
