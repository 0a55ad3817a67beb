"""The README of a policy's folder, with a snippet that runs it without this library."""

from collections.abc import Mapping
from typing import Any

_SNIPPET = """\
import json
from pathlib import Path

import jax
import numpy as np
from jax import export

folder = Path(".")  # this folder
contract = json.loads((folder / "contract.json").read_text(encoding="utf-8"))
program = export.deserialize(bytearray((folder / "policy.stablehlo").read_bytes()))
device = jax.devices()[0]  # name it: arrays without a device would be compiled for once more
with np.load(folder / "weights.npz", allow_pickle=False) as file:
    weights = {name: jax.device_put(file[name], device) for name in file.files}

n, seed = 1, 0  # robots (or environments) that act side by side, and what draws
draws = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), 1)


@jax.jit
def decide(weights, carry, obs, is_first, step):
    key_data = jax.random.key_data(jax.random.fold_in(draws, step))
    return program.call(weights, carry, obs, is_first, key_data)


carry = {
    leaf["name"]: jax.device_put(np.zeros((n, *leaf["shape"]), leaf["dtype"]), device)
    for leaf in contract["carry"]
}
for step in range(3):
    obs = np.zeros((n, *contract["observation"]["shape"]), np.float32)  # your sensors
    if not np.isfinite(obs).all():
        raise ValueError("an observation is not finite")
    is_first = np.full(n, step == 0)  # true where an episode begins
    action, carry = decide(weights, carry, obs, is_first, np.uint32(step))
    print(np.asarray(action))  # in the environment's units, inside its bounds
"""


def readme_text(contract: Mapping[str, Any]) -> str:
    """Return the text of the README for a contract."""
    env, action = contract["environment"], contract["action"]
    observation, timing = contract["observation"], contract["timing"]
    if action["kind"] == "discrete":
        acts = f"one of {action['n']} choices, int32 `[n]`"
    else:
        shape = ", ".join(["n", *map(str, action["shape"])])
        acts = f"float32 `[{shape}]`, in the environment's units and inside its bounds"
    return f"""\
# {contract["agent"]} for {env["id"]}

A trained policy. `contract.json` says exactly what goes in and out.

- Observation: float32 `[n, {observation["shape"][0]}]`, {observation["units"]}.
- Action: {acts}.
- Pace: {timing["meaning"]}.
- `weights.npz` holds the weights, `policy.stablehlo` the program of one decision, made by
  `jax.export` for {", ".join(contract["program"]["platforms"])} and for any number `n` of robots.

Run it with JAX {contract["program"]["jax"]} or a later one and NumPy, with the package
`flatbuffers` installed (JAX reads programs with it):

```python
{_SNIPPET}```

Or with wm-collect, which also checks the files and every observation:

```text
from wm_collect.deploy import load_policy

policy = load_policy(".")
policy.reset(n=1, seed=0)
action = policy(obs)
```
"""
