"""A shard of a corpus: one Arrow IPC file with one column, `document: list<list<uint16|uint32>>`, memory-mapped."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.files import atomic_write
from training.text.sentence_encoder import SentenceEncoder

COUNTS = ("num_documents", "num_sentences", "num_tokens")


def write_shard(path: Path, documents: Iterable[list[str]], encoder: SentenceEncoder) -> None:
    """Tokenise documents of sentences and write one shard; documents and sentences without a token are left out.

    Nothing depends on anything but the arguments, and the file is whole or absent.
    """
    ids: list[np.ndarray] = []
    document_ends = [0]
    for document in documents:
        ids += [sentence for sentence in encoder.encode(document) if len(sentence)]
        if len(ids) > document_ends[-1]:
            document_ends.append(len(ids))
    sentence_ends = np.cumsum([0, *map(len, ids)], dtype=np.int32)
    tokens = pa.array(np.concatenate([np.zeros(0, encoder.id_type), *ids]))
    sentences = pa.ListArray.from_arrays(pa.array(sentence_ends), tokens)
    column = pa.ListArray.from_arrays(pa.array(document_ends, pa.int32()), sentences)
    batch = pa.record_batch([column], names=["document"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    atomic_write(path, sink.getvalue())


class Shard:
    """A shard on disk. Opening it reads nothing but the footer, and leaves no file open.

    Raises:
        ValueError: naming the shard that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        try:
            with pa.memory_map(str(path)) as file:
                column = pa.ipc.open_file(file).get_batch(0).column("document")
            self.document_ends: np.ndarray = column.offsets.to_numpy()
            self.sentence_ends: np.ndarray = column.values.offsets.to_numpy()
            self.ids: np.ndarray = column.values.values.to_numpy()
        except (OSError, pa.ArrowException, AttributeError, KeyError) as error:
            raise ValueError(f"cannot read shard `{path}`: {error}; prepare the corpus again") from error

    def counts(self) -> dict[str, int]:
        """Documents, sentences and tokens."""
        sizes = (len(self.document_ends) - 1, len(self.sentence_ends) - 1, len(self.ids))
        return dict(zip(COUNTS, sizes, strict=True))
