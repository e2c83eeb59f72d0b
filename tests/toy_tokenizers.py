"""Small tokenizers of each kind that encoders use, trained on toy text, with the special tokens of their families."""

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tasks.text.sequence_template import bert_template

TEXT = [
    "The old cat sees a red house near the river, and the dog sleeps.",
    "Wörter mit Umlauten: Häuser, Bäume; déjà vu, naïve café!",
    "北京大学在北京。我们喜欢读书。",
    "Москва — столица России; река течёт.",
    "Numbers 1234 and e-mails a.b@c.org (2,5 %).",
] * 8
BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
DEBERTA_TOKENS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def wordpiece(vocab_size=300, special_tokens=BERT_TOKENS):
    """Return a tokenizer as of BERT, DistilBERT, ELECTRA."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=special_tokens, show_progress=False)
    backend.train_from_iterator(TEXT, trainer)
    if special_tokens is BERT_TOKENS:
        backend.post_processor = bert_template(backend)
    return backend


def mpnet(vocab_size=300):
    """Return a tokenizer as of MPNet: WordPiece with the special tokens and pairs of RoBERTa."""
    backend = wordpiece(vocab_size, ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"])
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True)
    return backend


def train_byte_bpe(backend, special_tokens, vocab_size):
    """Train byte-level BPE with a token for each byte; the mask, the last special token, takes the space before it."""
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXT, trainer)
    backend.add_special_tokens([AddedToken(special_tokens[-1], lstrip=True, special=True)])


def byte_bpe(vocab_size=400, *, add_prefix_space=False, trim_offsets=True):
    """Return a tokenizer as of RoBERTa: byte-level BPE."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    train_byte_bpe(backend, ROBERTA_TOKENS, vocab_size)
    backend.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=trim_offsets, add_prefix_space=add_prefix_space
    )
    return backend


def modernbert(vocab_size=400):
    """Return a tokenizer as of ModernBERT: byte-level BPE with the special tokens of BERT."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    train_byte_bpe(backend, BERT_TOKENS, vocab_size)
    backend.post_processor = bert_template(backend)
    return backend


def train_unigram(vocab_size, special_tokens, unk_token, *first_normalizers):
    """Return a tokenizer of SentencePiece's Unigram without template."""
    backend = tokenizers.Tokenizer(models.Unigram())
    spaces = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    backend.normalizer = normalizers.Sequence([*first_normalizers, normalizers.NFKC(), spaces])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=special_tokens, unk_token=unk_token, show_progress=False
    )
    backend.train_from_iterator(TEXT, trainer)
    return backend


def unigram(vocab_size=300):
    """Return a tokenizer as of XLM-RoBERTa: SentencePiece's Unigram."""
    backend = train_unigram(vocab_size, ROBERTA_TOKENS, "<unk>")
    backend.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return backend


def deberta(vocab_size=300):
    """Return a tokenizer as of DeBERTa v2 and v3: SentencePiece's Unigram with the special tokens of BERT."""
    backend = train_unigram(vocab_size, DEBERTA_TOKENS, "[UNK]", normalizers.Strip())
    backend.add_special_tokens(["[MASK]"])
    backend.post_processor = bert_template(backend)
    return backend


KINDS = {kind.__name__: kind for kind in (wordpiece, mpnet, byte_bpe, modernbert, unigram, deberta)}
"""Makers of the tokenizers."""
