"""Tests of the distillation of vectors: a student comes close to its teacher, whole, resumed, or from a Parquet."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from export.source import read_source
from tasks.batching import predict
from tasks.embedding import EmbeddingSettings
from tests.families import create
from tests.toy_tokenizers import modernbert
from tests.training.interruption import interrupted_at
from tests.training.test_contrastive import TOPICS, topic_text, write_pairs
from training.checkpoint.evaluation import load_for_evaluation
from training.checkpoint.reader import create_model, read_shape
from training.checkpoint.task_card import TaskCard, read_task_card
from training.checkpoint.writer import save_checkpoint
from training.distillation.vectors import VectorDistillRecipe, _read_data, distil_vectors, principal_axes
from training.loop.run_directory import read_metrics


def write_embedder(path, checkpoint, *, hidden_size, seed=0, pooling="mean"):
    """Write an embedder whose random weights are large enough that its vectors depend on the words."""
    shape = replace(read_shape(checkpoint), hidden_size=hidden_size, intermediate_size=4 * hidden_size)
    torch.manual_seed(seed)
    model = create_model("embedding", shape)
    torch.nn.init.normal_(model.bert.embeddings.word.weight, std=1.0)
    settings = EmbeddingSettings(max_seq_length=32, pooling=pooling, normalize=True)
    save_checkpoint(path, model, tokenizer_from=checkpoint, card=TaskCard(task="embedding", settings=settings))
    return path


@pytest.fixture(scope="module")
def teacher(checkpoint, tmp_path_factory):
    """Return a teacher twice as wide as its student."""
    path = write_embedder(tmp_path_factory.mktemp("teacher") / "large", checkpoint, hidden_size=64)
    (path / "README.md").write_text("---\nlicense: apache-2.0\n---\n\n# Large\n")
    return path


@pytest.fixture(scope="module")
def texts():
    rng = np.random.default_rng(0)
    return [topic_text(rng, number % len(TOPICS)) for number in range(200)]


@pytest.fixture(scope="module")
def recipe_in(checkpoint, teacher, texts):
    """Return a function from a folder to a recipe that takes a second."""

    def make(folder):
        (folder / "texts.txt").write_text("\n".join(texts) + "\n")
        return VectorDistillRecipe(
            task="embedding",
            checkpoint=checkpoint,
            teacher=(teacher,),
            train=(folder / "texts.txt",),
            dev=(write_pairs(folder / "dev.jsonl", 60, 1, all_alike=False),),
            run_dir=folder / "run",
            pooling="mean",
            train_seq_length=32,
            global_batch_size=32,
            num_epochs=15,
            learning_rate=5e-3,
            dtype="fp32",
            dropout=0.0,
            log_every=1,
            eval_every=0,
        )

    return make


@pytest.fixture
def recipe(recipe_in, tmp_path):
    return recipe_in(tmp_path)


@pytest.fixture(scope="module")
def student(recipe_in, tmp_path_factory, alone):
    """Return a trained student."""
    return distil_vectors(recipe_in(tmp_path_factory.mktemp("student")), alone)


def vectors_of(checkpoint, texts):
    task, run = load_for_evaluation(checkpoint)
    return np.stack(predict(task, texts, run))


def similarity_error(first, second):
    """Return the mean difference of the cosines of all pairs."""
    return float(np.abs(first @ first.T - second @ second.T).mean())


def test_a_student_comes_close_to_its_teacher(student, checkpoint, teacher, texts, tmp_path):
    """A smaller student has the similarities of its teacher; card and model card name teacher and licence."""
    theirs = vectors_of(teacher, texts)
    before = vectors_of(write_embedder(tmp_path / "student", checkpoint, hidden_size=32), texts)
    assert similarity_error(vectors_of(student, texts), theirs) < 0.3 * similarity_error(before, theirs)
    card = read_task_card(student)
    assert card.settings == EmbeddingSettings(max_seq_length=32, pooling="mean", normalize=True)
    assert [record["licence"] for record in card.provenance["teachers"]] == ["apache-2.0"]
    assert list(card.scores)[:3] == ["dev", "teacher, large", "before, cls"]
    text = (student / "README.md").read_text()
    assert "It learnt the outputs of `large` (apache-2.0)." in text
    assert "### Distillation" in text
    losses = [line["vector_loss"] for line in read_metrics(student.parent) if "vector_loss" in line]
    assert losses[-1] < losses[0] / 3


def test_a_student_of_the_same_size_has_its_teachers_vectors(recipe, tmp_path, texts, alone):
    """With equal sizes nothing is rotated: old vectors of the teacher can be compared with the student's."""
    teacher = write_embedder(tmp_path / "same", recipe.checkpoint, hidden_size=32)
    path = distil_vectors(replace(recipe, teacher=(teacher,)), alone)

    assert float((vectors_of(path, texts) * vectors_of(teacher, texts)).sum(1).mean()) > 0.95
    theirs = read_source(teacher).space()
    assert read_source(path).space() == theirs  # as export writes it into the manifest
    assert read_source(path, settings={"normalize": False}).space() != theirs
    assert read_source(path, settings={"normalize": False}).space(theirs) == theirs


