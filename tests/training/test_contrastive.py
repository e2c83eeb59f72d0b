"""Tests of contrastive training: SimCSE's loss for any number of processes, and better scores of similar texts."""

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers.losses import CoSENTLoss
from torch import nn

from tasks.batching import predict
from tasks.embedding import Embedding, EmbeddingSettings
from tasks.text.json_files import read_json
from tests.toy import WORDS
from tests.training.interruption import interrupted_at
from training.checkpoint.evaluation import load_for_evaluation
from training.checkpoint.reader import load_model, load_tokenizer
from training.checkpoint.task_card import read_task_card
from training.contrastive import (
    ContrastiveRecipe,
    encode_views,
    train_embedding,
)
from training.data.columns import Columns
from training.data.examples import Examples
from training.data.pairs import TrainingTexts
from training.evaluate import main as evaluate
from training.finetuning.embedding_run import parse_embedding_recipe
from training.loop.distributed import CPU, World
from training.loop.gradients import JointLosses, accumulate_gradients
from training.loop.run_directory import read_metrics
from training.loop.types import LoopSettings
from training.model.vectors import embed
from training.objectives.contrastive import ContrastiveObjective, cosent, info_nce
from training.objectives.finetuning import FinetuningData
from training.objectives.labelled import read_examples
from training.objectives.similarity import similarity_scores
from training.reports.samples import sample_predictions

TOPICS = [WORDS[2:5], WORDS[5:8], WORDS[14:18], WORDS[8:11]]
SETTINGS = {"learning_rate": 3e-3, "global_batch_size": 16, "dtype": "fp32", "log_every": 1, "eval_every": 0}
ALONE = World(0, 1, CPU)


def topic_text(rng, topic):
    return " ".join(rng.permutation([*rng.choice(TOPICS[topic], 2), *rng.choice(["the", "a", "big", "small"], 3)]))


