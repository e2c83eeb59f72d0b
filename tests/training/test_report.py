import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.masked_lm import ClozeExample, MaskedLM, MaskedLMSettings, MaskPrediction, log_softmax
from tasks.multiple_choice import MultipleChoiceExample, MultipleChoicePrediction
from tasks.regression import RegressionExample
from tasks.spans import Span, SpanExample, SpanPrediction
from tasks.tagging import TaggingExample, TaggingPrediction
from tasks.text.tokenizer import Tokenizer
from tests.commands import call
from tests.toy import make_text, write_classification, write_spans
from tests.toy_tokenizers import KINDS
from training.finetuning.recipe import FinetuneRecipe
from training.finetuning.run import finetune
from training.pretrain import PretrainRecipe
from training.report import ReportRecipe, compare_with_defaults, facts, main, render, write_report
from training.reports.page import Cell
from training.reports.sample_views import marked, sample_table
from training.reports.samples import corpus_passages, sample_predictions

VOID = {"meta", "br", "hr", "img", "input", "link", "path", "use"}


class Page(HTMLParser):
    """Parser that checks that tags are closed, and collects visible text and the addresses that the page loads."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.fetched, self.tags = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href") and not value.startswith("#")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    root = tmp_path_factory.mktemp("labelled")
    train = write_classification(root / "train.jsonl", 40, seed=1)
    return {"classification": train, "spans": write_spans(root / "train.json", 30, seed=1)}


TASK_FIELDS = {"spans": {"max_query_length": 16}, "classification": {}}


@pytest.fixture(scope="module")
def finetuned(checkpoint, labelled, tmp_path_factory, alone):
    def run(task):
        path = tmp_path_factory.getbasetemp() / f"report-{task}"
        if not path.exists():
            fields = {"train": (labelled[task],), "dev": (labelled[task],), "run_dir": path, **TASK_FIELDS[task]}
            fields |= {"num_epochs": 2, "learning_rate": 1e-3, "max_seq_length": 48}
            finetune(FinetuneRecipe(task=task, checkpoint=checkpoint, **fields), alone)
        return path

    return run


def test_a_pretrained_run(checkpoint, tmp_path):
    """The page of a pretraining run has curves, the baseline next to the scores, and hidden words."""
    run = checkpoint.parent
    page = Page(write_report(ReportRecipe(run=run, out=tmp_path / "page.html")).read_text(encoding="utf-8"))

    assert page.fetched == []
    assert "script" not in page.tags
    assert page.tags.count("svg") == 8
    assert "finished, 10 steps" in page.text
    assert "unigram baseline" in page.text
    assert "marked words are predicted first" in page.text
    assert "decoded from token ids" in page.text


@pytest.mark.parametrize(
    ("task", "scores"),
    [
        ("classification", "Scores dev majority label accuracy N"),
        ("spans", "Scores dev first words exact match N F1 N"),
    ],
)
def test_a_finetuned_run(finetuned, task, scores):
    """The page of a fine-tuning run has a column for the baseline, predictions on dev data, and both recipes."""
    page = Page(render(finetuned(task)))

    assert re.search(scores.replace("N", r"[\d.]+ [\d.]+"), page.text)
    assert "random examples are right" in page.text
    assert "The pretraining before it" in page.text


def test_text_of_the_data_is_no_markup(finetuned, tmp_path):
    """The page shows markup in the data as text."""
    data = tmp_path / "a.jsonl"
    data.write_text(json.dumps({"text": "<script>alert('cat')</script>", "label": "yes"}) + "\n")

    page = Page(render(finetuned("classification"), [data]))

    assert "<script>alert('cat')</script>" in page.text
    assert "script" not in page.tags


def test_wrong_labels_come_first(finetuned):
    """The samples list the most confident mistakes first and right predictions last."""
    run = finetuned("classification")
    _, table = sample_predictions(run, json.loads((run / "recipe.json").read_text()))
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    verdicts = [row["predicted"].mark for row in rows]
    wrong = [float(row["score"].rstrip("%")) for row in rows if row["predicted"].mark == "wrong"]

    assert verdicts == sorted(verdicts, reverse=True)
    assert wrong == sorted(wrong, reverse=True)


def test_an_unfinished_run_has_a_page(checkpoint, tmp_path):
    """The page of an unfinished run states this, also without checkpoint and metrics."""
    run = tmp_path / "run"
    run.mkdir()
    for name in ("recipe.json", "metrics.jsonl"):
        shutil.copy(checkpoint.parent / name, run / name)
    started = Page(render(run)).text
    (run / "metrics.jsonl").unlink()
    empty = Page(render(run)).text

    assert "not finished, at step 10" in started
    assert "not finished and has no checkpoint" in started
    assert "no step logged yet" in empty


def test_missing_and_changed_dev_data_are_named(finetuned, labelled, tmp_path):
    """The page names missing or changed dev data, and uses other given data."""
    run = finetuned("classification")
    recipe = json.loads((run / "recipe.json").read_text())
    gone, nothing = sample_predictions(run, recipe | {"dev": [str(tmp_path / "gone.jsonl")]})
    other = write_classification(tmp_path / "train.jsonl", 5, seed=9)
    changed, _ = sample_predictions(run, recipe | {"train": [str(other)], "dev": [str(other)]})
    given_data, _ = sample_predictions(run, recipe, [other])

    assert nothing is None
    assert "gone.jsonl no longer exists" in gone
    assert "has changed since" in changed
    assert "5 random examples" in given_data


def test_files_with_the_same_name_are_distinguished(finetuning, tmp_path, alone):
    """The report distinguishes files with the same name in different folders."""
    files = [tmp_path / name / "data.jsonl" for name in ("train", "first", "second")]
    for seed, path in enumerate(files):
        path.parent.mkdir()
        write_classification(path, 20, seed=seed)
    train, *dev = files
    recipe = replace(finetuning(train, num_epochs=1), dev=tuple(dev))
    finetune(recipe, alone)
    asked = json.loads((recipe.run_dir / "recipe.json").read_text())

    both_trained_on = asked | {"train": list(map(str, dev))}
    assert facts(recipe.run_dir, both_trained_on, [], None)["data"] == "first/data.jsonl, second/data.jsonl"
    assert "has changed since" not in sample_predictions(recipe.run_dir, asked)[0]
    write_classification(dev[0], 20, seed=3)
    assert "But first/data.jsonl has changed since" in sample_predictions(recipe.run_dir, asked)[0]


def test_a_text_without_tokens_is_named(finetuned, tmp_path):
    """A text without tokens is named by its line, in an error for given data and in a note for the run's own."""
    run, data = finetuned("classification"), tmp_path / "a.jsonl"
    data.write_text('{"text": "a cat", "label": "yes"}\n{"text": "\\u0001", "label": "no"}\n')
    recipe = json.loads((run / "recipe.json").read_text())

    with pytest.raises(ValueError, match=r"a\.jsonl`, line 2, text: "):
        sample_predictions(run, recipe, [data])
    assert "a.jsonl`, line 2, text: " in sample_predictions(run, recipe | {"dev": [str(data)]})[0]


