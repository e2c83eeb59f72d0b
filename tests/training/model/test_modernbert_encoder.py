"""ModernBERT: config keys, windows and training. Outputs are compared in test_architectures."""

import json

import pytest
import torch
import transformers

from tests.families import batch, change_config_file, create
from training.checkpoint.reader import create_model, load_model, read_shape
from training.model.modernbert_encoder import ModernBertConfig, window_mask
from training.model.rotary import rotary_frequencies, rotary_table

KIND = "modernbert, all options"
SHAPE = ModernBertConfig(
    vocab_size=100, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, local_attention=8
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1.0}}, "must be given for full_attention and"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1.0}}}, "only rope_type default"),
        ({"rope_theta": 5.0}, "rope_theta `5.0` is not supported"),
        ({"layer_types": [*["full_attention"] * 3, *["sliding_attention"] * 2]}, "only every n-th layer"),
        ({"layer_types": ["full_attention"] * 4}, "layer_types must have an entry for each"),
        ({"head_dim": 16}, "head_dim `16` is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor `0.5` is not supported"),
        ({"classifier_pooling": "max"}, "`classifier_pooling` must be 'cls' or 'mean'"),
        ({"num_attention_heads": 32}, "make heads of 1 channels; rotary positions need an even number"),
    ],
)
def test_config_that_is_not_understood_is_refused(changes, message, tmp_path):
    """Keys of `config.json` that change the network are computed or refused, with the file's name."""
    create(KIND, "embedding", tmp_path)
    change_config_file(tmp_path, **changes)

    with pytest.raises(ValueError, match=r"config\.json") as caught:
        read_shape(tmp_path)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("num_layers", "period"), [(1, 1), (5, 1), (5, 3), (5, 5), (4, 7)])
def test_keys_of_transformers_5(num_layers, period, tmp_path):
    """`layer_types` and `rope_parameters` describe the network that the keys of transformers 4 do."""
    create(KIND, "embedding", tmp_path)
    old = {"num_hidden_layers": num_layers, "global_attn_every_n_layers": min(period, num_layers)}
    change_config_file(tmp_path, **old, global_rope_theta=30.0, local_rope_theta=20.0)
    expected = read_shape(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    del values["global_rope_theta"], values["local_rope_theta"]
    kinds = ["sliding_attention" if number % period else "full_attention" for number in range(num_layers)]
    thetas = {"full_attention": 30.0, "sliding_attention": 20.0}
    values["rope_parameters"] = {key: {"rope_type": "default", "rope_theta": theta} for key, theta in thetas.items()}
    (tmp_path / "config.json").write_text(json.dumps(values | {"layer_types": kinds, "global_attn_every_n_layers": 4}))

    assert read_shape(tmp_path) == expected


@pytest.mark.parametrize("theta", [None, 500.0])
def test_local_theta_without_a_value_is_the_global_one(theta, tmp_path):
    """`local_rope_theta: null` means one base for all layers, as in transformers."""
    create(KIND, "embedding", tmp_path)
    change_config_file(tmp_path, local_rope_theta=theta, global_rope_theta=700.0)
    reference = transformers.AutoModel.from_pretrained(tmp_path).eval()
    ids, mask, types = batch(KIND)

    with torch.no_grad():
        ours = load_model(tmp_path, "embedding").eval()(ids, mask, types)["last_hidden_state"]
        theirs = reference(ids, mask).last_hidden_state

    torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("theta", [10_000.0, 160_000.0])
def test_rotary_table_equals_that_of_transformers(theta):
    """Angles are exact up to the last of 8192 positions."""
    config = transformers.ModernBertConfig(hidden_size=768, num_attention_heads=12, global_rope_theta=theta)
    rotary = transformers.models.modernbert.modeling_modernbert.ModernBertRotaryEmbedding(config)
    cos, sin = rotary(torch.zeros(1), torch.arange(8192)[None])

    found_cos, found_sin = rotary_table(8192, rotary_frequencies(64, theta))

    torch.testing.assert_close(torch.cat([found_cos, found_cos], -1), cos[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(torch.cat([found_sin, found_sin], -1), sin[0], atol=1e-6, rtol=0)


def test_window_reaches_half_its_width():
    """A token sees neighbours up to the distance that are not padding; padding sees itself."""
    attention_mask = torch.tensor([[1, 1, 1, 1, 0, 0]])

    mask = window_mask(attention_mask, 6, 1, torch.device("cpu"))[0, 0]

    seen = [row.nonzero().flatten().tolist() for row in mask]
    assert seen == [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3], [3, 4], [5]]
    assert window_mask(None, 6, 5, torch.device("cpu")) is None


def test_gradients_equal_those_of_transformers(tmp_path):
    """The loss of masked LM has the same gradients as in transformers, in training mode on the CPU."""
    reference = create(KIND, "masked-lm", tmp_path).train()
    ids, mask, types = batch(KIND)
    labels = torch.where(mask.bool(), ids, -100)
    reference(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()

    model = load_model(tmp_path, "masked-lm").train()
    logits = model(ids, mask, types)["logits"]
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()

    pairs = [
        (model.bert.embeddings.word, reference.model.embeddings.tok_embeddings),
        (model.bert.layers[1].qkv, reference.model.layers[1].attn.Wqkv),
        (model.bert.layers[2].intermediate, reference.model.layers[2].mlp.Wi),
        (model.mlm.dense, reference.head.dense),
    ]
    for ours, theirs in pairs:
        expected = theirs.weight.grad
        if isinstance(theirs, torch.nn.Embedding):  # transformers keeps the row of padding as it is
            expected = expected.clone()
            expected[0] = ours.weight.grad[0]
        torch.testing.assert_close(ours.weight.grad, expected, atol=1e-5, rtol=1e-3)


def test_bf16_training_is_close_to_fp32():
    """Autocast computes attention in 16 bits; loss and gradients stay close."""
    torch.manual_seed(0)
    model = create_model("classification", SHAPE, num_labels=2, dropout=0.0).train()
    ids, mask = torch.randint(100, (3, 40)), torch.ones(3, 40, dtype=torch.long)
    mask[1, 20:] = 0

    def gradient(enabled):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            logits = model(ids, mask, torch.zeros_like(ids))["logits"]
        torch.nn.functional.cross_entropy(logits.float(), torch.tensor([0, 1, 1])).backward()
        return model.bert.layers[1].qkv.weight.grad.clone()

    expected, found = gradient(False), gradient(True)

    assert torch.nn.functional.cosine_similarity(expected.flatten(), found.flatten(), dim=0) > 0.99