def write_pairs(path, num_rows, seed, *, all_alike):
    """Write pairs of texts, labelled 1 for the same topic and 0 otherwise."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(num_rows):
        first, second = rng.integers(len(TOPICS), size=2)
        second = first if all_alike or rng.random() < 0.5 else second
        texts = {"text": topic_text(rng, first), "text_pair": topic_text(rng, second)}
        rows.append(json.dumps(texts | {"label": int(first == second)}) + "\n")
    path.write_text("".join(rows))
    return path


@pytest.fixture(scope="module")
def trained(checkpoint, tmp_path_factory, alone):
    """Return a recipe of supervised training, and its checkpoint."""
    folder = tmp_path_factory.mktemp("contrastive")
    recipe = ContrastiveRecipe(
        mode="supervised",
        checkpoint=checkpoint,
        train=(write_pairs(folder / "train.jsonl", 160, 0, all_alike=True),),
        dev=(write_pairs(folder / "dev.jsonl", 100, 1, all_alike=False),),
        run_dir=folder / "run",
        num_epochs=1,
        dropout=0.1,
        **SETTINGS,
    )
    return recipe, train_embedding(recipe, alone)


@pytest.fixture
def recipe(trained, tmp_path):
    """Return a recipe of supervised training that takes a second."""
    return replace(trained[0], run_dir=tmp_path / "run", num_epochs=4)


@given(
    numbers=st.integers(2, 4).flatmap(
        lambda views: st.lists(st.lists(st.integers(0, 9), min_size=views, max_size=views), min_size=1, max_size=8)
    ),
    temperature=st.floats(0.05, 2),
    seed=st.integers(0, 9),
)
def test_loss_is_the_formula(numbers, temperature, seed):
    """The loss equals equation 5 of SimCSE, without candidates that are no negatives."""
    vectors = np.random.default_rng(seed).standard_normal((len(numbers), len(numbers[0]), 4))
    cosine = lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b)  # noqa: E731
    expected = 0.0
    for i, (text, positive, *_) in enumerate(numbers):
        terms = []
        for j, row in enumerate(numbers):
            for view in range(1, len(row)):
                is_same = row[view] in (text, positive) or (view == 1 and row[0] == text)
                if (j == i and view == 1) or not is_same:
                    terms.append(math.exp(cosine(vectors[i, 0], vectors[j, view]) / temperature))
        own = math.exp(cosine(vectors[i, 0], vectors[i, 1]) / temperature)
        expected -= math.log(own / sum(terms))

    loss = info_nce(torch.tensor(vectors), torch.tensor(numbers), temperature=temperature, world=ALONE)

    assert float(loss) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("num_negatives", [0, 1, 3])
def test_loss_is_that_of_sentence_transformers(num_negatives):
    """The loss equals MultipleNegativesRankingLoss of sentence-transformers with scale 20."""
    torch.manual_seed(0)
    anchors, *others = torch.randn(2 + num_negatives, 6, 8)
    similarities = F.normalize(anchors) @ F.normalize(torch.cat(others)).T * 20.0
    expected = F.cross_entropy(similarities, torch.arange(6))

    vectors = torch.stack([anchors, *others], dim=1)
    loss = info_nce(vectors, torch.arange(vectors[..., 0].numel()).view(6, -1), temperature=0.05, world=ALONE)

    assert float(loss) / 6 == pytest.approx(float(expected), rel=1e-5)


@given(
    scores=st.lists(st.sampled_from([0, 0.4, 1, 5]), min_size=1, max_size=8),
    temperature=st.floats(0.05, 2),
    seed=st.integers(0, 9),
)
def test_cosent_is_that_of_sentence_transformers(scores, temperature, seed):
    """The loss of pairs with scores equals CoSENTLoss of sentence-transformers."""
    vectors = torch.randn(len(scores), 2, 8, generator=torch.Generator().manual_seed(seed))
    theirs = CoSENTLoss(None, scale=1 / temperature)
    expected = theirs.compute_loss_from_embeddings(vectors.unbind(1), torch.tensor(scores, dtype=torch.float32))

    loss = cosent(vectors, torch.tensor(scores, dtype=torch.float32)[:, None], temperature=temperature, world=ALONE)

    assert float(loss) / len(scores) == pytest.approx(float(expected), rel=1e-4, abs=1e-5)


VIEWS = [("the cat", "a dog"), ("big", "small"), ("a cat", "the dog"), ("the house", "a tree"), ("red", "the red cat")]
"""Pairs of texts of several lengths."""


def step_gradients(checkpoint, objective, texts, micro_batch_size, *, dropout=0.0, dtype="fp32"):
    """Return the gradients of a step in micro-batches, and the vectors of all passes."""
    task = Embedding(load_tokenizer(checkpoint), EmbeddingSettings())
    items = encode_views(texts, task, SimpleNamespace(train_seq_length=32))
    data = FinetuningData(items, objective, global_batch_size=5, seed=0, pad_id=task.tokenizer.pad_id)
    parts = [slice(first, min(first + micro_batch_size, 5)) for first in range(0, 5, micro_batch_size)]
    torch.manual_seed(0)
    model, passes = load_model(checkpoint, "embedding", dropout=dropout).train(), []
    model.to(torch.get_default_dtype())

    def vectors(network, batch):
        passes.append(objective.vectors(network, batch))
        return passes[-1]

    def losses(vectors, targets):
        assert not torch.is_autocast_enabled("cpu")
        return objective.vector_losses(vectors, targets)

    batches, joint = [data.batch(0, 0, part) for part in parts], JointLosses(vectors, losses)
    totals = accumulate_gradients(model, batches, joint, LoopSettings(dtype=dtype), ALONE)
    gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    return float(totals.losses["loss"]), gradients, passes


@pytest.fixture
def float64(monkeypatch):
    """Compute in float64, in which sums of another order are equal."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("scores", [(), (0.0, 1.0, 2.5, 2.5, 0.0)])
@pytest.mark.parametrize("with_head", [False, True])
def test_cached_gradients_are_those_of_the_whole_batch(scores, with_head, checkpoint, float64):
    """Micro-batches of any size give the loss and the gradients of the whole batch, for InfoNCE and CoSENT."""
    settings = EmbeddingSettings(pooling="mean")
    objective = ContrastiveObjective(settings, nn.ModuleDict(), with_head=with_head, temperature=0.05, world=ALONE)
    texts = TrainingTexts(Examples(("here", views) for views in VIEWS), scores)

    loss, expected, passes = step_gradients(checkpoint, objective, texts, 5)

    assert len(passes) == 1
    for size in (1, 2, 4):
        found = step_gradients(checkpoint, objective, texts, size)
        assert found[0] == pytest.approx(loss, rel=1e-9)
        assert found[1].keys() == expected.keys()
        for name, value in found[1].items():
            torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-9)


