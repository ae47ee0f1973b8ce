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
# # What an arm carries: fitting a mass through a simulation
#
# A robot arm falls from a pose that we know. We see its joint angles, slightly blurred, and nothing else. How heavy is
# the thing in its hand?
#
# A simulation answers the opposite question: *given* the mass, what are the angles? This lecture turns it around. The
# idea is one line long: a simulation is a function, functions have derivatives, so walk downhill until the simulated
# angles lie on the measured ones. What makes it work is that the derivative is exact, and costs a few simulations
# however many numbers are unknown.

# %%
import os
from importlib.resources import files

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax

import jaxmbd as mb

SMALL = bool(os.environ.get("JAXMBD_SMALL"))  # fewer iterations, for the tests
robot = mb.load(files("jaxmbd") / "robots" / "panda.urdf")
print(f"{robot.nb} moving bodies, {robot.nv} freedoms, {robot.mass:.2f} kg;", *robot.joint_names)
assert robot.nv == 8  # seven hinges, and one number for both fingers: the second one mimics the first

# %% [markdown]
# ## A number, by its path
#
# Every physical number of a system has a path, and `replace` makes a system with other numbers; the compiled program
# stays the same. The hand is welded to the last link. To the dynamics the two are one body, but they are merged inside
# the traced computation, so the hand's mass is still a number of its own, with a gradient of its own.

# %%
PATHS = ("panda_hand.mass", "panda_joint4.damping")
DURATION, DT = 0.5, 0.01
start_pose = jnp.array([0.0, -0.5, 0.0, -1.8, 0.0, 1.5, 0.0, 0.02])


def fall(numbers, dt=DT):
    """Joint angles [nt, nq] of the arm that falls with these two numbers in place of the file's."""
    system = robot.replace(dict(zip(PATHS, numbers, strict=True)))
    return mb.simulate(system, start_pose, duration=DURATION, dt=dt, stepper=mb.RungeKuttaMuntheKaas4()).q


file_says = jnp.stack([robot.get(path) for path in PATHS])
print(dict(zip(PATHS, file_says.tolist(), strict=True)))
assert fall(file_says).shape == (51, 8)

# %% [markdown]
# ## The measurement
#
# The true arm carries a payload in its hand, and its fourth joint is stiffer to turn than the file says. We simulate it
# with a quarter of the step, so that the fit below cannot live off its own integration errors, and add an encoder's
# noise.

# %%
TRUTH = jnp.array([1.6, 0.4])  # kg, N m s/rad
NOISE = 2e-3  # rad
exact = fall(TRUTH, DT / 4)[::4]
measured = exact + NOISE * jax.random.normal(jax.random.key(1), exact.shape)
step_error = jnp.abs(fall(TRUTH) - exact).max()
print(f"payload and damping move the angles by up to {jnp.abs(fall(file_says) - exact).max():.2f} rad;")
print(f"noise {NOISE} rad, integration error {step_error:.1e} rad")
assert step_error < NOISE / 2

# %% [markdown]
# ## Misfit and gradient
#
# The misfit is the mean squared error in units of the noise. It is large as long as the numbers are wrong, and cannot
# fall (much) below one: what is left then is noise. `jax.value_and_grad` of it runs the simulation forwards, then
# backwards, with the derivative of every step's accelerations by the implicit function theorem: $M\,\dot v + h = \tau$
# gives $M\,\delta\dot v = \delta\tau - \delta h - \delta M\,\dot v$, which is one inverse dynamics and one solve.
#
# A gradient is easily believed and easily wrong. So we compare it with a difference quotient before using it.


# %%
@jax.jit
def misfit(numbers):
    return jnp.mean(((fall(numbers) - measured) / NOISE) ** 2)


slope = jax.jit(jax.value_and_grad(misfit))
value, gradient = slope(file_says)
h = 2e-2
quotient = (misfit(file_says + jnp.array([h, 0.0])) - misfit(file_says - jnp.array([h, 0.0]))) / (2 * h)
print(
    f"misfit {value:.0f}; its slope in the mass: {gradient[0]:.1f} by derivative, {quotient:.1f} by difference [1/kg]"
)
assert abs(gradient[0] / quotient - 1) < 0.02  # float32, and the quotient is itself off by order h squared

# %% [markdown]
# ## Downhill
#
# Adam takes steps of a size that we choose, in the direction that the gradient says. The two numbers are of order one
# in their units, so one step size does for both; it shrinks towards the end. `optax` keeps Adam's memory.

