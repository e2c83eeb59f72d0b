"""Packed batches give the outputs, losses and gradients of padded ones, for every family and objective."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks import create_task, settings_from_dict
from tasks.classification import ClassificationExample
from tasks.embedding import EmbeddingSettings
from tasks.multiple_choice import MultipleChoiceExample
from tasks.regression import RegressionExample
from tasks.spans import SpanExample
from tasks.tagging import TaggingExample
from tasks.text.tokenizer import Tokenizer
from tests.families import CONFIGS, batch, create
from tests.training.objectives.test_objectives import EXAMPLES, SETTINGS
from training.checkpoint.reader import create_model, load_model, read_shape
from training.data.examples import Examples
from training.data.pretraining import PretrainingExamples
from training.data.pretraining_batches import PretrainingData
from training.loop.distributed import CPU, World
from training.loop.types import Batch
from training.model import encoder
from training.model.config import EncoderConfig
from training.model.packing import find_packing, first_fit
from training.objectives.contrastive import ContrastiveObjective
from training.objectives.finetuning import FinetuningData, label_examples
from training.objectives.masked_lm import MaskedLM
from training.objectives.registry import OBJECTIVES
from training.objectives.replaced_tokens import ReplacedTokenDetection

UNPACKABLE = {
    "deberta-v2, all options": "the convolution of this network reads neighbouring tokens",
    "nomic_bert, all options": "the positions of this network depend on the length of a text",
}


def mask_of(lengths, width):
    return (torch.arange(width) < torch.tensor(lengths)[:, None]).int()


def random_ids(mask):
    return torch.randint(5, 80, mask.shape, generator=torch.Generator().manual_seed(0)) * mask


@pytest.fixture
def row_shapes(monkeypatch):
    """Shapes of the rows of attention of each forward pass that packs."""
    shapes = []

    def find(attention_mask_BL, config):
        if packing := find_packing(attention_mask_BL, config):
            shapes.append(packing.row_shape)
        return packing

    monkeypatch.setattr(encoder, "find_packing", find)
    return shapes


def padded_and_packed(model, losses, seed=3):
    """Return losses and gradients of a training step without and with packing."""
    found = []
    for model.bert.packs in (False, True):
        model.zero_grad()
        torch.manual_seed(seed)
        values = losses()
        sum(values.values()).backward()
        gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        found.append((values, gradients))
    return found


def assert_same(padded, packed):
    torch.testing.assert_close(packed[0], padded[0], atol=1e-5, rtol=1e-5)
    assert packed[1].keys() == padded[1].keys()
    largest = max(gradient.abs().max() for gradient in padded[1].values())
    for name, gradient in padded[1].items():
        torch.testing.assert_close(packed[1][name], gradient, atol=float(3e-5 * largest), rtol=1e-4)


@pytest.mark.parametrize("kind", sorted(CONFIGS.keys() - UNPACKABLE))
def test_every_family_computes_the_same_packed(kind, tmp_path, row_shapes):
    """Hidden states, pooled outputs and gradients of a packed batch are those of the padded one."""
    create(kind, "embedding", tmp_path)
    model = load_model(tmp_path, "embedding", dropout=0.0).train()
    ids, mask, types = batch(kind, batch_size=4)
    weights = torch.randn(*ids.shape, model.config.hidden_size, generator=torch.Generator().manual_seed(0))

    def losses():
        outputs = model(ids, mask, types)
        hidden = outputs["last_hidden_state"][mask.bool()]
        return {"hidden": (hidden * weights[mask.bool()]).sum(), "pooled": (outputs["pooler_output"] ** 2).sum()}

    padded, packed = padded_and_packed(model, losses)

    assert row_shapes == [(3, 20)]
    assert_same(padded, packed)


@pytest.mark.parametrize(("kind", "reason"), UNPACKABLE.items())
def test_families_that_cannot_pack_say_why(kind, reason, tmp_path):
    """Networks whose outputs would depend on neighbouring texts name the reason."""
    create(kind, "embedding", tmp_path)

    assert load_model(tmp_path, "embedding").bert.unpackable == reason


WORDS = tuple("the old red cat sees a big dog near the green river".split())
LONG_EXAMPLES = {
    "classification": ClassificationExample(" ".join(WORDS), None, "no"),
    "spans": SpanExample("the?", " ".join(WORDS), ("green",), " ".join(WORDS).index("green")),
    "regression": RegressionExample(" ".join(WORDS), None, 2.0),
    "multiple-choice": MultipleChoiceExample((" ".join(WORDS), "tree", "old tree"), "near", label=2),
    "tagging": TaggingExample(WORDS, ("O",) * (len(WORDS) - 1) + ("B-LOC",)),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_task_learns_the_same_packed(name, checkpoint, row_shapes):
    """Losses and gradients of each task are those of the padded batch."""
    task = create_task(name, Tokenizer.load(checkpoint), settings_from_dict(name, SETTINGS.get(name, {})))
    num_labels = len(getattr(task.settings, "labels", ()))
    model = create_model(name, read_shape(checkpoint), num_labels=num_labels, dropout=0.0).train()
    torch.nn.init.normal_(list(model.parameters())[-2], std=0.5)
    examples = Examples(("here", example) for example in [*EXAMPLES[name] * 2, LONG_EXAMPLES[name]])
    items, _ = label_examples(task, examples)
    data = FinetuningData(items, OBJECTIVES[name], global_batch_size=5, seed=0, pad_id=0)
    part = data.batch(0, 0, slice(0, 5))

    padded, packed = padded_and_packed(model, partial(OBJECTIVES[name].losses, model, part))

    assert len(row_shapes) == 1
    assert_same(padded, packed)


OBJECTIVES_OF_TEXT = {
    "masked-lm": MaskedLM(next_sentences=False),
    "next sentences": MaskedLM(),
    "replaced-tokens": ReplacedTokenDetection(generator_layers=1, discriminator_weight=1.0, corrector_weight=1.0),
}


@pytest.mark.parametrize("name", OBJECTIVES_OF_TEXT)
def test_pretraining_learns_the_same_packed(name, corpus, row_shapes):
    """Losses and gradients of pretraining are those of the padded batch."""
    objective = OBJECTIVES_OF_TEXT[name]
    source = PretrainingExamples(corpus, max_seq_length=64, short_seq_prob=0.9, next_sentences=objective.next_sentences)
    part = PretrainingData(source, 8, objective.targets).batch(0, 0, slice(0, 8))
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab_size=corpus.tokenizer.vocab_size,
        **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    )
    model = objective.network(create_model("masked-lm", config, dropout=0.0)).train()

    padded, packed = padded_and_packed(model, partial(objective.losses, model, part))

    assert len(row_shapes) == 1
    assert_same(padded, packed)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "lasttoken"])
def test_vectors_learn_the_same_packed(pooling, checkpoint, row_shapes):
    """Pooled vectors and their contrastive loss are those of the padded batch."""
    model = create_model("embedding", read_shape(checkpoint), dropout=0.0).train()
    settings = EmbeddingSettings(pooling=pooling)
    objective = ContrastiveObjective(settings, model.dense, with_head=False, temperature=0.05, world=World(0, 1, CPU))
    mask = mask_of([20, 9, 11, 6, 5, 4], 20)
    ids = random_ids(mask)
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    part = Batch(inputs, {"labels": torch.arange(6).view(3, 2)}, {"loss": 3}, int(mask.sum()))

    padded, packed = padded_and_packed(model, partial(objective.losses, model, part))

    assert row_shapes == [(3, 20)]
    assert_same(padded, packed)


def test_dropout_has_the_same_effect_packed(checkpoint):
    """Mean and deviation of the states over many draws of dropout are those of the padded batch."""
    torch.manual_seed(0)
    model = create_model("embedding", read_shape(checkpoint), dropout=0.2).train()
    mask = mask_of([20, 9, 11, 6, 5, 4], 20)
    ids = random_ids(mask)
    found = {}
    for model.bert.packs in (False, True):
        with torch.no_grad():
            draws = [model(ids, mask, torch.zeros_like(ids))["last_hidden_state"][mask.bool()] for _ in range(400)]
        found[model.bert.packs] = torch.stack(draws)

    for statistic in (torch.mean, torch.std):
        padded, packed = (statistic(draws, dim=0) for draws in found.values())
        assert (padded - packed).abs().mean() < 0.1 * found[False].std(0).mean()
        assert (padded - packed).mean().abs() < 0.01


CONFIG = EncoderConfig(vocab_size=80)


@pytest.mark.parametrize(
    ("lengths", "width", "row_shape", "num_places"),
    [
        ([14, 9, 12, 11] * 8, 16, (32, 16), 384),
        ([5, 6, 7] * 9, 16, (12, 16), 192),
        ([30, 60] * 8, 128, (12, 64), 768),
        ([120, 60, 64, 128, 30, 33], 128, (4, 128), 448),
        ([200, 30, 40, 50], 256, (2, 256), 320),
    ],
)
def test_rows_have_the_length_that_costs_least(lengths, width, row_shape, num_places):
    """Rows are as long as the padded batch, 64 or 128 tokens, and a sequence has a multiple of 64 places."""
    packing = find_packing(mask_of(lengths, width), CONFIG)

    assert packing is not None
    assert packing.num_tokens == sum(lengths)
    assert packing.row_shape == row_shape
    assert packing.padded_places_T.shape == packing.row_places_T.shape == (num_places,)


@pytest.mark.parametrize(
    "mask",
    [mask_of([128, 128], 128), mask_of([128, 127, 126, 120], 128), 1 - mask_of([5, 9], 64)],
    ids=["no padding", "little padding", "padding before tokens"],
)
def test_a_batch_stays_padded_if_packing_saves_little(mask):
    """Packing that saves less than 3%, and padding before tokens, leave the batch as it is."""
    assert find_packing(mask, CONFIG) is None


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), st.integers(40, 80))
def test_texts_do_not_overlap(lengths, row_length):
    """Every text lies in one row, and no place has two texts."""
    starts, num_rows = first_fit(lengths, row_length)

    places = [place for start, length in zip(starts, lengths, strict=True) for place in range(start, start + length)]
    assert len(set(places)) == len(places)
    assert all(0 <= place < num_rows * row_length for place in places)
    ends = [start + length - 1 for start, length in zip(starts, lengths, strict=True)]
    assert all(
        end // row_length == start // row_length for start, end, n in zip(starts, ends, lengths, strict=True) if n
    )
