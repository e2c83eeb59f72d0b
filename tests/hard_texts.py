"""Characters for texts that are hard to tokenize."""

from hypothesis import strategies as st

LETTERS = "".join(
    [
        "aAbBeéÉÅİßzZ09_.,!?'-$[]() \t\n\r\x00\x01\x1c\x7f\x85\u00a0\u00ad\u0301\u0308\u0323\u0327\u0344\u200b\u200d",
        "\u2028\u3000。，中文博ハがか\u3099각한\u1100\u1161ก\u0e31\u0e49कि\u093f\u0902न्שָ\u05c1مرحبا🙂👨\U0001f3fd\ufe0f\ufffd",
        "\ufeff\u037e\u1fef\u2126\u302e\u302f\U0001d165\ufb01\uf900\U00020000\ue000\U000e0001\u0378\u20e3\u203f\u0f73",
    ]
)
"""Characters of many scripts, controls, marks, spaces, emoji, and characters that normalisation changes."""
CHARS = st.sampled_from(LETTERS) | st.characters(exclude_categories=["Cs"])
