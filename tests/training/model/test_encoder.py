"""Tests of our network against transformers: the same weights give the same outputs, losses and gradients."""

import json
import re

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import BertConfig as HuggingFaceConfig

from tasks import TASKS
from tasks.spans import SpanSettings
from training.checkpoint.reader import load_model
from training.checkpoint.task_card import TaskCard
from training.checkpoint.weights import checkpoint_digest, read_weights
from training.checkpoint.writer import save_checkpoint
from training.loop.types import Batch
from training.model.architectures import ARCHITECTURES
from training.model.config import ACTIVATIONS
from training.model.heads import MODELS
from training.objectives.masked_lm import MaskedLM

NETWORKS = {
    "embedding": transformers.BertModel,
    "masked-lm": transformers.BertForPreTraining,
    "classification": transformers.BertForSequenceClassification,
    "spans": transformers.BertForQuestionAnswering,
    "regression": transformers.BertForSequenceClassification,
    "multiple-choice": transformers.BertForMultipleChoice,
    "tagging": transformers.BertForTokenClassification,
}
CONFIGS = {
    "regression": {"num_labels": 1, "problem_type": "regression"},
    "tagging": {"num_labels": 5},
}
OUTPUTS = {
    "embedding": ["last_hidden_state", "pooler_output"],
    "masked-lm": ["logits", "nsp_logits"],
    "spans": ["start_logits", "end_logits"],
}
THEIR_NAMES = {"masked-lm": {"logits": "prediction_logits", "nsp_logits": "seq_relationship_logits"}}


def their_outputs(task, model, inputs):
    """Return transformers' outputs under our names; multiple choice takes the batch as the choices of one example."""
    if task == "multiple-choice":
        return {"logits": model(**{name: value[None] for name, value in inputs.items()}).logits[0]}
    outputs = model(**inputs)
    return {name: outputs[THEIR_NAMES.get(task, {}).get(name, name)] for name in OUTPUTS.get(task, ["logits"])}


def hugging_face_model(task, directory, **config):
    torch.manual_seed(0)
    shape = {"vocab_size": 90, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = {"intermediate_size": 64, **CONFIGS.get(task, {}), **config}
    model = NETWORKS[task](HuggingFaceConfig(**shape, **config)).eval()
    for parameter in model.parameters():  # biases and norms too, to show wrong mappings
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(directory)
    return model


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(1)
    input_ids = torch.randint(5, 90, (3, 11), generator=generator)
    attention_mask = torch.ones_like(input_ids)
    attention_mask[1, 6:] = 0
    token_type_ids = torch.zeros_like(input_ids)
    token_type_ids[:, 4:] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}


@pytest.mark.parametrize(
    ("task", "activation"),
    [*((task, "gelu") for task in NETWORKS), *(("embedding", name) for name in ACTIVATIONS if name != "gelu")],
)
def test_outputs_equal_transformers(task, activation, inputs, tmp_path):
    """A checkpoint of transformers gives the same outputs in our network, to 1e-5."""
    theirs = hugging_face_model(task, tmp_path, hidden_act=activation)
    ours = load_model(tmp_path, task).eval()

    with torch.inference_mode():
        expected, outputs = their_outputs(task, theirs, inputs), ours(**inputs)

    tokens = inputs["attention_mask"].bool()

    assert outputs.keys() == expected.keys()
    for name, value in outputs.items():
        other = expected[name]
        if value.shape[:2] == tokens.shape:
            value, other = value[tokens], other[tokens]
        torch.testing.assert_close(value, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("task", NETWORKS)
def test_our_checkpoints_load_in_transformers(task, inputs, checkpoint, tmp_path):
    """transformers loads our checkpoints with the same outputs and without missing or unexpected weights."""
    ours = load_model(checkpoint, task, new_head=True).eval()
    card = TaskCard(task="spans", settings=SpanSettings())
    save_checkpoint(tmp_path / "ours", ours, tokenizer_from=checkpoint, card=card)
    ids = {**inputs, "input_ids": inputs["input_ids"] % ours.config.vocab_size}

    theirs, loading = NETWORKS[task].from_pretrained(tmp_path / "ours", output_loading_info=True)
    with torch.inference_mode():
        expected, outputs = their_outputs(task, theirs.eval(), ids), ours(**ids)

    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    name = next(iter(outputs))
    tokens = ids["attention_mask"].bool() if TASKS[task].token_outputs else slice(None)
    torch.testing.assert_close(outputs[name][tokens], expected[name][tokens], atol=1e-5, rtol=1e-5)


def test_pretraining_loss_and_gradients_equal_transformers(inputs, tmp_path):
    """Our loss over masked positions equals transformers' loss over all positions, and so do the gradients."""
    theirs = hugging_face_model("masked-lm", tmp_path)
    ours = load_model(tmp_path, "masked-lm").eval()
    labels = torch.full_like(inputs["input_ids"], -100)
    labels[0, 2], labels[1, 3], labels[2, 9] = 17, 23, 42
    nsp_labels = torch.tensor([0, 1, 1])
    chosen = labels.flatten() != -100
    batch = Batch(
        inputs | {"masked_positions_N": chosen.nonzero()[:, 0]},
        {"mlm": labels.flatten()[chosen], "nsp": nsp_labels},
        {"mlm": 3, "nsp": 3},
        27,
    )

    expected = theirs(**inputs, labels=labels, next_sentence_label=nsp_labels).loss
    sums = MaskedLM().losses(ours, batch)
    loss = sums["mlm"] / 3 + sums["nsp"] / 3
    loss.backward()
    expected.backward()

    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    theirs_grads = ARCHITECTURES["bert"].from_hugging_face(
        {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}, 2
    )
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs_grads[name], atol=1e-5, rtol=1e-4, msg=name)


