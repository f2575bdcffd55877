"""Sweeps over seeds run them all, and say which failed."""

from __future__ import annotations

import pytest

from tests.seeds import over_seeds


@pytest.mark.parametrize("name", ["a", "b"])
@over_seeds(range(3, 10), in_one=4)
def test_a_sweep_has_other_arguments_too(name: str, seed: int) -> None:
    assert name in ("a", "b") and 3 <= seed < 10


def test_every_seed_is_run_and_a_failure_names_its_own() -> None:
    ran: list[int] = []

    @over_seeds(range(9), in_one=3)
    def sweep(seed: int) -> None:
        ran.append(seed)
        if seed in (0, 1, 6, 7, 8):
            pytest.skip("not this one")
        assert seed != 4

    (mark,) = sweep.pytestmark  # type: ignore[attr-defined]
    name, batches = mark.args
    assert name == "some" and [n for some in batches for n in some] == list(range(9))
    sweep(batches[0])
    with pytest.raises(AssertionError) as failed:
        sweep(batches[1])
    assert failed.value.__notes__ == ["seed 4"]
    with pytest.raises(pytest.skip.Exception):
        sweep(batches[2])
    assert ran == [0, 1, 2, 3, 4, 6, 7, 8]
