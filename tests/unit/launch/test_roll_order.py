"""What orders a roll."""

import threading

from kveik.launch.roll_order import Interruption, RollOptions


def test_a_pause_ends_early_when_somebody_wants_the_roll_to_end() -> None:
    interruption = Interruption()
    assert not interruption.asked
    assert not interruption.pause(0.0)
    threading.Timer(0.01, interruption.ask).start()
    assert interruption.pause(60.0)
    assert interruption.asked


def test_the_key_of_the_engines_is_used_and_never_shown() -> None:
    options = RollOptions(api_key="secret-key")
    assert "secret-key" not in repr(options)
    assert "secret-key" not in repr(options.client("http://127.0.0.1:8000"))