def test_a_rotated_student_has_a_space_of_its_own(student, teacher, recipe, alone):
    """Vectors along principal axes, and cut ones, cannot be compared with the teacher's."""
    same = write_embedder(recipe.run_dir.parent / "same", recipe.checkpoint, hidden_size=32)
    cut = distil_vectors(replace(recipe, teacher=(same,), dimensions=(8,), num_epochs=0.2), alone)

    assert read_source(student).space() != read_source(teacher).space()
    assert read_source(cut).space() != read_source(same).space()


def test_cut_vectors_of_matryoshka(recipe, student, texts, teacher, alone):
    """The first numbers of a vector alone have the teacher's similarities, much better than without."""
    errors = []
    for path in (student, distil_vectors(replace(recipe, dimensions=(4, 8)), alone)):
        cut = vectors_of(path, texts)[:, :4]
        cut /= np.linalg.norm(cut, axis=1, keepdims=True)
        errors.append(similarity_error(cut, vectors_of(teacher, texts)))

    assert errors[1] < 0.9 * errors[0]


def test_several_teachers(recipe, teacher, texts, tmp_path, alone):
    """The student learns the mean of the teachers' cosines; teachers of one name are shown by their paths."""
    other = write_embedder(tmp_path / "large", recipe.checkpoint, hidden_size=32, seed=3)
    path = distil_vectors(replace(recipe, teacher=(teacher, other)), alone)

    both = [vectors_of(item, texts) for item in (teacher, other)]
    mean = sum(item @ item.T for item in both) / 2
    ours = vectors_of(path, texts)
    rows = [row for row in read_task_card(path).scores if row.startswith("teacher")]
    assert float(np.abs(ours @ ours.T - mean).mean()) < 0.08
    assert rows == [f"teacher, {teacher}", f"teacher, {other}"]


def write_recorded(path, texts, vectors, kind="fixed"):
    flat = pa.array(np.asarray(vectors, np.float32).reshape(-1))
    column = pa.FixedSizeListArray.from_arrays(flat, len(vectors[0])) if kind == "fixed" else pa.array(list(vectors))
    pq.write_table(pa.table({"text": texts, "vector": column, "row": list(range(len(texts)))}), path)
    return path


def test_recorded_vectors_are_a_teacher(recipe, teacher, texts, tmp_path, alone, capsys):
    """Vectors in a Parquet give the losses of the teacher that made them; their texts are the training data."""
    runs = [distil_vectors(recipe := replace(recipe, num_epochs=1), alone)]
    assert re.search(r"64 numbers of the teacher are compared with 32, which keep [\d.]+% of", capsys.readouterr().out)
    for kind in ("fixed", "list"):
        path = write_recorded(tmp_path / f"{kind}.parquet", texts, vectors_of(teacher, texts), kind)
        again = replace(recipe, teacher=(), recorded=(path,), train=(), run_dir=tmp_path / kind)
        runs.append(distil_vectors(again, alone))

    whole, *others = ([line["loss"] for line in read_metrics(run.parent) if "loss" in line] for run in runs)
    assert others == [pytest.approx(whole, rel=1e-4)] * 2
    assert read_task_card(runs[1]).provenance["teachers"][0]["name"] == "fixed.parquet"


