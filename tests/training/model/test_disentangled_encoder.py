"""DeBERTa v2: config keys, buckets of distances and training. Outputs are compared in test_architectures."""

import pytest
import torch
import transformers

from tasks.registry import settings_from_dict
from tests.families import CONFIGS, batch, change_config_file, create
from tests.training.model.test_architectures import change_weights
from training.checkpoint.reader import create_model, load_model, read_shape
from training.checkpoint.task_card import TaskCard
from training.checkpoint.writer import save_checkpoint
from training.model.architectures import ARCHITECTURES, create_config
from training.model.disentangled_encoder import DisentangledConfig, log_buckets, relative_rows
from training.model.encoder import create_encoder

KINDS = ["deberta-v2", "deberta-v2, all options"]
SHAPE = DisentangledConfig(
    **{"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96},
    **{"relative_attention": True, "pos_att_type": "c2p|p2c", "position_buckets": 8, "share_att_key": True},
    **{"position_biased_input": False, "max_position_embeddings": 128},
)


def both(reference, directory, kind):
    """Return the last hidden states of both libraries at the tokens of a padded batch."""
    ids, mask, types = batch(kind)
    with torch.no_grad():
        ours = load_model(directory, "embedding").eval()(ids, mask, types)["last_hidden_state"]
        theirs = reference(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state
    return ours[mask.bool()], theirs[mask.bool()]


@pytest.mark.parametrize(
    "changes",
    [
        {"relative_attention": False, "position_biased_input": True},
        {"pos_att_type": ["c2p"]},
        {"pos_att_type": "P2C"},
        {"pos_att_type": [], "position_biased_input": True},
        {"share_att_key": False},
        {"share_att_key": False, "pos_att_type": "p2c"},
        {"norm_rel_ebd": "none"},
        {"position_buckets": -1},
        {"position_buckets": 5, "max_relative_positions": 12},
        {"position_buckets": -1, "max_relative_positions": 7},
        {"conv_kernel_size": 5, "conv_act": "tanh"},
        {"conv_kernel_size": 3, "num_hidden_layers": 1},
        {"type_vocab_size": 1},
        {"position_biased_input": None},
        {"type_vocab_size": 1, "position_biased_input": True},
        {"attention_head_size": 8, "pooler_hidden_size": 32},
    ],
    ids=str,
)
def test_options_equal_transformers(changes, tmp_path, monkeypatch):
    """Each option alone gives the outputs of transformers."""
    monkeypatch.setitem(CONFIGS, "deberta-v2", CONFIGS["deberta-v2"] | changes)
    reference = create("deberta-v2", "embedding", tmp_path)

    ours, theirs = both(reference, tmp_path, "deberta-v2")

    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("num_buckets", "max_distance", "length"),
    [(256, 512, 512), (256, 512, 300), (256, 1024, 1024), (256, 300, 300), (8, 40, 40), (5, 40, 40), (256, 128, 100)],
)
def test_buckets_equal_those_of_transformers(num_buckets, max_distance, length):
    """The bucket of each distance is that of transformers, for queries before and after the key."""
    places = torch.zeros(1, length, 4)
    expected = transformers.models.deberta_v2.modeling_deberta_v2.build_relative_position(
        places, places, num_buckets, max_distance
    )[0]
    positions = torch.arange(length)

    found = log_buckets(positions[:, None] - positions, num_buckets, max_distance)

    torch.testing.assert_close(found, expected)


def test_rows_stay_inside_the_table():
    """Distances beyond the last row share it, at both ends."""
    config = create_config(vars(SHAPE) | {"position_buckets": -1, "max_relative_positions": 3})

    assert relative_rows(config, 6).tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 5, 5, 5]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pos_att_type": "c2p|p2p"}, "`pos_att_type` must be '', 'c2p', 'p2c' or 'c2p|p2c': `\"c2p|p2p\"`"),
        ({"norm_rel_ebd": "batch_norm"}, "`norm_rel_ebd` must be 'none' or 'layer_norm'"),
        ({"attention_head_size": 16}, "attention_head_size `16` is not supported (only `8`)"),
        ({"pooler_hidden_size": 16}, "pooler_hidden_size `16` is not supported (only `32`)"),
        ({"conv_kernel_size": 4}, "conv_kernel_size must be odd: `4`"),
        ({"conv_kernel_size": 3, "conv_groups": 5}, "is not a multiple of conv_groups `5`"),
        ({"position_buckets": 1}, "position_buckets `1`"),
        ({"position_buckets": 16, "max_relative_positions": 9}, "no rows for distances between 8 and"),
        ({"relative_attention": False}, "no positions"),
        ({"pos_att_type": None}, "no positions"),
    ],
)
def test_config_that_is_not_understood_is_refused(changes, message, tmp_path):
    """Keys of `config.json` that change the network are computed or refused, with the file's name."""
    create("deberta-v2", "embedding", tmp_path)
    change_config_file(tmp_path, **changes)

    with pytest.raises(ValueError, match=r"config\.json") as caught:
        read_shape(tmp_path)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_those_of_transformers(kind, dtype, tmp_path):
    """A training step on the CPU gives all parts the gradients of transformers; in 16 bits, close ones."""
    reference = create(kind, "classification", tmp_path).train()
    for module in reference.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ids, mask, types = batch(kind)
    model = load_model(tmp_path, "classification", dropout=0.0).train()
    weights = torch.randn(2, 3)

    with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
        ours = model(ids, mask, types)["logits"]
    theirs = reference(input_ids=ids, attention_mask=mask, token_type_ids=types).logits
    (ours.float() * weights).sum().backward()
    (theirs * weights).sum().backward()

    encoder = reference.deberta.encoder
    pairs = [
        (model.bert.embeddings.relative, encoder.rel_embeddings),
        (model.bert.embeddings.relative_norm, getattr(encoder, "LayerNorm", None)),
        (model.bert.embeddings.projection, reference.deberta.embeddings.embed_proj),
        (model.bert.layers[0].convolution, encoder.conv and encoder.conv.conv),
        (model.bert.layers[0].position_key, getattr(encoder.layer[0].attention.self, "pos_key_proj", None)),
        (model.bert.layers[0].position_query, getattr(encoder.layer[0].attention.self, "pos_query_proj", None)),
        (model.bert.layers[0].intermediate, encoder.layer[0].intermediate.dense),
        (model.bert.pooler, reference.pooler.dense),
    ]
    query_key_value = [getattr(encoder.layer[0].attention.self, f"{name}_proj") for name in ("query", "key", "value")]
    gradients = [(one.weight.grad, other.weight.grad) for one, other in pairs if one is not None]
    gradients.append((model.bert.layers[0].qkv.weight.grad, torch.cat([part.weight.grad for part in query_key_value])))
    assert len(gradients) == {"deberta-v2": 5, "deberta-v2, all options": 8}[kind]
    for found, expected in gradients:
        error = (found - expected).norm() / expected.norm()
        assert error < (1e-4 if dtype == torch.float32 else 0.1)


