"""What a run fixes outside the nets is put back, also when it fails."""

import threading
from typing import Any

import pytest
import torch

from letheon import state
from letheon.deep import _device
from letheon.deep._device import (
    describe_device,
    matmul_precision,
    pause_runs,
    reproducible_run,
    resolve_device,
)

CPU = torch.device("cpu")
GPU = torch.device("cuda")


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
        precisions(CPU),
        precisions(GPU),
    )


def precisions(device: torch.device) -> list[str]:
    return [switch.read() for switch in _device._precision_settings(device, coarse=False)]


@pytest.fixture(params=["as usual", "other settings"])
def before(request: pytest.FixtureRequest) -> Any:
    """The state of torch before a run: the default one, and another."""
    usual = globals_of_torch()
    memory: Any = torch.utils.deterministic
    if request.param != "as usual":
        torch.use_deterministic_algorithms(True, warn_only=True)
        memory.fill_uninitialized_memory = False
        torch.backends.cudnn.benchmark = True
        torch.set_num_threads(2)
        torch.set_float32_matmul_precision("medium")
    yield globals_of_torch()
    torch.use_deterministic_algorithms(usual[0], warn_only=usual[1])
    memory.fill_uninitialized_memory, torch.backends.cudnn.benchmark = usual[2:4]
    torch.set_num_threads(usual[4])
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
def test_everything_is_put_back(before: Any, deterministic: bool, fails: bool) -> None:
    def run() -> None:
        with reproducible_run(CPU, deterministic=deterministic):
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
    with reproducible_run(CPU, deterministic=True):
        assert globals_of_torch()[:5] == (True, False, False, False, 1)


def test_free_kernels_leave_the_flags_alone(before: Any) -> None:
    with reproducible_run(CPU, deterministic=False):
        assert globals_of_torch()[:-2] == before[:-2]


def use(*names: str, value: Any) -> None:
    place: Any = torch.backends
    for name in names[:-1]:
        place = getattr(place, name)
    setattr(place, names[-1], value)


CHOICES: dict[str, Any] = {
    "as usual": lambda: None,
    "old, matmul": lambda: use("cuda", "matmul", "allow_tf32", value=True),
    "old, cudnn": lambda: use("cudnn", "allow_tf32", value=False),
    "old, high": lambda: torch.set_float32_matmul_precision("high"),
    "old, medium": lambda: torch.set_float32_matmul_precision("medium"),
    "new, matmul": lambda: use("cuda", "matmul", "fp32_precision", value="tf32"),
    "new, conv": lambda: use("cudnn", "conv", "fp32_precision", value="ieee"),
    "new, rnn": lambda: use("cudnn", "rnn", "fp32_precision", value="ieee"),
    "new, mkldnn": lambda: use("mkldnn", "matmul", "fp32_precision", value="bf16"),
    "new, everything": lambda: use("fp32_precision", value="tf32"),
}


@pytest.fixture(params=CHOICES)
def chosen(request: pytest.FixtureRequest) -> Any:
    """Torch with a precision of the caller's; afterwards as it was."""
    backends: Any = torch.backends
    places = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    places.append(backends.mkldnn.matmul)
    usual = [place.fp32_precision for place in places]
    CHOICES[request.param]()
    yield precisions(CPU) + precisions(GPU)
    torch.set_float32_matmul_precision("highest")
    use("cudnn", "allow_tf32", value=True)
    use("fp32_precision", value="none")
    for place, value in zip(places, usual, strict=True):
        place.fp32_precision = value


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="torch before 2.9")
@pytest.mark.parametrize("coarse", [False, True])
def test_whatever_the_caller_chose_products_are_as_fine_as_asked(
    chosen: list[str], coarse: bool
) -> None:
    backends: Any = torch.backends
    cuda = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    cpu = [backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
    for device, places in ((CPU, cpu), (GPU, cuda)):
        with matmul_precision(device, coarse=coarse):
            asked = "tf32" if coarse and device == GPU else "ieee"
            assert [place.fp32_precision for place in places] == [asked] * 3
        assert precisions(CPU) + precisions(GPU) == chosen


def test_the_switches_of_an_older_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(type(torch.backends.cudnn), "conv", raising=False)
    before = precisions(GPU)
    assert before == ["highest", True]
    for coarse, expected in ((False, ["highest", False]), (True, ["high", True])):
        with matmul_precision(GPU, coarse=coarse):
            assert precisions(GPU) == expected
        assert precisions(GPU) == before
    with matmul_precision(CPU, coarse=True):
        assert precisions(CPU)[0] == "highest"


def test_a_pause_lets_others_in_and_ends_as_it_began(before: Any) -> None:
    inside = list[tuple[Any, ...]]()

    def other() -> None:
        with reproducible_run(CPU, deterministic=True):
            inside.append(globals_of_torch()[:5])

    with reproducible_run(CPU, deterministic=True), reproducible_run(CPU, deterministic=False):
        fixed = globals_of_torch()[:-4], globals_of_torch()[-2:]
        with pause_runs():
            assert globals_of_torch() == before
            thread = threading.Thread(target=other)
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
            with reproducible_run(CPU, deterministic=True), pause_runs():
                assert globals_of_torch() == before
        assert (globals_of_torch()[:-4], globals_of_torch()[-2:]) == fixed
    assert inside == [(True, False, False, False, 1)]
    assert globals_of_torch() == before


def test_two_runs_that_pause_in_turn_are_both_fixed_throughout() -> None:
    """The second run is still under way when the first one ends."""
    before, seen = globals_of_torch()[:5], list[tuple[Any, ...]]()
    paused_too, first_is_over = threading.Event(), threading.Event()

    def second() -> None:
        with reproducible_run(CPU, deterministic=True):
            with pause_runs():
                paused_too.set()
                assert first_is_over.wait(10)
            seen.append(globals_of_torch()[:5])

    thread = threading.Thread(target=second)
    with reproducible_run(CPU, deterministic=True):
        with pause_runs():
            thread.start()
            assert paused_too.wait(10)
        seen.append(globals_of_torch()[:5])
    first_is_over.set()
    thread.join(10)
    assert seen == [(True, False, False, False, 1)] * 2
    assert globals_of_torch()[:5] == before


def test_a_pause_outside_of_a_run_is_nothing() -> None:
    before = globals_of_torch()
    with pause_runs():
        assert globals_of_torch() == before
    assert globals_of_torch() == before


def test_runs_may_lie_inside_each_other() -> None:
    before = globals_of_torch()
    with reproducible_run(CPU, deterministic=True):
        with reproducible_run(CPU, deterministic=True):
            pass
        assert torch.get_num_threads() == 1
        assert torch.are_deterministic_algorithms_enabled()
    assert globals_of_torch() == before


def test_runs_in_threads_take_turns() -> None:
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        inside.set()
        with reproducible_run(CPU, deterministic=True):
            torch.manual_seed(99)
            done.set()

    thread = threading.Thread(target=other)
    with reproducible_run(CPU, deterministic=True):
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
    with pytest.raises(ValueError, match=rf"device='{name}' is not available: torch finds no GPU"):
        resolve_device(name)


@pytest.mark.parametrize("name", ["gpu", "", "cpus", "CUDA", 0, None, CPU])
def test_unknown_devices(name: Any) -> None:
    with pytest.raises(ValueError, match=r"device=.*expected one of"):
        resolve_device(name)


def test_the_description_can_be_saved() -> None:
    words = describe_device(CPU)
    assert set(words) == {"torch", "device"}
    assert words["torch"] == str(torch.__version__)
    assert words["device"].startswith("cpu ")
    assert state.decode(state.encode(words)) == words
