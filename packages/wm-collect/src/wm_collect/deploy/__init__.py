"""Trained policies as small folders that act from NumPy observations, without the training code.

`export_policy` writes the folder, `load_policy` reads it. Loading imports JAX and NumPy alone: no
environment, replay or optimiser.
"""

from wm_collect.deploy.deployable import Deployable, DeployableAgent
from wm_collect.deploy.export import export_policy
from wm_collect.deploy.policy import DeployedPolicy, load_policy

__all__ = [
    "Deployable",
    "DeployableAgent",
    "DeployedPolicy",
    "export_policy",
    "load_policy",
]