def test_both_passes_of_cached_gradients_have_the_same_dropout(checkpoint):
    """Both passes of a micro-batch give the same vectors, also in bf16, and each micro-batch has its own dropout."""
    objective = ContrastiveObjective(EmbeddingSettings(), nn.ModuleDict(), with_head=False, temperature=1, world=ALONE)
    texts = TrainingTexts(Examples(("here", ("a cat", "a cat")) for _ in range(5)))

    _, _, passes = step_gradients(checkpoint, objective, texts, 1, dropout=0.5, dtype="bf16")

    assert len(passes) == 10
    assert all(torch.equal(first, second) for first, second in zip(passes[:5], passes[5:], strict=True))
    assert not torch.equal(passes[0], passes[1])


def test_supervised_training_brings_topics_together(recipe, alone):
    """Supervised training raises Spearman on dev far above the start and the baselines, which the task card holds."""
    changes = {"pooling": "mean", "num_epochs": 4, "learning_rate": 3e-3}
    path = train_embedding(replace(recipe, **changes, dropout=0.0), alone)  # with dropout, success is luck of the seed

    card = read_task_card(path)
    rows = card.scores

    assert (card.task, card.settings.pooling, card.settings.max_seq_length) == ("embedding", "mean", 32)
    assert "| vector | mean of" in (path / "README.md").read_text()
    assert list(rows)[:3] == ["dev", "before, cls", "before, mean"]
    assert rows["dev"]["spearman"] > 0.7 > rows["before, cls"]["spearman"] + 0.2
    assert rows["dev"]["spearman"] > max(rows["mean of word embeddings"]["spearman"], rows["word overlap"]["spearman"])


def test_pairs_with_scores_are_trained_in_their_order(recipe, tmp_path, alone, capsys):
    """CoSENT on pairs with scores raises Spearman on dev; columns without an effect are named."""
    rows = map(json.loads, write_pairs(tmp_path / "a.jsonl", 160, 0, all_alike=False).read_text().splitlines())
    scored = [row | {"label": [0.2, 4.5][row["label"]], "negative_2": "x", "id": 1} for row in rows]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scored))

    changes = {"train": (tmp_path / "a.jsonl",), "pooling": "mean", "dropout": 0.0, "micro_batch_size": 4}
    path = train_embedding(replace(recipe, **changes), alone)
    rows, out = read_task_card(path).scores, capsys.readouterr().out

    assert rows["dev"]["spearman"] > 0.7 > rows["before, mean"]["spearman"] + 0.2
    assert "scores in `label` from 0.2 to 4.5, learnt in their order (CoSENT)" in out
    assert "note: training does not read `negative_2`" in out


def test_negatives_by_label_are_left_out(recipe, tmp_path, alone, capsys):
    """Only pairs with a positive label are trained on; the others are counted."""
    path = write_pairs(tmp_path / "a.jsonl", 60, 0, all_alike=False)
    labels = [json.loads(line)["label"] for line in path.read_text().splitlines()]

    train_embedding(replace(recipe, train=(path,), num_epochs=0.1), alone)

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{sum(labels)} texts with their pairs; ")
    assert lines[1] == f"positives by `label`: `1` {sum(labels)}; left out: `0` {60 - sum(labels)}"


