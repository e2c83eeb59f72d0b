from __future__ import annotations

import json

import pytest

from export.source import read_source
from tasks.masked_lm import MaskedLMSettings
from tasks.spans import SpanSettings
from tests.export.conftest import changed, save_ours


@pytest.mark.parametrize(
    ("name", "settings", "flags"),
    [
        ("plain", {}, ["give --pooling"]),
        ("masked-lm", {}, ["give --pooling", "give --task masked-lm"]),
        ("masked-lm", {"pooling": "mean"}, []),
        ("classification", {}, []),
    ],
)
def test_what_a_checkpoint_leaves_open_is_said(checkpoints, name, settings, flags):
    """A note names the pooling that was taken, and the task of a head that is not exported."""
    remark = read_source(checkpoints[name], settings=settings).remark

    assert [flag for flag in ("give --pooling", "give --task masked-lm") if flag in remark] == flags


def test_task_card_gives_task_and_settings(tmp_path, checkpoints):
    """Checkpoints of Bertline have a task card; for another task, their sequence length is kept."""
    settings = MaskedLMSettings(max_seq_length=16)
    path = save_ours(tmp_path / "ours", checkpoints["masked-lm"], "masked-lm", settings)

    own, other = read_source(path), read_source(path, task="embedding")

    assert own.task.name == "masked-lm"
    assert own.task.settings == settings
    assert other.task.name == "embedding"
    assert other.task.settings.max_seq_length == 16


@pytest.mark.parametrize(
    ("trained", "given", "expected"),
    [
        (True, {}, False),
        (True, {"unanswerable": False}, True),
        (False, {}, False),
        (False, {"unanswerable": True}, False),
    ],
)
def test_null_scores_that_were_trained_are_kept(trained, given, expected, tmp_path, checkpoints):
    """A model that is exported without "no answer" still knows that its null scores mean something."""
    settings = SpanSettings(max_seq_length=32, max_query_length=8, unanswerable=trained)
    path = save_ours(tmp_path / "ours", checkpoints["spans"], "spans", settings)

    assert read_source(path, settings=given).task.settings.null_is_trained == expected


def test_network_in_a_subfolder_is_found(folder):
    """The network of an older folder is found; without a Normalize module, vectors are not normalised."""
    source = read_source(folder(at="0_Transformer"))

    assert source.directory.name == "0_Transformer"
    assert source.name == "st"
    assert not source.task.settings.normalize
    assert source.load_model().config.hidden_size == 32


@pytest.mark.parametrize("lowercase", [True, False])
def test_lowercase_flags_must_agree(folder, lowercase):
    """`do_lower_case` is accepted with an uncased tokenizer only; an empty default prompt is accepted."""
    directory = folder(lowercase=lowercase, config={"prompts": {"a": ""}, "default_prompt_name": "a"})
    changed("sentence_bert_config.json", do_lower_case=True)(directory)

    if lowercase:
        assert read_source(directory).task.settings.max_seq_length == 24
    else:
        with pytest.raises(ValueError, match="sets do_lower_case, but its tokenizer does not"):
            read_source(directory)


@pytest.mark.parametrize(("key", "length"), [("model_max_length", 24), ("max_len", 24), ("max_length", 40)])
def test_limit_of_the_tokenizer(tmp_path, save_checkpoint, key, length):
    """The tokenizer's limit is read by its names of all releases; without one, the positions are the limit."""
    directory = save_checkpoint(tmp_path / "plain")
    path = directory / "tokenizer_config.json"
    values = {name: value for name, value in json.loads(path.read_text()).items() if name != "model_max_length"}
    path.write_text(json.dumps(values | {key: 24}))

    assert read_source(directory, task="embedding").task.settings.max_seq_length == length


OWN_HEADS = ["classification", "regression", "multiple-choice", "tagging", "spans"]


@pytest.mark.parametrize("task", ["embedding", *OWN_HEADS])
@pytest.mark.parametrize("name", OWN_HEADS)
def test_head_fits_its_own_task_only(checkpoints, name, task):
    """A head cannot be exported for another task, even if its shape fits; the encoder can always be exported."""
    directory = checkpoints[name]

    if task in ("embedding", name):
        assert read_source(directory, task=task).task.name == task
    elif {task, name} == {"classification", "regression"}:
        with pytest.raises(ValueError, match=r"at least two labels|does not fit|cannot do"):  # by their number
            read_source(directory, task=task).load_model()
    else:
        with pytest.raises(ValueError, match=f"cannot do `{task}`: it has the head of a `BertFor"):
            read_source(directory, task=task)


@pytest.mark.parametrize(
    ("class_name", "changes", "task", "message"),
    [
        ("BertModel", {"architectures": ["BertLMHeadModel"]}, None, "`BertLMHeadModel`.*--task"),
        (
            "BertModel",
            {"type_vocab_size": 1},
            None,
            r"does not fit `embedding`: `bert.embeddings.token_type.weight` is \[2, 32\]",
        ),
        ("BertForMaskedLM", {"tie_word_embeddings": False}, "masked-lm", "unties the word embeddings"),
        (
            "BertForSequenceClassification",
            {"problem_type": "ranking"},
            None,
            "unsupported problem_type `ranking` in .*config.json` .one of: single_label_classification, multi_label",
        ),
    ],
)
def test_unsupported_checkpoints_are_refused_in_one_line(tmp_path, save_checkpoint, class_name, changes, task, message):
    """The error names the wrong file or value."""
    directory = save_checkpoint(tmp_path / "checkpoint", class_name)
    changed("config.json", **changes)(directory)

    with pytest.raises(ValueError, match=message) as caught:
        read_source(directory, task=task).load_model()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_seq_length": 41}, "max_seq_length `41` exceeds the 40 positions"),
        ({"doc_stride": 4}, "unknown key `settings.doc_stride`"),
    ],
)
def test_wrong_settings_are_refused(checkpoints, settings, message):
    """Settings must belong to the task and fit the network."""
    with pytest.raises(ValueError, match=message):
        read_source(checkpoints["plain"], settings=settings)


def test_missing_head_is_named(checkpoints):
    """A checkpoint without a head cannot be exported for a task that needs one."""
    source = read_source(checkpoints["plain"], task="spans")

    with pytest.raises(ValueError, match=r"cannot do `spans`: it lacks `qa_outputs\.(weight|bias)`"):
        source.load_model()
