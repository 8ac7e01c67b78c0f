"""What a run fixes outside the nets is put back, also when it fails."""

import threading
from typing import Any

import pytest
import torch

from letheon import state
from letheon.deep._device import describe_device, repeatable, resolve_device

CPU = torch.device("cpu")


def globals_of_torch() -> tuple[Any, ...]:
    memory: Any = torch.utils.deterministic
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        memory.fill_uninitialized_memory,
        torch.backends.cudnn.benchmark,
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_grad_enabled(),
        torch.get_rng_state().tolist(),
    )


@pytest.fixture(params=["as usual", "as somebody else likes it"])
def before(request: pytest.FixtureRequest) -> Any:
    """The state of torch before a run: the default one, and another."""
    usual = globals_of_torch()
    memory: Any = torch.utils.deterministic
    if request.param != "as usual":
        torch.use_deterministic_algorithms(True, warn_only=True)
        memory.fill_uninitialized_memory = False
        torch.backends.cudnn.benchmark = True
        torch.set_num_threads(2)
    yield globals_of_torch()
    torch.use_deterministic_algorithms(usual[0], warn_only=usual[1])
    memory.fill_uninitialized_memory, torch.backends.cudnn.benchmark = usual[2:4]
    torch.set_num_threads(usual[4])


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
def test_everything_is_put_back(before: Any, deterministic: bool, fails: bool) -> None:
    def run() -> None:
        with repeatable(CPU, deterministic=deterministic):
            torch.manual_seed(1)
            torch.rand(3)
            if fails:
                raise KeyError("planned")

    if fails:
        with pytest.raises(KeyError, match="planned"):
            run()
    else:
        run()
    assert globals_of_torch() == before


def test_inside_everything_is_fixed(before: Any) -> None:
    with repeatable(CPU, deterministic=True):
        assert globals_of_torch()[:5] == (True, False, False, False, 1)


def test_free_kernels_leave_the_flags_alone(before: Any) -> None:
    with repeatable(CPU, deterministic=False):
        assert globals_of_torch() == before


def test_runs_may_lie_inside_each_other() -> None:
    before = globals_of_torch()
    with repeatable(CPU, deterministic=True):
        with repeatable(CPU, deterministic=True):
            pass
        assert torch.get_num_threads() == 1
        assert torch.are_deterministic_algorithms_enabled()
    assert globals_of_torch() == before


def test_runs_in_threads_take_turns() -> None:
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        inside.set()
        with repeatable(CPU, deterministic=True):
            torch.manual_seed(99)
            done.set()

    thread = threading.Thread(target=other)
    with repeatable(CPU, deterministic=True):
        torch.manual_seed(5)
        expected = torch.rand(8, generator=torch.Generator().manual_seed(5))
        thread.start()
        assert inside.wait(10)
        assert not done.wait(0.1)
        assert torch.equal(torch.rand(8), expected)
    thread.join()
    assert done.is_set()


def test_devices_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto").type == "cuda"
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    assert resolve_device("cpu") == CPU


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_no_gpu_here(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    with pytest.raises(ValueError, match=rf"device='{name}', but torch finds no GPU here"):
        resolve_device(name)


@pytest.mark.parametrize("name", ["gpu", "", "cpus", "CUDA", 0, None, CPU])
def test_devices_that_nobody_knows(name: Any) -> None:
    with pytest.raises(ValueError, match=r"device=.*expected one of"):
        resolve_device(name)


def test_the_description_can_be_saved() -> None:
    words = describe_device(CPU)
    assert set(words) == {"torch", "device"}
    assert words["torch"] == str(torch.__version__)
    assert words["device"].startswith("cpu ")
    assert state.decode(state.encode(words)) == words
