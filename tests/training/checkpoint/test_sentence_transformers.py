"""Contrastive training of sentence-transformers folders: poolings and Dense layers as in the library."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from export import ExportConfig, export_checkpoint, graph_run
from tasks.batching import predict
from tasks.bundle.files import sha256
from tasks.embedding import EmbeddingSettings, dense_layer
from tests.toy import WORDS
from training.checkpoint.evaluation import load_for_evaluation
from training.checkpoint.reader import load_tokenizer
from training.checkpoint.sentence_transformers import LENGTH_FILES, folder_digest, folder_settings, read_dense
from training.checkpoint.task_card import read_task_card
from training.checkpoint.writer import write_modules
from training.contrastive import ContrastiveRecipe, train_embedding
from training.loop.run_directory import read_metrics

SETTINGS = {"global_batch_size": 16, "dtype": "fp32", "log_every": 1, "dropout": 0.0, "learning_rate": 1e-3}
POOLINGS = {
    "cls": ["cls_token"],
    "mean": ["mean_tokens"],
    "max": ["max_tokens"],
    "mean_sqrt_len_tokens": ["mean_sqrt_len_tokens"],
    "weightedmean": ["weightedmean_tokens"],
    "lasttoken": ["lasttoken"],
    "max, weightedmean": ["max_tokens", "weightedmean_tokens"],
}
FLAGS = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
PAIRS = [(f"the {first} sees a {second}", f"a {second} {first}") for first in WORDS[2:6] for second in WORDS[8:12]]
TEXTS = [text for pair in PAIRS[:4] for text in pair]


@pytest.fixture
def library():
    return pytest.importorskip("sentence_transformers")


@pytest.fixture
def folder(library, checkpoint, tmp_path):
    """Save a folder by sentence-transformers."""

    def save(pooling, *activations, **options):
        torch.manual_seed(0)
        transformer = library.models.Transformer(str(checkpoint), max_seq_length=24)
        size = transformer.get_word_embedding_dimension()
        modes = {f"pooling_mode_{flag}": flag in POOLINGS[pooling] for flag in FLAGS}
        modules = [transformer, pool := library.models.Pooling(size, **modes)]
        size = pool.get_sentence_embedding_dimension()
        for activation in activations:
            modules.append(library.models.Dense(size, 20, activation_function=activation))
            size = 20
        model = library.SentenceTransformer(modules=[*modules, library.models.Normalize()], device="cpu", **options)
        model.save(str(tmp_path / "folder"))
        return tmp_path / "folder", model

    return save


@pytest.fixture
def recipe(tmp_path):
    """Return a function that makes a recipe of one step with all pairs."""
    rows = [json.dumps({"text": first, "text_pair": second}) + "\n" for first, second in PAIRS]
    (tmp_path / "train.jsonl").write_text("".join(rows))

    def make(checkpoint, **changes):
        values = {"mode": "supervised", "checkpoint": checkpoint, "train": (tmp_path / "train.jsonl",)}
        return ContrastiveRecipe(run_dir=tmp_path / "run", **values, **SETTINGS | changes)

    return make


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("pooling", "activations"),
    [
        ("max, weightedmean", [torch.nn.Tanh(), torch.nn.Identity()]),
        ("mean_sqrt_len_tokens", [torch.nn.GELU()]),
        ("lasttoken", []),
    ],
)
def test_folders_are_trained_whole(library, folder, recipe, alone, pooling, activations):
    """The loss is the library's, Dense layers learn, and the result loads there with the same vectors."""
    start, reference = folder(pooling, *activations)
    reference.eval()
    batches = [reference.tokenize(list(texts)) for texts in zip(*PAIRS, strict=True)]
    expected = library.losses.MultipleNegativesRankingLoss(reference, scale=20.0)(batches, None)

    path = train_embedding(recipe(start), alone)

    assert read_metrics(path.parent)[0]["loss"] == pytest.approx(float(expected), rel=1e-4)
    settings = read_task_card(path).settings
    assert ", ".join(settings.poolings) == pooling
    assert settings.max_seq_length == 24
    task, run = load_for_evaluation(path)
    vectors = np.stack(predict(task, TEXTS, run))
    theirs = library.SentenceTransformer(str(path), device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS), vectors, atol=1e-5)
    assert np.abs(theirs.encode(TEXTS) - reference.encode(TEXTS)).max() > 1e-3
    size = 32 * len(settings.poolings)
    before, after = (read_dense(place, settings.layers, size).state_dict() for place in (start, path))
    assert len(after) == 2 * len(activations)
    assert all((after[name] - before[name]).abs().max() > 1e-4 for name in after)


