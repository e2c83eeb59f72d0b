"""SentencePiece models become the tokenizers that transformers makes of them."""

import json

import pytest
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from export.source import read_source
from tasks.tokenizer import Tokenizer
from tests import toy_sentencepiece
from tests.families import ROBERTA, SMALL
from tests.toy_sentencepiece import FILES, TRAINING, train, write
from tests.toy_tokenizers import TEXT
from training.checkpoint.reader import load_model, load_tokenizer
from training.checkpoint.sentencepiece_tokenizer import convert_sentencepiece
from training.checkpoint.task_card import TaskCard
from training.checkpoint.tokenizer import copy_tokenizer, find_sentencepiece, read_tokenizer
from training.checkpoint.writer import save_checkpoint

MASK = {"content": "<mask>", "lstrip": True, "normalized": True, "rstrip": False, "single_word": False}
NEW = {
    "content": "<new>",
    "lstrip": False,
    "normalized": False,
    "rstrip": False,
    "single_word": False,
    "special": False,
}
FLAGS = {
    "Albert": [{"do_lower_case": False}, {"keep_accents": True}, {"do_lower_case": False, "keep_accents": True}],
    "DebertaV2": [{"do_lower_case": True}, {"split_by_punct": True}, {"do_lower_case": False, "vocab_type": "spm"}],
}
CASES = {
    **{name: (name, {}) for name in TRAINING},
    **{
        f"{name}, {', '.join(flags)}": (name, {"tokenizer_config": flags})
        for name, choices in FLAGS.items()
        for flags in choices
    },
    "XLMRoberta, class of a BERT": (
        "XLMRoberta",
        {"config": {"model_type": "bert"}, "tokenizer_config": {"tokenizer_class": "XLMRobertaTokenizer"}},
    ),
    "XLMRoberta, class in config.json": (
        "XLMRoberta",
        {"config": {"model_type": "bert", "tokenizer_class": "XLMRobertaTokenizerFast"}},
    ),
    "XLMRoberta, named tokens": (
        "XLMRoberta",
        {
            "tokenizer_config": {"model_max_length": 512, "do_lower_case": False, "pad_token": "<pad>"},
            "special_tokens_map": {"mask_token": MASK, "additional_special_tokens": ["<q>", {**NEW, "lstrip": True}]},
        },
    ),
    "Camembert, additional tokens": (
        "Camembert",
        {"special_tokens_map": {"additional_special_tokens": ["<s>NOTUSED", "</s>NOTUSED"]}},
    ),
    "Albert, mask without settings": ("Albert", {"tokenizer_config": {"mask_token": "[MASK]", "unk_token": "<unk>"}}),
    "DebertaV2, added tokens": (
        "DebertaV2",
        {
            "special_tokens_map": {"mask_token": "[MASK]", "unk_token": {**NEW, "content": "[UNK]"}},
            "added_tokens": {"[MASK]": 0, "New": 1},
        },
    ),
    "DebertaV2, added tokens by id": (
        "DebertaV2",
        {
            "tokenizer_config": {
                "mask_token": "[MASK]",
                "added_tokens_decoder": {
                    "0": {**NEW, "content": "[PAD]", "special": True},
                    "-1": {**NEW, "content": "[MASK]", "lstrip": True, "special": True},
                    "-2": NEW,
                },
            }
        },
    ),
}
"""Tokenizer class and JSON files of a checkpoint. Ids of tokens after the pieces are filled in by `write_case`."""
CHARS = "aeTh 1.,9é中北\u0301\u00a0\u3000ﬁ①🦉Я\n\t\x00\x07\u200b\ufeff\u2028`'\"(-مक\u093fเ็각\u1100\u1161İß£▁"
TEXTS = st.text(st.sampled_from(CHARS), max_size=30)
HARD = [
    *TEXT[:5],
    *toy_sentencepiece.MORE_TEXT[:3],
    *(
        "",
        " ",
        "  two   spaces ",
        "a\nb\r\nc\td",
        "x\x00y\x07z\u200b\u00ad",
        "e\u0301 n\u0303 A\u0302\u0300 \u0301",
        "▁a ▁ b▁",
    ),
    *(
        "``it's''",
        "9,9 and 1,000, 5,",
        "a<mask>b <mask> c",
        "a[MASK]b [MASK] [mask]",
        "<s>x</s> [CLS][SEP]",
        "<unk> [UNK] <new>New<q>",
    ),
    *("ＦＵＬＬ ﬁ ① Ⅳ ㍿", "🙂👨\u200d👩\u200d👧", "สวัสดีชาวโลก", "x" * 300, "\u3000\u00a0 \u2003x"),
]


