"""Tokenizers that transformers converts: SentencePiece models, and `vocab.json` with `merges.txt`."""

import json
import sys

import pytest
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from export.source import read_source
from tasks.text.tokenizer import Tokenizer
from tests import toy_sentencepiece
from tests.families import ROBERTA, SMALL
from tests.toy_sentencepiece import FILES, TRAINING, train, write
from tests.toy_tokenizers import TEXT, byte_bpe
from training.checkpoint.reader import load_model, load_tokenizer
from training.checkpoint.task_card import TaskCard
from training.checkpoint.tokenizer import copy_tokenizer, read_tokenizer
from training.checkpoint.writer import save_checkpoint

MASK = {"content": "<mask>", "lstrip": True, "normalized": True, "rstrip": False, "single_word": False}
NEW = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word", "special"), False) | {"content": "<new>"}
CASES = {
    **{name: (name, {}) for name in TRAINING},
    "Albert, flags": ("Albert", {"tokenizer_config": {"do_lower_case": False, "keep_accents": True}}),
    "DebertaV2, flags": ("DebertaV2", {"tokenizer_config": {"do_lower_case": True, "split_by_punct": True}}),
    "XLMRoberta, class of a BERT": (
        "XLMRoberta",
        {"config": {"model_type": "bert"}, "tokenizer_config": {"tokenizer_class": "XLMRobertaTokenizer"}},
    ),
    "XLMRoberta, named tokens": (
        "XLMRoberta",
        {
            "tokenizer_config": {"model_max_length": 512, "do_lower_case": False, "pad_token": "<pad>"},
            "special_tokens_map": {"mask_token": MASK, "additional_special_tokens": ["<q>", {**NEW, "lstrip": True}]},
        },
    ),
    "DebertaV2, added tokens": (
        "DebertaV2",
        {
            "special_tokens_map": {"mask_token": "[MASK]", "unk_token": {**NEW, "content": "[UNK]"}},
            "added_tokens": {"[MASK]": 0, "New": 1},
        },
    ),
    "Roberta": ("Roberta", {}),
    "Roberta, space first": ("Roberta", {"tokenizer_config": {"add_prefix_space": True}}),
}
"""Tokenizer class and JSON files of a checkpoint. `write_case` adds the number of pieces to the ids of added tokens."""
CHARS = "aeTh 1.,9é中北\u0301\u00a0\u3000ﬁ①🦉Я\n\t\x00\x07\u200b\ufeff\u2028`'\"(-مك\u093fเ็각\u1100\u1161İß£▁"
TEXTS = st.text(st.sampled_from(CHARS), max_size=30)
HARD = [
    *TEXT[:5],
    *toy_sentencepiece.MORE_TEXT[:3],
    *("", " ", "  two   spaces ", "a\nb\r\nc\td", "x\x00y\x07z\u200b\u00ad", "e\u0301 n\u0303 A\u0302\u0300 \u0301"),
    *("▁a ▁ b▁", "``it's''", "9,9 and 1,000, 5,", "a<mask>b <mask> c", "a[MASK]b [MASK] [mask]"),
    *("<s>x</s> [CLS][SEP]", "<unk> [UNK] <new>New<q>", "ＦＵＬＬ ﬁ ① Ⅳ ㍿", "🙂👨\u200d👩\u200d👧", "สวัสดีชาวโลก"),
    *("x" * 300, "\u3000\u00a0 \u2003x"),
]


