"""A shard of a corpus: one memory-mapped Arrow IPC file with a column `document: list<list<uint16|uint32>>`.

A corpus with word boundaries also has a column `continues_word: list<list<bool>>`, one bit a token: True if the token
continues the word of the token before.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.bundle.files import atomic_write
from training.text.sentence_encoder import SentenceEncoder, WordEncoder

COUNTS = ("num_documents", "num_sentences", "num_tokens")


def write_shard(path: Path, documents: Iterable[list[str]], encoder: SentenceEncoder) -> None:
    """Tokenize documents of sentences and write one shard, without empty documents and sentences.

    The shard depends on the arguments alone, and the file is whole or absent.
    """
    ids: list[np.ndarray] = []
    continues: list[np.ndarray] = []
    document_ends = [0]
    for document in documents:
        if isinstance(encoder, WordEncoder):
            encoded = [pair for pair in map(encoder.encode_words, document) if len(pair[0])]
            ids += [pair[0] for pair in encoded]
            continues += [pair[1] for pair in encoded]
        else:
            ids += [sentence for sentence in encoder.encode(document) if len(sentence)]
        if len(ids) > document_ends[-1]:
            document_ends.append(len(ids))
    columns = {"document": np.concatenate([np.zeros(0, encoder.id_type), *ids])}
    if isinstance(encoder, WordEncoder):
        columns["continues_word"] = np.concatenate([np.zeros(0, bool), *continues])
    sentence_ends = np.cumsum([0, *map(len, ids)], dtype=np.int32)
    nested = {}
    for name, values in columns.items():
        sentences = pa.ListArray.from_arrays(pa.array(sentence_ends), pa.array(values))
        nested[name] = pa.ListArray.from_arrays(pa.array(document_ends, pa.int32()), sentences)
    batch = pa.record_batch(nested)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    atomic_write(path, sink.getvalue())


class Shard:
    """A shard on disk. Opening it reads only the footer, and leaves no file open.

    Raises:
        ValueError: naming a shard that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        try:
            with pa.memory_map(str(path)) as file:
                batch = pa.ipc.open_file(file).get_batch(0)
            column = batch.column("document")
            has_words = "continues_word" in batch.schema.names
            self.document_ends: np.ndarray = column.offsets.to_numpy()
            self.sentence_ends: np.ndarray = column.values.offsets.to_numpy()
            self.ids: np.ndarray = column.values.values.to_numpy()
            self._continues = batch.column("continues_word").values.values if has_words else None
        except (OSError, pa.ArrowException, AttributeError, KeyError) as error:
            raise ValueError(f"cannot read shard `{path}`: {error}; prepare the corpus again") from error

    @property
    def has_words(self) -> bool:
        """True if the shard has word boundaries."""
        return self._continues is not None

    def continues_word(self, start: int = 0, end: int | None = None) -> np.ndarray:
        """Return bool [end - start]: True for tokens that continue a word. The shard must have words."""
        assert self._continues is not None
        last: int = len(self.ids) if end is None else end
        return self._continues.slice(start, last - start).to_numpy(zero_copy_only=False)

    def counts(self) -> dict[str, int]:
        """Return the number of documents, sentences and tokens."""
        sizes = (len(self.document_ends) - 1, len(self.sentence_ends) - 1, len(self.ids))
        return dict(zip(COUNTS, sizes, strict=True))
