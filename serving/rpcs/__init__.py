"""The RPCs that run a model: how a request becomes examples, and predictions a reply."""

from serving.rpcs.base import Rpc
from serving.rpcs.embed import Embed
from serving.rpcs.fill_mask import FillMask
from serving.rpcs.places import Answer, Tag
from serving.rpcs.texts import Choose, Classify, Regress

RPCS: tuple[Rpc, ...] = (Embed(), Classify(), Regress(), Choose(), Answer(), Tag(), FillMask())
"""One for each task."""
