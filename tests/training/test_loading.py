"""`training.loader`: each sample once an epoch, in every rank its share, and the place in it is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

from orchestrator.training import Training

DATA: Any = list(range(20))


class Noisy(torch.utils.data.Dataset[tuple[int, float]]):
    """Each sample with a random number, as an augmentation draws them."""

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, torch.rand(1).item()


def loaders() -> dict[str, Callable[[], Any]]:
    """Loaders as people write them."""
    return {
        "data set": lambda: Noisy(),
        "shuffled": lambda: DataLoader(Noisy(), batch_size=3, shuffle=True),
        "in order": lambda: DataLoader(Noisy(), batch_size=3),
        "drop last": lambda: DataLoader(Noisy(), batch_size=3, shuffle=True, drop_last=True),
        "with replacement": lambda: DataLoader(
            Noisy(), batch_size=4, sampler=RandomSampler(DATA, replacement=True, num_samples=30)
        ),
        "weighted": lambda: DataLoader(
            Noisy(), batch_size=4, sampler=WeightedRandomSampler([1.0] * 19 + [9.0], 20)
        ),
        "batch sampler": lambda: DataLoader(
            Noisy(), batch_sampler=BatchSampler(RandomSampler(DATA), 4, drop_last=False)
        ),
        "lists of batches": lambda: DataLoader(Noisy(), batch_sampler=[[1, 2], [3], [4, 5, 6]]),
        "distributed": lambda: DataLoader(
            Noisy(), batch_size=4, sampler=DistributedSampler(DATA, num_replicas=2, rank=1)
        ),
        "workers": lambda: DataLoader(Noisy(), batch_size=3, shuffle=True, num_workers=2, prefetch_factor=3),
        "lasting workers": lambda: DataLoader(
            Noisy(), batch_size=3, shuffle=True, num_workers=1, persistent_workers=True
        ),
    }  # fmt: skip


def taken(loader: Any, count: int) -> list[Any]:
    return [[each.tolist() for each in next(loader)] for _ in range(count)]


@pytest.mark.parametrize("kind", list(loaders()))
def test_a_loader_goes_on_where_it_was(tmp_path: Path, kind: str) -> None:
    """Inside an epoch, and at its end; the script's own random numbers do not matter."""
    whole = Training(tmp_path).loader(loaders()[kind](), seed=3)
    length = len(whole)
    expected = taken(whole, 2 * length + 3)
    assert len({str(expected[:length]), str(expected[length : 2 * length])}) == 2  # another noise each epoch
    for stop in {1, length - 1, length, length + 2} - {0}:
        training = Training(tmp_path / f"c-{stop}")
        stopped = training.loader(loaders()[kind](), seed=3)
        assert taken(stopped, stop) == expected[:stop]
        saved = training.save(1, {"loader": stopped}, required=True)
        torch.manual_seed(stop)
        resumed = Training(tmp_path / "next", resume_from=saved)
        again = resumed.loader(loaders()[kind](), seed=3)
        resumed.resume({"loader": again})
        assert taken(again, len(expected) - stop) == expected[stop:]


def test_epochs_and_their_rest(tmp_path: Path) -> None:
    training = Training(tmp_path)
    loader = training.loader(DATA, seed=1, batch_size=6)
    assert (len(loader), loader.batch_size, loader.dataset) == (4, 6, DATA)
    seen: list[tuple[int, list[int]]] = []
    for epoch in loader.epochs(2):
        seen += [(epoch, batch.tolist()) for batch in loader]
    assert [epoch for epoch, _ in seen] == [0] * 4 + [1] * 4
    for part in (seen[:4], seen[4:]):
        assert sorted(each for _, batch in part for each in batch) == DATA
    assert seen[0][1] != seen[4][1]
    stopped = training.loader(DATA, seed=1, batch_size=6)
    for _ in range(5):
        next(stopped)
    rest = training.loader(DATA, seed=1, batch_size=6)
    rest.load_state_dict(stopped.state_dict())
    assert [(epoch, batch.tolist()) for epoch in rest.epochs(2) for batch in rest] == seen[5:]
    left = training.loader(DATA, seed=1, batch_size=6)
    assert [next(iter(left)).tolist() for _ in left.epochs(2)] == [seen[0][1], seen[4][1]]  # `break`