def test_bare_encoder_with_old_names_loads(inputs, tmp_path):
    """A pickle of tensors without the `bert.` prefix and with `gamma` and `beta` loads like a new checkpoint."""
    theirs = hugging_face_model("embedding", tmp_path)
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in theirs.state_dict().items()
        if not name.startswith("pooler.")
    }
    (tmp_path / "model.safetensors").unlink()
    torch.save(renamed, tmp_path / "pytorch_model.bin")

    ours = load_model(tmp_path, "embedding").eval()

    with torch.inference_mode():
        expected = theirs(**inputs).last_hidden_state
        torch.testing.assert_close(ours(**inputs)["last_hidden_state"], expected, atol=1e-5, rtol=1e-5)


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
    hugging_face_model("embedding", tmp_path)
    expected = read_weights(tmp_path)
    split_weights(tmp_path, suffix)

    weights = read_weights(tmp_path)

    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], value) for name, value in expected.items())


def test_the_digest_covers_every_file(tmp_path):
    """Weights in several files have another digest if any of the files changes."""
    hugging_face_model("embedding", tmp_path)
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
    hugging_face_model("embedding", tmp_path)
    spoil(split_weights(tmp_path, "safetensors"))

    with pytest.raises(ValueError, match=re.escape(message)):
        read_weights(tmp_path)


def edit_config(directory, **changes):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def save_pickle(directory, value):
    (directory / "model.safetensors").unlink()
    torch.save(value, directory / "pytorch_model.bin")


def spoil_weight(directory):
    weights = load_file(directory / "model.safetensors")
    weights["embeddings.LayerNorm.weight"][3] = torch.nan
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: (d / "config.json").unlink(), "has no config.json"),
        (lambda d: edit_config(d, hidden_act="mish"), "unknown hidden_act: `mish`"),
        (lambda d: edit_config(d, hidden_size=33), "hidden_size `33` is not a multiple of num_attention_heads `4`"),
        (lambda d: edit_config(d, vocab_size=91), "where its config makes it"),
        (lambda d: (d / "model.safetensors").unlink(), "no weights"),
        (lambda d: save_pickle(d, {"model": {"weight": torch.ones(1)}}), "expected tensors by name"),
        (spoil_weight, "is broken: `bert.embeddings.LayerNorm.weight` has NaN or infinite values"),
    ],
)
def test_broken_checkpoint_is_one_clear_error(spoil, message, tmp_path):
    """The error of a broken checkpoint names the problem."""
    hugging_face_model("embedding", tmp_path)
    spoil(tmp_path)

    with pytest.raises(ValueError, match=message):
        load_model(tmp_path, "embedding")


def test_a_checkpoint_without_a_head_needs_a_new_one(tmp_path):
    """A checkpoint without a head loads only with a new head."""
    hugging_face_model("embedding", tmp_path)

    with pytest.raises(ValueError, match="cannot do `classification`: it lacks `classifier"):
        load_model(tmp_path, "classification")
    for task in ("classification", "tagging"):
        assert load_model(tmp_path, task, num_labels=7, new_head=True).classifier.out_features == 7


def test_every_task_is_compared():
    """The tests above cover every task with its own network."""
    assert NETWORKS.keys() == {name for name, task in TASKS.items() if not task.network} == MODELS.keys()
