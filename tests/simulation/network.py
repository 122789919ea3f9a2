"""The network between simulated processes: ordered streams and calls that are delayed, held up, lost and cut.

A cut is one-way. What was on its way is held, as TCP would send it again: it arrives late, after the cut is healed, or
never, when the connection ends first. So old messages come after newer ones of other connections.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.broker.peers.handshake import Role
from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.v1.transactions_pb2 import InitProducerIdRequest
from semel.sdk.transport.unreachable import unreachable
from simulation.loop import Process, Scheduler, current_process

if TYPE_CHECKING:
    from semel.broker.listeners.in_process import InProcessListener
    from semel.broker.listeners.peers.listener import PeerListener

Metadata = Sequence[tuple[str, str | bytes]]


@dataclass(slots=True)
class Weather:
    """How long messages take, in seconds, and how often one is held up much longer."""

    least_s: float = 0.0002
    most_s: float = 0.003
    slow_share: float = 0.01
    slow_s: float = 0.5


_ROLE_AT = 10
"""Where a node that dials another says what the connection is for: `broker/peers/handshake.py`."""
KEPT_REQUESTS = 8
KEEPALIVE_S = 30.0
"""After how long a client of gRPC learns that a machine is gone without a word."""


class Server:
    """What a node's process serves, for as long as it lives."""

    def __init__(
        self, name: str, process: Process, listener: InProcessListener | None, peers: PeerListener | None = None
    ) -> None:
        """`peers`: what serves the other nodes, which dial by this name, whatever the port."""
        self.name = name
        self.process = process
        self.listener = listener
        self.peers = peers

    async def accept(self, stream: Stream, *, of_peer: bool) -> None:
        """Serve a connection of a client, or of another node."""
        if of_peer:
            assert self.peers is not None
            await self.peers.adopt(stream)  # type: ignore[arg-type]
        else:
            assert self.listener is not None
            await self.listener.connect(stream)  # type: ignore[arg-type]


@dataclass(slots=True)
class LostAnswers:
    """The next answers to a call, which are lost as their connections break: so many, for so long from the first on."""

    left: int
    for_s: float
    _until_s: float | None = None

    def takes(self, now_s: float) -> bool:
        """Say whether this answer is lost."""
        if self._until_s is None:
            self._until_s = now_s + self.for_s
        if not self.left or now_s > self._until_s:
            return False
        self.left -= 1
        return True


