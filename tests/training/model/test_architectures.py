"""Every family of encoders, for every task: the network equals that of transformers, and saves as one."""

import json
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers

from tasks.registry import settings_from_dict
from tests.families import (
    CONFIGS,
    SETTINGS,
    SMALL,
    assert_equal,
    assert_network_equals,
    batch,
    change_weights,
    create,
    family,
    reference_outputs,
)
from training.checkpoint.reader import create_model, load_model, read_shape
from training.checkpoint.task_card import TaskCard
from training.checkpoint.writer import save_checkpoint
from training.model.architectures import ARCHITECTURES, create_config
from training.model.config import ACTIVATIONS
from training.model.disentangled_encoder import DisentangledConfig
from training.model.encoder import distance_buckets
from training.model.heads import MODELS
from training.model.modernbert_encoder import ModernBertConfig
from training.model.nomic_encoder import NomicBertConfig
from training.model.replaced_token_detection import BertForReplacedTokenDetection

TASKS_OF_ODD_MEMBERS = {"classification", "embedding", "masked-lm", "tagging"}


@pytest.mark.parametrize(
    ("kind", "task"),
    [(kind, task) for kind in sorted(CONFIGS) for task in sorted(TASKS_OF_ODD_MEMBERS if "," in kind else MODELS)],
)
def test_network_equals_that_of_transformers(kind, task, tmp_path):
    """A checkpoint of transformers gives the same outputs here; saved again, transformers loads the same network."""
    reference = create(kind, task, tmp_path / "theirs")
    inputs = batch(kind)
    theirs = reference_outputs(reference, task, *inputs)

    model = load_model(tmp_path / "theirs", task).eval()
    with torch.no_grad():
        ours = model(*inputs)

    assert_equal(ours, theirs, inputs[1], task)
    settings = settings_from_dict(task, {"max_seq_length": 32, **SETTINGS.get(task, {})})
    card = TaskCard(task=task, settings=settings)
    save_checkpoint(tmp_path / "ours", model, tokenizer_from=tmp_path / "theirs", card=card)
    again, report = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not [name for name in report["missing_keys"] if "pooler" not in name and "position_ids" not in name]
    poolers = (f"{family(kind).prefix}pooler.", "pooler.", "pre_classifier.")
    assert all(name.startswith(poolers) for name in report["unexpected_keys"]), report["unexpected_keys"]
    assert_equal(reference_outputs(again.eval(), task, *inputs), theirs, inputs[1], task)
    assert read_shape(tmp_path / "ours") == read_shape(tmp_path / "theirs")


ACTIVATION_KEYS = {"distilbert": "activation", "modernbert": "hidden_activation", "nomic_bert": "activation_function"}


@pytest.mark.parametrize(
    ("kind", "activation"), [*((kind, "relu") for kind in ARCHITECTURES), *(("bert", name) for name in ACTIVATIONS)]
)
def test_activations_of_layers_and_head(kind, activation, tmp_path, monkeypatch):
    """Some heads of masked LM have the activation of the layers, and some always GELU."""
    key, value = ACTIVATION_KEYS.get(kind, "hidden_act"), "geglu" if kind == "nomic_bert" else activation
    monkeypatch.setitem(CONFIGS, kind, {**CONFIGS[kind], key: value})

    assert_network_equals(create(kind, "masked-lm", tmp_path), tmp_path, kind, "masked-lm")


@pytest.mark.parametrize("kind", ["mpnet", "roberta"])
@pytest.mark.parametrize("padding_id", [0, 3])
def test_the_padding_token_that_positions_skip(kind, padding_id, tmp_path, monkeypatch):
    """RoBERTa's positions skip the padding token of the config, MPNet's always id 1."""
    monkeypatch.setitem(CONFIGS, kind, {**CONFIGS[kind], "pad_token_id": padding_id, "max_position_embeddings": 50})

    assert_network_equals(create(kind, "embedding", tmp_path), tmp_path, kind)


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_lengths(kind, tmp_path):
    """Sequences of one token and of the maximum length give the outputs of transformers."""
    reference = create(kind, "embedding", tmp_path)
    model = load_model(tmp_path, "embedding").eval()

    assert model.config.num_positions == 40
    for length in (1, 40):
        ids, _, types = batch(kind, 1, length)
        ids = ids.clamp(min=5)  # a row of padding alone has no meaning
        mask = torch.ones_like(ids)
        with torch.no_grad():
            ours = model(ids, mask, types)
        assert_equal(ours, reference_outputs(reference, "embedding", ids, mask, types), mask, "embedding")


