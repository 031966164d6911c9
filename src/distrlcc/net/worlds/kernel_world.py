"""N emulated links whose agents are connections of the kernel's own TCP, stepped in real time.

A connection that finds the process silent for 0.5 s follows CUBIC until the next action.
"""

import select
from contextlib import ExitStack
from time import monotonic_ns

from distrlcc.errors import KernelError
from distrlcc.net.emulator.namespace import REMEDY, is_privileged
from distrlcc.net.kernel.flow import TcpFlow, Wire
from distrlcc.net.kernel.tcp import register, require_kernel
from distrlcc.net.worlds.emulated_world import EmulatedWorld, Place, main
from distrlcc.policy.kernel_layout import MAX_PLACES
from distrlcc.policy.quantise import follower
from distrlcc.sim.scenario import Scenario
from distrlcc.types import FloatArray


def require_world(links: int) -> None:
    """Raise KernelError if so many links of the kernel's TCP cannot be in one process."""
    require_kernel()
    if not is_privileged():
        raise KernelError(f"world kernel: no right to make a network; {REMEDY}")
    if links > MAX_PLACES:
        raise KernelError(
            f"world kernel: {links} links, but a process has {MAX_PLACES} at most; take fewer "
            "(num_envs)"
        )


class KernelWorld(EmulatedWorld):
    """N links, each with its scenario's flows; the first flow of each is the kernel's TCP."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self._stack = ExitStack()
        self._agents: dict[int, TcpFlow] = {}
        self._fallbacks = 0

    def close(self) -> None:
        """Close every socket, and take the program out of the kernel."""
        super().close()
        self._stack.close()

    def load(self, n: int, scenario: Scenario) -> None:
        """See `EmulatedWorld.load`; raises KernelError where the kernel refuses the program."""
        if not self._agents:
            self._control = register(follower(), "a trainer")
            self._stack.callback(self._control.close)
            self._orders = self._control.places()
            self._wire = Wire(self._stack)
            self.watch(self._wire.fileno(), self._wire.carry)
        super().load(n, scenario)
        self._poll.modify(self._agents[n].socket.fileno(), select.EPOLLOUT | select.EPOLLET)

    def _open(self, n: int, scenario: Scenario) -> Place:
        orders, name = self._orders[n : n + 1], self._control.name
        agent = self._agents[n] = TcpFlow(scenario.flows[0], orders, n + 1, name, self._wire)
        place = Place(scenario, self._timers, agent)
        agent.on_packets = place.relay.arrive
        return place

    def act(self, cwnd: FloatArray, pacing: FloatArray, *, step: int) -> None:
        """See `EmulatedWorld.act`."""
        self._live()
        # Where this process stood still the kernel gave connections to CUBIC: all choose again.
        fallbacks = int(self._control.counted["fallbacks"])
        if fallbacks != self._fallbacks:
            self._fallbacks = fallbacks
            for agent in self._agents.values():
                agent.follows = False
        super().act(cwnd, pacing, step=step)

    def turn(self) -> bool:
        """See `EmulatedWorld.turn`."""
        self._live()
        return super().turn()

    def _live(self) -> None:
        """Let connections see that their orders are somebody's."""
        if self._agents:
            self._control.control["beat"] = monotonic_ns()


if __name__ == "__main__":
    main(KernelWorld)
