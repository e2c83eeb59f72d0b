"""Tests of our network against transformers: the same weights give the same outputs, losses and gradients."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.families import assert_network_equals, batch, change_config_file, change_weights, create
from training.checkpoint.reader import load_model
from training.checkpoint.weights import checkpoint_digest, read_weights
from training.loop.types import Batch
from training.model.architectures import ARCHITECTURES
from training.objectives.masked_lm import MaskedLM


@pytest.mark.parametrize(
    ("task", "name", "their_name"),
    [("embedding", "pooler_output", "pooler_output"), ("masked-lm", "nsp_logits", "seq_relationship_logits")],
)
def test_pooled_outputs_equal_transformers(task, name, their_name, tmp_path):
    """The pooler and the head of next sentences give the outputs of transformers; others: test_architectures."""
    theirs, (ids, mask, types) = create("bert", task, tmp_path), batch("bert")

    with torch.inference_mode():
        expected = theirs(input_ids=ids, attention_mask=mask, token_type_ids=types)[their_name]
        found = load_model(tmp_path, task).eval()(ids, mask, types)[name]

    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_pretraining_gradients_equal_transformers(tmp_path):
    """Our loss over masked positions equals transformers' loss over all positions, and so do the gradients."""
    theirs = create("bert", "masked-lm", tmp_path)
    ours = load_model(tmp_path, "masked-lm").eval()
    inputs = dict(zip(("input_ids", "attention_mask", "token_type_ids"), batch("bert", 3), strict=True))
    labels = torch.full_like(inputs["input_ids"], -100)
    labels[0, 2], labels[1, 3], labels[2, 9] = 17, 23, 42
    nsp_labels = torch.tensor([0, 1, 1])
    chosen = labels.flatten() != -100
    part = Batch(
        inputs | {"masked_positions_N": chosen.nonzero()[:, 0]},
        {"mlm": labels.flatten()[chosen], "nsp": nsp_labels},
        {"mlm": 3, "nsp": 3},
        27,
    )

    expected = theirs(**inputs, labels=labels, next_sentence_label=nsp_labels).loss
    sums = MaskedLM().losses(ours, part)
    loss = sums["mlm"] / 3 + sums["nsp"] / 3
    loss.backward()
    expected.backward()

    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    theirs_grads = ARCHITECTURES["bert"].from_hugging_face(
        {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}, 2
    )
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs_grads[name], atol=1e-5, rtol=1e-4, msg=name)


def test_bare_encoder_with_old_names_loads(tmp_path):
    """A pickle of tensors without the `bert.` prefix and with `gamma` and `beta` loads like a new checkpoint."""
    theirs = create("bert", "embedding", tmp_path)
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in theirs.state_dict().items()
        if not name.startswith("pooler.")
    }
    (tmp_path / "model.safetensors").unlink()
    torch.save(renamed, tmp_path / "pytorch_model.bin")

    assert_network_equals(theirs, tmp_path, "bert")


def split_weights(directory, suffix):
    """Split the weights of a checkpoint into two files with an index, like transformers does with large ones."""
    weights = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = [f"part-{number}-of-2.{suffix}" for number in (1, 2)]
    places = {key: names[index % 2] for index, key in enumerate(weights)}
    for name in names:
        part = {key: value for key, value in weights.items() if places[key] == name}
        if suffix == "bin":
            torch.save(part, directory / name)
        else:
            save_file(part, directory / name, metadata={"format": "pt"})
    stem = "pytorch_model.bin" if suffix == "bin" else "model.safetensors"
    (directory / f"{stem}.index.json").write_text(json.dumps({"weight_map": places}))
    return directory / f"{stem}.index.json"


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_weights_in_several_files(tmp_path, suffix):
    """Weights in several files load like weights in one file."""
    create("bert", "embedding", tmp_path)
    expected = read_weights(tmp_path)
    split_weights(tmp_path, suffix)

    weights = read_weights(tmp_path)

    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], value) for name, value in expected.items())


def test_the_digest_covers_every_file(tmp_path):
    """Weights in several files have another digest if any of the files changes."""
    create("bert", "embedding", tmp_path)
    alone = checkpoint_digest(tmp_path)
    split_weights(tmp_path, "safetensors")
    digests = [checkpoint_digest(tmp_path)]
    for part in sorted(tmp_path.glob("part-*")):
        save_file({name: value + 1 for name, value in load_file(part).items()}, part)
        digests.append(checkpoint_digest(tmp_path))

    assert alone not in digests
    assert len(set(digests)) == 3


PARTS = ["part-1-of-2.safetensors", "part-2-of-2.safetensors"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: (path.parent / PARTS[1]).unlink(), "names `part-2-of-2.safetensors`, which is no"),
        (lambda path: path.write_text(json.dumps({"weight_map": {"a": PARTS[0]}})), "names `a`, which `part-1-of-2."),
        (lambda path: path.write_text('{"weight_map": ["a"]}'), "expected `weight_map`, the file of each tensor"),
    ],
)
def test_broken_parts(tmp_path, spoil, message):
    """The error names the index or the part, and the problem."""
    create("bert", "embedding", tmp_path)
    spoil(split_weights(tmp_path, "safetensors"))

    with pytest.raises(ValueError, match=re.escape(message)):
        read_weights(tmp_path)


def spoil(weights):
    weights["embeddings.LayerNorm.weight"][3] = torch.nan


def save_pickle(directory, value):
    (directory / "model.safetensors").unlink()
    torch.save(value, directory / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: (d / "config.json").unlink(), "has no config.json"),
        (lambda d: change_config_file(d, hidden_size=33), "hidden_size `33` is not a multiple of"),
        (lambda d: change_config_file(d, vocab_size=91), "where its config makes it"),
        (lambda d: save_pickle(d, {"model": {"weight": torch.ones(1)}}), "expected tensors by name"),
        (
            lambda d: change_weights(d, spoil),
            "is broken: `bert.embeddings.LayerNorm.weight` has NaN or infinite values",
        ),
    ],
)
def test_broken_checkpoint_is_one_clear_error(spoil, message, tmp_path):
    """The error of a broken checkpoint names the problem."""
    create("bert", "embedding", tmp_path)
    spoil(tmp_path)

    with pytest.raises(ValueError, match=message):
        load_model(tmp_path, "embedding")


def test_a_checkpoint_without_a_head_needs_a_new_one(tmp_path):
    """A checkpoint without a head loads only with a new head."""
    create("bert", "embedding", tmp_path)

    with pytest.raises(ValueError, match="cannot do `classification`: it lacks `classifier"):
        load_model(tmp_path, "classification")
    for task in ("classification", "tagging"):
        assert load_model(tmp_path, task, num_labels=7, new_head=True).classifier.out_features == 7
