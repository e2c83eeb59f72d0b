import dataclasses

import pytest
import transformers
import yaml
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st

from tasks.classification import ClassificationSettings
from tasks.registry import TASKS
from tasks.spans import SpanSettings
from tests.toy import TINY, write_classification
from training.checkpoint import TaskCard, read_config, read_task_card
from training.finetune import FinetuneRecipe, finetune
from training.pretrain import PretrainRecipe, pretrain
from training.reports.model_card import CARD_FILE, USAGES, base_model, code, model_card

CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "vocab_size": 80,
    "max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def finetuned(checkpoint, tmp_path_factory, alone):
    root = tmp_path_factory.mktemp("card")
    train = write_classification(root / "train.jsonl", 24, seed=1)
    recipe = FinetuneRecipe(
        task="classification", checkpoint=checkpoint, train=(train,), dev=(train,), run_dir=root / "topic", num_epochs=1
    )
    return finetune(recipe, alone)


def test_the_hub_reads_the_metadata(finetuned, checkpoint):
    """Task, base model and dev scores are where huggingface_hub looks for them."""
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


def test_transformers_loads_the_folder_with_the_card_in_it(finetuned):
    """The card is no obstacle to transformers, and the snippet on it runs."""
    classifier = transformers.pipeline("text-classification", model=str(finetuned), device="cpu")

    assert classifier("the cat")[0]["label"] in ("yes", "no")


def test_a_pretrained_checkpoint_has_a_card(checkpoint):
    """It has the scores on dev beside those without context, and tells of the tokens seen."""
    card = ModelCard.load(checkpoint / CARD_FILE)
    num_tokens = read_task_card(checkpoint).provenance["pretraining"]["num_tokens"]

    assert card.data.pipeline_tag == "fill-mask"
    assert card.data.base_model is None
    assert [result.metric_name for result in card.data.eval_results] == ["mlm_loss", "mlm_accuracy", "nsp_accuracy"]
    assert "no context" in card.content
    assert 0.5 <= read_task_card(checkpoint).scores["no context"]["nsp_accuracy"] <= 1
    assert f"{num_tokens:,} tokens went through the network" in card.content


def test_random_weights_are_not_passed_off_as_pretrained(finetuned):
    """A run from scratch names no base model and no pretraining."""
    card = read_task_card(finetuned)
    recipe = card.provenance["recipe"] | {"from_scratch": True}
    changed = dataclasses.replace(card, provenance=card.provenance | {"recipe": recipe})
    text = model_card(changed, read_config(finetuned), num_parameters=1000)

    assert base_model(changed.provenance) == ""
    assert "started from random weights" in text
    assert "### Pretraining" not in text


@pytest.mark.parametrize("task", sorted(TASKS))
def test_every_task_has_a_card(task):
    """Each task of the registry can be told of, and transformers knows its class."""
    settings_type = TASKS[task].settings_type
    settings = settings_type(labels=("a", "b")) if hasattr(settings_type, "labels") else settings_type()
    text = model_card(TaskCard(task=task, settings=settings), CONFIG, num_parameters=1000)

    assert f'pipeline_tag: "{USAGES[task].pipeline_tag}"' in text
    assert hasattr(transformers, USAGES[task].auto_class)
    assert "Nothing is recorded" in text


def test_limits_follow_the_settings():
    """A reader that knows unanswerable questions is not said to answer all."""
    texts = [
        model_card(TaskCard(task="spans", settings=SpanSettings(unanswerable=flag)), CONFIG, num_parameters=1)
        for flag in (False, True)
    ]

    assert "always gives an answer" in texts[0]
    assert "may say that a text holds no answer" in texts[1]


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1))
def test_whatever_names_are_the_metadata_is_yaml(name):
    """Names of runs, files and labels come from the user and break neither the metadata nor the tables."""
    recipe = {"run_dir": f"runs/{name}", "checkpoint": name, "dev": [name]}
    provenance = {"recipe": recipe, "data": {name: "0" * 64}}
    settings = ClassificationSettings(labels=(name, name + "2"))
    card = TaskCard(task="classification", settings=settings, scores={"dev": {"accuracy": 0.5}}, provenance=provenance)
    text = model_card(card, CONFIG, num_parameters=1)

    assert yaml.safe_load(text.split("\n---\n")[0])["library_name"] == "transformers"
    assert "\n" not in code(name)
    assert all(line.startswith("|") for line in text.split("| data | SHA-256 |")[1].split("\n\n")[0].split("\n")[1:])


def test_a_card_without_scores_says_so(corpus_dir, tmp_path, alone):
    """Of a run without held-out text."""
    path = pretrain(PretrainRecipe(corpus=corpus_dir, run_dir=tmp_path / "run", num_steps=1, **TINY), alone)
    card = ModelCard.load(path / CARD_FILE)

    assert card.data.eval_results is None
    assert "None were taken" in card.content


@pytest.mark.parametrize(
    ("direction", "next_sentences", "expected"),
    [
        ("both", True, "A BERT pretrained on masked words and next sentences, trained"),
        ("both", False, "A BERT pretrained on masked words, trained"),
        ("left-to-right", False, "A language model from left to right, trained"),
        ("concatenated", False, "Two language models side by side, one from left to right and one from right to left"),
    ],
)
def test_the_card_says_what_was_pretrained(direction, next_sentences, expected):
    """Next sentences only where they were a task, and a language model by its name."""
    provenance = {"pretraining": {"recipe": {"next_sentences": next_sentences}}}
    card = TaskCard(task="masked-lm", settings=TASKS["masked-lm"].settings_type(), provenance=provenance)

    assert expected in model_card(card, CONFIG | {"direction": direction}, num_parameters=1)
