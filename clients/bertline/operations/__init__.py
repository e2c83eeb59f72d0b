"""Operations of the client, a module each: the request, the reading of the reply, and the columns of a job's rows."""

from __future__ import annotations

from bertline.operations import (
    answer,
    choose,
    classify,
    embed,
    embed_sparse,
    embed_tokens,
    fill_mask,
    regress,
    rerank,
    tag,
    zero_shot,
)

_MODULES = (answer, choose, classify, embed, embed_sparse, embed_tokens, fill_mask, regress, rerank, tag, zero_shot)
OPERATIONS = {module.OPERATION.method: module.OPERATION for module in _MODULES}
"""Operations on rows, by the method of the client."""