def test_interrupted_run_resumes_bit_for_bit(recipe, tmp_path, alone, monkeypatch):
    """Teacher's vectors are not computed again, and the losses are those of an undisturbed run."""
    recipe = replace(recipe, num_epochs=1, checkpoint_every=2)
    whole = distil_vectors(recipe, alone)
    broken = replace(recipe, run_dir=tmp_path / "broken")
    with interrupted_at(5):
        distil_vectors(broken, alone)
    monkeypatch.setattr("training.distillation.teachers.Teacher.run", None)
    resumed = distil_vectors(broken, alone)

    losses = [[line.get("loss") for line in read_metrics(path.parent)] for path in (whole, resumed)]
    assert losses[0] == losses[1]
    with pytest.raises(ValueError, match=r"was started with similarity_weight `10.0`, not `3.0`"):
        distil_vectors(replace(broken, similarity_weight=3.0), alone)


@pytest.mark.slow
def test_two_processes_give_the_losses_of_one(recipe, teacher, tmp_path):
    """Similarities are compared over all processes."""
    losses = {}
    for processes in (1, 2):
        launch = ["training.launch", str(processes)] if processes > 1 else []
        flags = ["--teacher", teacher, "--checkpoint", recipe.checkpoint, "--train", *recipe.train]
        flags += ["--run-dir", tmp_path / str(processes), "--dropout", "0", "--global-batch-size", "16"]
        flags += ["--log-every", "1", "--dtype", "fp32", "--num-epochs", "0.5", "--pooling", "mean"]
        flags += ["--train-seq-length", "32"]
        command = [sys.executable, "-m", *launch, "training.distill", "embedding", *map(str, flags)]
        subprocess.run(command, check=True, capture_output=True)
        losses[processes] = [line["loss"] for line in read_metrics(tmp_path / str(processes))]

    assert len(losses[1]) > 3
    assert losses[2] == pytest.approx(losses[1], rel=1e-4)


def test_both_texts_of_pairs_are_read(recipe, tmp_path):
    """Tables with pairs are twice as many texts; a row without a pair is one."""
    rows = [("the old cat", "a dog sleeps"), ("a house", ""), ("the river", "the old cat")]
    lines = ["\t".join(row) for row in [("text", "text_pair"), *rows]]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")

    texts = _read_data(replace(recipe, train=(tmp_path / "pairs.tsv",)), []).texts

    assert list(texts) == ["the old cat", "a dog sleeps", "a house", "the river"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher": ()}, "give either --teacher or --recorded"),
        ({"train": ()}, "give --train, the texts to learn on"),
        ({"dimensions": (32,)}, "--dimensions `32` must be below the 32 of the student's vectors"),
        ({"take_layers": (2,)}, "--take-layers `2`: the checkpoint has 2 layers"),
        (
            {"teacher": (), "recorded": (Path("a"),), "train": (), "split_sentences": True},
            "--split-sentences is for --train",
        ),
        ({"max_seq_length": 65}, "max_seq_length `65` exceeds the 64 positions of"),
    ],
)
def test_mistakes_are_errors_before_training(changes, message, recipe, alone):
    """The error names the mistake and the remedy, and no run is begun."""
    with pytest.raises(ValueError, match=re.escape(message)):
        distil_vectors(replace(recipe, **changes), alone)

    assert not recipe.run_dir.exists()