@pytest.mark.parametrize(
    ("options", "alike"), [({}, False), ({"sampler": WeightedRandomSampler([1.0] * 20, 20)}, True)]
)
def test_each_rank_gets_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], alike: bool
) -> None:
    """5 batches for 2 ranks: the last rank has the first batch again, so that no rank waits for another."""
    training = Training(tmp_path)
    whole = taken_flat(training.loader(DATA, seed=1, batch_size=4, **options))
    monkeypatch.setenv("WORLD_SIZE", "2")
    shares = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        shares.append(taken_flat(training.loader(DATA, seed=1, batch_size=4, **options)))
    assert shares == [[whole[0], whole[2], whole[4]], [whole[1], whole[3], whole[0]]]
    assert (Counter(each for batch in whole for each in batch) == Counter(DATA)) != alike
    same = training.loader(DATA, seed=1, batch_size=4, share=(0, 1), **options)
    assert taken_flat(same) == whole


def test_each_rank_draws_random_numbers_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As augmentation and masking do. Ranks that share their batches, as in tensor parallelism, draw the
    same."""
    training = Training(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    noise: list[list[float]] = []
    shared: list[list[Any]] = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        own = training.loader(Noisy(), seed=1, batch_size=2)
        noise.append([each for _, drawn in taken(own, len(own)) for each in drawn])
        shared.append(taken(training.loader(Noisy(), seed=1, batch_size=2, share=(0, 1)), 10))
    assert not set(noise[0]) & set(noise[1])
    assert shared[0] == shared[1]


def taken_flat(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def test_shares_of_full_batches_and_of_samplers_that_know_their_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    seen: list[list[list[int]]] = [[], []]
    own: list[list[int]] = []
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        seen[rank] = taken_flat(training.loader(DATA, seed=1, batch_size=6, drop_last=True))
        sampler: Any = DistributedSampler(DATA, num_replicas=2, rank=rank)
        loader = training.loader(DataLoader(DATA, batch_size=5, sampler=sampler), seed=1)
        epochs = [[each for batch in loader for each in batch.tolist()] for _ in loader.epochs(2)]
        assert epochs[0] != epochs[1]
        own += epochs
    assert [len(each) for each in seen] == [1, 1]
    assert not set(seen[0][0]) & set(seen[1][0])
    assert sorted(own[0] + own[2]) == sorted(own[1] + own[3]) == DATA


def test_another_batch_size_or_number_of_ranks_goes_on_at_the_same_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 ranks of 2 samples each become one of 4: as after a move to another machine."""
    training = Training(tmp_path)
    whole = taken_flat(training.loader(DATA, seed=1, batch_size=4))
    monkeypatch.setenv("WORLD_SIZE", "2")
    halves = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        loader = training.loader(DATA, seed=1, batch_size=2)
        halves.append([next(loader).tolist() for _ in range(3)])
    assert [one + two for one, two in zip(*halves, strict=True)] == whole[:3]
    saved = loader.state_dict()
    monkeypatch.delenv("WORLD_SIZE")
    alone = training.loader(DATA, seed=1, batch_size=4)
    alone.load_state_dict(saved)
    assert taken_flat(alone) == whole[3:]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(DATA)


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 1


@pytest.mark.parametrize(
    ("given", "options", "kind", "told"),
    [
        (Stream(), {}, ValueError, "no positions"),
        (DataLoader(Stream()), {}, ValueError, "no positions"),
        (DataLoader(DATA, batch_size=None), {}, ValueError, "no positions"),
        (DATA, {"sampler": Endless()}, ValueError, "a sampler with a length"),
        (
            DataLoader(DATA),
            {"batch_size": 3, "shuffle": True},
            TypeError,
            "options already: batch_size, shuffle",
        ),
    ],
)
def test_what_has_no_place_is_refused(
    tmp_path: Path, given: Any, options: dict[str, Any], kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told):
        Training(tmp_path).loader(given, seed=1, **options)


def test_a_loader_that_shuffles_is_warned_about_unless_its_place_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = TensorDataset(torch.arange(4))
    training = Training(tmp_path)
    raw = DataLoader(data, shuffle=True)
    loader = training.loader(raw, seed=1)
    ordered = DataLoader(data)
    training.resume({"loader": loader})
    assert capsys.readouterr().err == ""
    other = DataLoader(data, shuffle=True)
    training.resume({"loader": loader})
    assert "warning: a DataLoader shuffles and its place is not saved" in capsys.readouterr().err
    del other
    spread = DataLoader(data, sampler=DistributedSampler(data, num_replicas=2, rank=0))
    training.resume({"loader": loader})
    assert "use `loader = training.loader(loader, seed=…)`" in capsys.readouterr().err
    assert len(raw) == len(ordered) == 2 * len(spread)
