"""Tests of local initialization: what the network computes before its first step, and how soon it uses context."""

import numpy as np
import pytest
import torch

from tests.toy import TINY
from training.checkpoint.reader import create_model
from training.corpus import CorpusRecipe, prepare_corpus
from training.loop.run_directory import read_metrics
from training.model.config import EncoderConfig
from training.model.initialization import initialize_local
from training.model.modernbert_encoder import ModernBertConfig
from training.model.rotary import rotary_table, rotate
from training.pretrain import PretrainRecipe, pretrain
from training.vocab import VocabRecipe, train_vocab

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 96,
}
CONFIG, ROTARY = EncoderConfig(**SHAPE), ModernBertConfig(**SHAPE)


def local_model(config=CONFIG):
    torch.manual_seed(0)
    model = create_model("masked-lm", config, dropout=0.0).eval()
    initialize_local(model, np.arange(config.vocab_size))
    return model


@pytest.mark.parametrize("config", [CONFIG, ROTARY], ids=["bert", "modernbert"])
def test_heads_of_the_first_layer_look_at_neighbours(config):
    """Each head attends to its neighbour: at least four fifths of its weight are within four tokens of it."""
    model = local_model(config)
    input_ids = torch.randint(0, 300, (4, 96), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        x = model.bert.embeddings(input_ids, torch.zeros_like(input_ids))
        queries, keys, _ = model.bert.layers[0].qkv(x).view(4, 96, 3, 2, 64).permute(2, 0, 3, 1, 4)
        if config is ROTARY:
            cos, sin = rotary_table(96, ROTARY.frequencies(local=False))
            queries, keys = rotate(queries, cos, sin), rotate(keys, cos, sin)
        weights = torch.softmax(queries @ keys.transpose(-1, -2) / 8, dim=-1)

    inside = torch.arange(8, 88)
    for head, offset in enumerate((1, -1)):
        from_neighbour = weights[:, head].argmax(-1)[:, inside] - inside - offset
        assert (from_neighbour.abs() <= 1).float().mean() > 0.95
        near = sum(weights[:, head, inside, inside + offset + distance] for distance in range(-4, 5))
        assert near.mean() > 0.8
        assert weights[:, head, inside, inside + offset].mean() > 2 * weights[:, head, inside, inside - offset].mean()


def test_untrained_network_knows_the_frequencies():
    """The masked LM starts near the unigram probabilities, with add-one smoothing."""
    model = local_model()
    input_ids = torch.randint(0, 300, (4, 32), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        logits = model(input_ids, None, torch.zeros_like(input_ids))["logits"]

    expected = (torch.arange(300) + 1).log() - torch.arange(1, 301).sum().log()

    assert (logits.log_softmax(-1) - expected).abs().mean() < 0.5


def test_heads_of_an_odd_size_are_refused():
    """The initialization refuses heads of an odd size."""
    with pytest.raises(ValueError, match="heads of an even size: `3`"):
        local_model(EncoderConfig(vocab_size=300, hidden_size=6, num_attention_heads=2, num_hidden_layers=1))


@pytest.mark.slow
def test_local_initialization_learns_from_context_first(tmp_path, alone):
    """After 80 steps the local network predicts words from their neighbours, and the plain one does not."""
    words = [first + second for first in "bcdfg" for second in "aeiou"]
    lines = []
    for number in range(40 * 20):
        start = number * 7
        lines.append(" ".join(words[(start + i) % len(words)] for i in range(10)).capitalize() + ".")
    documents = ["\n".join(lines[first : first + 20]) for first in range(0, len(lines), 20)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    text = (tmp_path / "text.txt",)
    tokenizer, corpus = tmp_path / "tokenizer", tmp_path / "corpus"
    train_vocab(VocabRecipe(data=text, out=tokenizer, vocab_size=90, min_frequency=1))
    prepare_corpus(CorpusRecipe(data=text, tokenizer=tokenizer, out=corpus, num_workers=1))

    settings = TINY | {"num_steps": 80, "dropout": 0.0, "learning_rate": 3e-3, "global_batch_size": 16}
    accuracy = {}
    for kind in ("local", "bert"):
        recipe = PretrainRecipe(
            corpus=corpus, dev_corpus=corpus, run_dir=tmp_path / kind, initialization=kind, masking_rate=0.3, **settings
        )
        pretrain(recipe, alone)
        accuracy[kind] = read_metrics(recipe.run_dir)[-1]["eval_mlm_accuracy"]

    assert accuracy["local"] > 0.6 > 0.4 > accuracy["bert"], accuracy