def test_a_teacher_without_pooling_is_refused(recipe, alone):
    """A pretrained checkpoint does not state how its vectors are pooled."""
    with pytest.raises(ValueError, match=r"does not state how its vectors are pooled .* give --teacher-pooling"):
        distil_vectors(replace(recipe, teacher=(recipe.checkpoint,)), alone)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop_columns(["vector"]), r"has no column `vector` \(columns: text, row\)"),
        (lambda table: table.slice(0, 100), r"100 of 200 training texts have no vector in .* the first: `"),
        (lambda table: _with(table, "vector", 2, None), "row 3: `vector` is empty"),
        (
            lambda table: _with(_with(table, "vector", 2, [1.0]), "vector", 9, [1.0] * 127),
            "row 3: a vector of 1 numbers, others have 64",
        ),
        (
            lambda table: pa.concat_tables([table, _with(table, "vector", 4, [-1.0] * 64)]),
            "row 205: the text has another vector in .*, row 5",
        ),
        (lambda table: _with(table, "vector", 2, [float("nan")] * 64), "row 3: the vector is NaN, infinite or 0"),
    ],
)
def test_recorded_vectors_that_do_not_fit(change, message, recipe, teacher, texts, tmp_path, alone):
    """Each mistake in a Parquet is an error that names file, row or column."""
    texts = list(dict.fromkeys(texts))
    texts += [f"the cat {number}" for number in range(200 - len(texts))]
    recipe.train[0].write_text("\n".join(texts) + "\n")
    path = write_recorded(tmp_path / "vectors.parquet", texts, np.ones((200, 64)), "list")
    pq.write_table(change(pq.read_table(path)), path)

    with pytest.raises(ValueError, match=message):
        distil_vectors(replace(recipe, teacher=(), recorded=(path,)), alone)


def _with(table, column, row, value):
    values = table[column].to_pylist()
    values[row] = value
    return table.set_column(table.schema.names.index(column), column, pa.array(values, table[column].type))


def test_files_that_are_no_parquet(recipe, tmp_path, alone):
    """A missing or other file is named."""
    (tmp_path / "a.parquet").write_text(json.dumps({"text": "a"}))
    for path, message in ((tmp_path / "a.parquet", "cannot be read as Parquet"), (tmp_path / "b", "no such file")):
        with pytest.raises(ValueError, match=message):
            distil_vectors(replace(recipe, teacher=(), recorded=(path,)), alone)


def test_a_larger_student_is_cut_along_axes(recipe, texts, alone):
    """The first numbers of a larger student are the teacher's principal axes, and the others are trained to zero."""
    teacher = write_embedder(recipe.run_dir.parent / "small", recipe.checkpoint, hidden_size=16)
    path = distil_vectors(replace(recipe, teacher=(teacher,), dimensions=(8,)), alone)

    ours, theirs = vectors_of(path, texts), vectors_of(teacher, texts)
    cut = ours[:, :8] / np.linalg.norm(ours[:, :8], axis=1, keepdims=True)
    axes, _ = principal_axes(theirs, 8)
    best = theirs @ axes
    best /= np.linalg.norm(best, axis=1, keepdims=True)
    assert float((cut * best).sum(1).mean()) > 0.9
    assert float(np.square(ours[:, 16:]).sum(1).mean()) < 0.1


def test_a_changed_teacher_is_another_teacher(recipe, teacher, tmp_path, alone):
    """The same weights in another network or with other pooling have separate outputs; no run continues with them."""
    other = shutil.copytree(teacher, tmp_path / "other")
    recipe = replace(recipe, teacher=(other,), num_epochs=0.2)
    distil_vectors(recipe, alone)
    for number, (file, old, new) in enumerate([("config.json", "gelu", "relu"), ("task.json", "mean", "cls")], start=2):
        (other / file).write_text((other / file).read_text().replace(f'"{old}"', f'"{new}"'))

        with pytest.raises(ValueError, match="was started with other contents of `teachers`"):
            distil_vectors(recipe, alone)
        distil_vectors(recipe := replace(recipe, run_dir=tmp_path / str(number)), alone)
        assert len([path for path in (tmp_path / "teacher-outputs").iterdir() if path.is_dir()]) == number


def test_texts_that_only_the_student_can_read(recipe, alone, tmp_path):
    """A text without tokens for the teacher is found before any of its outputs is computed."""
    student = tmp_path / "student"
    backend = modernbert()
    create("modernbert", "embedding", student.parent)
    student.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (student.parent / name).rename(student / name)
    assert backend.encode("\u200b", add_special_tokens=False).ids
    recipe.train[0].write_text("the cat\n" * 3 + "\u200b\n" + "a dog\n", encoding="utf-8")

    with pytest.raises(ValueError, match=r"texts\.txt`, line 4, text: "):
        distil_vectors(replace(recipe, checkpoint=student), alone)
    assert not list((tmp_path / "teacher-outputs").glob("*"))
