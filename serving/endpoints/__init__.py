"""Operations of the server, one class each: requests -> examples, predictions -> replies. Shared by all fronts."""

from serving.endpoints.answer_tag import Answer, Tag
from serving.endpoints.base import TextEndpoint
from serving.endpoints.classify import Choose, Classify, Regress
from serving.endpoints.embed import Embed
from serving.endpoints.embed_sparse import EmbedSparse
from serving.endpoints.embed_tokens import EmbedTokens
from serving.endpoints.fill_mask import FillMask
from serving.endpoints.rerank import Rerank
from serving.endpoints.zero_shot import ZeroShot

ENDPOINTS: list[TextEndpoint] = [
    Embed(),
    EmbedSparse(),
    EmbedTokens(),
    Classify(),
    Regress(),
    Choose(),
    Answer(),
    Tag(),
    FillMask(),
    Rerank(),
    ZeroShot(),
]
"""Endpoints that run a model."""