def write_case(directory, case):
    """Write a case of `CASES`. Ids in it that are too small mean the ids after the pieces."""
    name, files = CASES[case]
    files = json.loads(json.dumps(files))
    num_pieces = len(sentencepiece_model_pb2.ModelProto.FromString(train(name)).pieces)
    if decoder := files.get("tokenizer_config", {}).get("added_tokens_decoder"):
        for key in ("-1", "-2"):
            decoder[str(num_pieces - int(key) - 1)] = decoder.pop(key)
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


@pytest.mark.parametrize("case", CASES)
def test_whole_definition_equals_transformers(case, pairs):
    """Pieces, scores, ids, added tokens, normalizer, pre-tokenizer, template and decoder are the same."""
    ours, theirs = pairs(case)

    saved = tokenizers.Tokenizer.from_str(theirs.backend_tokenizer.to_str())  # rounds scores in the last digit

    assert json.loads(ours.backend.to_str()) == json.loads(saved.to_str())
    assert ours.pad_id == theirs.pad_token_id
    assert ours.mask_id == theirs.mask_token_id


def assert_same_encoding(ours, theirs, text):
    """Check ids and offsets of a text, in code points."""
    encoding = theirs(text, return_offsets_mapping=True, add_special_tokens=False)
    whole = ours.backend.encode(text, add_special_tokens=False)
    assert whole.ids == encoding["input_ids"] == ours.tokenize([text])[0].ids.tolist()
    assert whole.offsets == encoding["offset_mapping"]
    assert ours.assemble(ours.tokenize([text])[0].ids)["input_ids"].tolist() == theirs(text)["input_ids"]


@pytest.mark.parametrize("case", CASES)
def test_hard_texts_have_the_tokens_of_transformers(case, pairs):
    """Ids and offsets are the same for many scripts, marks, spaces, controls, special tokens and quotes."""
    for text in HARD:
        assert_same_encoding(*pairs(case), text)


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
        assert [tokenizer.token(index) for index in tokenizer.tokenize([text])[0].ids] == model.encode(
            text, out_type=str
        )


@pytest.mark.parametrize("name", TRAINING)
def test_copied_tokenizer_is_the_converted_one(name, tmp_path):
    """A checkpoint that is written anew holds `tokenizer.json`, and loads with the same digest."""
    source = write(tmp_path / "source", name)
    (tmp_path / "copy").mkdir()

    copy_tokenizer(source, tmp_path / "copy")

    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["tokenizer.json"]
    assert Tokenizer.load(tmp_path / "copy").digest == read_tokenizer(source).digest


@pytest.mark.parametrize(("name", "config"), [("XLMRoberta", ROBERTA), ("DebertaV2", SMALL)], ids=["xlm-r", "deberta"])
def test_saved_and_exported_checkpoints_have_the_converted_tokenizer(name, config, tmp_path):
    """Fine-tuning writes the converted tokenizer beside its weights, and export reads the same one."""
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


