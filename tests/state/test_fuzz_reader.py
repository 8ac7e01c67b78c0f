"""The reader under mutated inputs: saved ones and fresh ones; `make fuzz-reader` runs longer."""

import pytest

from tests.state.fuzz_reader import main, saved_inputs
from tests.state.reader_seeds import CORPUS

N_SAVED = len(saved_inputs(CORPUS))


def test_saved_and_fresh_inputs_crash_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert N_SAVED >= 15
    failed = main([f"{N_SAVED + 1500}", "--replay", str(CORPUS), "--cold", "--no-guard", "--quiet"])
    assert failed == 0, capfd.readouterr().out


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_many_fresh_inputs_crash_nothing(seed: int, capfd: pytest.CaptureFixture[str]) -> None:
    failed = main(["20000", "--seed", f"{seed}", "--quiet"])
    assert failed == 0, capfd.readouterr().out


@pytest.mark.soak
@pytest.mark.parametrize("bug", ["offsets", "behind"])
def test_a_planted_bug_is_found(bug: str, capfd: pytest.CaptureFixture[str]) -> None:
    """NumPy asked about offsets, as before; and a write of 8 bytes behind an array."""
    arguments = [f"{N_SAVED}", "--replay", str(CORPUS), "--plant", bug, "--quiet"]
    assert main(arguments) == 1
    assert " 0 crashes" not in capfd.readouterr().out
