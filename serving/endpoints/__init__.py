"""The RPCs that run a model: how a request becomes examples, and predictions a reply."""

from serving.endpoints.base import Rpc
from serving.endpoints.embed import Embed
from serving.endpoints.fill_mask import FillMask
from serving.endpoints.places import Answer, Tag
from serving.endpoints.texts import Choose, Classify, Regress

RPCS: tuple[Rpc, ...] = (Embed(), Classify(), Regress(), Choose(), Answer(), Tag(), FillMask())
"""One for each task."""
