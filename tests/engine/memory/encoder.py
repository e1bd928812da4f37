"""Buffer lifetimes of BERT-like encoders, for the tests of the memory planner."""

from penstock.engine.memory import BufferId, Lifetime, Tape

_BYTES = 2  # of a float16


def encoder_lifetimes(*, num_layers: int, hidden: int, intermediate: int, gated: bool = False) -> tuple[Lifetime, ...]:
    """The tape of an encoder in float16. Only an activation that is not gated works in place."""
    tape = Tape()

    def operation(name: str, width: int, *inputs: BufferId) -> BufferId:
        output = tape.allocate(_BYTES * width, name)
        for buffer in inputs:
            tape.use(buffer)
        tape.step()
        return output

    x = operation("embeddings", hidden)
    for layer in range(num_layers):
        qkv = operation(f"qkv {layer}", 3 * hidden, x)
        context = operation(f"context {layer}", hidden, qkv)
        projected = operation(f"projected {layer}", hidden, context)
        attended = operation(f"attended {layer}", hidden, projected, x)
        up = operation(f"up {layer}", intermediate * (2 if gated else 1), attended)
        activated = operation(f"activated {layer}", intermediate, up) if gated else up
        down = operation(f"down {layer}", hidden, activated)
        x = operation(f"output {layer}", hidden, down, attended)
    tape.use(x)
    return tape.lifetimes()
