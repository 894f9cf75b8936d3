"""LayerNorm with its rows spread over devices: each computes its own dx, and the gradients of the
parameters are added up over all of them.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/jax_shard_map.py
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

import normgrad.jax

mesh = Mesh(np.array(jax.devices()), ("rows",))


def gradients(x, gamma, beta, dy):
    """Of this device's rows, and of all rows for gamma and beta."""
    _, backward = jax.vjp(normgrad.jax.layer_norm, x, gamma, beta)
    dx, dgamma, dbeta = backward(dy)
    return dx, jax.lax.psum(dgamma, "rows"), jax.lax.psum(dbeta, "rows")


# check_vma=False: JAX cannot see into a foreign call, so the sums over devices are written out.
sharded = jax.jit(
    jax.shard_map(
        gradients,
        mesh=mesh,
        in_specs=(P("rows"), P(), P(), P("rows")),
        out_specs=(P("rows"), P(), P()),
        check_vma=False,
    )
)

keys = jax.random.split(jax.random.key(0), 4)
x, dy = (jax.random.normal(key, (8 * len(jax.devices()), 256)) for key in keys[:2])
gamma, beta = (jax.random.normal(key, (256,)) for key in keys[2:])

got = sharded(x, gamma, beta, dy)
_, backward = jax.vjp(normgrad.jax.layer_norm, x, gamma, beta)
for name, a, b in zip(("dx", "dgamma", "dbeta"), got, backward(dy)):
    difference = jnp.abs(a - b).max()
    print(f"{name}: {len(jax.devices())} devices and one differ by at most {difference:.1e}")
    assert difference < 1e-4
