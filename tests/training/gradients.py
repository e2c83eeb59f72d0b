"""Write the gradients of the first global batch, from one process or from several with torchrun.

python -m tests.training.gradients CORPUS MICRO_BATCH_SIZE OUT
"""

import sys

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.toy import TINY
from training.checkpoint.reader import create_model
from training.data.pretraining import PretrainingExamples
from training.data.pretraining_batches import PretrainingData
from training.loop.distributed import world
from training.loop.gradients import accumulate_gradients
from training.loop.prefetcher import Prefetcher
from training.loop.types import DataPosition, LoopSettings, Phase
from training.model.config import EncoderConfig
from training.objectives.masked_lm import MaskedLM
from training.text.corpus import Corpus


def write_gradients(corpus_dir, micro_batch_size, out):
    corpus = Corpus(corpus_dir)
    torch.manual_seed(0)
    shape = {name: TINY[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    config = EncoderConfig(vocab_size=corpus.tokenizer.vocab_size, intermediate_size=64, **shape)
    model = create_model("masked-lm", config, dropout=0.0).train()
    settings = LoopSettings(global_batch_size=8, micro_batch_size=micro_batch_size, dtype="fp32")
    with world() as peers:
        network = DistributedDataParallel(model) if peers.size > 1 else model
        data = PretrainingData(PretrainingExamples(corpus, max_seq_length=32), 8, MaskedLM().targets)
        with Prefetcher([Phase(data=data)], settings, peers) as prefetcher:
            _, batches, _ = prefetcher.take(DataPosition())
            accumulate_gradients(network, batches, MaskedLM().losses, settings, peers)
        del network  # free DDP before its process group ends, else it waits for the peers
        if peers.is_main:
            torch.save({name: value.grad for name, value in model.named_parameters()}, out)


if __name__ == "__main__":
    write_gradients(sys.argv[1], int(sys.argv[2]), sys.argv[3])
