"""The policy that goes by a header, on a whole router."""

import contextlib
import json
import urllib.request
from collections import Counter
from pathlib import Path

from kveik.config import SimEngineSettings
from kveik.simulate.server import SimServer
from tests.routers import RouterThread


def test_requests_of_a_session_go_to_one_engine_and_sessions_to_all(tmp_path: Path) -> None:
    def home(router: RouterThread, headers: dict[str, str]) -> str:
        body = json.dumps({"model": "simulated", "prompt": "one", "max_tokens": 1}).encode()
        request = urllib.request.Request(f"{router.url}/v1/completions", body, {**headers, "X-Other": "x"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200
        return str(router.fleet()["last_choices"][0]["engine"])

    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(SimServer(SimEngineSettings(port=0))).url for _ in range(3)]
        router = stack.enter_context(RouterThread(tmp_path, urls, policy="session", session_header="X-Chat"))
        homes = {name: home(router, {"x-chat": name}) for name in map(str, range(20))}
        assert homes == {name: home(router, {"X-CHAT": f" {name} "}) for name in homes}
        assert len(set(homes.values())) == 3
        without = Counter(home(router, {}) for _ in range(6))
        assert set(without.values()) == {2}, "without a session they take turns"
