"""Vectors as float16, int8 and bits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tasks.small_vectors import FORMATS, calibrate, restored, to_bytes


def unit_vectors(seed, count=50, dim=24):
    vectors = np.random.default_rng(seed).normal(size=(count, dim)) * np.linspace(0.1, 3, dim)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@given(seed=st.integers(0, 2**32 - 1), dim=st.integers(1, 40))
def test_restored_vectors_are_close(seed, dim):
    """float16 and int8 keep each number to their precision; binary keeps its sign."""
    vectors = unit_vectors(seed, dim=dim)
    small = calibrate(vectors)
    scales = np.array(small.scales, np.float32)

    found = {kind: restored(vectors, kind, scales) for kind in FORMATS}

    np.testing.assert_array_equal(found["float32"], vectors)
    np.testing.assert_allclose(found["float16"], vectors, rtol=1e-3, atol=1e-7)
    assert (np.abs(found["int8"] - vectors) <= scales * 0.501).all()
    np.testing.assert_array_equal(found["binary"], np.where(vectors > 0, 1, -1))


def test_bits_are_those_of_sentence_transformers():
    """Binary vectors equal its `ubinary`."""
    from sentence_transformers.quantization import quantize_embeddings  # takes a second and a half

    vectors = unit_vectors(0, dim=32)

    ours = np.frombuffer(b"".join(to_bytes(row, "binary") for row in vectors), np.uint8).reshape(len(vectors), -1)

    np.testing.assert_array_equal(ours, quantize_embeddings(vectors, "ubinary"))


@given(seed=st.integers(0, 2**32 - 1), dimensions=st.integers(1, 24))
def test_scales_of_fewer_dimensions(seed, dimensions):
    """Vectors that are cut and normalised again fit into int8 with the scales for them."""
    vectors = unit_vectors(seed)
    scales = calibrate(vectors).scales_for(dimensions)
    cut = vectors[:, :dimensions]
    lengths = np.linalg.norm(cut, axis=1, keepdims=True)
    cut = (cut / lengths)[lengths[:, 0] > 1e-3]

    assert (np.abs(cut / scales) <= 127.01).all()


def test_numbers_beyond_the_calibration_are_cut():
    """Larger numbers than those of the calibration become the largest int8, and -128 never occurs."""
    scales = np.full(3, 1 / 127, np.float32)
    data = to_bytes(np.array([5, -5, 0.5], np.float32), "int8", scales)

    assert np.frombuffer(data, np.int8).tolist() == [127, -127, 64]


def test_a_dimension_that_is_always_zero():
    """Its scale is positive, and its numbers stay 0."""
    vectors = unit_vectors(1)
    vectors[:, 3] = 0
    small = calibrate(vectors)

    assert min(small.scales) > 0
    assert not restored(vectors, "int8", np.array(small.scales, np.float32))[:, 3].any()