# %%
iterations = 120 if SMALL else 200
optimizer = optax.adam(optax.cosine_decay_schedule(0.05, iterations), b2=0.95)  # b2: forget the steep start soon
numbers, memory = file_says, optimizer.init(file_says)
history = []
for _ in range(iterations):
    value, gradient = slope(numbers)
    history.append((float(value), *numbers.tolist()))
    update, memory = optimizer.update(gradient, memory)
    numbers = optax.apply_updates(numbers, update)
print(f"misfit {history[0][0]:.0f} -> {misfit(numbers):.2f}")
print(f"mass {numbers[0]:.4f} kg, damping {numbers[1]:.4f} N m s/rad")
assert misfit(numbers) < 1.3
assert jnp.all(jnp.abs(numbers / TRUTH - 1) < 0.02)  # both within 2 %

# %%
fig, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
values, masses, dampings = zip(*history, strict=True)
left.semilogy(values, color="#33373d")
left.axhline(1.0, color="#33373d", ls=":", lw=1)
left.set(xlabel="iteration", title="Misfit: down to the noise")
middle.plot(jnp.array(masses) / TRUTH[0], color="#3b76af", label="mass")
middle.plot(jnp.array(dampings) / TRUTH[1], color="#d9542b", label="damping")
middle.axhline(1.0, color="#33373d", ls=":", lw=1)
middle.set(xlabel="iteration", title="Estimate / true number")
middle.legend(frameon=False)
t = jnp.linspace(0.0, DURATION, len(measured))
for joint, colour in (("panda_joint4", "#3b76af"), ("panda_joint6", "#d9542b")):
    at = robot.q_slice(joint)
    right.plot(t, measured[:, at], "o", ms=3, mfc="white", color=colour)
    right.plot(t, fall(file_says)[:, at], "--", lw=1, color=colour)
    right.plot(t, fall(numbers)[:, at], lw=1.5, color=colour, label=joint)
right.set(xlabel="time [s]", ylabel="angle [rad]", title="Measured (o), before (- -) and after (—) the fit")
right.legend(frameon=False)
plt.show()

# %% [markdown]
# ## How far can the result be trusted?
#
# The noise is known, so the answer's uncertainty is known too. With $J$ the derivative of all angles with respect to
# the numbers, in units of the noise, no unbiased estimate has a smaller covariance than $(J^\mathsf{T} J)^{-1}$ (Cramér
# and Rao). $J$ has two columns and hundreds of rows: forward mode is the right one.

# %%
J = jax.jit(jax.jacfwd(lambda x: jnp.ravel(fall(x)) / NOISE))(numbers)
deviation = jnp.sqrt(jnp.diag(jnp.linalg.inv(J.T @ J)))
for path, x, true, sigma in zip(PATHS, numbers, TRUTH, deviation, strict=True):
    print(f"{path}: {x:.4f} ± {sigma:.4f}, true {true:.4f}, {abs(x - true) / sigma:.1f} standard deviations away")
assert jnp.all(jnp.abs(numbers - TRUTH) < 4 * deviation)

# %% [markdown]
# ## What cannot be fitted
#
# A warning to end with. The best of optimisers finds no number that leaves no trace in the measurement. A point mass on
# a massless rod swings at a frequency of length and gravity; its mass cancels from the equation of motion. The gradient
# knows: it is zero, and $J^\mathsf{T} J$ would be singular. With a damper in the hinge the mass matters, and shows.


# %%
def swing(mass, damping):
    pendulum = mb.models.pendulum().replace({"link0.mass": mass, "hinge0.damping": damping})
    return mb.simulate(pendulum, jnp.array([0.5]), duration=2.0, dt=DT).q[-1, 0]


free, damped = (jax.grad(swing)(1.0, damping) for damping in (0.0, 0.5))
print(f"d angle / d mass after 2 s: {free:.0e} rad/kg without damping, {damped:.2f} rad/kg with it")
assert abs(free) < 1e-4 and abs(damped) > 1e-2

# %% [markdown]
# ## To go on
#
# - `experiments/fit_mass.py` does the same with two falls at once and keeps its evidence in `experiments/results`.
# - Every other number can be fitted in the same way: `panda_link5.com`, `panda_joint2.in_parent.position`, `gravity`.
#   Look at $J^\mathsf{T} J$ first: which combinations does the measurement see?
# - For few numbers and a cheap $J$ there is the Gauss-Newton step, $-(J^\mathsf{T} J)^{-1} J^\mathsf{T} r$ with the
#   residuals $r$, in place of Adam's. Write it, it is three lines, and count the iterations.
