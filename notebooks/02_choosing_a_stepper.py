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
# # Choosing a stepper
#
# A simulation replaces motion by steps. Which steps, is a choice with four answers, one for each thing that can go
# wrong: the path is inexact, the energy runs away, a stiff spring explodes, an impact falls between two steps. This
# lecture lets each of them go wrong once, and then does it right.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxmbd as mb

jax.config.update("jax_enable_x64", True)  # errors below 1e-7 are to be seen
pendulum = mb.models.double_pendulum()
start = jnp.array([0.9, 0.4]), jnp.zeros(2)


def swing(stepper, dt, duration=2.0, system=pendulum, **options):
    return mb.simulate(system, *start, duration=duration, dt=dt, stepper=stepper, **options)


euler, rk4, variational = mb.SemiImplicitEuler(), mb.RungeKuttaMuntheKaas4(), mb.VariationalMidpoint()

# %% [markdown]
# ## Order: what half a step buys
#
# The error of a method of order $p$ goes with $h^p$. Halving the step of semi-implicit Euler halves its error, the
# variational midpoint rule's falls to a quarter, Runge-Kutta's to a sixteenth. For a short and smooth motion that must
# be exact, the fourth order wins easily.


# %%
def end(stepper, dt):
    state = swing(stepper, dt).end
    return jnp.concatenate([state.q, state.v])


exact = end(rk4, 2.0 / 4096)
errors = {}
for name, stepper in (("Euler", euler), ("variational", variational), ("Runge-Kutta", rk4)):
    errors[name] = [float(jnp.linalg.norm(end(stepper, dt) - exact)) for dt in (0.01, 0.005)]
    print(f"{name}: {errors[name][1]:.1e} at 5 ms, order {np.log2(errors[name][0] / errors[name][1]):.2f}")
orders = [np.log2(coarse / fine) for coarse, fine in errors.values()]
assert np.allclose(orders, [1, 2, 4], atol=0.3)

# %% [markdown]
# ## Long runs: energy
#
# Nothing in the pendulum takes energy away. Runge-Kutta's error of the energy is tiny at first, but it has a direction
# and adds up. The variational rule solves the discrete Euler-Lagrange equations. That makes it *symplectic*: its energy
# errs by more, and swings about the right value for ever; and it keeps the momentum of free flight to rounding.
# Semi-implicit Euler, one evaluation a step, is symplectic only where the mass matrix is constant. Here it is not, and
# in steps as long as these its energy wanders widely. `record` keeps the energy alone, in place of all states.

# %%
DT, DURATION = 0.02, 200.0
drift = {}
for name, stepper in (("Euler", euler), ("variational", variational), ("Runge-Kutta", rk4)):
    energy = swing(stepper, DT, DURATION, record=("energy",), every=10)["energy"]
    drift[name] = np.asarray(energy - energy[0])
    print(f"{name}: largest error {np.abs(drift[name]).max():.2e} J, at the end {drift[name][-200:].mean():+.2e} J")
assert abs(drift["variational"][-200:].mean() - drift["variational"][:200].mean()) < 0.1 * np.ptp(drift["variational"])
assert abs(drift["Runge-Kutta"][-200:].mean()) > 10 * abs(drift["Runge-Kutta"][:20].mean())

# %%
fig, axis = plt.subplots(figsize=(9, 3.2), layout="constrained")
for (name, error), colour in zip(drift.items(), ("#7f8c4d", "#3b76af", "#d9542b"), strict=True):
    axis.plot(np.linspace(0, DURATION, len(error)), error, color=colour, lw=0.7, label=name)
axis.set(xlabel="time [s]", ylabel="energy error [J]", title=f"Steps of {1000 * DT:g} ms", yscale="symlog")
axis.set_yscale("symlog", linthresh=1e-4)
axis.legend(frameon=False, loc="upper left")
plt.show()

