"""Tests of replaced-token detection: drawn tokens, targets, and parity with transformers' ELECTRA."""

import numpy as np
import pytest
import torch
import transformers

from training.checkpoint.reader import create_model
from training.model.architectures import ARCHITECTURES
from training.model.config import EncoderConfig
from training.model.replaced_token_detection import BertForReplacedTokenDetection, sample

CONFIG = EncoderConfig(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
MASK = 3


@pytest.fixture
def network():
    torch.manual_seed(0)
    return BertForReplacedTokenDetection.from_pretraining(create_model("masked-lm", CONFIG), generator_layers=1)


@pytest.fixture
def batch():
    """Return three rows of 12, 9 and 7 tokens with 2, 2 and 1 masked positions, and two positions of padding."""
    torch.manual_seed(1)
    original = torch.randint(5, 50, (3, 12), dtype=torch.int32)
    mask = torch.arange(12) < torch.tensor([[12], [9], [7]])
    positions = torch.tensor([2, 5, 12 + 1, 12 + 8, 24 + 3, 0, 0])
    labels = original.flatten()[positions].long()
    labels[-2:] = -100
    masked = original.flatten().clone()
    masked[positions[:-2]] = MASK
    inputs = {
        "input_ids": masked.view_as(original),
        "attention_mask": mask.int(),
        "token_type_ids": torch.zeros_like(original),
        "masked_positions_N": positions,
        "masked_labels_N": labels,
    }
    return original, inputs


def test_draws_follow_the_probabilities():
    """The frequency of each token equals its probability over 20,000 draws, and impossible tokens are never drawn."""
    torch.manual_seed(0)
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05])

    samples = sample(probabilities.log().expand(20_000, 5))

    frequencies = np.bincount(samples.numpy(), minlength=5) / len(samples)
    np.testing.assert_allclose(frequencies, probabilities, atol=0.015)

    assert frequencies[1] == 0


def test_only_masked_tokens_are_replaced(network, batch, monkeypatch):
    """The network reads the text with the drawn tokens; its targets are the tokens that differ from the original."""
    original, inputs = batch
    read = []
    network.bert.register_forward_hook(lambda module, arguments, output: read.append(arguments[0]))

    outputs = network(**inputs)

    differs = read[0] != original
    places = {int(position) for position in inputs["masked_positions_N"][:-2]}

    assert {int(place) for place in differs.flatten().nonzero()} <= places
    assert torch.equal(outputs["is_replaced"], differs)
    assert differs.any()


def test_a_perfect_generator_replaces_nothing(network, batch):
    """A drawn token that equals the original counts as original, as in ELECTRA."""
    original, inputs = batch
    with torch.no_grad():
        network.generator.head.bias.fill_(-1e4)
        network.generator.head.bias[7] = 1e4
    ids = torch.where(inputs["input_ids"] == MASK, 7, original)
    labels = torch.where(inputs["masked_labels_N"] >= 0, 7, -100)

    outputs = network(**inputs | {"masked_labels_N": labels})

    assert not outputs["is_replaced"].any()
    expected = network.bert(ids, inputs["attention_mask"], inputs["token_type_ids"])
    torch.testing.assert_close(network.discriminator(expected), outputs["discriminator_logits"])


def test_generator_learns_nothing_from_the_discriminator(network, batch):
    """Generator and discriminator get no gradient from each other's loss (ELECTRA, section 2)."""
    _, inputs = batch
    outputs = network(**inputs)

    outputs["discriminator_logits"].sum().backward(retain_graph=True)
    assert all(parameter.grad is None for parameter in network.generator.parameters())
    network.zero_grad()
    outputs["generator_logits"].sum().backward()
    assert all(parameter.grad is None for parameter in network.bert.layers.parameters())
    assert network.bert.embeddings.word.weight.grad is not None


def test_generator_starts_as_the_lowest_layers(network, batch):
    """The generator starts as a copy of the network's lowest layers, with the same outputs."""
    _, inputs = batch
    plain = network.to_pretraining()
    plain.bert.layers = plain.bert.layers[:1]
    arguments = [inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids", "masked_positions_N")]

    outputs, expected = network(**inputs), plain(*arguments)

    torch.testing.assert_close(outputs["generator_logits"], expected["logits"])
    copies = network.generator.layers[0].qkv.weight, network.bert.layers[0].qkv.weight

    assert copies[0].data_ptr() != copies[1].data_ptr()


def test_discriminator_equals_transformers(network, batch):
    """The discriminator gives the logits and the loss of transformers' ELECTRA with the same weights."""
    original, inputs = batch
    theirs = transformers.ElectraForPreTraining(
        transformers.ElectraConfig(
            **{name: getattr(CONFIG, name) for name in ("vocab_size", "hidden_size", "num_hidden_layers")},
            **{name: getattr(CONFIG, name) for name in ("num_attention_heads", "intermediate_size")},
            max_position_embeddings=16,
            embedding_size=32,
        )
    ).eval()
    weights = ARCHITECTURES["bert"].to_hugging_face(network.to_pretraining().state_dict())
    named = {name.replace("bert.", "electra.", 1): value for name, value in weights.items() if name[:5] == "bert."}
    for part, name in (("dense", "dense"), ("output", "dense_prediction")):
        for kind in ("weight", "bias"):
            value = network.discriminator.get_parameter(f"{part}.{kind}")
            named[f"discriminator_predictions.{name}.{kind}"] = value
    missing, _ = theirs.load_state_dict(named, strict=False)
    is_replaced = torch.rand(original.shape) < 0.2
    mask = inputs["attention_mask"]

    expected = theirs(
        input_ids=original, attention_mask=mask, token_type_ids=inputs["token_type_ids"], labels=is_replaced.long()
    )
    logits = network.discriminator(network.bert(original, mask, inputs["token_type_ids"]))

    assert not missing
    tokens = mask.bool()
    torch.testing.assert_close(logits[tokens], expected.logits[tokens], atol=1e-5, rtol=1e-5)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits[tokens], is_replaced[tokens].float())
    torch.testing.assert_close(loss, expected.loss, atol=1e-5, rtol=1e-5)
