import dataclasses
import re

import numpy as np
import pytest
import torch
import transformers
import yaml
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks import create_task
from tasks.batching import predict
from tasks.bundle.machine import describe_machine, summarize_machine
from tasks.classification import ClassificationExample
from tasks.masked_lm import ClozeExample
from tasks.multiple_choice import MultipleChoiceExample
from tasks.registry import TASKS
from tasks.regression import RegressionExample
from tasks.spans import SpanExample
from tasks.tagging import TaggingExample
from tasks.text.tokenizer import Tokenizer
from tests.toy import TINY, write_classification
from training.checkpoint.evaluation import torch_run
from training.checkpoint.hub import checkpoint_name
from training.checkpoint.reader import create_model, read_config
from training.checkpoint.task_card import CARD_FILE, TaskCard, read_task_card
from training.checkpoint.weights import checkpoint_digest
from training.checkpoint.writer import save_checkpoint
from training.finetuning.recipe import FinetuneRecipe
from training.finetuning.run import finetune
from training.model.config import EncoderConfig
from training.pretrain import PretrainRecipe, pretrain
from training.reports.model_card import base_model, code, describe_checkpoint, model_card
from training.reports.usages import MASK, USAGES

CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "vocab_size": 80,
    "max_position_embeddings": 64,
}


def card_of(task="classification", *, labels=("no", "yes"), mask=MASK, **fields):
    """Return the text of a model card, and its metadata."""
    settings_type = TASKS[task].settings_type
    settings = settings_type(labels=labels) if hasattr(settings_type, "labels") else settings_type()
    text = model_card(TaskCard(task=task, settings=settings, **fields), CONFIG, num_parameters=1, mask=mask)
    return text, yaml.safe_load(text.split("\n---\n")[0])


@pytest.fixture(scope="module")
def finetuned(checkpoint, tmp_path_factory, alone):
    root = tmp_path_factory.mktemp("card")
    train = write_classification(root / "train.jsonl", 24, seed=1)
    recipe = FinetuneRecipe(
        task="classification", checkpoint=checkpoint, train=(train,), dev=(train,), run_dir=root / "topic", num_epochs=1
    )
    return finetune(recipe, alone)


def test_the_hub_reads_the_metadata(finetuned, checkpoint):
    """The card has the task, base model and dev scores where huggingface_hub reads them."""
    card = ModelCard.load(finetuned / CARD_FILE)
    scores = read_task_card(finetuned).scores["dev"]

    assert card.data.library_name == "transformers"
    assert card.data.pipeline_tag == "text-classification"
    assert card.data.base_model == checkpoint.parent.name
    assert card.data.metrics[:2] == ["accuracy", "f1"]
    assert card.data.model_name == "topic"
    assert {result.metric_name: result.metric_value for result in card.data.eval_results} == pytest.approx(
        scores, abs=1e-6
    )
    assert card.data.language is None


@pytest.mark.parametrize(
    ("dev", "dataset"),
    [
        (
            ["hf:nyu-mll/glue,config=sst2,split=validation"],
            {"name": "nyu-mll/glue", "type": "nyu-mll/glue", "config": "sst2", "split": "validation"},
        ),
        (["/data/a/dev.tsv", "/data/b/dev.tsv"], {"name": "a/dev.tsv, b/dev.tsv", "type": "private", "split": "dev"}),
    ],
)
def test_dev_data_are_named(dev, dataset):
    """The card names a hub data set by id, configuration and split, and local files by distinct names."""
    _, metadata = card_of(scores={"dev": {"accuracy": 0.5}}, provenance={"recipe": {"dev": dev}})
    (result,) = metadata["model-index"][0]["results"]

    assert result["dataset"] == dataset


def test_the_hub_knows_the_type_of_a_score_by_characters():
    """A score in characters has the plain metric type, and the unit in its name."""
    _, metadata = card_of("spans", scores={"dev": {"f1 (characters)": 0.5}})

    assert metadata["metrics"] == ["f1"]
    assert metadata["model-index"][0]["results"][0]["metrics"] == [
        {"type": "f1", "name": "f1 (characters)", "value": 0.5}
    ]