def write_bpe(directory, config=None, tokenizer_config=None):
    """Write a checkpoint with `vocab.json` and `merges.txt`, without weights."""
    directory.mkdir(exist_ok=True)
    backend = byte_bpe()
    backend.model.save(str(directory))
    (directory / "vocab.json").write_text(json.dumps(backend.get_vocab(), ensure_ascii=False))
    (directory / "config.json").write_text(json.dumps(config or {"model_type": "roberta"}))
    if tokenizer_config:
        (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return directory


def write_case(directory, case):
    """Write a case of `CASES`."""
    name, files = CASES[case]
    if name == "Roberta":
        return write_bpe(directory, **files)
    files = json.loads(json.dumps(files))
    num_pieces = len(sentencepiece_model_pb2.ModelProto.FromString(train(name)).pieces)
    if added := files.get("added_tokens"):
        added.update({token: index + num_pieces for token, index in added.items()})
    return write(directory, name, **files)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Return a function that returns our tokenizer and transformers' of a case."""
    made = {}

    def load(case):
        if case not in made:
            directory = write_case(tmp_path_factory.mktemp("case"), case)
            made[case] = read_tokenizer(directory), transformers.AutoTokenizer.from_pretrained(directory)
        return made[case]

    return load


def assert_same_encoding(ours, theirs, text):
    """Check ids and offsets of a text, in code points."""
    encoding = theirs(text, return_offsets_mapping=True, add_special_tokens=False)
    whole = ours.backend.encode(text, add_special_tokens=False)
    assert whole.ids == encoding["input_ids"] == ours.tokenize([text])[0].ids.tolist()
    assert whole.offsets == encoding["offset_mapping"]
    assert ours.assemble(ours.tokenize([text])[0].ids)["input_ids"].tolist() == theirs(text)["input_ids"]


@pytest.mark.parametrize("case", CASES)
def test_hard_texts_have_the_tokens_of_transformers(case, pairs):
    """Ids, offsets and special tokens are the same for many scripts, marks, spaces, controls and quotes."""
    ours, theirs = pairs(case)

    for text in HARD:
        assert_same_encoding(ours, theirs, text)
    assert ours.pad_id == theirs.pad_token_id
    assert ours.mask_id == theirs.mask_token_id


@settings(max_examples=100)
@given(case=st.sampled_from(sorted(CASES)), text=TEXTS)
def test_any_text_has_the_tokens_of_transformers(pairs, case, text):
    """Ids and offsets are the same for any text."""
    assert_same_encoding(*pairs(case), text)


@pytest.mark.parametrize("name", TRAINING)
def test_ids_are_those_of_the_library(name, pairs):
    """Plain text has the pieces of SentencePiece itself, with the family's ids."""
    model = toy_sentencepiece.sentencepiece.SentencePieceProcessor(model_proto=train(name))
    tokenizer, _ = pairs(name)

    for text in ("the old cat sees a red house", "the dog sleeps near the river"):
        pieces = [tokenizer.token(index) for index in tokenizer.tokenize([text])[0].ids]
        assert pieces == model.encode(text, out_type=str)


@pytest.mark.parametrize("case", CASES)
def test_copied_tokenizer_is_the_converted_one(case, tmp_path):
    """A checkpoint that is written again holds `tokenizer.json`, and loads with the same digest."""
    source = write_case(tmp_path / "source", case)
    (tmp_path / "copy").mkdir()

    copy_tokenizer(source, tmp_path / "copy")

    assert Tokenizer.load(tmp_path / "copy").digest == read_tokenizer(source).digest


@pytest.mark.parametrize(("name", "config"), [("XLMRoberta", ROBERTA), ("DebertaV2", SMALL)], ids=["xlm-r", "deberta"])
def test_saved_checkpoints_have_the_converted_tokenizer(name, config, tmp_path):
    """Fine-tuning writes the converted tokenizer next to its weights, and export reads the same one."""
    network = transformers.AutoConfig.for_model(toy_sentencepiece.MODEL_TYPES[name], vocab_size=160, **config)
    transformers.AutoModel.from_config(network).save_pretrained(tmp_path / "start")
    (tmp_path / "start" / FILES[name]).write_bytes(train(name))
    task = read_source(tmp_path / "start", task="embedding").task
    card = TaskCard(task="embedding", settings=task.settings)

    save_checkpoint(
        tmp_path / "out", load_model(tmp_path / "start", "embedding"), tokenizer_from=tmp_path / "start", card=card
    )

    assert (tmp_path / "out/tokenizer.json").is_file()
    assert load_tokenizer(tmp_path / "out").digest == load_tokenizer(tmp_path / "start").digest == task.tokenizer.digest


def test_a_tokenizer_file_comes_first(tmp_path, monkeypatch):
    """A SentencePiece model next to `tokenizer.json` is not read, and transformers is not loaded."""
    byte_bpe().save(str(write(tmp_path, "Albert") / "tokenizer.json"))
    monkeypatch.setitem(sys.modules, "transformers", None)

    assert isinstance(read_tokenizer(tmp_path).backend.model, tokenizers.models.BPE)


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    """Without transformers, one line names the command that installs it."""
    monkeypatch.setitem(sys.modules, "transformers", None)

    with pytest.raises(ValueError, match=r"spiece\.model` is converted by transformers, .*; pip install 'transformers"):
        read_tokenizer(write(tmp_path, "Albert"))


def truncate(path):
    (path / "spm.model").write_bytes(train("DebertaV2")[:100])


def fall_back_to_bytes(path):
    (path / "spm.model").write_bytes(train("DebertaV2", byte_fallback=True, vocab_size=600))


def write_json(name, **values):
    return lambda path: (path / name).write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (truncate, r"transformers cannot convert `.*spm\.model` \("),
        (fall_back_to_bytes, "transformers cannot convert .*byte fallback"),
        (write_json("config.json", model_type="unheard-of"), "transformers cannot convert"),
        (write_json("config.json", auto_map={"AutoTokenizer": "x"}), "needs tokenizer code of its own"),
        (write_json("tokenizer_config.json", split_special_tokens=True), "unsupported split_special_tokens `true`"),
        (lambda path: (path / "tokenizer_config.json").write_text("{"), r"broken JSON in .*tokenizer_config\.json"),
    ],
)
def test_files_that_cannot_be_converted(change, message, tmp_path):
    """Broken files, contradictions and inexact conversions are refused in one line."""
    change(write(tmp_path, "DebertaV2"))

    with pytest.raises(ValueError, match=message) as error:
        read_tokenizer(tmp_path)
    assert "\n" not in str(error.value)


def test_broken_files_of_byte_level_bpe(tmp_path):
    """A broken file of byte-level BPE is refused in one line."""
    (write_bpe(tmp_path) / "merges.txt").write_text("#version: 0.2\nnosuch token\n\n")

    with pytest.raises(ValueError, match=r"transformers cannot convert `.*vocab\.json`") as error:
        read_tokenizer(tmp_path)
    assert "\n" not in str(error.value)
