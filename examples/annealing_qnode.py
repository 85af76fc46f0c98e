"""The annealing operation in a plain PennyLane QNode: drawn, counted, run and differentiated."""

import pennylane as qml
import torch

from devices import DQA
from hybrid_attention import LinearSchedule, exact_marginals

SCHEDULE = LinearSchedule(steps=4, tau=5.0)
WIRES = range(3)


@qml.qnode(qml.device("default.qubit", wires=3), interface="torch")
def circuit(fields: torch.Tensor, couplings: torch.Tensor) -> list:
    """Return <Z> of each wire for fields (3,) and couplings (3,) of the pairs (0, 1), (0, 2), (1, 2), in nats."""
    DQA(fields / SCHEDULE.beta_h, couplings / SCHEDULE.beta_J, SCHEDULE.angles(), wires=WIRES)
    return [qml.expval(qml.Z(wire)) for wire in WIRES]


def main() -> None:
    """Print the circuit, its resources, and its marginals beside the exact ones."""
    fields = torch.tensor([0.6, -0.2, 0.3], dtype=torch.float64, requires_grad=True)
    couplings = torch.tensor([0.4, 0.0, -0.3], dtype=torch.float64)
    print(qml.draw(circuit, level="top")(fields, couplings))
    tape = qml.workflow.construct_tape(circuit, level="device")(fields, couplings)
    print("gates:", dict(tape.specs["resources"].gate_types), "depth:", tape.specs["resources"].depth)
    p = (1 + torch.stack(circuit(fields, couplings))) / 2
    matrix = torch.zeros(3, 3, dtype=torch.float64)
    matrix[torch.triu_indices(3, 3, 1).unbind()] = couplings
    print("annealed:", [round(x, 3) for x in p.tolist()])
    print("exact:   ", [round(x, 3) for x in exact_marginals(fields, matrix).tolist()])
    p.sum().backward()
    print("gradient:", [round(x, 3) for x in fields.grad.tolist()])


if __name__ == "__main__":
    main()
