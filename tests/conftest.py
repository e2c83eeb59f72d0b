"""A small corpus, its tokenizer, and a checkpoint pretrained for a few steps."""

import os
import signal

import pytest
import torch
from hypothesis import settings

from tests.toy import TINY, make_text
from training.corpus import CorpusRecipe, prepare_corpus
from training.loop.distributed import CPU, World
from training.pretrain import PretrainRecipe, pretrain
from training.text.corpus import Corpus
from training.vocab import VocabRecipe, train_vocab

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # keep gRPC's notes out of the standard error of tested commands
# Threads do not speed up tiny networks, and slow them down on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)
# A busy machine makes a test slow, not wrong. The same commit gives the same examples; `--hypothesis-profile random`
# looks for others.
settings.register_profile("random", deadline=None)
settings.register_profile("same", deadline=None, derandomize=True)
settings.load_profile("same")


@pytest.fixture(scope="session", autouse=True)
def interruptible():
    """Make commands under test interruptible, even when a background shell ignores SIGINT."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def quick_runs():
    """Leave out the curves of runs and the measured peak of the CPU, which take longer than steps of tiny networks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.reports.plot.plot_run", lambda run: None)
        patch.setattr("training.loop.throughput_meter.peak_flops", lambda device, dtype: 1e12)
        yield


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(make_text(40, seed=0), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tokenizer_dir(text_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("vocab") / "tokenizer"
    train_vocab(VocabRecipe(data=(text_file,), out=out, vocab_size=80, min_frequency=1))
    return out


@pytest.fixture(scope="session")
def corpus_dir(text_file, tokenizer_dir, tmp_path_factory):
    out = tmp_path_factory.mktemp("corpus") / "corpus"
    prepare_corpus(CorpusRecipe(data=(text_file,), tokenizer=tokenizer_dir, out=out, chunk_bytes=4000, num_workers=1))
    return out


@pytest.fixture(scope="session")
def corpus(corpus_dir):
    return Corpus(corpus_dir)


@pytest.fixture(scope="session")
def alone():
    return World(0, 1, CPU)


@pytest.fixture(scope="session")
def checkpoint(corpus_dir, tmp_path_factory, alone):
    run = tmp_path_factory.mktemp("runs") / "pretrain"
    return pretrain(PretrainRecipe(corpus=corpus_dir, dev_corpus=corpus_dir, run_dir=run, num_steps=10, **TINY), alone)


@pytest.fixture
def any_number(monkeypatch):
    """Lift the bounds of numbers in recipes, for example to try a learning rate at which training diverges."""
    monkeypatch.setattr("training.loop.types.check_numbers", lambda recipe: None)