def test_text_can_be_given_to_a_pretrained_run(checkpoint, tmp_path):
    """A pretraining run shows masked words of a given text with the most likely words."""
    text = tmp_path / "text.txt"
    text.write_text(make_text(3, seed=7))
    note, table = sample_predictions(checkpoint.parent, {}, [text])

    assert "From text.txt" in note
    assert table.header == ["text", "most likely words"]
    for shown, guesses in table.rows:
        masks = [piece for piece in shown if isinstance(piece, Cell)]
        assert masks == [piece for piece in guesses if isinstance(piece, Cell)]
        for mask, words in zip(masks, guesses[1::2], strict=True):
            assert (f" {mask.text} " in f" {words}") == (mask.mark != "wrong") == ("; rank" not in words)


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_texts_are_split_at_the_masks_of_the_tokenizer(kind):
    """The report marks words in place of the masks, whatever the tokenizer calls them; masks that were cut off stay."""
    task = MaskedLM(Tokenizer(KINDS[kind]()), MaskedLMSettings())
    mask, token = task.tokenizer.mask_token, task.tokenizer.token(20)
    logits = np.zeros((2, task.tokenizer.vocab_size), np.float32)
    logits[:, 20] = 9
    example = ClozeExample(f"The {mask} sees a {mask}. {mask}", (token,) * 3)

    table, _ = sample_table(task, [example], [MaskPrediction(log_softmax(logits))])

    assert table.rows[0][0] == ["The ", Cell(token, "right"), " sees a ", Cell(token, "right"), ". ", mask, ""]