# %% [markdown]
# ## Stiffness
#
# Lock the second joint by a spring of $10^7$ N m/rad. Its own oscillation takes a millisecond, and an explicit method
# that steps over it explodes. Semi-implicit Euler takes joint springs, dampers and friction at the end of the step and
# is stable by construction. For forces of your own that are stiff, in `control`, there are the implicit methods:
# `SDIRK3` damps what is too fast for the step and keeps the rest to third order.

# %%
stiff = pendulum.replace({"hinge1.stiffness": 1e7})
ends = {}
for name, stepper in (("Runge-Kutta", rk4), ("Euler", euler), ("SDIRK3", mb.SDIRK3())):
    run = mb.simulate(stiff, jnp.array([0.9, 0.0]), duration=2.0, dt=0.01, stepper=stepper)
    ends[name] = run.end.q
    print(f"{name}: angles at the end {ends[name]}")
assert not jnp.all(jnp.isfinite(ends["Runge-Kutta"]))
assert jnp.abs(ends["SDIRK3"][1]) < 1e-4 and jnp.abs(ends["Euler"][1]) < 1e-4

# %% [markdown]
# ## Impacts
#
# A ball falls on a floor. The impact lies somewhere inside a step; `simulate_events` finds it, changes the velocity and
# goes on. The time of the impact is a function of the start like everything else, and has a derivative: the fall from
# height $s$ takes $\sqrt{2 s/g}$, hence $1/\sqrt{2 g s}$.

# %%
b = mb.Builder()
b.body("ball", mass=1.0)
b.joint("height", mb.prismatic((0, 0, 1)), child="ball")
ball = b.build()
impact = mb.Event(lambda t, q, v: q[0], lambda t, q, v: (q, -0.8 * v), direction=-1)


@jax.jit
def first_impact(height):
    run = mb.simulate_events(ball, height[None], events=[impact], duration=1.5, dt=0.05, stepper=rk4)
    return run.times(0, 1)[0]


time, slope = jax.value_and_grad(first_impact)(jnp.array(1.0))
print(f"impact at {time:.9f} s, slope {slope:.9f} s/m; exact {np.sqrt(2 / 9.81):.9f}, {1 / np.sqrt(2 * 9.81):.9f}")
assert abs(time - np.sqrt(2 / 9.81)) < 1e-8 and abs(slope - 1 / np.sqrt(2 * 9.81)) < 1e-7

# %% [markdown]
# ## Chaos, or a fault?
#
# Gradients through long runs can be enormous. Is something wrong? `gradient_growth` compares how the derivative of the
# steps grows with how the equations of motion themselves pull neighbouring motions apart. If both grow alike, the
# gradient is right, and useless: the end does not tell about the start any more.

# %%
calm, wild = (
    mb.gradient_growth(pendulum, jnp.array(q), duration=5.0, dt=0.01, stepper=rk4) for q in ((0.2, 0.1), (2.8, 2.0))
)
for name, growth in (("small swing", calm), ("large swing", wild)):
    print(f"{name}: gradients grow by {growth.steps[-1]:.3g}, the tangent system by {growth.tangent[-1]:.3g}")
assert calm.steps[-1] < 10 and wild.steps[-1] > 100
assert abs(jnp.log(wild.steps[-1] / wild.tangent[-1])) < 0.7

# %% [markdown]
# ## Which for what
#
# | you want | take |
# |---|---|
# | robots, contact-like stops, reinforcement learning, thousands of copies | `SemiImplicitEuler`, the default |
# | an exact, smooth motion of seconds; fits; references | `RungeKuttaMuntheKaas4` |
# | the same with error control or dense output | `simulate_adaptive` (diffrax) |
# | long conservative motion: satellites, tops, energy studies | `VariationalMidpoint` |
# | stiff forces of your own | `SDIRK3`; `ImplicitMidpoint` where fast oscillations are to be kept |
# | impacts, latches, stops | `simulate_events` |
#
# `docs/simulation.md` has the measured table.
