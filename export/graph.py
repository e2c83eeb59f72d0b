"""Network -> ONNX graph, node by node.

Exporters trace a network and then search the result for operators to fuse. Here the graph is written directly, in any
of the variants of `GraphVariant`; `export.autotune` measures which one is fastest.
"""

from __future__ import annotations

from export.disentangled_layers import DisentangledWriter
from export.network import Network
from export.optimum_export.exporter import ExportedNetwork
from export.rotary_layers import PostNormWriter, PreNormWriter
from export.storage import Graph
from export.variant import GraphPrecision, GraphVariant
from export.writer import Writer
from training.model.disentangled_encoder import DisentangledConfig
from training.model.modernbert_encoder import ModernBertConfig
from training.model.nomic_encoder import NomicBertConfig

_WRITERS = {ModernBertConfig: PreNormWriter, NomicBertConfig: PostNormWriter, DisentangledConfig: DisentangledWriter}
"""Config -> writer of its layers; others have BERT's."""

AnyNetwork = Network | ExportedNetwork
"""Network to write here, or whose graph Optimum wrote."""


def build_graph(network: AnyNetwork, precision: GraphPrecision, variant: GraphVariant) -> Graph:
    """Write the graph of a network, or return the one that Optimum wrote.

    Inputs are `input_ids`, `attention_mask` and `token_type_ids`, int32 [batch, length]; the outputs are the task's.
    """
    if isinstance(network, ExportedNetwork):
        return network.graph(precision.matmul)
    writer = next((item for config, item in _WRITERS.items() if isinstance(network.config, config)), Writer)
    return writer(network, precision, variant).write()
