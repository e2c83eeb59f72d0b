"""Small MTEB tasks with made-up data."""

TEXTS = ["owls sleep in the old oak.", "a cat at night?", "the river", "owl", "near the river: an owl", "the old tree"]
OTHERS = ["the owl in the tree", "cat at the river", "river", "owls", "the old cat", "oak"]
SCORES = [4, 3, 5, 5, 1, 2]


def metadata(mteb, **changes):
    """Return the metadata of a task that MTEB requires."""
    fields = {
        "description": "Made for a test.",
        "dataset": {"path": "local/none", "revision": "1"},
        "reference": None,
        "eval_splits": ["test"],
        "eval_langs": ["eng-Latn"],
        "category": "t2t",
        "modalities": ["text"],
    }
    return mteb.TaskMetadata(**fields | changes)


def make_sts(mteb):
    """Return an STS task: pairs of texts with scores."""
    from datasets import Dataset, DatasetDict
    from mteb.abstasks.sts import AbsTaskSTS

    class OwlSTS(AbsTaskSTS):
        metadata = metadata(mteb, name="OwlSTS", type="STS", main_score="cosine_spearman")

        def load_data(self, num_proc=None, **kwargs):
            rows = {"sentence1": TEXTS, "sentence2": OTHERS, "score": SCORES}
            self.dataset = DatasetDict(test=Dataset.from_dict(rows))
            self.data_loaded = True

    return OwlSTS()


def make_retrieval(mteb):
    """Return a retrieval task: queries and documents."""
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval

    class OwlRetrieval(AbsTaskRetrieval):
        metadata = metadata(mteb, name="OwlRetrieval", type="Retrieval", main_score="ndcg_at_10")

        def load_data(self, num_proc=None, **kwargs):
            queries = [{"id": f"q{number}", "text": text} for number, text in enumerate(OTHERS)]
            corpus = [{"id": f"d{number}", "title": "", "text": text} for number, text in enumerate(TEXTS)]
            relevant = {f"q{number}": {f"d{number}": 1} for number in range(len(TEXTS))}
            split = {"queries": Dataset.from_list(queries), "corpus": Dataset.from_list(corpus)}
            self.dataset = {"default": {"test": split | {"relevant_docs": relevant, "top_ranked": None}}}
            self.data_loaded = True

    return OwlRetrieval()
