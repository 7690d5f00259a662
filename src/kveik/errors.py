"""The error tree.

::

    KveikError
    ├── ConfigError            a setting is unknown, of the wrong type or out of range
    ├── KeyFormatError         bytes or text that are no block key
    ├── EventFormatError       bytes that are no batch of an engine's KV events
    ├── FrameError             stored bytes that are no sound frame of the block asked for
    │   ├── FrameCorruptError  magic, length or checksum wrong
    │   └── FrameForeignError  a sound frame, but of another block, namespace or version
    ├── LayoutRefusedError     a KV cache layout that Kveik cannot serve safely
    ├── StoreError             a tier cannot be opened or used at all (single keys give results instead)
    │   └── ArenaError         the shared-memory arena cannot be created, opened or trusted
    ├── AgentError             talking to the node's agent
    │   ├── AgentUnavailableError   nobody listens, or the connection broke
    │   ├── AgentTimeoutError       no answer within the deadline
    │   └── ProtocolError           a message that is malformed, too long or of another version
    ├── EngineError            an engine seen from outside: refused, died or answered nonsense
    │   └── EngineStartError   an engine that we started did not become ready
    ├── FleetError             who is in the fleet, and in what state
    │   ├── UnknownEngineError   no engine of that name is known
    │   ├── RefusedError         the state of an engine, or another engine, stands against it
    │   ├── AdmissionError       the router wants an admission token, or another one
    │   └── RegistryError        the registry (a file, etcd) cannot be read or written
    ├── RequestError           a request's body that no engine could take: the client's fault
    ├── RenderError            a prompt whose tokens only an engine can tell, or a model folder without a tokenizer
    ├── SuperviseError         a node's supervisor cannot be reached, cannot start, or refuses an order
    ├── RouterStartError       the router cannot listen, or a part that it needs is not installed
    ├── WatchdogError          the watchdog cannot start
    │   └── RestartError       an engine could not be restarted: nobody can, or the order was not taken
    ├── RollError              a roll cannot begin, or a step of it failed
    ├── LineUnreadableError    a command line to check cannot be read, or nobody can be asked about it
    ├── DoctorError            a check of the doctor could not be carried out (what it finds is a result, no error)
    ├── ProbeError             a probe of the cache could not be carried out (what it finds is a result, no error)
    └── VerifyError            a proof could not be carried out (a failed proof is a result, not an error)

A miss is not an error, and neither is a block that a store could not give: stores answer
per key with :class:`kveik.store.base.BlockResult`.
"""


class KveikError(Exception):
    """Base of all errors that Kveik raises on purpose."""


class ConfigError(KveikError):
    """A setting is unknown, has the wrong type or is out of range."""


class KeyFormatError(KveikError):
    """Bytes or text that are no block key."""


class EventFormatError(KveikError):
    """Bytes that are no batch of an engine's KV events, or of another version's."""


class FrameError(KveikError):
    """Stored bytes that are no sound frame of the block asked for."""


class FrameCorruptError(FrameError):
    """Magic, length or checksum of a frame is wrong."""


class FrameForeignError(FrameError):
    """A sound frame of another block, namespace or version."""


class LayoutRefusedError(KveikError):
    """A KV cache layout that Kveik cannot serve safely; the message says why."""


class StoreError(KveikError):
    """A tier cannot be opened or used at all."""


class ServerRefusedError(StoreError):
    """A store's server answered with an error; the text is the server's own."""


class ArenaError(StoreError):
    """The shared-memory arena cannot be created, opened or trusted."""


class AgentError(KveikError):
    """Talking to the node's agent went wrong."""


class AgentUnavailableError(AgentError):
    """Nobody listens on the agent's socket, or the connection broke."""


class AgentTimeoutError(AgentError):
    """The agent gave no answer within the deadline."""


class ProtocolError(AgentError):
    """A message is malformed, too long or of another protocol version."""


class EngineError(KveikError):
    """An engine, seen from outside, refused, died or answered nonsense."""


class EngineStartError(EngineError):
    """An engine that we started did not become ready."""


class FleetError(KveikError):
    """Who is in the fleet, and in what state: something asked for cannot be done."""


class UnknownEngineError(FleetError):
    """No engine of that name is known: it was never announced, withdrew or was forgotten."""


class RefusedError(FleetError):
    """The state of an engine, or another engine with its name or address, stands against it."""


class AdmissionError(FleetError):
    """The router wants an admission token, or another one."""


class RegistryError(FleetError):
    """The registry, a file or etcd, cannot be read or written."""


class RequestError(KveikError, ValueError):
    """A request's body that no engine could take: the client's fault. ``param`` names the member, if it is one."""

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.param = param


class RenderError(KveikError):
    """A prompt whose tokens only an engine can tell, or a model folder from which none can be told."""


class RouterStartError(KveikError):
    """The router cannot start; the message says what to do."""


class SuperviseError(KveikError):
    """A node's supervisor cannot be reached, cannot start, or refuses an order; the message says why."""


class WatchdogError(KveikError):
    """The watchdog cannot start; the message says what to do."""


class RestartError(WatchdogError):
    """An engine could not be restarted: nobody can, or the order was not taken."""


class RollError(KveikError):
    """A roll cannot begin, or a step of it failed; the message says why."""


class LineUnreadableError(KveikError):
    """A command line to check cannot be read, has no ``vllm serve`` in it, or vLLM's parser cannot be asked."""


class DoctorError(KveikError):
    """A check of the doctor could not be carried out; the message says why."""


class ProbeError(KveikError):
    """A probe of the cache could not be carried out; the message says why."""


class VerifyError(KveikError):
    """A proof could not be carried out."""