def test_unsupervised_training_spreads_texts(recipe, text_file, alone):
    """Unsupervised training on plain text makes vectors more uniform and raises Spearman on dev."""
    changes = {"mode": "unsupervised", "train": (text_file,), "pooling": "mean", "num_epochs": 2, "learning_rate": 1e-3}
    path = train_embedding(replace(recipe, **changes), alone)

    scores = read_task_card(path).scores

    assert scores["dev"]["uniformity_loss"] < scores["before, mean"]["uniformity_loss"] - 1
    assert scores["dev"]["spearman"] > scores["before, mean"]["spearman"]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_vectors_are_those_of_training_and_of_transformers(pooling, recipe, tmp_path, alone):
    """The checkpoint gives the vectors of training and of transformers, without the head."""
    path = train_embedding(replace(recipe, pooling=pooling, num_epochs=0.2), alone)

    task, run = load_for_evaluation(path)
    pairs = read_examples("regression", recipe.dev, columns=Columns(), tokenizer=task.tokenizer)
    texts = [pair.text for pair in pairs[:8]]
    vectors = np.stack(predict(task, texts, run))
    settings = EmbeddingSettings(pooling=pooling)
    objective = ContrastiveObjective(settings, nn.ModuleDict(), with_head=False, temperature=0.05, world=alone)
    items = encode_views(TrainingTexts(Examples(("here", (text, text)) for text in texts)), task, recipe)
    data = FinetuningData(items, objective, global_batch_size=8, seed=0, pad_id=task.tokenizer.pad_id)
    batch = data.batch(0, 0, slice(0, 8))
    model = load_model(path, "embedding").eval()
    with torch.inference_mode():
        hidden = model(**batch.inputs)["last_hidden_state"]
        trained = F.normalize(embed(hidden, batch.inputs["attention_mask"], settings, nn.ModuleDict()), dim=-1)
        trained = trained[::2].numpy()
        hidden = transformers.AutoModel.from_pretrained(path).eval()(**batch.inputs).last_hidden_state
    mask = batch.inputs["attention_mask"][..., None]
    theirs = hidden[:, 0] if pooling == "cls" else (hidden * mask).sum(1) / mask.sum(1)
    order = [int(np.abs(vectors - vector).sum(1).argmin()) for vector in trained]

    assert sorted(order) == list(range(8))
    np.testing.assert_allclose(trained, vectors[order], atol=1e-5)
    np.testing.assert_allclose(F.normalize(theirs, dim=-1)[::2].numpy(), vectors[order], atol=1e-5)
    assert similarity_scores(task, pairs, run) == pytest.approx(read_task_card(path).scores["dev"], abs=1e-6)


def test_evaluate_scores_pairs(trained, monkeypatch, capsys):
    """`training.evaluate` prints the scores of training and the word overlap, and refuses to write predictions."""
    recipe, path = trained
    arguments = ["evaluate", str(path), "--data", str(recipe.dev[0])]

    monkeypatch.setattr("sys.argv", arguments)
    evaluate()
    rows = {line.split("  ")[0]: line.split()[-4:] for line in capsys.readouterr().out.splitlines()}
    scores = read_task_card(path).scores

    assert rows["100 examples"]
    assert rows[str(path)] == [f"{100 * scores['dev'][name]:.2f}" for name in ("spearman", "pearson")] + [
        f"{scores['dev'][name]:.3f}" for name in ("alignment_loss", "uniformity_loss")
    ]
    assert f"{100 * scores['word overlap']['spearman']:.2f}" in rows["word overlap"]

    for flags, message in (
        (
            ["--columns.text-pair", "other"],
            "dev.jsonl`, line 1: no column `other` (columns: `text`, `text_pair`, `label`)",
        ),
        (["--predictions", "x"], "--train and --predictions are not for embeddings"),
    ):
        monkeypatch.setattr("sys.argv", [*arguments, *flags])
        with pytest.raises(SystemExit, match=re.escape(message)):
            evaluate()


@pytest.mark.parametrize(
    ("header", "flags", "text", "label"),
    [
        ("one\ttext_pair\tlabel", [], "one", "label"),
        ("text\ttext_pair\tlabel", [], "text", "label"),
        ("one\ttwo\ttext_pair\tscore", ["--dev-columns.text", "two", "--dev-columns.label", "score"], "two", "score"),
    ],
)
def test_dev_columns_are_those_of_the_training_data(header, flags, text, label, tmp_path, monkeypatch):
    """Dev data use the columns of the training data if they have them, and flags take precedence."""
    (tmp_path / "dev.tsv").write_text(f"{header}\n{header}\n")
    words = f"supervised --checkpoint a --train b --run-dir c --dev {tmp_path / 'dev.tsv'} --columns.text one"
    monkeypatch.setattr("sys.argv", ["contrastive", *words.split(), *flags])

    recipe = parse_embedding_recipe(ContrastiveRecipe, "training.contrastive", None)

    assert recipe.columns == Columns(text="one")
    assert recipe.dev_columns == Columns(text=text, label=label)