class Network:
    """All connections and calls of a world. Places are named by text; a cut is a pair of them."""

    def __init__(self, scheduler: Scheduler, chance: random.Random) -> None:
        self.scheduler = scheduler
        self.chance = chance
        self.weather = Weather()
        self._servers: dict[str, Server] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._held: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self._released: dict[tuple[str, str], tuple[float, float]] = {}
        """When the last cut was healed, and when the last of what it had held arrives."""
        self._streams: dict[Stream, None] = {}
        self._calls: dict[_Call, None] = {}
        self.messages = 0
        self.on_send: dict[tuple[str, str], Callable[[], None]] = {}
        """Called when a message has just left a place for another, by both; the other one is "" for any."""
        self.on_answer: dict[tuple[str, str], Callable[[], None]] = {}
        """Called when an answer to a call has just left, by the place and the call's name."""
        self.on_call: dict[tuple[str, str], Callable[[str], None]] = {}
        """Called with the caller's place when a call has just arrived, by the same."""
        self.lost_answers: dict[str, LostAnswers] = {}
        """What is lost of the answers to calls, by their names."""
        self.asked: defaultdict[str, deque[tuple[float, str]]] = defaultdict(lambda: deque(maxlen=KEPT_REQUESTS))
        """What each place has asked last, and what came of it."""
        self.places_taken: Counter[str] = Counter()
        """How often each place has asked for the transactional id of an earlier instance, as a new instance does."""
        self.late_answers_s = 0.0
        """So much later comes what a node answers to another, where that waits neither for records nor for markers."""
        scheduler.connector = self._connect
        scheduler.acceptor = self._accept

    def note(self, place: str, what: str) -> None:
        """Keep for the story what a place has asked, or was answered."""
        self.asked[place].append((self.scheduler.now, what))

    # --- Faults -------------------------------------------------------------------------------------------------------

    def serve(self, server: Server) -> None:
        self._servers[server.name] = server

    def gone(self, process: Process, *, silently: bool) -> None:
        """A process has died. Its peers hear of it at once, or (power, `silently`) only when they ask again."""
        for name, server in list(self._servers.items()):
            if server.process is process:
                del self._servers[name]
        for stream in list(self._streams):
            if stream.process is process:
                stream.vanish(tell=not silently)
        for call in list(self._calls):
            if call.client is process:
                del self._calls[call]
            elif call.server_process is process:
                self._fail_later(call, KEEPALIVE_S if silently else 0.0)

    def _fail_later(self, call: _Call, delay_s: float) -> None:
        self.scheduler.world.post_at(self.scheduler.now + delay_s, call.fail_soon, "Socket closed")

    def cut(self, source: str, target: str) -> None:
        self._cuts.add((source, target))

    def heal(self, source: str, target: str) -> None:
        """Let messages through again; those that were held arrive now, one after the other."""
        self._cuts.discard((source, target))
        now = at = self.scheduler.now
        for deliver in self._held.pop((source, target), []):
            at = max(at + 1e-9, now + self._delay_s())  # a stream keeps its order
            self.scheduler.world.post_at(at, deliver)
        self._released[source, target] = now, at

    def after_held(self, source: str, target: str, begun_at: float) -> float:
        """Return when what a cut held has arrived, for a stream that was there before it was healed."""
        healed_at, last_at = self._released.get((source, target), (0.0, 0.0))
        return last_at if begun_at <= healed_at else 0.0

    def heal_all(self) -> None:
        for source, target in sorted(self._cuts):
            self.heal(source, target)

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def break_connections(self, one: str, other: str) -> None:
        """End the connections between two places, in the midst of what they carry."""
        for stream in list(self._streams):
            if {stream.here, stream.there} == {one, other}:
                stream.reset()
        for call in list(self._calls):
            if {call.source, call.target} == {one, other}:
                call.fail_soon("Connection reset by peer")

    # --- Delivery -----------------------------------------------------------------------------------------------------

    def _delay_s(self) -> float:
        weather, chance = self.weather, self.chance.random()
        if chance < weather.slow_share:
            return weather.slow_s * self.chance.random()
        return weather.least_s + (weather.most_s - weather.least_s) * chance

    def send(self, source: str, target: str, deliver: Callable[[], None], not_before: float = 0.0) -> float:
        """Call `deliver` when a message from `source` has reached `target`; return when it will at the earliest."""
        self.messages += 1
        at = max(self.scheduler.now + self._delay_s(), not_before)
        self.scheduler.world.post_at(at, self._arrive, source, target, deliver)
        if self.on_send:
            for key in ((source, target), (source, "")):
                if (watcher := self.on_send.get(key)) is not None:
                    watcher()
        return at

    def _arrive(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        if (source, target) in self._cuts:
            self._held.setdefault((source, target), []).append(deliver)
        else:
            deliver()

    # --- Streams ------------------------------------------------------------------------------------------------------

    async def _connect(
        self, factory: Callable[[], Any], host: Any, port: Any, *, sock: Endpoint | None = None, **_: object
    ) -> tuple[Stream, Any]:
        """The client's half of a connection: what `create_connection(sock=link.connect())` does."""
        process = current_process()
        of_peer = sock is None  # nodes dial by the name of the other one's place, from their own place
        sock = sock or Endpoint(process.place, host)
        accepted: asyncio.Future[Stream] = process.create_future()
        mine = Stream(self, process, sock.here, sock.there)

        def knock() -> None:
            server = self._servers.get(sock.there)
            if server is None:
                self.send(sock.there, sock.here, lambda: process.post(refuse))
                return
            theirs = Stream(self, server.process, sock.there, sock.here, is_of_peer=of_peer)
            mine.peer, theirs.peer = theirs, mine
            self._streams[theirs] = None
            task = server.process.start(server.accept(theirs, of_peer=of_peer))
            task.add_done_callback(lambda done: done.cancelled() or done.exception(), context=server.process.context)
            self.send(sock.there, sock.here, lambda: process.post(welcome))

        def refuse() -> None:
            if not accepted.done():
                accepted.set_exception(ConnectionRefusedError(111, "Connection refused"))

        def welcome() -> None:
            if not accepted.done():
                accepted.set_result(mine)
            elif mine.peer is not None:
                mine.reset()

        self.send(sock.here, sock.there, knock)
        await accepted
        protocol = factory()
        self._streams[mine] = None
        mine.begin(protocol)
        return mine, protocol

    async def _accept(self, factory: Callable[[], Any], stream: Stream) -> tuple[Stream, Any]:
        protocol = factory()
        stream.begin(protocol)
        return stream, protocol

    def forget(self, stream: Stream) -> None:
        self._streams.pop(stream, None)

    # --- Calls --------------------------------------------------------------------------------------------------------

    def call(self, source: str, target: str, path: str, request: bytes, metadata: Metadata) -> Future[bytes]:
        client = current_process()
        call = _Call(self, client, source, target, path, request, metadata)
        self._calls[call] = None
        self.note(source, f"asks {target} {call.name}")
        call.future.add_done_callback(lambda done: call.cancelled() if done.cancelled() else None)
        self.send(source, target, call.arrived)
        return call.future

    def server(self, name: str) -> Server | None:
        return self._servers.get(name)

    def over(self, call: _Call) -> None:
        self._calls.pop(call, None)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What `NodeLink.connect` returns in place of a socket: from where to where."""

    here: str
    there: str

    def setblocking(self, flag: bool) -> None: ...

    def close(self) -> None: ...


class Stream(asyncio.Transport):
    """One end of a connection, and the transport of the protocol at this end."""

    def __init__(self, network: Network, process: Process, here: str, there: str, *, is_of_peer: bool = False) -> None:
        """is_of_peer: whether this end serves another node"""
        super().__init__()
        self._is_of_peer = is_of_peer
        self._hello = b""
        """What a node that dialed has said first."""
        self.process = process
        self.here = here
        self.there = there
        self.peer: Stream | None = None
        self._network = network
        self._protocol: Any = None
        self._reads = True
        self._incoming: list[bytes | None] = []
        """What has come: bytes, or None for the end."""
        self._begun_at = network.scheduler.now
        self._last_at = 0.0
        self._closing = False
        self._lost = False

    # What `connect_accepted_socket` is given in place of a socket.
    def setblocking(self, flag: bool) -> None: ...

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def begin(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        self._deliver()

    # --- For the protocol ---------------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reads

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        if not self._reads:
            self._reads = True
            self.process.post(self._deliver)

    def write(self, data: Any) -> None:
        if not self._closing and not self.process.is_dead:
            self._send(bytes(data))

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._send(None)
            self._lose_soon(None)

    def abort(self) -> None:
        self.reset()

    def reset(self) -> None:
        """End the connection on both sides, the other one when it hears of it."""
        if not self._closing:
            self._closing = True
            self._send(None)
        self._lose_soon(ConnectionResetError(104, "Connection reset by peer"))

    def vanish(self, *, tell: bool) -> None:
        """The process at this end is gone."""
        self._network.forget(self)
        if tell and not self._closing:
            self._send(None)
        self._closing = self._lost = True

    # --- On the way ---------------------------------------------------------------------------------------------------

    def _send(self, data: bytes | None) -> None:
        peer, chance = self.peer, self._network.chance
        if peer is None:
            return
        if data and len(data) > 1 and chance.random() < 0.05:
            middle = chance.randrange(1, len(data))
            self._send(data[:middle])
            data = data[middle:]
        # A hair later than the last: what is sent in order arrives in order.
        network = self._network
        self._last_at = max(self._last_at, network.after_held(self.here, self.there, self._begun_at))
        if self._answers_requests and network.late_answers_s:
            self._last_at = max(self._last_at, network.scheduler.now + network.late_answers_s)
        self._last_at = network.send(self.here, self.there, lambda: peer.arrived(data), not_before=self._last_at + 1e-9)

    @property
    def _answers_requests(self) -> bool:
        """Whether the other node asks here what is answered soon, such as what a coordinator knows."""
        return self._is_of_peer and self._hello[_ROLE_AT : _ROLE_AT + 1] == bytes((Role.REQUESTS,))

    def arrived(self, data: bytes | None) -> None:
        if self._is_of_peer and data and len(self._hello) <= _ROLE_AT:
            self._hello += data
        if self._lost:
            self._refuse(data)
        else:
            self._incoming.append(data)
            if self._protocol is not None:
                self.process.post(self._deliver)

    def _refuse(self, data: bytes | None) -> None:
        """A machine that is up again, or another process on it, knows nothing of the connection, and says so."""
        peer = self.peer
        if data is not None and peer is not None and self._network.server(self.here) is not None:
            self._network.send(self.here, self.there, lambda: peer.arrived(None))

    def _deliver(self) -> None:
        while self._incoming and self._reads and not self._lost:
            data = self._incoming.pop(0)
            if data is None:
                self._closing = True
                self._lose(ConnectionResetError(104, "Connection reset by peer"))
                return
            view = memoryview(data)
            while view and not self._lost:
                room = self._protocol.get_buffer(len(view))
                size = min(len(room), len(view))
                room[:size] = view[:size]
                view = view[size:]
                self._protocol.buffer_updated(size)

    def _lose_soon(self, error: Exception | None) -> None:
        self.process.post(self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._network.forget(self)
            if self._protocol is not None:
                self._protocol.connection_lost(error)


class _Call:
    """One call of the control plane on its way there and back."""

    def __init__(
        self, network: Network, client: Process, source: str, target: str, path: str, request: bytes, metadata: Metadata
    ) -> None:
        self.network = network
        self.client = client
        self.source = source
        self.target = target
        self.path = path
        self.name = path.rpartition("/")[2]
        self.request = request
        self.metadata = metadata
        self.future: Future[bytes] = Future()
        if self.name == "InitProducerId" and not InitProducerIdRequest.FromString(request).HasField("producer"):
            network.places_taken[source] += 1
        self.server_process: Process | None = None
        self._task: asyncio.Task[None] | None = None

    def arrived(self) -> None:
        server = self.network.server(self.target)
        if server is None:
            self._back(unreachable(self.target, "Connection refused"))
            return
        self.server_process = server.process
        if (watcher := self.network.on_call.get((self.target, self.name))) is not None:
            watcher(self.source)
        self._task = server.process.start(self._answer(server))

    async def _answer(self, server: Server) -> None:
        try:
            assert server.listener is not None
            outcome: bytes | Exception = await server.listener.call(self.path, self.request, self.metadata)
        except asyncio.CancelledError:
            outcome = RetriableError("the node stopped before it answered", ErrorCode.NETWORK_EXCEPTION)
        except Exception as error:
            outcome = error
        self._back(outcome)

    def _back(self, outcome: bytes | Exception) -> None:
        if self.server_process is not None and self.server_process.is_dead:
            return
        lost = self.network.lost_answers.get(self.name)
        if lost is not None and isinstance(outcome, bytes) and lost.takes(self.network.scheduler.now):
            self.fail_soon("Connection reset by peer")
            return
        self.network.send(self.target, self.source, lambda: self._settle_in_client(outcome))
        if isinstance(outcome, bytes) and (watcher := self.network.on_answer.get((self.target, self.name))) is not None:
            watcher()

    def fail_soon(self, reason: str) -> None:
        """The connection has ended: whether the call had an effect is not known to the client."""
        error = RetriableError(f"the node ended before it answered: {reason}", ErrorCode.NETWORK_EXCEPTION)
        self.network.send(self.target, self.source, lambda: self._settle_in_client(error))

    def _settle_in_client(self, outcome: bytes | Exception) -> None:
        self.network.over(self)
        self.client.post(self._settle, outcome)

    def _settle(self, outcome: bytes | Exception) -> None:
        says = "is answered" if isinstance(outcome, bytes) else f"gets no answer: {outcome}:"
        self.network.note(self.source, f"{says} {self.name}")
        with suppress(InvalidStateError):
            if isinstance(outcome, bytes):
                self.future.set_result(outcome)
            else:
                self.future.set_exception(outcome)

    def cancelled(self) -> None:
        """The client waits no more. The node hears of it later, if at all."""

        def cancel() -> None:
            if self._task is not None and self.server_process is not None:
                self.server_process.post(self._task.cancel)

        self.network.over(self)
        if self.network.chance.random() < 0.5:
            self.network.send(self.source, self.target, cancel)


class Link:
    """A `NodeLink`: how the clients in one place reach a node."""

    def __init__(self, network: Network, here: str, node: str) -> None:
        self.name = f"embedded:{here}/{node}"
        self._network = network
        self._here = here
        self._node = node

    def call(self, path: str, request: bytes, metadata: Metadata) -> Future[bytes]:
        return self._network.call(self._here, self._node, path, request, metadata)

    def connect(self) -> Any:
        return Endpoint(self._here, self._node)

    def to(self, address: str) -> Link:
        """A node whose advertised addresses have its name as their host is found by them; port 0 is that of no name."""
        host, _, port = address.rpartition(":")
        return self if port == "0" else Link(self._network, self._here, host)