@pytest.mark.parametrize(
    ("task", "metrics", "unit"),
    [
        ("masked-lm", ["mlm_loss", "mlm_accuracy"], "at most 1; losses are in nats."),
        ("embedding", ["alignment_loss", "uniformity_loss"], "at most 1; alignment is a mean squared distance, unif"),
        ("embedding", ["alignment_loss"], "at most 1; alignment is a mean squared distance; lower is better."),
        ("tagging", ["f1", "f1_loss"], "at most 1."),
        (
            "regression",
            ["pearson", "mean_absolute_error"],
            "at most 1; errors are in the labels' unit, lower is",
        ),
    ],
)
def test_the_card_gives_the_units_of_losses(task, metrics, unit):
    """The card gives the units of losses and errors, and ignores labels named `loss`."""
    text, _ = card_of(task, labels=("O", "B-loss"), scores={"dev": dict.fromkeys(metrics, 0.5)})

    assert f"Scores are fractions and correlations, {unit}" in text


def test_a_pretrained_checkpoint_has_a_card(checkpoint):
    """The card of a pretrained checkpoint has dev scores, the unigram baseline and the number of tokens."""
    card = ModelCard.load(checkpoint / CARD_FILE)
    num_tokens = read_task_card(checkpoint).provenance["pretraining"]["num_tokens"]

    assert card.data.pipeline_tag == "fill-mask"
    assert card.data.base_model is None
    assert [result.metric_name for result in card.data.eval_results] == ["mlm_loss", "mlm_accuracy", "nsp_accuracy"]
    assert "An encoder pretrained on masked words and next sentences, trained" in card.content
    assert "unigram baseline" in card.content
    assert 0.5 <= read_task_card(checkpoint).scores["unigram baseline"]["nsp_accuracy"] <= 1
    assert f"{num_tokens:,} tokens, repetitions included" in card.content


def test_the_card_describes_all_stages(finetuned, checkpoint, corpus_dir, tmp_path, alone):
    """The card describes every stage of pretraining and fine-tuning, in order."""
    changes = {"init": checkpoint, "num_steps": 3, "long_seq_length": 64}
    recipe = PretrainRecipe(**TINY | changes, corpus=corpus_dir, run_dir=tmp_path / "more")
    pretrained = pretrain(recipe, alone)
    train = write_classification(tmp_path / "train.jsonl", 24, seed=1)
    again = FinetuneRecipe(
        task="classification", checkpoint=finetuned, train=(train,), run_dir=tmp_path / "again", num_epochs=2
    )
    before, after = (read_task_card(path).provenance["pretraining"] for path in (checkpoint, pretrained))
    text = (pretrained / CARD_FILE).read_text()
    finetuned_again = (finetune(again, alone) / CARD_FILE).read_text()

    assert text.index("### Pretraining, 1 of 2") < text.index("### Pretraining, 2 of 2")
    assert f"{before['num_tokens'] + after['num_tokens']:,} tokens, repetitions included" in text
    assert f"| `weights to start from: {checkpoint_name(checkpoint)}` | `{checkpoint_digest(checkpoint)}` |" in text
    assert "| steps | 3 |" in text
    assert text.count(f"| machine | {summarize_machine(describe_machine())} |") == 2
    assert text.count("| longest sequence in the last steps, tokens | 64 |\n| fraction of last steps | 0.1 |") == 1
    assert text.count("fraction of last steps") == 1
    assert finetuned_again.index("### Pretraining\n") < finetuned_again.index("### Fine-tuning, 1 of 2")
    assert finetuned_again.index("| epochs | 1 |") < finetuned_again.index("| epochs | 2 |")


