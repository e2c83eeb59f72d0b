"""DeBERTa v2: options, buckets of distances and heads. Gradients are compared in test_architectures."""

import pytest
import torch
import transformers

from tasks.registry import settings_from_dict
from tests.families import CONFIGS, assert_network_equals, batch, change_weights, create
from training.checkpoint.reader import create_model, load_model
from training.checkpoint.task_card import TaskCard
from training.checkpoint.writer import save_checkpoint
from training.model.architectures import ARCHITECTURES, create_config
from training.model.disentangled_encoder import DisentangledConfig, log_buckets
from training.model.encoder import create_encoder

SHAPE = DisentangledConfig(
    **{"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96},
    **{"relative_attention": True, "pos_att_type": "c2p|p2c", "position_buckets": 8, "share_att_key": True},
    **{"position_biased_input": False, "max_position_embeddings": 128},
)


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

    assert_network_equals(create("deberta-v2", "embedding", tmp_path), tmp_path, "deberta-v2")


@pytest.mark.parametrize(
    ("num_buckets", "max_distance", "length"),
    [(256, 512, 512), (256, 1024, 1024), (256, 300, 300), (5, 40, 40), (256, 128, 100)],
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
