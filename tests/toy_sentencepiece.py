"""Small SentencePiece models with the special pieces of each family that has them, trained on toy text."""

import functools
import io
import json

import sentencepiece

from tests.toy_tokenizers import TEXT

MORE_TEXT = [
    "In 9,9 or 1990, “quotes” ``and'' it's; e-mail (a.b) £5",
    "مرحبا بالعالم، كيف الحال؟",
    "각한 ก็ কि 🙂🙂 ﬁ ① Ｗ",
] * 8
BERT_PIECES = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
TRAINING = {
    "XLMRoberta": {},
    "Camembert": {"normalization_rule_name": "nmt_nfkc_cf"},
    "Albert": {
        **{"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1},
        **{"control_symbols": "[CLS],[SEP],[MASK]", "user_defined_symbols": "(,),-,.,–,£,€"},
    },
    "DebertaV2": {
        **BERT_PIECES,
        **{"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"},
    },
}
"""Tokenizer class -> settings of SentencePiece's trainer."""
FILES = {
    "XLMRoberta": "sentencepiece.bpe.model",
    "Camembert": "sentencepiece.bpe.model",
    "Albert": "spiece.model",
    "DebertaV2": "spm.model",
}
MODEL_TYPES = {"XLMRoberta": "xlm-roberta", "Camembert": "camembert", "Albert": "albert", "DebertaV2": "deberta-v2"}


@functools.cache
def train(name, **changes):
    """Return the bytes of a model of a family.

    Args:
        name: tokenizer class, without `Tokenizer`.
        changes: further settings of the trainer.
    """
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT + MORE_TEXT),
        model_writer=file,
        num_threads=1,
        minloglevel=2,
        hard_vocab_limit=False,
        **{"vocab_size": 300, "model_type": "unigram", **TRAINING[name], **changes},
    )
    return file.getvalue()


def write(directory, name, **files):
    """Write the files of a checkpoint with a SentencePiece model.

    Args:
        directory: directory to make.
        name: tokenizer class, without `Tokenizer`.
        files: values of JSON files, without `.json`.
    """
    directory.mkdir(exist_ok=True)
    (directory / FILES[name]).write_bytes(train(name))
    for file, values in {"config": {"model_type": MODEL_TYPES[name]}, **files}.items():
        (directory / f"{file}.json").write_text(json.dumps(values))
    return directory