def test_report_shows_cosines_of_pairs(trained):
    """The report shows cosines of dev pairs with their labels, most similar first."""
    recipe, path = trained
    _, table = sample_predictions(recipe.run_dir, read_json(recipe.run_dir / "recipe.json"))

    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    shown = [float(row["cosine"]) for row in rows]
    assert len(shown) == 18
    assert shown == sorted(shown, reverse=True)
    task, run = load_for_evaluation(path)
    texts = rows[0]["text"].split("\n")
    first, second = (vector / np.linalg.norm(vector) for vector in predict(task, texts, run))
    assert shown[0] == pytest.approx(float(first @ second), abs=0.01)
    assert {row["truth"] for row in rows} <= {"0", "1"}


def test_interrupted_run_resumes_bit_for_bit(recipe, tmp_path, alone, monkeypatch):
    """An interrupted run gives the losses and the best state of an undisturbed one."""
    recipe = replace(recipe, num_epochs=2, checkpoint_every=4, eval_every=5, select="best")
    whole = train_embedding(recipe, alone)
    broken = replace(recipe, run_dir=tmp_path / "broken")
    with interrupted_at(11):
        train_embedding(broken, alone)
    resumed = train_embedding(broken, alone)

    losses = [[line.get("loss") for line in read_metrics(path.parent)] for path in (whole, resumed)]
    assert losses[0] == losses[1]
    best = max(line["eval_spearman"] for line in read_metrics(whole.parent) if "eval_spearman" in line)
    assert [read_task_card(path).scores["dev"]["spearman"] for path in (whole, resumed)] == [best, best]
    (step,) = (line["step"] for line in read_metrics(whole.parent) if line.get("eval_spearman") == best)
    assert [read_task_card(path).provenance["num_steps"] for path in (whole, resumed)] == [step, step]


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["infonce", "cosent"])
def test_several_processes_compare_all_texts(loss, recipe, tmp_path):
    """Two processes with micro-batches give the losses of one without dropout, and compare the whole batch."""
    train = write_pairs(tmp_path / "train.jsonl", 160, 0, all_alike=False)
    losses = {}
    for processes in (1, 2):
        launch = ["training.launch", str(processes)] if processes > 1 else []
        flags = ["--checkpoint", recipe.checkpoint, "--train", train, "--run-dir", tmp_path / str(processes)]
        flags += ["--dropout", "0", "--global-batch-size", "16", "--log-every", "1", "--dtype", "fp32"]
        flags += ["--learning-rate", "1e-3", "--num-epochs", "0.6", "--loss", loss]
        flags += ["--micro-batch-size", "3"] if processes > 1 else []
        command = [sys.executable, "-m", *launch, "training.contrastive", "supervised", *map(str, flags)]
        subprocess.run(command, check=True, capture_output=True)
        losses[processes] = [line["loss"] for line in read_metrics(tmp_path / str(processes))]

    assert len(losses[1]) == 6
    assert losses[2] == pytest.approx(losses[1], rel=1e-4)