@pytest.mark.parametrize("kind", sorted(CONFIGS.keys() - {"bert, one type", "electra, one size"}))
def test_gradients_equal_transformers(kind, tmp_path):
    """The loss of masked LM has the same gradients of all weights on the CPU, and close ones in 16 bits."""
    reference, (ids, mask, types) = create(kind, "masked-lm", tmp_path), batch(kind)
    model = load_model(tmp_path, "masked-lm", dropout=0.0).train()
    labels = torch.where(mask.bool(), ids, -100).flatten()
    theirs = reference_outputs(reference, "masked-lm", ids, mask, types, with_gradient=True)["logits"]
    F.cross_entropy(theirs.flatten(0, 1), labels).backward()
    named = {name: value.grad for name, value in reference.named_parameters() if value.grad is not None}
    expected = family(kind).from_hugging_face(named, model.config.num_hidden_layers, "masked-lm")
    expected = {name: gradient for name, gradient in expected.items() if gradient.any()}  # Nomic BERT lacks biases
    total = torch.stack([gradient.norm() for gradient in expected.values()]).norm()

    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.2)):
        model.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
            ours = model(ids, mask, types)["logits"]
        F.cross_entropy(ours.float().flatten(0, 1), labels).backward()
        found = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
        assert found.keys() >= expected.keys() > set()
        for name, gradient in expected.items():
            if name.startswith(("bert.embeddings.word", "bert.embeddings.position")):  # padding is not trained there
                gradient[model.config.pad_token_id] = found[name][model.config.pad_token_id]
            error = (found[name] - gradient).norm()
            assert error < tolerance * (gradient.norm() + 0.01 * total), (name, dtype)


def test_distance_buckets_equal_those_of_transformers():
    """The buckets of distances are those of MPNet, also for distances beyond the last."""
    positions = torch.arange(300)
    expected = transformers.models.mpnet.modeling_mpnet.MPNetEncoder.relative_position_bucket(
        positions[None, :] - positions[:, None]
    )

    torch.testing.assert_close(distance_buckets(300, 32), expected)


def test_documentation_lists_every_family():
    """The reference page has a row for each `model_type`, in the order of the code."""
    page = (Path(__file__).parents[3] / "docs/reference/encoders.md").read_text(encoding="utf-8")

    assert re.findall(r"^\| .* \| `([\w-]+)` \|", page, re.MULTILINE)[1:] == list(ARCHITECTURES)


@pytest.mark.parametrize("kind", sorted(ARCHITECTURES))
def test_one_weight_with_two_values(kind, tmp_path):
    """A weight that a file names with and without prefix is read if both are the same, and refused otherwise."""
    create(kind, "embedding", tmp_path)
    name = "embeddings.tok_embeddings.weight" if kind == "modernbert" else "embeddings.word_embeddings.weight"
    full = f"{family(kind).prefix}{name}"
    change_weights(tmp_path, lambda weights: weights.update({full: weights[name].clone()}))
    load_model(tmp_path, "embedding")

    change_weights(tmp_path, lambda weights: weights[full].mul_(2))

    with pytest.raises(ValueError, match=rf"has `.*{re.escape(name)}` and `.*{re.escape(name)}`, which are one weight"):
        load_model(tmp_path, "embedding")


@pytest.mark.parametrize(
    ("kind", "name"),
    [("roberta", "lm_head"), ("mpnet", "lm_head"), ("albert", "predictions"), ("bert", "cls.predictions")],
)
def test_a_decoder_with_another_bias(kind, name, tmp_path):
    """The bias of masked LM may stand in a file twice, but not with two values."""
    create(kind, "masked-lm", tmp_path)
    change_weights(tmp_path, lambda weights: weights.update({f"{name}.decoder.bias": weights[f"{name}.bias"].clone()}))
    load_model(tmp_path, "masked-lm")

    change_weights(tmp_path, lambda weights: weights[f"{name}.decoder.bias"].add_(1))

    load_model(tmp_path, "embedding")
    with pytest.raises(ValueError, match=rf"`{re.escape(name)}\.(decoder\.)?bias`, which are one weight"):
        load_model(tmp_path, "masked-lm")


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        *((kind, "0.new_gate.weight", "has `.*new_gate.weight`, which is not part of a") for kind in ARCHITECTURES),
        ("bert", "9.output.dense.weight", "which is not part of a `bert` with its config.json"),
        ("modernbert", "0.parametrizations.weight.original0", "has `.*original0`; merge such weights"),
    ],
)
def test_weights_that_are_not_computed_are_refused(kind, name, message, tmp_path):
    """A weight of the encoder that the network does not have would change results, so it is named."""
    create(kind, "embedding", tmp_path)
    change_weights(tmp_path, lambda weights: weights.update({family(kind).layers + name: torch.zeros(4)}))

    with pytest.raises(ValueError, match=message):
        load_model(tmp_path, "embedding")


SIZES = {"vocab_size": 100, **SMALL}
SHAPES = [
    DisentangledConfig(
        **SIZES, relative_attention=True, pos_att_type="c2p", norm_rel_ebd="layer_norm", conv_kernel_size=3
    ),
    ModernBertConfig(**SIZES, local_attention=8),
    NomicBertConfig(**SIZES),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.model_type)
def test_families_with_custom_layers(shape):
    """A manifest's fields give the same config, freezing leaves the head, replaced-token detection is refused."""
    assert create_config(json.loads(json.dumps(vars(shape)))) == shape
    model = create_model("tagging", shape, num_labels=2)
    model.bert.freeze()
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    head = {"bert.pooler.weight", "bert.pooler.norm.weight"} if shape.has_prediction_head else set()
    assert trained == head | {"classifier.weight", "classifier.bias"}
    with pytest.raises(ValueError, match=r"needs BERT's layers, .*leave out --objective, to train masked-lm"):
        BertForReplacedTokenDetection(shape, generator_layers=1)
