"""Text as token ids, one for each character, and windows of it."""

import numpy as np
import torch
from torch import Tensor

_NAMED = 10


def vocabulary_of(text: str) -> str:
    """Return the distinct characters of a text, in the order of their code points, which is that of their token ids."""
    return "".join(sorted(set(text)))


def encode(text: str, vocabulary: str) -> Tensor:
    """Return the token ids of a text, int64 (characters,).

    Args:
        text: any text.
        vocabulary: its possible characters, as `vocabulary_of` returns them.

    Raises:
        ValueError: if a character is not in the vocabulary.
    """
    unseen = sorted(set(text) - set(vocabulary))
    if unseen:
        more = f" and {len(unseen) - _NAMED} more" if len(unseen) > _NAMED else ""
        raise ValueError(
            f"The text holds characters that are not in the vocabulary ({', '.join(map(repr, unseen[:_NAMED]))}{more})"
            ": remove them, or train on text that has them."
        )
    return torch.from_numpy(np.searchsorted(_code_points(vocabulary), _code_points(text)).astype(np.int64))


def decode(ids: Tensor, vocabulary: str) -> str:
    """Return the text of token ids (characters,)."""
    return "".join(vocabulary[i] for i in ids.tolist())


def windows(ids: Tensor, context_length: int, stride: int) -> tuple[Tensor, Tensor]:
    """Return inputs and next characters of every window of a text, views: two (windows, T).

    Args:
        ids: (characters,).
        context_length: characters T in a window.
        stride: from the start of a window to that of the next.

    Raises:
        ValueError: if the text is shorter than one window and the character after it.
    """
    if len(ids) <= context_length:
        raise ValueError(
            f"The text has {len(ids)} characters, and one window needs {context_length + 1}: give a longer text or a "
            "shorter context_length."
        )
    return ids[:-1].unfold(0, context_length, stride), ids[1:].unfold(0, context_length, stride)


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
