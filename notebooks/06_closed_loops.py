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
# # Closed loops: cut, close, differentiate
#
# A robot arm is a tree: every body has one joint towards the ground. A four-bar linkage is not. Its coupler hangs on
# the crank *and* on the rocker, and no numbering of the joints makes a tree of it.
#
# The way out is old: cut one joint of the loop. What is left is a tree, for which the recursions work. The cut joint
# comes back as what it is: the directions in which it does not let two frames move apart. This lecture builds a
# four-bar, looks at its rows, lets it swing, and asks how its motion changes with the length of a bar.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import jaxmbd as mb

jax.config.update("jax_enable_x64", True)
hinge = mb.revolute((0, -1, 0))  # positive angles turn x towards z
b = mb.Builder()
for name, length in (("crank", 0.4), ("coupler", 1.0), ("rocker", 0.8)):
    b.body(name, mass=length, com=(length / 2, 0, 0), inertia=0.1 * length * jnp.eye(3))
b.joint("A", hinge, "world", "crank")
b.joint("B", hinge, "crank", "coupler", in_parent=mb.Pose((0.4, 0, 0)))
b.joint("C", hinge, "coupler", "rocker", in_parent=mb.Pose((1.0, 0, 0)), in_child=mb.Pose((0.8, 0, 0)))
b.joint("D", hinge, "world", "rocker", in_parent=mb.Pose((1.1, 0, 0)))
system = b.build()
print(*system.report, system.joint_names)
assert system.nv == 3 and system.constraint_names == ("D",)

# %% [markdown]
# The rocker is the child of two joints; the program cut one of them, D, and says so. Three coordinates are left.
#
# ## One freedom, five rows, two that count
#
# A hinge locks five directions. In a planar loop three of them are locked already, by the other hinges: the rows are
# redundant, and a matrix with all of them in it is singular. That is no reason to complain. The rank is found where it
# is needed, and `mobility` tells it.

# %%
start = mb.assemble(system, jnp.array([0.6, -0.6, 1.5]), jnp.array([2.0, 0.0, 0.0]), fixed=("A",))
print(mb.mobility(system, start.q))
print("q", start.q, "residual", start.residual, "branch", start.branch)
mobility = mb.mobility(system, start.q)
assert (mobility.velocity, mobility.rows, mobility.redundant) == (1, 5, 3)
assert start.residual[0] < 1e-12

# %% [markdown]
# `assemble` closed the loop from a rough guess, holding the crank. The same crank angle has a second solution, with the
# elbow turned over. The sign of a determinant tells the two apart; it changes only where the mechanism is singular.

# %%
other = mb.assemble(system, start.q, fixed=("A",), branch=-start.branch)


def outline(q):
    k = mb.kinematics(system, q)
    corners = [k["crank"].position, k["coupler"].position, k["D:child"].position]
    elbow = k["rocker"].position + k["rocker"].rotation @ jnp.array([0.8, 0.0, 0.0])
    return jnp.stack([corners[0], corners[1], elbow, jnp.array([1.1, 0.0, 0.0])])[:, ::2]


fig, ax = plt.subplots(figsize=(5, 3), layout="constrained")
for q, colour, label in ((start.q, "#3b76af", "branch found"), (other.q, "#d9542b", "the other one")):
    ax.plot(*outline(q).T, "o-", color=colour, label=label)
ax.set(xlabel="x [m]", ylabel="z [m]", aspect="equal", title="One crank angle, two assemblies")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Swinging
#
# Accelerations satisfy the constraint, but a method of integration does not know of it: positions drift apart, slowly
# at first. After each step they are projected back, along the shortest way as the mass matrix measures it.


# %%
def swing(drift):
    rk4 = mb.RungeKuttaMuntheKaas4()
    return mb.simulate(system, start.q, start.v, duration=4.0, dt=5e-3, stepper=rk4, drift=drift)


def gap(traj):
    k = jax.vmap(mb.kinematics, (None, 0))(system, traj.q)
    return jnp.linalg.norm(k["D:parent"].position - k["D:child"].position, axis=-1)


projected, drifting = swing(mb.Projection()), swing(None)
energy = jax.vmap(lambda q, v: sum(mb.energy(system, q, v)))(projected.q, projected.v)
print(f"gap at D: {gap(projected).max():.0e} m projected, {gap(drifting).max():.0e} m without")
print(f"energy varies by {jnp.ptp(energy):.0e} J")
assert gap(projected).max() < 1e-12 < gap(drifting).max()
assert jnp.ptp(energy) < 1e-5

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
left.plot(projected.t, projected.q, label=system.joint_names)
left.set(xlabel="time [s]", ylabel="angle [rad]", title="Three coordinates, one freedom")
left.legend(frameon=False)
right.semilogy(projected.t, gap(drifting) + 1e-17, color="#d9542b", label="no projection")
right.semilogy(projected.t, gap(projected) + 1e-17, color="#3b76af", label="projection")
right.set(xlabel="time [s]", ylabel="gap [m]", title="The loop stays closed")
right.legend(frameon=False)
plt.show()

# %% [markdown]
# ## What the hinge carries
#
# The closure's wrench comes with the accelerations. Not all of it is determined: a force across the plane could be
# anything, as long as the other hinges answer it. `unique` says which components are determined, [moment; force].

# %%
wrench = mb.closure_wrenches(system, start.q, start.v, jnp.zeros(3))["D"]
print("force on the rocker at D", wrench.force, "N; determined:", wrench.unique)
assert wrench.unique.tolist() == [False, True, False, True, False, True]

# %% [markdown]
# ## A longer rocker
#
# How does the crank's acceleration change with the rocker's length? Change the length, close the loop again, compute:
# all of it is one function, and it has a derivative. The closure's derivative comes from the implicit function theorem,
# the dynamics' from the saddle system. A difference quotient agrees.


# %%
def acceleration(length):
    changed = system.replace({"C.in_child.position": jnp.stack([length, 0.0, 0.0])})
    at = mb.assemble(changed, start.q, start.v, fixed=("A",))
    return mb.forward_dynamics(changed, at.q, at.v, jnp.zeros(3))[0]


derivative, h = jax.grad(acceleration)(0.8), 1e-5
quotient = (acceleration(0.8 + h) - acceleration(0.8 - h)) / (2 * h)
print(f"{derivative:.8f} by derivative, {quotient:.8f} by difference [rad/s^2 per m]")
assert abs(derivative - quotient) < 1e-6 * abs(derivative)

# %% [markdown]
# ## To go on
#
# - `experiments/four_bar_synthesis.py` walks down this gradient from hundreds of linkages at once, until one of them
#   draws a given curve.
# - Let `mb.linkages.n_four_bar(2)` fall: every bar lies flat twice a turn, and in that instant the mechanism has three
#   freedoms. Which of them does it take?
# - `docs/loops.md` says how the rank is found and what else can be a constraint.