def test_equal_token_sequences_share_a_number(recipe, checkpoint):
    """Texts that differ only in case or beyond the maximum length count as the same text."""
    task = Embedding(load_tokenizer(checkpoint), EmbeddingSettings())
    views = [("The cat", "the CAT"), ("a dog", "the cat" + " cat" * 40), ("the cat" + " cat" * 50, "a dog")]

    texts = TrainingTexts(Examples(("here", view) for view in views))
    numbers = [item.labels for item in encode_views(texts, task, recipe)]

    assert numbers == [(0, 0), (1, 2), (2, 1)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "unsupervised", "dropout": 0.0}, "both views of a text were equal; give --dropout 0.1"),
        ({"min_label": 5}, "no pair has a `label` that makes it a positive; left out: `1` 160"),
        ({"positive_labels": ("yes",)}, "--positive-labels `yes` is no label of the pairs: `1` 160"),
        ({"positive_labels": ("1",), "loss": "cosent"}, "--min-label and --loss cosent conflict"),
        ({"loss": "cosent"}, "no pair is more similar than another by `label`: `1` 160"),
        ({"mode": "unsupervised", "loss": "cosent"}, "--loss `cosent` has no effect here"),
        ({"dev_columns": Columns(text_pair="other")}, r"dev\.jsonl`, line 1: no column `other`"),
        ({"max_seq_length": 65}, "max_seq_length `65` exceeds the 64 positions of"),
        (
            {"head": "on", "pooling": "mean"},
            r"--head on needs vectors .* \(vectors: mean\); give --head off",
        ),
        ({"select": "best", "dev": ()}, "--select best needs held-out data"),
        ({"split_sentences": True}, "--split-sentences `True` has no effect here"),
        ({"temperature": math.inf}, "--temperature must be a finite number: `inf`"),
    ],
)
def test_mistakes_are_errors_before_training(changes, message, recipe, alone):
    """The error names the mistake and the remedy, and no file is written."""
    with pytest.raises(ValueError, match=message):
        train_embedding(replace(recipe, **changes), alone)

    assert not recipe.run_dir.exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"text": "a cat", "text_pair": "A cat"}],
            "has a negative in its batch, so the loss is 0; different texts: 1 of 1, different positives: 1",
        ),
        (
            [{"text": f"{word} cat", "text_pair": "Animal"} for word in ("the", "a")],
            "texts: 2 of 2, different positives: 1",
        ),
        ([{"text": "a", "text_pair": "b"}, {"text": "c", "text_pair": "d", "label": 1}], "1 of 2 pairs of .* `label`"),
        (
            [{"text": "a", "text_pair": "the"}, {"text": "a", "text_pair": "cat", "negative": ["dog"]}],
            "line 2: number of negatives `1`, but 0 in `.*`, line 1",
        ),
        (
            [{"text": "a", "text_pair": "b", "label": "x"}, {"text": "c", "text_pair": "d", "label": "y"}],
            "cannot tell which labels mean the same",
        ),
        ([], "no pairs in"),
        (
            [{"text": "a", "text_pair": "b"}, {"text": "a", "text_pair": "\u200b"}],
            "odd.jsonl`, line 2, text: empty text",
        ),
    ],
)
def test_unusable_pairs_are_refused(rows, message, recipe, tmp_path, alone):
    """The error states why the pairs cannot be used."""
    path = tmp_path / "odd.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    with pytest.raises(ValueError, match=message):
        train_embedding(replace(recipe, train=(path,)), alone)


def test_texts_without_negatives_are_counted(recipe, tmp_path, alone, capsys):
    """A warning counts the texts whose batches hold no other positive."""
    pairs = [(f"{word} cat", "animal") for word in WORDS[:16]] + [(f"{word} dog", f"a {word}") for word in WORDS[:4]]
    rows = [json.dumps({"text": text, "text_pair": pair}) + "\n" for text, pair in pairs]
    (tmp_path / "pairs.jsonl").write_text("".join(rows))

    train_embedding(replace(recipe, train=(tmp_path / "pairs.jsonl",), global_batch_size=2, num_epochs=0.1), alone)

    warning = r"warning: \d\d% of the texts have no negative in their batch, .*: 20 of 20, different positives: 5"
    assert re.search(warning, capsys.readouterr().err)


def test_pairs_of_equal_texts_are_counted(recipe, tmp_path, alone, capsys):
    """Warnings count texts that are their own pair, and negatives that are the pair; empty labels are none."""
    rows = [
        {"text": f"{word} cat", "text_pair": f"{word} {'cat' if n < 2 else 'dog'}", "negative": f"{word} dog"}
        for n, word in enumerate(WORDS[:6])
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row | {"label": None}) + "\n" for row in rows))

    train_embedding(replace(recipe, train=(tmp_path / "pairs.jsonl",), min_label=None, num_epochs=0.1), alone)

    said = capsys.readouterr()
    assert "warning: 2 of 6 texts are their own pair\n" in said.err
    assert "warning: 4 of 6 texts have a negative that is the text or its pair\n" in said.err
    assert "training does not read `label`" in said.out


def test_known_dev_pairs_are_counted(recipe, tmp_path, alone, capsys):
    """A note counts the dev pairs that are also in the training data, in either order."""
    rows = [json.loads(line) for line in recipe.dev[0].read_text().splitlines()][:3]
    known = [{"text": row["text_pair"], "text_pair": row["text"]} for row in rows]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in known))

    train_embedding(replace(recipe, train=(tmp_path / "pairs.jsonl",), min_label=None, num_epochs=0.1), alone)

    assert re.search(r"note: \d+ of \d+ dev pairs are in the training data, too", capsys.readouterr().out)
