# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Rolling: constraints that no position knows
#
# A skate may stand anywhere and point anywhere. What it may not do is move sideways. A constraint on velocities that
# no constraint on positions stands behind is called non-holonomic. Freedoms of position and of motion are then two
# numbers.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import jaxmbd as mb

jax.config.update("jax_enable_x64", True)
SLOPE, G = 0.35, 9.81
b = mb.Builder(gravity=(G * jnp.sin(SLOPE), 0.0, -G * jnp.cos(SLOPE)))  # x points down the slope
b.body("skate", mass=2.0, inertia=0.1 * jnp.eye(3))
b.joint("plane", mb.planar(), child="skate")
b.constraint("blade", mb.knife_edge(), frames=("world", "skate"))
skate = b.build()
count = mb.mobility(skate, jnp.zeros(3))
print(f"freedoms of position {count.position}, of motion {count.velocity}")
assert (count.position, count.velocity) == (3, 2)

# %% [markdown]
# ## A skate on a slope does not slide down
#
# Let it go, spinning. Gravity pulls it down the slope, yet it ends nowhere far below: it drifts *across* the slope, on
# a cycloid. With the spin $\omega$, $x = \frac{g\sin\beta}{2\omega^2}\sin^2\omega t$ and
# $y = \frac{g\sin\beta}{2\omega^2}(\omega t - \tfrac12\sin 2\omega t)$.

# %%
spin, rk4 = 1.7, mb.RungeKuttaMuntheKaas4()
traj = mb.simulate(skate, jnp.zeros(3), jnp.array([0.0, 0.0, spin]), duration=6.0, dt=5e-3, stepper=rk4)
a = G * jnp.sin(SLOPE) / (2 * spin**2)
exact = jnp.stack([a * jnp.sin(spin * traj.t) ** 2, a * (spin * traj.t - jnp.sin(2 * spin * traj.t) / 2)], 1)
error = jnp.abs(traj.q[:, :2] - exact).max()
print(f"largest distance from the cycloid {error:.0e} m")
assert error < 1e-7

# %% [markdown]
# ## A coin
#
# A disc on the plane z = 0. One row holds it on the plane, two more keep the contact point at rest: five freedoms of
# position, three of motion. It wobbles, and keeps its energy: the contact does no work.

# %%
b = mb.Builder()
m, r = 0.5, 0.3
b.body("disc", m, inertia=m * r**2 * jnp.diag(jnp.array([0.25, 0.5, 0.25])))
b.joint("at", mb.screw_product([mb.translational(), mb.gimbal("zxy")]), child="disc")  # x y z, yaw lean spin
b.constraint("contact", mb.rolling_disc(r), frames=("world", "disc"))
disc = b.build()
guess = jnp.array([0.0, 0.0, 0.29, 0.2, 0.25, 0.0])
state = mb.assemble(disc, guess, jnp.array([0.0, 0.0, 0.0, 0.9, 0.0, 6.0]), fixed=())
coin = mb.simulate(disc, state.q, state.v, duration=4.0, dt=5e-3, stepper=rk4)
energy = jax.vmap(lambda q, v: sum(mb.energy(disc, q, v)))(coin.q, coin.v)
count = mb.mobility(disc, state.q)
print(f"freedoms {count.position} and {count.velocity}; energy varies by {jnp.ptp(energy):.0e} of {energy[0]:.2f} J")
assert (count.position, count.velocity) == (5, 3) and jnp.ptp(energy) < 1e-6

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
left.plot(traj.q[:, 1], -traj.q[:, 0], color="#3b76af")
left.set(xlabel="across the slope [m]", ylabel="up the slope [m]", title="Skate: a cycloid", aspect="equal")
right.plot(coin.q[:, 0], coin.q[:, 1], color="#d9542b")
right.set(xlabel="x [m]", ylabel="y [m]", title="Coin: path of the centre", aspect="equal")
plt.show()

# %% [markdown]
# ## The force that keeps it rolling
#
# The multipliers are the contact force, $R^\mathsf{T}\lambda$ of the equations of motion. Newton's law for the whole
# disc must agree: force equals mass times the acceleration of the centre, less the weight.

# %%
tau = jnp.zeros(6)
force = mb.closure_wrenches(disc, coin.q[100], coin.v[100], tau)["contact"].force
acceleration = mb.forward_dynamics(disc, coin.q[100], coin.v[100], tau)[:3]
newton = m * (acceleration + jnp.array([0.0, 0.0, 9.81]))
print("contact force", force, "N; mass times acceleration", newton)
assert jnp.abs(force - newton).max() < 1e-10

# %% [markdown]
# ## A sleigh that finds its way
#
# Chaplygin's sleigh has its blade behind the centre of mass. No friction anywhere, energy is kept; and yet it
# straightens out, as if something damped its turning. Non-holonomic systems may do that: volume
# in phase space is not kept.

# %%
sleigh = skate.replace({"gravity": [0.0, 0.0, -G], "skate.com": [0.3, 0.0, 0.0]})
run = mb.simulate(sleigh, jnp.zeros(3), jnp.array([1.0, 0.0, 2.0]), duration=6.0, dt=5e-3, stepper=rk4)
kept = jax.vmap(lambda q, v: sum(mb.energy(sleigh, q, v)))(run.q, run.v)
print(f"turning {run.v[0, 2]:.2f} -> {run.v[-1, 2]:.1e} rad/s, energy varies by {jnp.ptp(kept):.0e} J")
assert abs(run.v[-1, 2]) < 0.05 * run.v[0, 2] and jnp.ptp(kept) < 1e-6

# %% [markdown]
# ## To go on
#
# - `tests/test_rolling.py` builds the bicycle of Meijaard and others (2007), two discs and a fork, and finds its weave
#   and capsize eigenvalues with `mb.linearize` to twelve digits.
# - Write a constraint of your own with `mb.nonholonomic`: a wheel on a turntable, say.