def test_other_files_come_first(tmp_path):
    """A SentencePiece model is not read beside `tokenizer.json`, or beside the vocabulary of another family."""
    write(tmp_path, "Albert")
    assert find_sentencepiece(tmp_path) == tmp_path / "spiece.model"

    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "vocab.txt").write_text("")
    assert find_sentencepiece(tmp_path) is None
    (tmp_path / "config.json").write_text('{"model_type": "albert"}')
    (tmp_path / "tokenizer.json").write_text("")
    assert find_sentencepiece(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "config", "key"),
    [
        ("XLMRoberta", {"do_lower_case": True}, "do_lower_case `true`"),
        ("XLMRoberta", {"sp_model_kwargs": {"enable_sampling": True}}, 'sp_model_kwargs `{"enable_sampling": true}`'),
        ("Camembert", {"split_special_tokens": True}, "split_special_tokens `true`"),
        ("Albert", {"remove_space": False}, "remove_space `false`"),
        ("Albert", {"truncation_side": "left"}, 'truncation_side `"left"`'),
        ("DebertaV2", {"vocab_type": "gpt2"}, 'vocab_type `"gpt2"`'),
        ("DebertaV2", {"new_setting": 3}, "new_setting `3`"),
    ],
)
def test_settings_that_are_not_read_are_refused(name, config, key, tmp_path):
    """A setting that may change ids is refused by the name of file and key, with a remedy."""
    write(tmp_path, name, tokenizer_config=config)

    with pytest.raises(ValueError, match="which is not read; save the tokenizer as") as error:
        read_tokenizer(tmp_path)
    assert str(error.value).startswith(f"`{tmp_path / 'tokenizer_config.json'}` has {key}, ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bpe"}, "has model_type BPE, which is not converted"),
        ({"byte_fallback": True, "vocab_size": 600}, "has byte_fallback, which"),
        ({"treat_whitespace_as_suffix": True}, "has treat_whitespace_as_suffix, which"),
        ({"add_dummy_prefix": False}, "has no add_dummy_prefix, which"),
        (
            {"unk_id": 2, "bos_id": 0, "eos_id": 1},
            "does not begin with `<unk>`, `<s>`, `</s>`; it is of another family",
        ),
    ],
)
def test_models_that_are_not_converted(changes, message, tmp_path):
    """Kinds of models whose conversion would give other tokens are refused by name."""
    write(tmp_path, "XLMRoberta")
    (tmp_path / FILES["XLMRoberta"]).write_bytes(train("XLMRoberta", **changes))

    with pytest.raises(ValueError, match=message) as error:
        read_tokenizer(tmp_path)
    assert str(tmp_path / FILES["XLMRoberta"]) in str(error.value)


@pytest.mark.parametrize("cut", [0, 1, 100, 5000])
def test_truncated_models(cut, tmp_path):
    """A truncated file is refused in one line with its name."""
    write(tmp_path, "DebertaV2")
    (tmp_path / "spm.model").write_bytes(train("DebertaV2")[:cut])

    with pytest.raises(ValueError, match=r"SentencePiece model `.*spm\.model`") as error:
        read_tokenizer(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"added_tokens": {"[MASK]": 7}}, r"added_tokens\.json` adds `\[MASK\]` with id 7, where the vocabulary gives"),
        ({"added_tokens": {"[MASK]": "x"}}, r"broken `.*added_tokens\.json`: the id of `\[MASK\]` must be a number"),
        (
            {"special_tokens_map": {"mask_token": 3}},
            r"broken `.*special_tokens_map\.json`: `mask_token` must be a token",
        ),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": {}}}}, r"`added_tokens_decoder` must map ids to tokens"),
        ({"tokenizer_config": {"added_tokens_decoder": {"1": {}}}}, r"`added_tokens_decoder` must be a token, not"),
        ({"tokenizer_config": {"additional_special_tokens": "x"}}, r"`additional_special_tokens` must be a list"),
        (
            {"tokenizer_config": {"tokenizer_class": "T5Tokenizer"}},
            r"spm\.model` is a SentencePiece model of `T5`, and",
        ),
        ({"config": {"model_type": "xlnet"}}, r"spm\.model` is a SentencePiece model of an unknown family, and these"),
        ({"config": {"model_type": "albert"}}, r"spm\.model` is a SentencePiece model of `Albert`, and these"),
        ({"config": {"auto_map": {"AutoTokenizer": "x"}}}, "needs tokenizer code of its own"),
    ],
)
def test_files_that_contradict_each_other(files, message, tmp_path):
    """Broken files, ids that a token does not get, and other families are refused in one line."""
    write(tmp_path, "DebertaV2", **files)

    with pytest.raises(ValueError, match=message) as error:
        read_tokenizer(tmp_path)
    assert "\n" not in str(error.value)


def test_conversion_names_the_model_that_lacks_special_tokens(tmp_path):
    """A model of another family lacks [CLS]."""
    write(tmp_path, "DebertaV2", tokenizer_config={"cls_token": None, "bos_token": None})
    (tmp_path / "spm.model").write_bytes(train("XLMRoberta"))

    with pytest.raises(ValueError, match=r"spm\.model` lacks `\[CLS\]`; it is of another family"):
        convert_sentencepiece(tmp_path / "spm.model")