def test_dropout_reaches_every_part():
    """`dropout` sets all rates; a pooler without dropout stays without."""
    config = create_config(vars(SHAPE) | {"pooler_dropout": 0.3, "conv_kernel_size": 3})

    def rates(config, dropout):
        model = create_model("classification", config, dropout=dropout)
        found = {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}
        return found | {layer.attention_dropout for layer in model.bert.layers}

    assert rates(config, 0.25) == {0.25}
    assert rates(config, 0.0) == {0.0}
    assert rates(config, None) == {0.1, 0.3}
    assert create_model("classification", SHAPE, dropout=0.25).bert.pooler_dropout.p == 0.0


V3_BASE = {
    **{"model_type": "deberta-v2", "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_size": 768},
    **{"hidden_dropout_prob": 0.1, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-7},
    **{"max_position_embeddings": 512, "relative_attention": True, "position_buckets": 256, "vocab_size": 128100},
    **{"norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": "p2c|c2p", "num_hidden_layers": 12},
    **{"max_relative_positions": -1, "position_biased_input": False, "num_attention_heads": 12, "type_vocab_size": 0},
}
"""Keys of `config.json` of microsoft/deberta-v3-base."""
V2_XLARGE = {
    **{"hidden_size": 1536, "num_hidden_layers": 24, "num_attention_heads": 24, "intermediate_size": 6144},
    **{"attention_head_size": 64, "conv_kernel_size": 3, "conv_act": "gelu", "pooler_hidden_size": 1536},
    **{"pooler_dropout": 0, "pooler_hidden_act": "gelu", "padding_idx": 0, "pad_token_id": 0},
}
"""Keys in which microsoft/deberta-v2-xlarge differs."""