def test_random_weights_are_not_passed_off_as_pretrained(finetuned):
    """The card of a run from scratch names no base model and no pretraining."""
    card = read_task_card(finetuned)
    recipe = card.provenance["recipe"] | {"from_scratch": True}
    changed = dataclasses.replace(card, provenance=card.provenance | {"recipe": recipe})
    text = model_card(changed, read_config(finetuned), num_parameters=1000)

    assert base_model(changed.provenance) == ""
    assert "started from random weights" in text
    assert "### Pretraining" not in text

    recipe = recipe | {"from_scratch": False}
    after = dataclasses.replace(card, provenance=card.provenance | {"recipe": recipe, "before": changed.provenance})
    text = model_card(after, read_config(finetuned), num_parameters=1000)

    assert "### Fine-tuning, 2 of 2" in text
    assert "started from random weights" in text
    assert "### Pretraining" not in text
    assert "repetitions included" not in text


@pytest.mark.parametrize("task", sorted(TASKS))
def test_every_task_has_a_card(task):
    """Every task has a card with its pipeline tag, transformers' class and the commands to export and serve."""
    text, metadata = card_of(task)

    assert metadata["pipeline_tag"] == USAGES[task].pipeline_tag
    assert hasattr(transformers, USAGES[task].auto_class)
    assert all(part in text for part in ("The training is not recorded", "None: the run had no dev data"))
    assert all(part in text for part in ("make export CHECKPOINT=", "make serve"))


def run_snippet(directory, tokenizer_dir, name, *, text_pairs=False, **settings):
    """Run the code on a card of random weights; return its output and our prediction for the same input."""
    task = create_task(name, Tokenizer.load(tokenizer_dir), TASKS[name].settings_type(max_seq_length=48, **settings))
    torch.manual_seed(0)
    config = EncoderConfig(**CONFIG, intermediate_size=64, initializer_range=0.5)
    model = create_model(name, config, num_labels=len(settings.get("labels", ())))
    card = TaskCard(task=name, settings=task.settings, provenance={"text_pairs": text_pairs})
    save_checkpoint(directory, model, tokenizer_from=tokenizer_dir, card=card)
    readme = describe_checkpoint(model, tokenizer_from=tokenizer_dir, card=card)
    assert ("text_pair" in readme) == text_pairs
    directory.with_suffix(".md").write_text(readme)
    (code,) = re.findall("```python\n(.*?)```", readme, re.DOTALL)
    printed = []
    exec(code.replace("path/to/this/folder", str(directory)), {"print": printed.append})
    (found,) = printed
    return found, predict(task, EXAMPLES[name, text_pairs], torch_run(model.eval(), task))


CHOICES = ("One answer.", "Another answer.")
EXAMPLES = {
    ("embedding", False): ["A text.", "Another text."],
    ("classification", False): [ClassificationExample("A text.")],
    ("classification", True): [ClassificationExample("A text.", "Its pair.")],
    ("regression", False): [RegressionExample("A text.")],
    ("regression", True): [RegressionExample("A text.", "Its pair.")],
    ("multiple-choice", False): [MultipleChoiceExample(question="A question?", choices=CHOICES)],
    ("masked-lm", False): [ClozeExample("The [MASK] is old.")],
    ("tagging", False): [TaggingExample(("A", "text", "with", "names", "."))],
    ("spans", False): [SpanExample("A question?", "A text that answers it.")],
}
"""Inputs of the snippets, by task and whether the model takes pairs."""


def test_the_snippet_has_the_mask_of_the_tokenizer():
    """The calls of a model with another mask token than BERT's have that token."""
    bert, roberta = (card_of("masked-lm", mask=mask)[0] for mask in (MASK, "<mask>"))

    assert "[MASK]" in bert
    assert roberta == bert.replace("[MASK]", "<mask>")