@pytest.mark.filterwarnings("ignore")
def test_folders_are_evaluated_as_they_are(folder, checkpoint):
    """A folder without task card is evaluated with the vectors of the library; its network alone states no task."""
    start, reference = folder("mean", torch.nn.Tanh())

    task, run = load_for_evaluation(start)

    np.testing.assert_allclose(np.stack(predict(task, TEXTS, run)), reference.encode(TEXTS), atol=1e-5)
    for name in ("task.json", "modules.json"):
        (start / name).unlink(missing_ok=True)
    with pytest.raises(ValueError, match=r"has no task\.json; fine-tune it first"):
        load_for_evaluation(start)


@pytest.mark.filterwarnings("ignore")
def test_gradients_equal_those_of_the_library(library, folder, recipe, alone):
    """One step of plain gradient descent would move the Dense layer alike: the gradients of both are equal."""
    start, reference = folder("mean", torch.nn.Tanh())
    reference.eval()
    batches = [reference.tokenize(list(texts)) for texts in zip(*PAIRS, strict=True)]
    library.losses.MultipleNegativesRankingLoss(reference, scale=20.0)(batches, None).backward()
    theirs = reference[2].linear.weight

    path = train_embedding(recipe(start, weight_decay=0.0, warmup_ratio=0.0), alone)

    settings = read_task_card(path).settings
    before, after = (read_dense(place, settings.layers, 32)["0"].weight for place in (start, path))
    moved = (after - before).detach()  # AdamW's first step has the sign of the gradient
    is_clear = theirs.grad.abs() > 1e-6
    assert is_clear.float().mean() > 0.9
    assert torch.equal(moved.sign()[is_clear], -theirs.grad.sign()[is_clear])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_several_processes_train_dense_layers_alike(folder, recipe, tmp_path):
    """Two processes give the losses and the Dense layers of one."""
    start, _ = folder("mean", torch.nn.Tanh())
    data, losses, layers = recipe(start).train[0], {}, {}
    for processes in (1, 2):
        run = tmp_path / str(processes)
        launch = ["training.launch", str(processes)] if processes > 1 else []
        flags = ["--checkpoint", start, "--train", data, "--run-dir", run, "--dropout", "0", "--num-epochs", "4"]
        flags += ["--global-batch-size", "16", "--log-every", "1", "--dtype", "fp32", "--learning-rate", "1e-3"]
        command = [sys.executable, "-m", *launch, "training.contrastive", "supervised", *map(str, flags)]
        subprocess.run(command, check=True, capture_output=True)
        losses[processes] = [line["loss"] for line in read_metrics(run)]
        layers[processes] = read_dense(run / "checkpoint", (dense_layer("tanh"),), 32)["0"].weight

    assert len(losses[1]) == 4
    assert losses[2] == pytest.approx(losses[1], rel=1e-4)
    torch.testing.assert_close(layers[2], layers[1], atol=1e-4, rtol=0)


@pytest.mark.filterwarnings("ignore")
def test_prompts_and_similarity_stay(folder, recipe, alone):
    """The trained model keeps prompts, default prompt and similarity of the folder; a flag changes the length."""
    start, _ = folder("mean", prompts={"query": "the old "}, default_prompt_name="query", similarity_fn_name="dot")

    path = train_embedding(recipe(start, max_seq_length=16), alone)

    settings = read_task_card(path).settings
    assert settings == EmbeddingSettings(
        max_seq_length=16,
        pooling="mean",
        normalize=True,
        similarity_fn_name="dot",
        prompts=settings.prompts,
        default_prompt_name="query",
    )
    assert settings.prompts["query"] == "the old "
    assert folder_settings(path, load_tokenizer(path)) == {
        name: list(value) if isinstance(value, tuple) else [value] if name == "pooling" else value
        for name, value in vars(settings).items()
    }