def test_passages_come_back_from_ids(corpus, text_file):
    """Passages decoded from ids are text of the corpus, except for case and spaces."""
    bare = lambda text: re.sub(r"\W+", "", text).lower()  # noqa: E731
    passages = list(corpus_passages(corpus, 40, 5))

    assert len(passages) == 5
    assert all(bare(passage) in bare(text_file.read_text()) for passage in passages)


@given(st.text(min_size=1, max_size=80), st.data(), st.integers(0, 20))
def test_marks_cover_their_text(text, data, around):
    """The pieces are the text in order, and each mark covers exactly its own text, also where marks overlap."""
    places = st.tuples(st.integers(0, len(text)), st.integers(0, len(text))).map(sorted).filter(lambda p: p[0] < p[1])
    marks = [(*data.draw(places), name) for name in data.draw(st.sampled_from([("a",), ("a", "b")]))]
    pieces = list(marked(text, marks, around))
    shown = "".join(piece for piece, _ in pieces)

    for start, end, name in marks:
        assert "".join(piece for piece, names in pieces if name in names.split()) == text[start:end]

    assert shown.removeprefix("… ").removesuffix(" …") in text or shown in text


def test_settings_that_differ_are_marked(checkpoint):
    """A setting is marked if it differs from the recipe's default or has none."""
    recipe = json.loads((checkpoint.parent / "recipe.json").read_text())
    changed, others = compare_with_defaults(recipe, PretrainRecipe)
    settings = {name: default.text for name, _, default in changed.rows}

    assert settings["num_steps"] == "10,000"
    assert "corpus" in settings
    assert {"weight_decay", "betas"} <= {name for name, _ in others.rows}
    assert "corpus_digest" not in settings


def test_thirty_thousand_lines_make_a_small_page(checkpoint, tmp_path):
    """The page of a run of 30,000 steps stays small, because curves are thinned."""
    (tmp_path / "recipe.json").write_bytes((checkpoint.parent / "recipe.json").read_bytes())
    line = '{"step": %d, "loss": %.4f, "grad_norm": 1.0, "num_tokens": %d, "tokens_per_s": 100}\n'
    losses = np.random.default_rng(0).random(30_000)
    text = "".join(line % (step, loss, 100 * step) for step, loss in enumerate(losses, start=1))
    (tmp_path / "metrics.jsonl").write_text(text)
    page = render(tmp_path)

    assert len(page) < 200_000


def test_a_damaged_run_is_named(checkpoint, tmp_path):
    """The error names the damaged file and the problem."""
    run = tmp_path / "run"
    shutil.copytree(checkpoint.parent, run)
    weights, recipe = run / "checkpoint" / "model.safetensors", run / "recipe.json"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"cannot read weights `.*model\.safetensors`"):
        render(run)

    recipe.write_text(json.dumps(json.loads(recipe.read_text()) | {"corpus": 5}))
    with pytest.raises(ValueError, match=r"broken `.*recipe\.json`: `corpus` must be a string: `5`; correct it"):
        render(run)


def test_a_folder_without_a_run_is_refused_in_one_line(tmp_path, monkeypatch, capfd):
    """The command refuses a folder without a run in one line, without a traceback."""
    result = call(main, [str(tmp_path)], monkeypatch, capfd)

    assert result.returncode == 1
    assert result.stderr.startswith("error: not a run")
    assert len(result.stderr.splitlines()) == 1


