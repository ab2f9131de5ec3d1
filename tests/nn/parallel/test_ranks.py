"""Two and four processes give what one gives: tensor parallelism by heads, and attention over keys on all ranks."""

from __future__ import annotations

import pytest

from tests.nn.parallel.ranks import all_checks, run_checks

RANKS = (2, 4)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, str]]:
    return run_checks(tmp_path_factory.mktemp("ranks"), RANKS)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", all_checks())
def test_ranks_give_what_one_process_gives(reports: dict[int, dict[str, str]], ranks: int, name: str) -> None:
    wrong = reports[ranks][name]
    assert not wrong, wrong
