"""Text as ids, and windows of it, against loops over characters."""

import pytest
import torch

from datamodules.tensor_batches import batches
from datamodules.text import decode, encode, vocabulary_of, windows

TEXT = "To be, or not to be: that is the question. Ünïcode 🎭\n"


def test_vocabulary_is_the_distinct_characters_in_order():
    assert vocabulary_of("banana bread") == " abdenr"
    assert vocabulary_of("") == ""


def test_an_id_is_the_place_of_the_character_in_the_vocabulary():
    vocabulary = vocabulary_of(TEXT)
    ids = encode(TEXT, vocabulary)
    assert ids.dtype == torch.int64
    assert ids.tolist() == [vocabulary.index(character) for character in TEXT]


def test_decode_undoes_encode():
    vocabulary = vocabulary_of(TEXT)
    assert decode(encode(TEXT, vocabulary), vocabulary) == TEXT
    assert decode(encode("", vocabulary), vocabulary) == ""


def test_characters_outside_the_vocabulary_are_named():
    with pytest.raises(ValueError, match=r"not in the vocabulary \('\\n', 'é'\): remove them"):
        encode("caféa\n", "abcf")


def test_only_a_few_of_many_outside_characters_are_named():
    with pytest.raises(ValueError, match=r"\('a', 'b', .*, 'j' and 13 more\)"):
        encode("abcdefghijklmnopqrstuvwxyz", "xyz")


@pytest.mark.parametrize("stride", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("context_length", [1, 4, 29])
def test_windows_are_those_of_a_loop_and_targets_the_next_characters(context_length, stride):
    ids = torch.arange(30) * 7 % 31
    inputs, targets = windows(ids, context_length, stride)
    starts = [start for start in range(0, 30, stride) if start + context_length + 1 <= 30]
    assert inputs.tolist() == [ids[s : s + context_length].tolist() for s in starts]
    assert targets.tolist() == [ids[s + 1 : s + context_length + 1].tolist() for s in starts]


@pytest.mark.parametrize("length", [13, 24, 25, 30])
def test_windows_at_a_stride_of_their_length_score_each_character_once(length):
    """All but the first character, and a rest shorter than a window."""
    _, targets = windows(torch.arange(length), 12, 12)
    scored = targets.flatten().tolist()
    assert scored == list(range(1, len(scored) + 1))
    assert 0 <= length - 1 - len(scored) < 12


def test_windows_are_views_and_batches_of_them_copy_only_the_batch():
    ids = torch.arange(1000)
    inputs, targets = windows(ids, 100, 1)
    assert inputs.data_ptr() == ids.data_ptr()
    assert inputs.untyped_storage().nbytes() == ids.untyped_storage().nbytes()
    tokens, following = next(iter(batches(inputs, targets, 4, shuffle=True, num_workers=0)))
    assert tokens.untyped_storage().nbytes() == 4 * 100 * 8
    assert torch.equal(tokens + 1, following)


def test_a_text_shorter_than_one_window_is_refused():
    with pytest.raises(ValueError, match=r"The text has 12 characters, and one window needs 13: give a longer text"):
        windows(torch.arange(12), 12, 1)
    assert len(windows(torch.arange(13), 12, 1)[0]) == 1


def test_batches_with_and_without_shuffling_hold_every_row_once():
    rows = torch.arange(23)
    for shuffle in (False, True):
        found = list(batches(rows, -rows, 5, shuffle=shuffle, num_workers=0))
        assert [len(first) for first, _ in found] == [5, 5, 5, 5, 3]
        assert all(torch.equal(first, -second) for first, second in found)
        drawn = torch.cat([first for first, _ in found])
        assert torch.equal(drawn.sort().values, rows)
        assert torch.equal(drawn, rows) != shuffle
