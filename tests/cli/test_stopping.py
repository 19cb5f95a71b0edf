"""Signals within one process: what Python drops is noticed later."""

import os
import signal
from collections.abc import Iterator

import pytest

from memwrap.cli.signals import SIGNALS, interrupt_if_asked, interrupt_on_signals, stop_on_signals


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    interrupt_on_signals()
    yield
    interrupt_on_signals()  # forgets what was received
    for number, handler in before.items():
        signal.signal(number, handler)


def interrupted_in_a_destructor(number: int) -> None:
    class Dying:
        def __del__(self) -> None:
            os.kill(os.getpid(), number)
            sum(range(10000))  # the signal comes within it

    Dying()


@pytest.mark.parametrize("number", SIGNALS)
def test_either_signal_interrupts(number: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_python_dropped_is_noticed_when_it_is_asked_for(number: int) -> None:
    interrupt_if_asked()
    interrupted_in_a_destructor(number)
    with pytest.raises(KeyboardInterrupt):
        interrupt_if_asked()
    with pytest.raises(KeyboardInterrupt), stop_on_signals(b""):
        raise AssertionError("training has begun")


def test_while_training_the_first_is_noted_and_the_second_interrupts(capfd: pytest.CaptureFixture[str]) -> None:
    with stop_on_signals(b"stopping") as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()
        assert capfd.readouterr().err == "stopping"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    interrupt_if_asked()  # a stop that was wished for is no interruption


def test_a_second_hangup_does_not_interrupt_the_saving() -> None:
    """A shell passes on the one that its terminal has sent to all processes already."""
    with stop_on_signals(b"") as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()
        os.kill(os.getpid(), signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


def test_an_ignored_hangup_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupt_on_signals()
    with stop_on_signals(b"") as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not stop()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