def test_every_task_has_a_snippet():
    """Every task that is trained, with its own network, has an example whose snippet runs."""
    assert {name for name, _ in EXAMPLES} == {name for name, task in TASKS.items() if not task.network}


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("normalize", [True, False])
def test_the_snippet_of_an_embedding_gives_its_vectors(tokenizer_dir, tmp_path, pooling, normalize):
    """The snippet pools and normalizes vectors like the server."""
    found, ours = run_snippet(tmp_path / "a", tokenizer_dir, "embedding", pooling=pooling, normalize=normalize)

    np.testing.assert_allclose(found, ours, atol=1e-5)


@pytest.mark.parametrize("text_pairs", [False, True])
def test_the_snippets_of_models_of_pairs_take_pairs(tokenizer_dir, tmp_path, text_pairs):
    """The snippet passes pairs to models of pairs, and single texts to others."""
    label, (ours,) = run_snippet(
        tmp_path / "a", tokenizer_dir, "classification", text_pairs=text_pairs, labels=("no", "yes")
    )
    number, (expected,) = run_snippet(tmp_path / "b", tokenizer_dir, "regression", text_pairs=text_pairs)

    label = label if text_pairs else label[0]

    assert label == {"label": ours.label, "score": pytest.approx(float(ours.scores.max()), abs=1e-5)}
    assert number == pytest.approx(expected, abs=1e-5)


def test_snippets_give_our_words_choices_and_entities(tokenizer_dir, tmp_path):
    """The snippets give our most likely words, choice and entities."""
    words, (ours,) = run_snippet(tmp_path / "a", tokenizer_dir, "masked-lm")
    assert [word["token"] for word in words] == [token for token, _ in ours.top(0, 5)]

    choice, (ours,) = run_snippet(tmp_path / "b", tokenizer_dir, "multiple-choice")
    assert choice == CHOICES[ours.choice]

    entities, (ours,) = run_snippet(tmp_path / "c", tokenizer_dir, "tagging", labels=("O", "B-LOC", "I-LOC", "B-PER"))
    assert entities
    assert [(item["entity_group"], item["word"].replace(" ", "")) for item in entities] == [
        (item.type, item.text.lower().replace(" ", "")) for item in ours.entities
    ]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # raised by transformers
@pytest.mark.parametrize("unanswerable", [False, True])
def test_the_snippet_of_spans_answers_from_the_text(tokenizer_dir, tmp_path, unanswerable):
    """The snippet answers from the text, and gives an empty answer only if the model knows unanswerable questions."""
    settings = {"max_query_length": 16, "doc_stride": 16, "unanswerable": unanswerable}
    found, _ = run_snippet(tmp_path / "a", tokenizer_dir, "spans", **settings)
    limits = ("always gives an answer", "may say that a text has no answer")

    assert found["answer"] in "A text that answers it."
    assert found["answer"] or unanswerable
    assert limits[unanswerable] in (tmp_path / "a.md").read_text()


def test_the_card_gives_the_number_of_runs():
    """The card gives the number of runs to choose from, and then no longer warns about the seed."""
    scores, chosen = {"dev": {"accuracy": 0.5}}, "chosen by the best accuracy of 3 runs"
    choice = {"selection": chosen, "num_runs": 3}
    one, several = (card_of(scores=scores | more)[0] for more in ({}, choice))

    assert "The checkpoint was" not in one
    assert "change with the seed" in one
    assert f"The checkpoint was {chosen}." in several
    assert "change with the seed" not in several


@settings(max_examples=30)
@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1).filter(str.strip))
def test_any_names_leave_the_metadata_valid_yaml(name):
    """Any name of a run, file or label leaves the metadata valid YAML and the tables whole."""
    recipe = {"run_dir": f"runs/{name}", "checkpoint": name, "dev": [name]}
    provenance = {"recipe": recipe, "data": {name: "0" * 64}}
    scores, labels = {"dev": {"accuracy": 0.5}}, (name, name + "2")
    text, metadata = card_of(labels=labels, scores=scores, provenance=provenance)

    assert metadata["library_name"] == "transformers"
    assert "\n" not in code(name)
    assert all(line.startswith("|") for line in text.split("| data | SHA-256 |")[1].split("\n\n")[0].split("\n")[1:])
