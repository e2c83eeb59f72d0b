"""What heads take instead of the last hidden state: the states of some layers combined, or a BiLSTM over them.

The feature-based approach (section 5.3 and table 7 of the BERT paper), and the row "+ BiLSTM" of its table 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

Combination = Literal["concat", "sum", "weighted"]
"""Side by side, added up, or averaged with learnt weights (a softmax, at first the same for all)."""


class HiddenStates(nn.Module):
    """Several hidden states made one.

    Args:
        size: of a hidden state, D.
        num_states: how many are given, S.
        bilstm_size: of each direction of a BiLSTM of two layers on top; 0 for none.
    """

    def __init__(self, size: int, num_states: int, combination: Combination, bilstm_size: int) -> None:
        super().__init__()
        self.combination = combination
        if combination == "weighted":
            self.weights = nn.Parameter(torch.zeros(num_states))
        size = size * num_states if combination == "concat" else size
        self.lstm = (
            nn.LSTM(size, bilstm_size, num_layers=2, bidirectional=True, batch_first=True) if bilstm_size else None
        )

    def forward(self, states_SBLD: Sequence[Tensor], attention_mask_BL: Tensor | None) -> Tensor:
        """The states [B, L, C]; those of padding are of no meaning."""
        x_BLC = self.combine(states_SBLD)
        return x_BLC if self.lstm is None else self._run_lstm(x_BLC, attention_mask_BL)

    def combine(self, states_SBLD: Sequence[Tensor]) -> Tensor:
        """The states before the BiLSTM."""
        if self.combination == "concat":
            return torch.cat(list(states_SBLD), dim=-1)
        stacked_SBLD = torch.stack(list(states_SBLD))
        if self.combination == "sum":
            return stacked_SBLD.sum(0)
        return torch.einsum("s,sbld->bld", self.weights.softmax(0), stacked_SBLD)

    def _run_lstm(self, x_BLC: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        """Packed, so that the way back starts at the last token and not in the padding."""
        assert self.lstm is not None
        length = x_BLC.shape[1]
        lengths_B = (
            torch.full((len(x_BLC),), length) if attention_mask_BL is None else attention_mask_BL.sum(-1).clamp(min=1)
        )
        packed = pack_padded_sequence(x_BLC, lengths_B.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=length)[0]
