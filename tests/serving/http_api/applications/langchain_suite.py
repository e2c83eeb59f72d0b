"""LangChain's standard tests of `BertlineEmbeddings`. Run by `test_applications.py`."""

import os

from langchain_tests.integration_tests import EmbeddingsIntegrationTests

from bertline.integrations.langchain import BertlineEmbeddings


class TestBertlineEmbeddings(EmbeddingsIntegrationTests):
    """Embeddings of the server at $TARGET."""

    @property
    def embeddings_class(self):
        return BertlineEmbeddings

    @property
    def embedding_model_params(self):
        return {"target": os.environ["TARGET"], "model": os.environ["MODEL"]}