@pytest.mark.filterwarnings("ignore")
def test_what_a_dense_layer_excludes(folder, recipe, alone):
    """A head in addition to Dense layers, and a pooling of another size than they take, are errors."""
    start, _ = folder("mean", torch.nn.Tanh())

    with pytest.raises(ValueError, match=r"--head on needs vectors of \[CLS\] alone \(vectors: mean, dense tanh\)"):
        train_embedding(recipe(start, head="on"), alone)
    with pytest.raises(ValueError, match="in_features must be `64`, as the vector before: `32`"):
        train_embedding(recipe(start, pooling=("cls", "mean")), alone)


@pytest.mark.filterwarnings("ignore")
def test_several_poolings_by_flag(library, checkpoint, recipe, tmp_path, alone):
    """A checkpoint without modules is trained and exported with the poolings of the flag, one after the other."""
    path = train_embedding(recipe(checkpoint, pooling=("cls", "mean")), alone)

    task, run = load_for_evaluation(path)
    vectors = np.stack(predict(task, TEXTS, run))
    assert vectors.shape == (8, 64)
    np.testing.assert_allclose(library.SentenceTransformer(str(path), device="cpu").encode(TEXTS), vectors, atol=1e-5)
    model = export_checkpoint(path, tmp_path / "models/vectors/1", ExportConfig(tune=False))
    exported = np.stack(predict(model.load_task(), TEXTS, graph_run(model.model_path)))
    np.testing.assert_allclose(exported, vectors, atol=1e-5)
    assert model.manifest.provenance["checkpoint"]["sha256"] == folder_digest(path)


def test_modules_of_any_settings_are_read_again(tmp_path, checkpoint):
    """Written settings are read again, also a list of poolings in an order that flags cannot state."""
    dense = torch.nn.ModuleDict({"0": torch.nn.Linear(64, 8, bias=False), "2": torch.nn.Linear(8, 4)})
    settings = EmbeddingSettings(
        max_seq_length=24,
        pooling=("mean", "cls"),
        layers=(dense_layer("relu"), "normalize", dense_layer("silu")),
        prompts={"query": "ask: "},
    )

    write_modules(tmp_path, settings, dense, 32)

    values = folder_settings(tmp_path, load_tokenizer(checkpoint))
    assert replace(EmbeddingSettings(), **{**values, "layers": tuple(values["layers"])}) == settings
    again = read_dense(tmp_path, settings.layers, 64)
    assert all(torch.equal(value, dense.state_dict()[name]) for name, value in again.state_dict().items())
    assert list(again.state_dict()) == list(dense.state_dict())


def test_old_names_of_the_length(tmp_path, checkpoint):
    """Older versions named the file with the maximum length after the family."""
    write_modules(tmp_path, EmbeddingSettings(max_seq_length=24), torch.nn.ModuleDict(), 32)
    path = tmp_path / LENGTH_FILES[0]
    for name in LENGTH_FILES:
        path = path.rename(tmp_path / name)

        assert folder_settings(tmp_path, load_tokenizer(checkpoint))["max_seq_length"] == 24


def test_the_digest_covers_dense_layers(tmp_path, checkpoint):
    """Other weights of a Dense module are another checkpoint."""
    digests = [folder_digest(checkpoint)]
    for seed in (0, 1):
        torch.manual_seed(seed)
        place = tmp_path / str(seed)
        place.mkdir()
        for name in ("config.json", "model.safetensors"):
            (place / name).write_bytes((checkpoint / name).read_bytes())
        dense = torch.nn.ModuleDict({"0": torch.nn.Linear(32, 8)})
        write_modules(place, EmbeddingSettings(layers=(dense_layer("tanh"),)), dense, 32)
        digests.append(folder_digest(place))

    assert len(set(digests)) == 3
    assert digests[0] == sha256(checkpoint / "model.safetensors")
