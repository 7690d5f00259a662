"""``kveik agent``: run the node's store process in the foreground."""

import argparse
import logging
import os
import signal
import sys
import time
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server

from kveik.agent.node import NodeAgent
from kveik.cli.settings_flags import add_settings, given_settings, log_to_stderr
from kveik.config import AgentSettings, load, load_stores
from kveik.errors import ConfigError, KveikError
from kveik.pulse import Pulse
from kveik.records import Record
from kveik.telemetry.logs import LogStates
from kveik.telemetry.metrics import AgentMetrics, StateCollector

EPILOG = """\
Settings come from --config, then from the environment (KVEIK_AGENT_NAME), then from flags. Distributed
stores are set in the file's sections [mooncake], [yuanrong] and [redis], or as KVEIK_MOONCAKE_NAME and so on.
SIGTERM and SIGINT stop the agent cleanly; blocks stay in the arena for the next one.

exit codes:
  0  stopped by a signal
  2  a setting is not valid
  3  the agent could not start: the message says why and what to do
"""

#: A signal may reach another thread. Python then runs its handler on the main one, but does not wake that up.
SIGNAL_CHECK_S = 0.2

logger = logging.getLogger("kveik.agent")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: one flag for each setting of the agent."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    add_settings(parser, "agent", "TOML file with an [agent] section")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    log_to_stderr()
    signals: list[int] = []  # no Event: its lock may be held by this very thread when the handler runs
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: signals.append(received))
    try:
        settings = load(AgentSettings, file=args.config, environ=os.environ, given=given_settings(args))
        stores = load_stores(file=args.config, environ=os.environ)
        registry = CollectorRegistry()
        agent = NodeAgent(settings, stores, listener=_listener(registry))
    except ConfigError as error:
        print(f"kveik agent: {error}", file=sys.stderr)
        return 2
    except KveikError as error:
        print(f"kveik agent: {error}", file=sys.stderr)
        return 3
    try:
        _serve_metrics(settings, agent, registry)
        agent.start()
        logger.info("agent %s is ready at %s", agent.service.agent_id, agent.socket_path)
        pulse = Pulse.asked_for()
        while not signals:
            pulse.beat()
            time.sleep(SIGNAL_CHECK_S)
    except OSError as error:
        print(f"kveik agent: cannot serve metrics on port {settings.metrics_port}: {error.strerror}", file=sys.stderr)
        return 3
    finally:
        agent.close()
    logger.info("agent %s has stopped; its blocks stay in the arena", agent.service.agent_id)
    return 0


def _listener(registry: CollectorRegistry) -> Any:
    metrics, logs = AgentMetrics(registry), LogStates(logger)

    def tell(record: Record) -> None:
        metrics(record)
        logs(record)

    return tell


def _serve_metrics(settings: AgentSettings, agent: NodeAgent, registry: CollectorRegistry) -> None:
    if settings.metrics_port:
        registry.register(StateCollector(agent.service.state))
        start_http_server(settings.metrics_port, addr="127.0.0.1", registry=registry)
