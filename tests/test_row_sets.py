"""Which rows share tables: every row once, on its own spins where that is cheaper, and shared among threads."""

import pytest

from hybrid_attention.row_sets import share_tables, split_sets

CAUSAL = [(1 << reach) - 1 for reach in range(1, 9)]


def lanes_of(sets, repeats):
    """The group, row, repeat, and present spins of all lanes that are solved."""
    found = []
    for rows in sets:
        for lane in range(rows.first, rows.last):
            row, repeat = divmod(lane, repeats)
            present = sum(1 << spin for j, spin in enumerate(rows.spins) if not rows.absent[row] >> j & 1)
            found.append((rows.group, rows.rows[row], repeat, present))
    return sorted(found)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("repeats", [1, 16, 50, 1000])
def test_every_row_is_solved_once_whatever_the_threads(repeats, threads):
    masks = [CAUSAL, [0b101, 0, 0b111, 0b1, 0b10000000, 0b101, 0b11111111, 0b1010]]
    sets = share_tables(masks, 2, repeats)
    shares = split_sets(sets, threads)
    expected = [
        (group, row, repeat, mask)
        for group, of_group in enumerate(masks)
        for row, mask in enumerate(of_group)
        for repeat in range(repeats)
        if mask
    ]
    assert len(shares) <= threads
    assert lanes_of([rows for share in shares for rows in share], repeats) == sorted(expected)


def test_a_mask_of_all_groups_is_repeated_for_each():
    sets = share_tables([[0b11]], 3, 5)
    assert [(rows.group, rows.spins, rows.rows) for rows in sets] == [(group, (0, 1), (0,)) for group in range(3)]


def test_causal_rows_are_solved_on_their_own_spins():
    sets = share_tables([CAUSAL * 2], 1, 64)
    assert [(rows.spins, rows.rows) for rows in sets] == [(tuple(range(n)), (n - 1, n + 7)) for n in range(1, 9)]
    assert not any(any(rows.absent) for rows in sets)


def test_rows_with_few_spins_are_not_joined_to_rows_with_many():
    (few, many) = share_tables([[0b10000001, 0b11111111]], 1, 64)
    assert {few.spins, many.spins} == {(0, 7), tuple(range(8))}


def test_many_rows_that_lack_each_another_spin_are_joined():
    all_spins = (1 << 10) - 1
    (joined,) = share_tables([[all_spins & ~(1 << lacking) for lacking in range(9)]], 1, 1)
    assert joined.spins == tuple(range(10))
    assert joined.absent == tuple(1 << lacking for lacking in range(9))


@pytest.mark.parametrize("threads", [2, 4])
def test_threads_get_about_as_much_work(threads):
    sets = share_tables([[(1 << reach) - 1 for reach in range(1, 17)]], 1, 64 * threads)
    costs = [sum(rows.cost() for rows in share) for share in split_sets(sets, threads)]
    assert len(costs) == threads
    assert max(costs) < 1.3 * min(costs)
