"""The order of windows: complete, of the epoch's own, resumable."""

import torch

from tftq.train.sampler import Sampler


def test_an_epoch_holds_every_window_once_and_the_last_group_the_rest() -> None:
    groups = list(Sampler(10, 4, seed=3).groups(epoch=1))
    assert [len(group) for group in groups] == [4, 4, 2]
    assert sorted(torch.cat(groups).tolist()) == list(range(10))
    assert Sampler(10, 4, seed=3).groups_per_epoch == 3
    assert Sampler(8, 4, seed=3).groups_per_epoch == 2


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return torch.cat(list(Sampler(50, 7, seed).groups(epoch))).tolist()

    first = order(3, 1)
    torch.rand(5)
    assert order(3, 1) == first
    assert len({tuple(order(seed, epoch)) for seed in (3, 4) for epoch in (1, 2)}) == 4


def test_a_position_continues_the_epoch() -> None:
    sampler = Sampler(10, 4, seed=3)
    whole = [group.tolist() for group in sampler.groups(2)]
    assert [group.tolist() for group in sampler.groups(2, position=1)] == whole[1:]
    assert list(sampler.groups(2, position=3)) == []