@pytest.mark.parametrize("changes", [{}, V2_XLARGE, {"vocab_size": 251000}], ids=["v3-base", "v2-xlarge", "mDeBERTa"])
def test_networks_of_public_checkpoints(changes):
    """Configs of public checkpoints give the encoder of transformers: as many parameters, in tensors of equal size."""
    values = V3_BASE | changes

    with torch.device("meta"):
        ours = create_encoder(ARCHITECTURES["deberta-v2"].read_config(values), with_pooler=False)
        theirs = transformers.DebertaV2Model(transformers.AutoConfig.for_model(**values))

    joined = [value.numel() for name, value in theirs.named_parameters() if "attention.self" not in name]
    expected = sorted(joined), sum(value.numel() for value in theirs.parameters())
    others = [value.numel() for name, value in ours.named_parameters() if ".qkv." not in name]
    assert (sorted(others), sum(value.numel() for value in ours.parameters())) == expected


def test_heads_of_pretraining_are_not_read(tmp_path):
    """A discriminator with the heads of its pretraining loads for tasks without them; for masked LM, it lacks one."""
    create("deberta-v2", "classification", tmp_path)
    names = ("lm_predictions.lm_head.bias", "mask_predictions.dense.weight")
    unread = dict.fromkeys((*names, "deberta.embeddings.position_embeddings.weight"), torch.zeros(4))
    change_weights(tmp_path, lambda weights: weights.update({name: value.clone() for name, value in unread.items()}))

    load_model(tmp_path, "classification")

    with pytest.raises(ValueError, match=r"it lacks `cls\.predictions\."):
        load_model(tmp_path, "masked-lm")


def test_other_head_of_masked_lm(tmp_path, monkeypatch):
    """With `legacy: false`, the head has other names; saved again, transformers computes the same."""
    options = {"legacy": False, "tie_word_embeddings": False}
    monkeypatch.setitem(CONFIGS, "deberta-v2", CONFIGS["deberta-v2"] | options)
    reference = create("deberta-v2", "masked-lm", tmp_path / "theirs")
    ids, mask, types = batch("deberta-v2")
    with torch.no_grad():
        expected = reference(input_ids=ids, attention_mask=mask).logits[mask.bool()]

        model = load_model(tmp_path / "theirs", "masked-lm").eval()

        torch.testing.assert_close(model(ids, mask, types)["logits"][mask.bool()], expected, atol=2e-5, rtol=1e-4)
        card = TaskCard(task="masked-lm", settings=settings_from_dict("masked-lm", {"max_seq_length": 32}))
        save_checkpoint(tmp_path / "ours", model, tokenizer_from=tmp_path / "theirs", card=card)
        again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "ours").eval()
        found = again(input_ids=ids, attention_mask=mask).logits[mask.bool()]
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
        assert load_model(tmp_path / "ours", "masked-lm").config == model.config
