"""Errors in `config.json` name the key that stands in the file, in every family."""

import copy
import json
from dataclasses import fields

import pytest

from tests.families import CONFIGS, create, family
from training.checkpoint.reader import read_shape

IMPOSSIBLE = ("impossible", -3, {"a": 1})
"""Values that no field allows."""


def set_value(values, path, value):
    """Return a copy of a JSON object with one value changed, in nested objects too."""
    changed = copy.deepcopy(values)
    *parents, last = path.split(".")
    inner = changed
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    return changed


@pytest.fixture(params=sorted(CONFIGS))
def checkpoint(request, tmp_path):
    """Return a family, a directory and the values of its `config.json`."""
    create(request.param, "embedding", tmp_path)
    return family(request.param), tmp_path, json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))


def keys_of_fields(architecture, values):
    """Return the keys of all fields that a file of the family can set."""
    optional = {"embedding_size", "skips_padding_positions", "relative_attention_num_buckets", "pooler_act"}
    optional |= {"prediction_act"}
    optional |= {"shares_layers", "model_type"}  # set by the family unless it has defaults for them
    names = {item.name for item in fields(architecture.config_type)} - architecture.fixed.keys()
    return {
        architecture.key_of(name, values) for name in names if name not in optional or name in architecture.defaults
    }


def refusal(directory):
    """Return the error of reading a checkpoint's shape, or the shape."""
    try:
        return "", read_shape(directory)
    except ValueError as error:
        return str(error), None


@pytest.mark.parametrize("value", IMPOSSIBLE, ids=str)
def test_errors_name_the_key_of_the_file(value, checkpoint):
    """An impossible value is refused with the file and its key, or the key is not read at all."""
    architecture, directory, values = checkpoint
    path = directory / "config.json"
    expected, keys = read_shape(directory), keys_of_fields(architecture, values)
    refused = set()

    for key in sorted({*values, *keys} - {"model_type"}):
        path.write_text(json.dumps(set_value(values, key, value)), encoding="utf-8")
        message, found = refusal(directory)
        before, named_file, text = message.partition(f"`{path}`")
        assert key in text if named_file else (before, found) == ("", expected)
        refused |= {key} if named_file else set()

    assert keys <= refused