def test_a_folder_of_runs_points_at_one_that_has_weights(checkpoint, tmp_path):
    """The error for a folder of runs names a run with weights, and pages of other runs state that weights are gone."""
    for name in ("first", "second"):
        shutil.copytree(checkpoint.parent, tmp_path / name)
    (tmp_path / "first" / "checkpoint" / "model.safetensors").unlink()

    with pytest.raises(ValueError, match=rf"give one of its 2 runs, such as `{tmp_path / 'second'}`"):
        write_report(ReportRecipe(run=tmp_path))

    assert (
        "the checkpoint has no weights; a grid keeps only those of its best run"
        in Page(render(tmp_path / "first")).text
    )


def table_of(name, examples, predictions, **settings):
    task = SimpleNamespace(name=name, settings=SimpleNamespace(**settings))
    table, note = sample_table(task, examples, predictions)
    return [dict(zip(table.header, row, strict=True)) for row in table.rows], note


def test_choices_and_entities_are_shown_as_such():
    """Choices and entities have their own views, wrong ones first, with numbers in short form."""
    choices = [MultipleChoiceExample(choices=("a cat", "a dog"), question="It purrs:", label=label) for label in (0, 1)]
    rows, note = table_of("multiple-choice", choices, [MultipleChoicePrediction(np.array([0.9, 0.1]))] * 2)
    assert rows[0] == {
        "text": "It purrs:\n0. a cat\n1. a dog", "truth": "1. a dog", "predicted": Cell("0. a cat", "wrong"),
        "score": "90.0%",
    }  # fmt: skip
    assert note.startswith("1 of 2 ")

    words, tags = ("the", "Rhine", "Falls", "roar"), ("O", "B-place", "I-place", "O")
    found = [
        TaggingPrediction(tags=tags, scores=np.ones(4), entities=())
        for tags in (("O", "B-place", "O", "O"), ("O", "O", "O", "O"))
    ]
    rows, note = table_of("tagging", [TaggingExample(words=words, tags=tags)] * 2, found, labels=("O", *tags[1:3]))
    assert [(row["truth"], row["predicted"].text) for row in rows] == [
        ("Rhine Falls (place)", "Rhine (place)"),
        ("Rhine Falls (place)", "none"),
    ]
    assert note.startswith("0 of 2 ")

    rows, _ = table_of("new-task", [RegressionExample(text="a", label=2.5)], [0.6629169583318620])
    assert rows == [{"text": "a", "truth": "2.5", "predicted": "0.663"}]


def test_the_largest_errors_of_numbers_come_first():
    """The samples of numbers list the largest errors first."""
    errors = np.random.default_rng(0).permutation(np.linspace(-1, 2, 301))
    examples = [RegressionExample(text="a", text_pair="b", label=3.0) for _ in errors]

    rows, _ = table_of("regression", examples, [3.0 + error for error in errors])

    found = [abs(float(row["error"])) for row in rows]
    assert found == sorted(found, reverse=True)
    assert found[:3] == [2.0, 1.99, 1.98]
    assert found[-1] < 0.5


def test_wrong_answers_come_first():
    """Wrong answers come first, then partly right ones, then right ones, each by confidence."""
    example = SpanExample("What?", "a red cat sleeps", ("red cat",), 2)

    def answered(start, end, score):
        span = Span(start=start, end=end, text=example.context[start:end], score=score, logit=0.0)
        return SpanPrediction(spans=(span,), has_answer=True, no_answer_score=0.0, null_margin=0.0)

    places = [(2, 9), (2, 5), (10, 16)]
    predictions = [answered(*place, score) for score in (0.2, 0.9) for place in places]

    rows, note = table_of("spans", [example] * 6, predictions)

    assert [(row["predicted"].mark, row["score"]) for row in rows] == [
        (verdict, score) for verdict in ("wrong", "near", "right") for score in ("90.0%", "20.0%")
    ]
    assert note.startswith("2 of 6 random examples are right, 2 partly.")
