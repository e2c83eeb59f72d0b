"""Every family of encoders, for every task: the network equals that of transformers, and saves as one."""

import json
import re
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers

from tasks.registry import settings_from_dict
from tests.families import CONFIGS, SETTINGS, SMALL, assert_equal, batch, create, family, reference_outputs
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


@pytest.mark.parametrize("task", sorted(MODELS))
@pytest.mark.parametrize("kind", sorted(CONFIGS))
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
    reference, inputs = create(kind, "masked-lm", tmp_path), batch(kind)

    with torch.no_grad():
        ours = load_model(tmp_path, "masked-lm").eval()(*inputs)

    assert_equal(ours, reference_outputs(reference, "masked-lm", *inputs), inputs[1], "masked-lm")


@pytest.mark.parametrize("kind", ["mpnet", "roberta"])
@pytest.mark.parametrize("padding_id", [0, 1, 3])
def test_the_padding_token_that_positions_skip(kind, padding_id, tmp_path, monkeypatch):
    """RoBERTa's positions skip the padding token of the config, MPNet's always id 1."""
    monkeypatch.setitem(CONFIGS, kind, {**CONFIGS[kind], "pad_token_id": padding_id, "max_position_embeddings": 50})
    reference, inputs = create(kind, "embedding", tmp_path), batch(kind)

    with torch.no_grad():
        ours = load_model(tmp_path, "embedding").eval()(*inputs)

    assert_equal(ours, reference_outputs(reference, "embedding", *inputs), inputs[1], "embedding")


def test_new_weights_without_variance(tmp_path, monkeypatch):
    """New weights are zero if the config gives them no variance."""
    monkeypatch.setitem(CONFIGS, "bert", {**CONFIGS["bert"], "initializer_range": 0})
    create("bert", "embedding", tmp_path)

    assert not load_model(tmp_path, "classification", new_head=True).classifier.weight.any()


@pytest.mark.parametrize("length", [1, 40])
@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_lengths(kind, length, tmp_path):
    """Sequences of one token and of the maximum length give the outputs of transformers."""
    reference = create(kind, "embedding", tmp_path)
    ids, _, types = batch(kind, 1, length)
    ids = ids.clamp(min=5)  # a row of padding alone has no meaning
    mask = torch.ones_like(ids)

    with torch.no_grad():
        ours = load_model(tmp_path, "embedding").eval()(ids, mask, types)

    assert read_shape(tmp_path).num_positions == 40
    assert_equal(ours, reference_outputs(reference, "embedding", ids, mask, types), mask, "embedding")


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_the_relative_bias(dtype, tmp_path):
    """A training step on the CPU gives the bias of distances the gradient of transformers."""
    reference = create("mpnet", "embedding", tmp_path).train()
    ids, mask, types = batch("mpnet")
    model = load_model(tmp_path, "embedding", dropout=0.0).train()
    for module in reference.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0

    with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
        ours = model(ids, mask, types)["last_hidden_state"][mask.bool()]
    theirs = reference(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]
    weights = torch.randn_like(theirs)
    (ours.float() * weights).sum().backward()
    (theirs * weights).sum().backward()

    found, expected = model.bert.relative_bias.weight.grad, reference.encoder.relative_attention_bias.weight.grad
    error = (found - expected).norm() / expected.norm()
    assert error < (1e-4 if dtype == torch.float32 else 0.1)


def change_weights(directory, change):
    """Change the weights of a checkpoint in its file."""
    weights = safetensors.torch.load_file(directory / "model.safetensors")
    change(weights)
    safetensors.torch.save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


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
        ("roberta", "0.attention.lora_A.default.weight", "has `.*lora_A.default.weight`; merge such weights"),
        ("modernbert", "0.parametrizations.weight.original0", "has `.*original0`; merge such weights"),
    ],
)
def test_weights_that_are_not_computed_are_refused(kind, name, message, tmp_path):
    """A weight of the encoder that the network does not have would change results, so it is named."""
    create(kind, "embedding", tmp_path)
    change_weights(tmp_path, lambda weights: weights.update({family(kind).layers + name: torch.zeros(4)}))

    with pytest.raises(ValueError, match=message):
        load_model(tmp_path, "embedding")


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("roberta", "position_embedding_type", "relative_key"),
        ("electra", "summary_activation", "tanh"),
        ("albert", "num_hidden_groups", 2),
        ("mpnet", "relative_attention_num_buckets", 64),
        ("distilbert", "activation", "mish"),
        ("camembert", "is_decoder", True),
        ("bert", "add_cross_attention", True),
    ],
)
def test_options_that_are_not_computed_are_refused(kind, key, value, tmp_path):
    """A key of config.json that changes the network is named with its value."""
    create(kind, "embedding", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))

    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "config.json"))) as error:
        load_model(tmp_path, "embedding")
    assert str(value) in str(error.value) or key in str(error.value)


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
